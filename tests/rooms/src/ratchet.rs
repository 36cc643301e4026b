//! What may only become less in the files that changed since a commit: idioms that slow a reader
//! down, named closures, and types of one name.
//!
//! The changed files are compared as a whole, so that moved code counts on both sides.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use syn::visit::{self, Visit};

use crate::modules::is_generated;
use crate::prune;
use crate::size::Size;

/// Words that a native engineer would hardly write, in lower case.
const STILTED: [&str; 8] = [
    "is no ",
    "are no ",
    "none if ",
    " for ever",
    "by itself",
    "beside it",
    " mend",
    "what it is ",
];

/// The figures of some files together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Figures {
    stilted: usize,
    closures: usize,
    types: BTreeMap<String, usize>,
}

impl Figures {
    fn add(&mut self, text: &str) -> syn::Result<()> {
        self.stilted += text.lines().map(stilted).sum::<usize>();
        self.closures += Size::of(text, false)?.product.closures;
        for name in types(text)? {
            *self.types.entry(name).or_default() += 1;
        }
        Ok(())
    }
}

/// Compares the files that changed since `base` with what they were there.
///
/// # Errors
/// git does not answer, or a file is not Rust.
pub(crate) fn faults(root: &Path, base: &str) -> anyhow::Result<Vec<String>> {
    let changed = git(root, &["diff", "--name-status", "--no-renames", base, "--", "*.rs"])?;
    let (mut before, mut after) = (Figures::default(), Figures::default());
    let mut others = BTreeSet::new();
    let mut is_changed = BTreeSet::new();
    for line in changed.lines() {
        let (status, path) = line.split_once('\t').context("git said something else")?;
        if !is_product(path) {
            continue;
        }
        is_changed.insert(path.to_owned());
        if status != "A" {
            let text = git(root, &["show", &format!("{base}:{path}")])?;
            before.add(&text).with_context(|| format!("{base}:{path}"))?;
        }
        if status != "D" {
            after.add(&read(root, path)?).with_context(|| path.to_owned())?;
        }
    }
    for path in git(root, &["ls-files", "--", "*.rs"])?.lines() {
        if !is_changed.contains(path) && is_product(path) {
            others.extend(types(&read(root, path)?)?);
        }
    }
    Ok(compare(&before, &after, &others))
}

/// Whether product code of ours stands there.
fn is_product(path: &str) -> bool {
    !is_generated(path) && !path.contains("tests/") && !path.ends_with("tests.rs")
}

fn compare(before: &Figures, after: &Figures, others: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (what, before, after) in [
        ("stilted phrases (\"is no X\", \"none if\" …)", before.stilted, after.stilted),
        ("named closures (a helper is a `fn`)", before.closures, after.closures),
    ] {
        if after > before {
            faults.push(format!("{after} {what} in the files that changed, and {before} before"));
        }
    }
    for (name, count) in &after.types {
        let was = before.types.get(name).copied().unwrap_or_default();
        let is_taken = others.contains(name) || *count > 1;
        if was < *count && is_taken {
            faults.push(format!("another type has the name of the new {name}"));
        }
    }
    faults
}

fn stilted(line: &str) -> usize {
    let line = line.to_lowercase();
    STILTED.iter().map(|phrase| line.matches(phrase).count()).sum()
}

/// The names of the structs, enums and traits outside tests.
fn types(text: &str) -> syn::Result<Vec<String>> {
    #[derive(Default)]
    struct Types(Vec<String>);
    impl<'ast> Visit<'ast> for Types {
        fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
            self.0.push(item.ident.to_string());
        }
        fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
            self.0.push(item.ident.to_string());
        }
        fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
            self.0.push(item.ident.to_string());
        }
        // Types inside a function are nobody else's business.
        fn visit_block(&mut self, _: &'ast syn::Block) {}
        fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
            visit::visit_item_mod(self, item);
        }
    }
    let mut syntax = syn::parse_file(text)?;
    prune::prune(&mut syntax);
    let mut types = Types::default();
    types.visit_file(&syntax);
    Ok(types.0)
}

fn read(root: &Path, path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))
}

fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {} failed: {error}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(text: &str) -> Figures {
        let mut figures = Figures::default();
        figures.add(text).unwrap();
        figures
    }

    #[test]
    fn more_of_an_idiom_is_a_fault_and_a_move_is_not() {
        let none = BTreeSet::new();
        let old = figures("// None if it is no socket.\nfn a() { let b = |x| x; }");
        assert_eq!((old.stilted, old.closures), (2, 1));
        assert_eq!(compare(&old, &old, &none), Vec::<String>::new());
        let new = figures(
            "// It is no socket, it is no file, none if gone.\n\
             fn a() { let b = |x| x; let c = |x| x; }",
        );
        let faults = compare(&old, &new, &none);
        assert_eq!(faults.len(), 2);
        assert!(faults[0].starts_with("3 stilted"), "{faults:?}");
        assert!(faults[1].starts_with("2 named closures"), "{faults:?}");
    }

    #[test]
    fn a_new_type_needs_a_name_of_its_own() {
        let others = BTreeSet::from(["Step".to_owned()]);
        let old = figures("struct Key;");
        let new = figures("struct Key; struct Step; fn a() { struct Step; }");
        assert_eq!(compare(&old, &new, &others).len(), 1);
        assert_eq!(compare(&new, &new, &others), Vec::<String>::new(), "an old one may stay");
        let twice = figures("struct Key; mod b { struct Key; }");
        assert_eq!(compare(&old, &twice, &BTreeSet::new()).len(), 1);
        let tested = figures("struct Key; #[cfg(test)] mod tests { struct Step; }");
        assert_eq!(compare(&old, &tested, &others), Vec::<String>::new());
    }
}
