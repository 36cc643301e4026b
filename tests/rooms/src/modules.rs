//! The modules of every crate, with the names that each defines or imports.
//!
//! Items that exist in tests only are left out, and so are the files of such modules. Test programs
//! are files as others. Generated code is a module without known names.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow};
use syn::ext::IdentExt;
use syn::{Item, ItemMod};

use crate::manifest::{self, Package};
use crate::paths::{self, NamePath};
use crate::prune;
use crate::tree::Tree;

/// A module's place in [`House::modules`].
pub(crate) type ModuleId = usize;
/// A file's place in [`House::files`].
pub(crate) type FileId = usize;

/// A production source file.
pub(crate) struct SourceFile {
    pub(crate) path: String,
    /// The place of its crate in [`House::packages`].
    pub(crate) package: usize,
    /// Its syntax without test code.
    pub(crate) syntax: syn::File,
    /// The module that the file is.
    pub(crate) module: ModuleId,
}

/// A module, which is a file or stands within one.
pub(crate) struct Module {
    pub(crate) parent: Option<ModuleId>,
    /// Its names from the root of its crate.
    pub(crate) path: Vec<String>,
    pub(crate) file: FileId,
    pub(crate) names: BTreeMap<String, Vec<Name>>,
    /// The paths of its `use …::*`.
    pub(crate) globs: Vec<NamePath>,
    /// It has names that a generator wrote.
    pub(crate) generated: bool,
}

impl Module {
    /// A module without names yet.
    fn new(parent: Option<ModuleId>, path: Vec<String>, file: FileId) -> Self {
        let names = BTreeMap::new();
        Self { parent, path, file, names, globs: Vec::new(), generated: false }
    }
}

/// What a name in a module stands for.
#[derive(Clone)]
pub(crate) enum Name {
    Module(ModuleId),
    /// A type or trait.
    Type,
    /// A function, constant or static.
    Value,
    Macro,
    Import(NamePath),
}

/// All crates with their modules and files.
pub(crate) struct House {
    pub(crate) packages: Vec<Package>,
    pub(crate) files: Vec<SourceFile>,
    pub(crate) modules: Vec<Module>,
    /// How the paths of files begin that exist in tests only.
    pub(crate) tests: Vec<String>,
}

impl House {
    /// Parses all production files.
    ///
    /// # Errors
    /// A file is missing or is not Rust.
    pub(crate) fn read(tree: &Tree) -> anyhow::Result<Self> {
        let packages = manifest::packages(tree)?;
        let mut house =
            Self { packages, files: Vec::new(), modules: Vec::new(), tests: Vec::new() };
        for package in 0..house.packages.len() {
            for root in house.packages[package].roots.clone() {
                house.load(tree, &root, Place { package, parent: None, path: Vec::new() })?;
            }
        }
        Ok(house)
    }

    /// The room of a file: the first name below `src/`. None for the files that wire.
    pub(crate) fn room(&self, file: FileId) -> Option<&str> {
        let file = &self.files[file];
        let package = &self.packages[file.package];
        let is_root = package.roots.contains(&file.path);
        room_of(package, &file.path).filter(|room| !is_root && *room != "bin")
    }

    /// The root module of the same crate or program.
    pub(crate) fn root(&self, mut module: ModuleId) -> ModuleId {
        while let Some(parent) = self.modules[module].parent {
            module = parent;
        }
        module
    }

    /// Whether a module is around another one.
    pub(crate) fn is_around(&self, outer: ModuleId, inner: ModuleId) -> bool {
        let mut parent = self.modules[inner].parent;
        while let Some(module) = parent {
            if module == outer {
                return true;
            }
            parent = self.modules[module].parent;
        }
        false
    }

    /// The root module of a crate's library.
    pub(crate) fn library(&self, package: usize) -> Option<ModuleId> {
        let root = self.packages[package].library_root();
        self.files.iter().find(|file| file.path == root).map(|file| file.module)
    }

    fn load(&mut self, tree: &Tree, path: &str, place: Place) -> anyhow::Result<ModuleId> {
        let generated = is_generated(path);
        let text = tree.get(path).with_context(|| format!("{path} is missing"))?;
        let text = if generated { "" } else { text };
        let mut syntax = syn::parse_file(text)
            .map_err(|error| anyhow!("{path}:{}: {error}", error.span().start().line))?;
        let directory = children(path, place.parent.is_none());
        self.tests.extend(tests(&syntax.items, &directory));
        prune::prune(&mut syntax);
        let items = std::mem::take(&mut syntax.items);
        let module = self.modules.len();
        let file = self.files.len();
        let package = place.package;
        self.modules.push(Module { generated, ..Module::new(place.parent, place.path, file) });
        self.files.push(SourceFile { path: path.to_owned(), package, syntax, module });
        self.fill(tree, module, &items, &directory)?;
        self.files[file].syntax.items = items;
        Ok(module)
    }

    /// Notes the names that items give a module.
    fn fill(
        &mut self,
        tree: &Tree,
        module: ModuleId,
        items: &[Item],
        directory: &str,
    ) -> anyhow::Result<()> {
        for item in items {
            match item {
                Item::Mod(item) => self.child(tree, module, item, directory)?,
                Item::Macro(item) if item.mac.path.is_ident("include") => {
                    self.modules[module].generated = true;
                }
                _ => {
                    let names = names(item);
                    let globs = globs(item);
                    self.modules[module].globs.extend(globs);
                    for (name, what) in names {
                        self.modules[module].names.entry(name).or_default().push(what);
                    }
                }
            }
        }
        Ok(())
    }

    fn child(
        &mut self,
        tree: &Tree,
        parent: ModuleId,
        item: &ItemMod,
        directory: &str,
    ) -> anyhow::Result<()> {
        let name = item.ident.unraw().to_string();
        let path = [self.modules[parent].path.as_slice(), std::slice::from_ref(&name)].concat();
        let file = self.modules[parent].file;
        let id = if let Some((_, items)) = &item.content {
            let id = self.modules.len();
            self.modules.push(Module::new(Some(parent), path, file));
            self.fill(tree, id, items, &format!("{directory}/{name}"))?;
            id
        } else {
            let declared = || {
                let line = item.ident.span().start().line;
                format!("{}:{line}: no file for `mod {name}`", self.files[file].path)
            };
            let found = file_of(tree, item, directory).with_context(declared)?;
            let package = self.files[file].package;
            self.load(tree, &found, Place { package, parent: Some(parent), path })?
        };
        self.modules[parent].names.entry(name).or_default().push(Name::Module(id));
        Ok(())
    }
}

/// Where a file stands among the modules.
struct Place {
    package: usize,
    parent: Option<ModuleId>,
    path: Vec<String>,
}

/// The directory of the modules that a file declares.
fn children(path: &str, is_root: bool) -> String {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    match stem.rsplit_once('/') {
        Some((directory, name)) if is_root || name == "mod" => directory.to_owned(),
        _ => stem.to_owned(),
    }
}

/// How the paths of the modules begin that a file declares for tests only.
fn tests(items: &[Item], directory: &str) -> Vec<String> {
    let mut found = Vec::new();
    for item in items {
        if let Item::Mod(module) = item
            && prune::is_test(&module.attrs)
        {
            let name = module.ident.unraw();
            found.push(format!("{directory}/{name}.rs"));
            found.push(format!("{directory}/{name}/"));
            let written = module.attrs.iter().find_map(path_attribute);
            // `#[path]` counts from the file's own directory, which may be one above.
            let around = directory.rsplit_once('/').map_or("", |(around, _)| around);
            found.extend(written.iter().map(|path| format!("{directory}/{path}")));
            found.extend(written.iter().map(|path| format!("{around}/{path}")));
        }
    }
    found
}

/// Whether a generator wrote the file.
pub(crate) fn is_generated(path: &str) -> bool {
    path.contains("/src/") && path.contains("/gen/")
}

/// The first name below `src/`, without `.rs`.
pub(crate) fn room_of<'a>(package: &Package, path: &'a str) -> Option<&'a str> {
    let below = path.strip_prefix(&package.source_directory())?;
    let first = below.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first))
}

/// The file of a module that is declared as `mod name;`.
fn file_of(tree: &Tree, item: &ItemMod, directory: &str) -> Option<String> {
    let name = item.ident.unraw();
    let written = item.attrs.iter().find_map(path_attribute);
    let candidates = match written {
        Some(path) => {
            let around = directory.rsplit_once('/').map_or("", |(around, _)| around);
            vec![format!("{directory}/{path}"), format!("{around}/{path}")]
        }
        None => vec![format!("{directory}/{name}.rs"), format!("{directory}/{name}/mod.rs")],
    };
    candidates.into_iter().find(|path| tree.get(path).is_some())
}

fn path_attribute(attribute: &syn::Attribute) -> Option<String> {
    let value = &attribute.meta.require_name_value().ok()?;
    match &value.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. })
            if value.path.is_ident("path") =>
        {
            Some(text.value())
        }
        _ => None,
    }
}

/// The names that an item other than a module defines or imports.
pub(crate) fn names(item: &Item) -> Vec<(String, Name)> {
    let (ident, what) = match item {
        Item::Const(item) => (&item.ident, Name::Value),
        Item::Static(item) => (&item.ident, Name::Value),
        Item::Fn(item) => (&item.sig.ident, Name::Value),
        Item::Enum(item) => (&item.ident, Name::Type),
        Item::Struct(item) => (&item.ident, Name::Type),
        Item::Trait(item) => (&item.ident, Name::Type),
        Item::TraitAlias(item) => (&item.ident, Name::Type),
        Item::Type(item) => (&item.ident, Name::Type),
        Item::Union(item) => (&item.ident, Name::Type),
        Item::Macro(syn::ItemMacro { ident: Some(ident), .. }) => (ident, Name::Macro),
        Item::Use(item) => {
            let named = |leaf: paths::Leaf| Some((leaf.name?, Name::Import(leaf.path)));
            return paths::leaves(item).into_iter().filter_map(named).collect();
        }
        _ => return Vec::new(),
    };
    vec![(ident.unraw().to_string(), what)]
}

/// The globs of an item.
fn globs(item: &Item) -> Vec<NamePath> {
    let Item::Use(item) = item else {
        return Vec::new();
    };
    let leaves = paths::leaves(item).into_iter();
    leaves.filter(|leaf| leaf.name.is_none()).map(|leaf| leaf.path).collect()
}
