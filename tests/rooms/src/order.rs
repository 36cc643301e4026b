//! The order of crates and rooms, read from the one block in the architecture document.
//!
//! The block is fenced with the info string `rooms`. Each line is `crate: room room …` from the
//! ground up, `crate: -` for a crate without rooms, or `crates: a < b < c ; a < d`. A large room
//! has parts: `part FOLDER: name = file folder …`, a line for each part, from the ground up.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};

use crate::tree::Tree;

/// Where the order stands.
pub(crate) const DOCUMENT: &str = "docs/design/code-map.md";

/// The declared order.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The rooms of each crate from the ground up; none for a crate without rooms.
    pub(crate) crates: BTreeMap<String, Option<Vec<String>>>,
    /// Each pair of a lower crate and one above it.
    below: BTreeSet<(String, String)>,
    /// The parts of folders, those of one folder from the ground up.
    pub(crate) parts: Vec<Part>,
}

/// A part of a folder, which may become a folder of its own.
#[derive(Debug)]
pub(crate) struct Part {
    /// The folder, such as `cloud/src/state`.
    pub(crate) folder: String,
    pub(crate) name: String,
    /// The paths of its files and folders below `folder`, without `.rs`.
    paths: Vec<String>,
}

impl Part {
    /// The length of the longest of its paths that `file` is at or below, or `None`.
    pub(crate) fn depth(&self, file: &str) -> Option<usize> {
        let file = file.strip_prefix(self.folder.as_str())?.strip_prefix('/')?;
        let has = |path: &&String| {
            file.strip_prefix(path.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        self.paths.iter().filter(has).map(String::len).max()
    }
}

impl Order {
    /// Reads the block; nothing if the document has none.
    ///
    /// # Errors
    /// There are two blocks, or a line is not of a known form.
    pub(crate) fn read(tree: &Tree) -> anyhow::Result<Option<Self>> {
        let text = tree.get(DOCUMENT).unwrap_or_default();
        let Some(lines) = block(text)? else {
            return Ok(None);
        };
        let mut order = Self::default();
        for (number, line) in lines {
            order.line(line).with_context(|| format!("{DOCUMENT}:{number}"))?;
        }
        order.close()?;
        Ok(Some(order))
    }

    /// Whether code of one crate may import another crate.
    pub(crate) fn allows(&self, lower: &str, upper: &str) -> bool {
        self.below.contains(&(lower.to_owned(), upper.to_owned()))
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        let (key, value) = line.split_once(':').context("expected `crate: room room …`")?;
        let key = key.trim();
        if key == "crates" {
            return value.split(';').try_for_each(|chain| self.chain(chain));
        }
        if let Some(folder) = key.strip_prefix("part ") {
            return self.part(folder.trim(), value);
        }
        let rooms: Vec<_> = value.split_whitespace().map(str::to_owned).collect();
        ensure!(!rooms.is_empty(), "{key} has no rooms; write `-` for a crate without rooms");
        let distinct: BTreeSet<_> = rooms.iter().collect();
        ensure!(distinct.len() == rooms.len(), "{key} names a room twice");
        let is_room = |room: &String| room.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let rooms = if rooms == ["-"] { None } else { Some(rooms) };
        if let Some(bad) = rooms.iter().flatten().find(|room| !is_room(room)) {
            bail!("{bad} is not the name of a module");
        }
        let before = self.crates.insert(key.to_owned(), rooms);
        ensure!(before.is_none(), "{key} has two lines");
        Ok(())
    }

    fn part(&mut self, folder: &str, value: &str) -> anyhow::Result<()> {
        let (name, paths) =
            value.split_once('=').context("expected `part FOLDER: name = file …`")?;
        let (folder, name) = (folder.to_owned(), name.trim().to_owned());
        let paths: Vec<_> = paths.split_whitespace().map(str::to_owned).collect();
        let known: Vec<_> = self.parts.iter().filter(|part| part.folder == folder).collect();
        for part in known {
            ensure!(part.name != name, "{folder} has two parts {name}");
            let twice = paths.iter().find(|path| part.paths.contains(path));
            ensure!(twice.is_none(), "{twice:?} is in the parts {name} and {}", part.name);
        }
        self.parts.push(Part { folder, name, paths });
        Ok(())
    }

    fn chain(&mut self, chain: &str) -> anyhow::Result<()> {
        let names: Vec<_> = chain.split('<').map(str::trim).collect();
        ensure!(names.len() > 1, "expected `lower < upper`, found `{}`", chain.trim());
        for pair in names.windows(2) {
            self.below.insert((pair[0].to_owned(), pair[1].to_owned()));
        }
        Ok(())
    }

    /// Completes the pairs of crates: what is below a lower crate is below the upper one.
    fn close(&mut self) -> anyhow::Result<()> {
        loop {
            let known = self.below.clone();
            for (low, middle) in &known {
                let above = known.iter().filter(|(lower, _)| lower == middle);
                self.below.extend(above.map(|(_, high)| (low.clone(), high.clone())));
            }
            if known.len() == self.below.len() {
                break;
            }
        }
        for (low, high) in &self.below {
            ensure!(low != high, "{DOCUMENT}: {low} is below itself");
            for name in [low, high] {
                ensure!(self.crates.contains_key(name), "{DOCUMENT}: {name} has no line of rooms");
            }
        }
        Ok(())
    }
}

/// The lines of the block with their numbers.
fn block(text: &str) -> anyhow::Result<Option<Vec<(usize, &str)>>> {
    let mut found = None;
    let mut lines = text.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let inside = lines.by_ref().take_while(|(_, line)| !line.starts_with("```"));
        let inside = inside.map(|(index, line)| (index + 1, line.trim()));
        let inside: Vec<_> = inside.filter(|(_, line)| !line.is_empty()).collect();
        if info.trim() == "rooms" {
            ensure!(found.is_none(), "{DOCUMENT} has two blocks with the info string `rooms`");
            found = Some(inside);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(block: &str) -> anyhow::Result<Option<Order>> {
        let text = format!("# Title\n\n```text\nx: y\n```\n\n```rooms\n{block}\n```\n");
        Order::read(&Tree::of(&[(DOCUMENT, &text)]))
    }

    #[test]
    fn rooms_and_crates_are_read_from_the_ground_up() {
        let order =
            read("low: a b_c\n\nmid: -\ntop: x\ncrates: low < mid ; mid < top").unwrap().unwrap();
        assert_eq!(order.crates["low"], Some(vec!["a".to_owned(), "b_c".to_owned()]));
        assert_eq!(order.crates["mid"], None);
        assert!(order.allows("low", "top"));
        assert!(!order.allows("top", "low"));
    }

    #[test]
    fn a_document_without_the_block_has_no_order() {
        assert!(Order::read(&Tree::of(&[(DOCUMENT, "```text\na: b\n```\n")])).unwrap().is_none());
    }

    #[test]
    fn a_wrong_line_is_refused_with_its_place() {
        for (block, why) in [
            ("low a b", "docs/design/code-map.md:8"),
            ("low:", "no rooms"),
            ("low: a a", "twice"),
            ("low: a\nlow: b", "two lines"),
            ("low: a < b", "not the name"),
            ("low: a\ncrates: low", "lower < upper"),
            ("low: a\ntop: b\ncrates: low < top ; top < low", "below itself"),
            ("low: a\ncrates: low < top", "top has no line"),
            ("part low/src/a: b", "name = file"),
            ("part low/src/a: b = x\npart low/src/a: b = y", "two parts"),
            ("part low/src/a: b = x\npart low/src/a: c = x", "is in the parts"),
        ] {
            let error = format!("{:#}", read(block).unwrap_err());
            assert!(error.contains(why), "{block}: {error}");
        }
        let twice = "```rooms\na: -\n```\n```rooms\na: -\n```\n";
        let error = Order::read(&Tree::of(&[(DOCUMENT, twice)])).unwrap_err();
        assert!(format!("{error:#}").contains("two blocks"), "{error:#}");
    }
}
