//! What the documents show can be followed: links lead somewhere, commands are parsed by the
//! programs' own command lines, and no page is longer than a reader bears.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::deploy::{at, text};

/// The most words of a page, of a procedure, and of the README.
const PAGE: usize = 3_200;
const PROCEDURE: usize = 1_200;
const README: usize = 750;
/// What stands for words of a typed form; all other placeholders count as their lower case.
const PLACEHOLDERS: [(&str, &str); 9] = [
    ("$DRIVER", "driver.example"),
    ("EPOCH", "1"),
    ("HEX", "0000000000000000000000000000000000000000000000000000000000000000"),
    ("MACHINE", "00000000000000000000000000000000"),
    ("NUMBER", "1"),
    ("REPLICA", "csi-cloud-1"),
    ("RUN", "00000000-0000-4000-8000-000000000000"),
    ("START", "00000000-0000-4000-8000-000000000000"),
    ("TOKEN_ID", "0000000000000000"),
];

/// The pages of the repository, by their paths from its root.
fn pages() -> Vec<String> {
    let mut pages: Vec<_> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(str::to_owned).into();
    for directory in ["docs", "deploy", "tests", "edge"] {
        let walk = walk(&at(directory));
        let root = at("");
        let paths = walk.iter().map(|path| path.strip_prefix(&root).unwrap());
        pages.extend(paths.map(|path| path.to_str().unwrap().to_owned()));
    }
    pages
}

/// The pages in a directory, but for those of other projects.
fn walk(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in directory.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() && !path.ends_with("bin") && !path.ends_with("node_modules") {
            found.extend(walk(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// The lines outside of fenced blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The anchors of a page, as GitHub makes them of its headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let shown = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    heading.to_lowercase().chars().filter(shown).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The targets of a page's links, without those to other hosts.
fn links(page: &str) -> Vec<String> {
    let text: Vec<_> = prose(page).collect();
    let text = text.join("\n");
    let targets = text.split("](").skip(1).filter_map(|after| after.split([')', ' ']).next());
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&text(&page)) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let beside = at(&page).parent().unwrap().join(file);
            let target = if file.is_empty() { at(&page) } else { beside };
            let is_there = target.exists();
            let has_heading =
                || anchors(&std::fs::read_to_string(&target).unwrap()).contains(heading);
            if !is_there || (!heading.is_empty() && !has_heading()) {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn no_page_is_longer_than_a_reader_bears() {
    let mut long = Vec::new();
    for page in pages() {
        let text = text(&page);
        let shown = text.lines().filter(|line| !line.trim_start().starts_with("<!--"));
        let words: usize = shown.map(|line| line.split_whitespace().count()).sum();
        let most = match page.as_str() {
            "README.md" => README,
            page if page.starts_with("docs/how-to/") || page.starts_with("docs/start/") => {
                PROCEDURE
            }
            _ => PAGE,
        };
        if words > most {
            long.push(format!("{page} has {words} words, and may have {most}"));
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

/// The lines of the page's `sh` blocks, with continued ones joined and without what here documents
/// hold.
fn shell_lines(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut is_shell, mut joined, mut ends) = (false, String::new(), None::<String>);
    for line in page.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            is_shell = line == "```sh";
        } else if is_shell && ends.as_deref().is_none_or(|end| end == line) {
            if ends.take().is_some() {
                continue;
            }
            ends = line.split_once("<<").map(|(_, end)| end.trim_matches('\'').to_owned());
            let line = line.split_once("<<").map_or(line, |(before, _)| before);
            match line.strip_suffix('\\') {
                Some(part) => joined.push_str(part),
                None => found.push(std::mem::take(&mut joined) + line),
            }
        }
    }
    found
}

/// The simple commands of a line, without redirections.
fn commands(line: &str) -> Vec<Vec<String>> {
    let Some(words) = shlex::split(line) else { return Vec::new() };
    let mut commands = vec![Vec::new()];
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "|" | "||" | "&&" | ";" | "&" => commands.push(Vec::new()),
            "<" | ">" | ">>" | "2>" => drop(words.next()),
            _ => commands.last_mut().unwrap().push(word),
        }
    }
    commands
}

/// The command line of one of our programs in a command: after `sudo`, in a pod after `--`, or
/// after a variable that holds such words.
fn ours(command: &[String]) -> Option<Vec<String>> {
    let inner = command.iter().position(|word| word == "--").map_or(0, |at| at + 1);
    let is_wrapper = |word: &&String| {
        word.contains('=')
            || word.starts_with('$')
            || ["sudo", "-u", "edge-csi"].contains(&&***word)
    };
    let line = command.get(inner..)?.iter().skip_while(is_wrapper);
    let line: Vec<_> = line
        .filter(|word| !word.starts_with('$') || *word == "$DRIVER")
        .map(|word| value(word))
        .collect();
    ["csi-cloud", "csi-edge"].contains(&&**line.first()?).then_some(line)
}

/// A word with values in the places of placeholders, which are its parts in capitals.
fn value(word: &str) -> String {
    let parts = word.split_inclusive([':', '/', '=', '.', ',', '@']).map(|part| {
        let name = part.trim_end_matches([':', '/', '=', '.', ',', '@']);
        let is_placeholder =
            name.len() > 1 && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let known = PLACEHOLDERS.iter().find(|(placeholder, _)| *placeholder == name);
        match known {
            Some((_, value)) => part.replace(name, value),
            None if is_placeholder => part.to_lowercase().replace('_', "-"),
            None => part.to_owned(),
        }
    });
    parts.collect()
}

fn parse(line: &[String]) -> Result<(), clap::Error> {
    match line.first().map(String::as_str) {
        Some("csi-cloud") => cloud::cli::Cli::try_parse_from(line).map(drop),
        _ => edge::commands::Cli::try_parse_from(line).map(drop),
    }
}

#[test]
fn every_command_that_a_page_shows_can_be_parsed() {
    let (mut count, mut faults) = (0, Vec::new());
    for page in pages() {
        for line in shell_lines(&text(&page)) {
            for command in commands(&line).iter().filter_map(|command| ours(command)) {
                count += 1;
                if let Err(error) = parse(&command)
                    && error.use_stderr()
                {
                    faults.push(format!("{page}: {}: {error}", command.join(" ")));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 100, "only {count} commands are shown");
}

#[test]
fn commands_are_found_where_a_shell_would_run_them() {
    let page = "```sh\nkubectl exec a -c csi-cloud -- csi-cloud nodes | sort\n\
                sudo csi-edge status > FILE\ncsi-cloud node forget \\\n  NODE <<'END'\n\
                csi-edge x\nEND\n```\n";
    let found: Vec<_> = shell_lines(page)
        .iter()
        .flat_map(|line| commands(line))
        .filter_map(|command| ours(&command))
        .collect();
    let found: Vec<_> = found.iter().map(|line| line.join(" ")).collect();
    assert_eq!(found, ["csi-cloud nodes", "csi-edge status", "csi-cloud node forget node"]);
    assert!(parse(&["csi-cloud", "nodes", "--wrong"].map(str::to_owned)).is_err());
}
