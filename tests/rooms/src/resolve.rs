//! Finds the file that defines what a path names.
//!
//! A re-export leads to the file that defines the item. Only a module around the importing one
//! stands for itself: who imports through the `mod.rs` of its own room imports that file.

use crate::modules::{FileId, House, ModuleId, Name};
use crate::paths::NamePath;

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// An item that this file defines.
    File(FileId),
    /// A module itself, and nothing in it.
    Module(ModuleId),
    /// An item that a generator wrote into this module.
    Generated(ModuleId),
}

/// Everything that a path may lead to. One name can be a module and a function.
#[derive(Default)]
pub(crate) struct Resolution {
    pub(crate) targets: Vec<Target>,
    /// Modules whose re-exports led there.
    pub(crate) through: Vec<ModuleId>,
}

/// Resolves a path that stands in a module. `own` is the name that the path itself brings in there.
pub(crate) fn resolve(
    house: &House,
    module: ModuleId,
    path: &NamePath,
    own: Option<&str>,
) -> Resolution {
    let open = own.map(|name| (module, name.to_owned())).into_iter().collect();
    let mut walk = Walk { house, from: module, open, found: Resolution::default() };
    walk.start(module, path.absolute, &path.segments);
    walk.found
}

/// So many imports one after the other are a circle of imports.
const MOST_STEPS: usize = 24;

struct Walk<'a> {
    house: &'a House,
    /// The module that imports.
    from: ModuleId,
    /// Imports that are being followed, and so lead nowhere.
    open: Vec<(ModuleId, String)>,
    found: Resolution,
}

impl Walk<'_> {
    /// Follows a path from the module in which it is written.
    fn start(&mut self, at: ModuleId, absolute: bool, segments: &[String]) {
        let Some(first) = segments.first() else {
            return;
        };
        if self.open.len() > MOST_STEPS {
            return;
        }
        match first.as_str() {
            _ if absolute => self.other_crate(at, segments),
            "crate" => self.down(self.house.root(at), &segments[1..]),
            "self" | "super" => self.relative(at, segments),
            "Self" => {}
            name if self.knows(at, name, 0) => self.down(at, segments),
            _ => self.other_crate(at, segments),
        }
    }

    fn relative(&mut self, mut at: ModuleId, mut segments: &[String]) {
        while let Some((first, rest)) = segments.split_first() {
            match first.as_str() {
                "self" => {}
                "super" => at = self.house.modules[at].parent.unwrap_or(at),
                _ => break,
            }
            segments = rest;
        }
        self.down(at, segments);
    }

    /// Follows a path whose first name is a crate. Crates of others lead nowhere.
    fn other_crate(&mut self, at: ModuleId, segments: &[String]) {
        let file = &self.house.files[self.house.modules[at].file];
        let package = &self.house.packages[file.package];
        let own = (segments[0] == package.library).then_some(&package.directory);
        let Some(directory) = package.dependencies.get(&segments[0]).or(own) else {
            return;
        };
        let package = self.house.packages.iter().position(|one| one.directory == *directory);
        if let Some(library) = package.and_then(|package| self.house.library(package)) {
            self.down(library, &segments[1..]);
        }
    }

    /// Follows the rest of a path from a module that was reached.
    fn down(&mut self, at: ModuleId, segments: &[String]) {
        let Some((name, rest)) = segments.split_first() else {
            self.found.targets.push(Target::Module(at));
            return;
        };
        let names = self.names(at, name, rest.is_empty());
        if names.is_empty() {
            self.down_glob(at, segments);
        }
        for what in names {
            match what {
                Name::Module(child) => self.down(child, rest),
                Name::Type | Name::Value | Name::Macro => self.reach(at),
                Name::Import(_) if self.stops_at(at) => self.reach(at),
                Name::Import(path) => {
                    self.pass(at);
                    self.open.push((at, name.clone()));
                    let whole = [path.segments.as_slice(), rest].concat();
                    self.start(at, path.absolute, &whole);
                    self.open.pop();
                }
            }
        }
    }

    /// Looks for a name in the modules that a module imports whole. A name that is found nowhere
    /// was made by a macro of this file, or by a generator.
    fn down_glob(&mut self, at: ModuleId, segments: &[String]) {
        let globbed = self.globbed(at, &segments[0], 0);
        match globbed {
            Some(_) if self.stops_at(at) => self.reach(at),
            Some(module) => {
                self.pass(at);
                self.down(module, segments);
            }
            None if self.house.modules[at].generated => {
                self.found.targets.push(Target::Generated(at));
            }
            None => self.reach(at),
        }
    }

    fn reach(&mut self, module: ModuleId) {
        self.found.targets.push(Target::File(self.house.modules[module].file));
    }

    fn pass(&mut self, module: ModuleId) {
        if self.house.modules[module].file != self.house.modules[self.from].file {
            self.found.through.push(module);
        }
    }

    /// Whether a re-export of this module counts as the module's own item.
    fn stops_at(&self, module: ModuleId) -> bool {
        let modules = &self.house.modules;
        self.house.is_around(module, self.from) && modules[module].file != modules[self.from].file
    }

    /// What a name can stand for, as the last of a path or before others.
    fn names(&self, at: ModuleId, name: &str, is_last: bool) -> Vec<Name> {
        let known = self.house.modules[at].names.get(name);
        let is_open = self.open.iter().any(|(module, open)| *module == at && open == name);
        let usable = |what: &&Name| !is_open || !matches!(what, Name::Import(_));
        let names: Vec<_> = known.into_iter().flatten().filter(usable).cloned().collect();
        if is_last {
            return names;
        }
        let modules: Vec<_> =
            names.iter().filter(|what| matches!(what, Name::Module(_))).cloned().collect();
        if !modules.is_empty() {
            return modules;
        }
        let leads_on = |what: &Name| matches!(what, Name::Import(_) | Name::Type);
        names.into_iter().filter(leads_on).collect()
    }

    /// Whether a module has a name, itself or by a glob.
    fn knows(&self, at: ModuleId, name: &str, depth: usize) -> bool {
        !self.names(at, name, true).is_empty() || self.globbed(at, name, depth).is_some()
    }

    /// The module from which a glob brings a name.
    fn globbed(&self, at: ModuleId, name: &str, depth: usize) -> Option<ModuleId> {
        if depth > 4 {
            return None;
        }
        let modules = self.house.modules[at].globs.iter().flat_map(|path| {
            let mut walk = Walk {
                house: self.house,
                from: at,
                open: Vec::new(),
                found: Resolution::default(),
            };
            walk.glob(at, path);
            walk.found.targets
        });
        let mut modules = modules.filter_map(|target| match target {
            Target::Module(module) if module != at => Some(module),
            _ => None,
        });
        modules.find(|module| self.knows(*module, name, depth + 1))
    }

    /// Follows the path of a glob. Its first name comes from no other glob.
    fn glob(&mut self, at: ModuleId, path: &NamePath) {
        let Some(first) = path.segments.first() else {
            return;
        };
        let is_keyword = matches!(first.as_str(), "crate" | "self" | "super");
        if is_keyword || path.absolute || !self.names(at, first, false).is_empty() {
            self.start(at, path.absolute, &path.segments);
        } else {
            self.other_crate(at, &path.segments);
        }
    }
}
