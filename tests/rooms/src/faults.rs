//! What is wrong with the house: undeclared rooms, missing door plates, imports that run upwards,
//! and circles of files.

use std::collections::{BTreeMap, BTreeSet};

use crate::circles::Graph;
use crate::imports::{Import, To};
use crate::manifest::Package;
use crate::modules::{self, FileId, House, SourceFile};
use crate::order::{DOCUMENT, Order};
use crate::tree::Tree;

/// A door plate has so many lines.
const PLATE: std::ops::RangeInclusive<usize> = 2..=6;

/// Everything that is wrong, each as a text for people.
pub(crate) fn all(tree: &Tree, order: &Order, house: &House, imports: &[Import]) -> Vec<String> {
    let mut faults = crates(order, house);
    for (package, about) in house.packages.iter().enumerate() {
        match order.crates.get(&about.directory) {
            Some(Some(rooms)) => faults.extend(rooms_of(house, package, rooms)),
            Some(None) => faults.extend(plate(house, package, &[], root(about))),
            None => {}
        }
    }
    faults.extend(unreached(tree, order, house));
    faults.extend(upwards(order, house, imports).into_iter().map(|(_, text)| text));
    faults.extend(parts(order, house, imports));
    faults.extend(circles(order, house, imports));
    faults
}

/// Files of a folder with parts that are in none of them, and imports against the order of parts.
fn parts(order: &Order, house: &House, imports: &[Import]) -> BTreeSet<String> {
    let mut faults = BTreeSet::new();
    for folder in order.parts.iter().map(|part| &part.folder).collect::<BTreeSet<_>>() {
        let below = format!("{folder}/");
        for SourceFile { path, .. } in &house.files {
            if path.starts_with(&below) && !path.ends_with("mod.rs") && part(order, path).is_none()
            {
                faults.insert(format!("{path}: {DOCUMENT} names it in no part of {folder}"));
            }
        }
    }
    for import in imports {
        let To::File(to) = import.to else { continue };
        let [from, to] = [import.from, to].map(|file| house.files[file].path.as_str());
        let (Some(low), Some(high)) = (part(order, from), part(order, to)) else { continue };
        let [low_part, high_part] = [low, high].map(|part| &order.parts[part]);
        if low < high && low_part.folder == high_part.folder {
            let (line, low, high) = (import.line, &low_part.name, &high_part.name);
            faults.insert(format!("{from}:{line}: imports {to}, but {high} is above {low}"));
        }
    }
    faults
}

/// The place of a file's part, by the longest path that names it.
fn part(order: &Order, file: &str) -> Option<usize> {
    let parts = order.parts.iter().enumerate();
    let depths = parts.filter_map(|(place, part)| Some((part.depth(file)?, place)));
    depths.max().map(|(_, place)| place)
}

/// Crates without a line, and lines without a crate.
fn crates(order: &Order, house: &House) -> Vec<String> {
    let undeclared =
        house.packages.iter().filter(|package| !order.crates.contains_key(&package.directory));
    let undeclared = undeclared.map(|package| {
        format!("{}/Cargo.toml: {DOCUMENT} has no line for this crate", package.directory)
    });
    let known: BTreeSet<_> = house.packages.iter().map(|package| &package.directory).collect();
    let absent = order.crates.keys().filter(|name| !known.contains(name));
    let absent = absent.map(|name| format!("{DOCUMENT}: {name} is no crate of the workspace"));
    undeclared.chain(absent).collect()
}

/// Compares the rooms of one crate with those declared, and reads their door plates.
fn rooms_of(house: &House, package: usize, declared: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut present: BTreeMap<&str, &str> = BTreeMap::new();
    for (id, file) in house.files.iter().enumerate() {
        if let Some(room) = house.room(id).filter(|_| file.package == package) {
            present.entry(room).or_insert(&file.path);
        }
    }
    for (room, path) in &present {
        if !declared.iter().any(|name| name == room) {
            faults.push(format!("{path}: {DOCUMENT} declares no room `{room}` for this crate"));
        }
    }
    for room in declared {
        let about = &house.packages[package];
        let missing = format!("{}{room}", about.source_directory());
        if present.contains_key(room.as_str()) {
            faults.extend(plate(house, package, std::slice::from_ref(room), &missing));
        } else {
            faults.push(format!("{DOCUMENT}: the room {missing} does not exist"));
        }
    }
    faults
}

/// The file that opens a crate: its library's, or its program's.
fn root(package: &Package) -> &str {
    let library = package.library_root();
    let root = package.roots.iter().find(|path| **path == library);
    root.or_else(|| package.roots.first()).map_or("", String::as_str)
}

/// Reads the door plate of a module that is a room.
fn plate(house: &House, package: usize, module: &[String], path: &str) -> Option<String> {
    let opens =
        |file: &&SourceFile| file.package == package && house.modules[file.module].path == module;
    let is_library = |file: &&SourceFile| !module.is_empty() || file.path == path;
    let Some(file) = house.files.iter().filter(opens).find(is_library) else {
        return Some(format!("{path}: the room has no file with a `//!` door plate"));
    };
    if modules::is_generated(&file.path) {
        return None;
    }
    let lines = file.syntax.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let lines: usize = lines.map(lines_of).sum();
    let text = || {
        let (least, most) = PLATE.into_inner();
        format!(
            "{}:1: the `//!` door plate has {lines} lines instead of {least} to {most}",
            file.path
        )
    };
    (!PLATE.contains(&lines)).then(text)
}

fn lines_of(attribute: &syn::Attribute) -> usize {
    let span = attribute.bracket_token.span.join();
    span.end().line - span.start().line + 1
}

/// Files below `src/` that no `mod` names, so that nothing compiles them.
fn unreached(tree: &Tree, order: &Order, house: &House) -> Vec<String> {
    let reached: BTreeSet<_> = house.files.iter().map(|file| file.path.as_str()).collect();
    let is_test = |path: &&str| house.tests.iter().any(|start| path.starts_with(start));
    let is_known = |path: &&str| reached.contains(path) || modules::is_generated(path);
    let declared =
        house.packages.iter().filter(|about| order.crates.contains_key(&about.directory));
    let mut faults = Vec::new();
    for about in declared {
        let source = about.source_directory();
        let sources = tree.below(&source).filter(|path| path.ends_with(".rs"));
        let unreached = sources.filter(|path| !is_known(path) && !is_test(path));
        faults.extend(unreached.map(|path| format!("{path}: no `mod` names this file")));
    }
    faults
}

/// Imports against the order, with the crate in which they stand.
pub(crate) fn upwards(order: &Order, house: &House, imports: &[Import]) -> Vec<(usize, String)> {
    let mut faults: BTreeMap<(FileId, &str), (usize, String)> = BTreeMap::new();
    let mut by_room = BTreeSet::new();
    // Items before modules, so that an import of an item through a module counts once.
    let (items, modules): (Vec<_>, Vec<_>) =
        imports.iter().partition(|import| matches!(import.to, To::File(_)));
    for import in items.into_iter().chain(modules) {
        let to = target(house, import);
        let Some(why) = against(order, house, import.from, &to) else {
            continue;
        };
        let is_new = by_room.insert((import.from, to.package, to.room.clone()));
        if matches!(import.to, To::Module(_)) && !is_new {
            continue;
        }
        let from = &house.files[import.from];
        let Import { line, written, .. } = import;
        let text = format!("{}:{line}: imports {} ({written}), but {why}", from.path, to.path);
        let entry = faults.entry((import.from, to.path)).or_insert_with(|| (*line, text.clone()));
        if *line < entry.0 {
            *entry = (*line, text);
        }
    }
    let package = |file: FileId| house.files[file].package;
    faults.into_iter().map(|((from, _), (_, text))| (package(from), text)).collect()
}

/// Where an import leads.
struct Place<'a> {
    package: usize,
    path: &'a str,
    /// None for the files that wire.
    room: Option<String>,
}

fn target<'a>(house: &'a House, import: &Import) -> Place<'a> {
    let (file, room) = match import.to {
        To::File(file) => (file, house.room(file).map(str::to_owned)),
        To::Module(module) => {
            let module = &house.modules[module];
            (module.file, module.path.first().cloned())
        }
    };
    Place { package: house.files[file].package, path: &house.files[file].path, room }
}

/// Why an import is against the order.
fn against(order: &Order, house: &House, from: FileId, to: &Place<'_>) -> Option<String> {
    let package = house.files[from].package;
    let directory = &house.packages[package].directory;
    if to.package != package {
        let other = &house.packages[to.package].directory;
        let is_declared = order.crates.contains_key(directory);
        let is_against = is_declared && !order.allows(other, directory);
        return is_against.then(|| format!("the crate {other} is not below the crate {directory}"));
    }
    let declared = order.crates.get(directory)?;
    let room = house.room(from)?;
    let Some(above) = &to.room else {
        return Some(format!("lib.rs and main.rs are above the room {room}"));
    };
    let level = |name: &str| declared.iter().flatten().position(|room| room == name);
    let is_upwards = level(room)? < level(above)?;
    is_upwards.then(|| format!("the room {above} is above the room {room}"))
}

/// All circles of files in the declared crates.
fn circles(order: &Order, house: &House, imports: &[Import]) -> Vec<String> {
    let graph = Graph::of(imports);
    let is_declared = |file: &FileId| {
        let package = &house.packages[house.files[*file].package];
        order.crates.contains_key(&package.directory)
    };
    let mut faults = Vec::new();
    for knot in graph.knots().iter().filter(|knot| knot.iter().any(is_declared)) {
        let circle = graph.circle(knot);
        let mut text = format!("circle of {} files", circle.len());
        if knot.len() > circle.len() {
            text += &format!(", the shortest among {} files that reach each other", knot.len());
        }
        for (from, line, to) in circle {
            let [from, to] = [from, to].map(|file| &house.files[file].path);
            text += &format!("\n  {from}:{line} imports {to}");
        }
        faults.push(text);
    }
    faults
}
