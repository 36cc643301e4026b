//! The imports of every production file: by `use`, by a path in code, and inside macro calls.
//!
//! An `impl` names its type by a path, so it imports the file of that type. `mod x;` is no import.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::visit::{self, Visit};

use crate::modules::{self, FileId, House, ModuleId, Name};
use crate::paths::{self, NamePath};
use crate::resolve::{Resolution, Target, resolve};

/// One import.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) from: FileId,
    pub(crate) line: usize,
    /// The path as it is written.
    pub(crate) written: String,
    pub(crate) to: To,
}

/// What is imported.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// An item of a file.
    File(FileId),
    /// A module by name, a re-export's module, or generated code: the order of rooms holds for it,
    /// and no circle comes of it.
    Module(ModuleId),
}

/// All imports of all files, except those of a file from itself.
pub(crate) fn all(house: &House) -> Vec<Import> {
    let mut found = Vec::new();
    for (id, file) in house.files.iter().enumerate() {
        let module = file.module;
        let mut visitor =
            Imports { house, file: id, module, blocks: Vec::new(), found: Vec::new() };
        visitor.visit_file(&file.syntax);
        found.append(&mut visitor.found);
    }
    found
}

struct Imports<'a> {
    house: &'a House,
    file: FileId,
    module: ModuleId,
    /// The names that the blocks around the current place define or import.
    blocks: Vec<BTreeMap<String, Name>>,
    found: Vec<Import>,
}

impl Imports<'_> {
    /// Notes where a path in code leads.
    fn path(&mut self, path: &NamePath) {
        let Some(first) = path.segments.first() else {
            return;
        };
        let local = self.blocks.iter().rev().find_map(|block| block.get(first));
        let resolution = match local.filter(|_| !path.absolute) {
            Some(Name::Import(target)) => {
                let segments = [target.segments.as_slice(), &path.segments[1..]].concat();
                let whole = NamePath { segments, ..target.clone() };
                resolve(self.house, self.module, &whole, Some(first))
            }
            Some(_) => return,
            None => resolve(self.house, self.module, path, None),
        };
        // One name alone that is a module's is a variable.
        let is_alone = path.segments.len() == 1;
        self.note(path, resolution, !is_alone);
    }

    fn note(&mut self, path: &NamePath, resolution: Resolution, with_modules: bool) {
        let through = resolution.through.into_iter().map(To::Module);
        let targets = resolution.targets.into_iter().filter_map(|target| match target {
            Target::File(file) => Some(To::File(file)),
            Target::Generated(module) => Some(To::Module(module)),
            Target::Module(module) => with_modules.then_some(To::Module(module)),
        });
        for to in targets.chain(through) {
            let is_own = match to {
                To::File(file) => file == self.file,
                To::Module(module) => self.house.modules[module].file == self.file,
            };
            if !is_own {
                let written = path.to_string();
                self.found.push(Import { from: self.file, line: path.line, written, to });
            }
        }
    }

    /// A macro without a path is also found in the modules around, where `macro_rules!` reaches.
    fn macro_around(&mut self, path: &NamePath) {
        let mut around = self.house.modules[self.module].parent;
        while let Some(module) = around {
            let names = self.house.modules[module].names.get(&path.segments[0]);
            if names.into_iter().flatten().any(|name| matches!(name, Name::Macro)) {
                let file = self.house.modules[module].file;
                let targets = vec![Target::File(file)];
                return self.note(path, Resolution { targets, through: Vec::new() }, false);
            }
            around = self.house.modules[module].parent;
        }
    }

    /// Paths in the strings of serde's attributes.
    fn strings(&mut self, tokens: TokenStream) {
        for token in tokens {
            let TokenTree::Literal(literal) = token else {
                continue;
            };
            let text = syn::parse_str::<syn::LitStr>(&literal.to_string());
            let path = text.and_then(|text| syn::parse_str::<syn::Path>(&text.value()));
            if let Ok(path) = path {
                let line = literal.span().start().line;
                self.path(&NamePath { line, ..NamePath::of(&path) });
            }
        }
    }

    /// The child module that an item opens within this file.
    fn child(&self, item: &syn::ItemMod) -> Option<ModuleId> {
        let names = &self.house.modules[self.module].names;
        let names = names.get(&item.ident.unraw().to_string());
        names.into_iter().flatten().find_map(|name| match name {
            Name::Module(module) => Some(*module),
            _ => None,
        })
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for leaf in paths::leaves(item) {
            let own = leaf.name.as_deref();
            let resolution = resolve(self.house, self.module, &leaf.path, own);
            let is_glob = own.is_none();
            // A glob takes everything, so it counts as an import of the module's file.
            let globbed = resolution.targets.iter().filter_map(|target| match target {
                Target::Module(module) if is_glob => Some(self.house.modules[*module].file),
                _ => None,
            });
            let targets = globbed.map(Target::File).collect();
            self.note(&leaf.path, Resolution { targets, through: Vec::new() }, false);
            self.note(&leaf.path, resolution, true);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_none() {
            return;
        }
        let outer = self.module;
        let blocks = std::mem::take(&mut self.blocks);
        self.module = self.child(item).unwrap_or(outer);
        visit::visit_item_mod(self, item);
        self.module = outer;
        self.blocks = blocks;
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        let items = block.stmts.iter().filter_map(|statement| match statement {
            syn::Stmt::Item(item) => Some(item),
            _ => None,
        });
        self.blocks.push(items.flat_map(modules::names).collect());
        visit::visit_block(self, block);
        self.blocks.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(&NamePath::of(path));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if call.path.segments.len() == 1 {
            self.macro_around(&NamePath::of(&call.path));
        }
        visit::visit_macro(self, call);
    }

    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        for path in paths::in_tokens(tokens.clone()) {
            self.path(&path);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            if list.path.is_ident("serde") {
                self.strings(list.tokens.clone());
            }
            self.visit_token_stream(&list.tokens);
        }
    }

    // `pub(crate)` is no import of the crate's root.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}
