//! The crates of the workspace, as their manifests describe them.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow};
use toml::{Table, Value};

use crate::tree::Tree;

/// One crate.
pub(crate) struct Package {
    /// Its directory from the top of the checkout, for example `edge/calls`.
    pub(crate) directory: String,
    /// The name by which code imports its library.
    pub(crate) library: String,
    /// Crates of the workspace by the name that this crate's code uses for each.
    pub(crate) dependencies: BTreeMap<String, String>,
    /// The root files of its library and programs that exist. A crate of the tests has its test
    /// programs among them.
    pub(crate) roots: Vec<String>,
}

impl Package {
    /// Whether this crate exists for tests.
    pub(crate) fn is_for_tests(&self) -> bool {
        is_for_tests(&self.directory)
    }

    /// Where its production code stands.
    pub(crate) fn source_directory(&self) -> String {
        format!("{}/src/", self.directory)
    }

    /// The root file of its library.
    pub(crate) fn library_root(&self) -> String {
        format!("{}/src/lib.rs", self.directory)
    }
}

fn is_for_tests(directory: &str) -> bool {
    directory == "tests" || directory.starts_with("tests/")
}

/// Reads all members of the workspace, in the order in which its manifest lists them.
///
/// # Errors
/// A manifest is missing or is not TOML.
pub(crate) fn packages(tree: &Tree) -> anyhow::Result<Vec<Package>> {
    let workspace = manifest(tree, "Cargo.toml")?;
    let members = workspace.get("workspace").and_then(|table| table.get("members"));
    let members = members.and_then(Value::as_array).context("Cargo.toml lists no members")?;
    let mut directories = Vec::new();
    for member in members {
        let member = member.as_str().context("a member in Cargo.toml is not a string")?;
        directories.extend(expand(tree, member));
    }
    let mut manifests = Vec::new();
    for directory in directories {
        let table = manifest(tree, &format!("{directory}/Cargo.toml"))?;
        manifests.push((directory, table));
    }
    let names = names(&manifests)?;
    Ok(manifests.iter().map(|(at, table)| package(tree, at, table, &workspace, &names)).collect())
}

fn manifest(tree: &Tree, path: &str) -> anyhow::Result<Table> {
    let text = tree.get(path).ok_or_else(|| anyhow!("{path} is missing"))?;
    text.parse().with_context(|| format!("{path} is not a manifest"))
}

/// A member's directory, or all directories with a manifest for a member that ends with `/*`.
fn expand(tree: &Tree, member: &str) -> Vec<String> {
    let Some(parent) = member.strip_suffix('*') else {
        return vec![member.trim_end_matches('/').to_owned()];
    };
    let directory = |path: &str| path.strip_suffix("/Cargo.toml").map(str::to_owned);
    let manifests = tree.below(parent).filter_map(directory);
    manifests.filter(|path| !path.trim_start_matches(parent).contains('/')).collect()
}

/// The directory of each crate by its package name.
fn names(manifests: &[(String, Table)]) -> anyhow::Result<BTreeMap<String, String>> {
    let named = manifests.iter().map(|(directory, table)| {
        let name = text(table.get("package"), "name");
        let name = name.with_context(|| format!("{directory}/Cargo.toml has no name"))?;
        Ok((name.to_owned(), directory.clone()))
    });
    named.collect()
}

fn package(
    tree: &Tree,
    directory: &str,
    table: &Table,
    workspace: &Table,
    names: &BTreeMap<String, String>,
) -> Package {
    let name = text(table.get("package"), "name").unwrap_or_default();
    let library = text(table.get("lib"), "name").unwrap_or(name).replace('-', "_");
    let shared = workspace.get("workspace").and_then(|table| table.get("dependencies"));
    let mut tables = vec!["dependencies"];
    if is_for_tests(directory) {
        tables.push("dev-dependencies");
    }
    let dependencies = tables.iter().filter_map(|name| table.get(*name)?.as_table()).flatten();
    let dependencies = dependencies.filter_map(|(key, value)| {
        let of_workspace = shared.and_then(|shared| text(shared.get(key), "package"));
        let package = text(Some(value), "package").or(of_workspace).unwrap_or(key);
        Some((key.replace('-', "_"), names.get(package)?.clone()))
    });
    Package {
        directory: directory.to_owned(),
        library,
        dependencies: dependencies.collect(),
        roots: roots(tree, directory, table),
    }
}

/// The files from which the compiler starts.
fn roots(tree: &Tree, directory: &str, table: &Table) -> Vec<String> {
    let source = format!("{directory}/src/");
    let programs = format!("{source}bin/");
    let mut roots = vec![format!("{source}lib.rs"), format!("{source}main.rs")];
    roots.extend(
        tree.below(&programs).filter(|path| is_program(path, &programs)).map(str::to_owned),
    );
    if is_for_tests(directory) {
        let programs = format!("{directory}/tests/");
        let files = tree.below(&programs).filter(|path| is_program(path, &programs));
        roots.extend(files.map(str::to_owned));
    }
    let listed = table.get("bin").and_then(Value::as_array).into_iter().flatten();
    let paths = listed.chain(table.get("lib")).filter_map(|target| text(Some(target), "path"));
    roots.extend(paths.map(|path| format!("{directory}/{path}")));
    roots.retain(|path| tree.get(path).is_some());
    roots.sort();
    roots.dedup();
    roots
}

/// Whether a file below `src/bin/` is the root of a program by Cargo's rules.
fn is_program(path: &str, programs: &str) -> bool {
    let below = path.strip_prefix(programs).unwrap_or_default();
    match below.split_once('/') {
        None => below.ends_with(".rs"),
        Some((_, file)) => file == "main.rs",
    }
}

fn text<'a>(value: Option<&'a Value>, key: &str) -> Option<&'a str> {
    value?.get(key)?.as_str()
}
