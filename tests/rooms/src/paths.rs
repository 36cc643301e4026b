//! Names as the sources write them: paths, the leaves of a `use`, and paths inside macro calls.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::{ItemUse, UseTree};

/// A path, for example `crate::a::b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamePath {
    /// It starts with `::`, so its first name is a crate.
    pub(crate) absolute: bool,
    /// Its names, without generic arguments.
    pub(crate) segments: Vec<String>,
    /// The line of its last name.
    pub(crate) line: usize,
}

/// One name that a `use` brings in.
pub(crate) struct Leaf {
    /// What is imported; of a glob, the path before the star.
    pub(crate) path: NamePath,
    /// The name under which it is known here; none for a glob.
    pub(crate) name: Option<String>,
}

impl NamePath {
    /// A path of the syntax tree.
    pub(crate) fn of(path: &syn::Path) -> Self {
        let segments = path.segments.iter().map(|segment| segment.ident.unraw().to_string());
        let last = path.segments.last();
        Self {
            absolute: path.leading_colon.is_some(),
            segments: segments.collect(),
            line: last.map_or(0, |segment| segment.ident.span().start().line),
        }
    }
}

impl std::fmt::Display for NamePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.absolute { "::" } else { "" }, self.segments.join("::"))
    }
}

/// All names that a `use` brings in.
pub(crate) fn leaves(item: &ItemUse) -> Vec<Leaf> {
    let mut found = Vec::new();
    collect(&item.tree, &mut Vec::new(), item.leading_colon.is_some(), &mut found);
    found
}

fn collect(tree: &UseTree, prefix: &mut Vec<String>, absolute: bool, found: &mut Vec<Leaf>) {
    let leaf = |ident: &syn::Ident, renamed: Option<&syn::Ident>, prefix: &[String]| {
        let mut segments = prefix.to_vec();
        // `a::{self}` is `a`.
        if ident != "self" || prefix.is_empty() {
            segments.push(ident.unraw().to_string());
        }
        let renamed = renamed.map(|renamed| renamed.unraw().to_string());
        let name = renamed.or_else(|| segments.last().cloned());
        Leaf { path: NamePath { absolute, segments, line: ident.span().start().line }, name }
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.unraw().to_string());
            collect(&path.tree, prefix, absolute, found);
            prefix.pop();
        }
        UseTree::Name(name) => found.push(leaf(&name.ident, None, prefix)),
        UseTree::Rename(name) => found.push(leaf(&name.ident, Some(&name.rename), prefix)),
        UseTree::Glob(glob) => {
            let line = glob.star_token.spans[0].start().line;
            let path = NamePath { absolute, segments: prefix.clone(), line };
            found.push(Leaf { path, name: None });
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| collect(tree, prefix, absolute, found));
        }
    }
}

/// The paths of two or more names in the body of a macro call, as far as tokens show them.
pub(crate) fn in_tokens(tokens: TokenStream) -> Vec<NamePath> {
    let mut found = Vec::new();
    scan(tokens, &[], &mut found);
    found
}

/// Scans tokens; `prefix` is what stands before a group of a `use`.
fn scan(tokens: TokenStream, prefix: &[String], found: &mut Vec<NamePath>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                scan(group.stream(), &[], found);
                at += 1;
            }
            TokenTree::Ident(_) => at = path_at(&tokens, at, prefix, found),
            _ => at += 1,
        }
    }
}

/// Reads the path that starts at an identifier, and returns the place behind it.
fn path_at(
    tokens: &[TokenTree],
    start: usize,
    prefix: &[String],
    found: &mut Vec<NamePath>,
) -> usize {
    let mut segments = prefix.to_vec();
    let mut line = 0;
    let mut at = start;
    while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
        segments.push(ident.unraw().to_string());
        line = ident.span().start().line;
        at += 1;
        if !is_colons(tokens, at) {
            break;
        }
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(_)) => at += 2,
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                scan(group.stream(), &segments, found);
                return at + 3;
            }
            _ => break,
        }
    }
    // A field, a method, or a variable of a macro is no name of a module.
    let before = start.checked_sub(1).and_then(|before| tokens.get(before));
    let is_member = match before {
        Some(TokenTree::Punct(punct)) if punct.as_char() == '.' => true,
        Some(TokenTree::Punct(punct)) if punct.as_char() == '$' => segments[0] != "crate",
        _ => false,
    };
    if segments.len() > 1 && !is_member {
        let absolute = start >= 2 && prefix.is_empty() && is_colons(tokens, start - 2);
        found.push(NamePath { absolute, segments, line });
    }
    at
}

fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1))
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_of_a_use_are_whole_paths() {
        let item = syn::parse_str("use crate::a::{self, b::{C as D, *}, r#type};").unwrap();
        let found = leaves(&item);
        let shown = found.iter().map(|leaf| (leaf.path.to_string(), leaf.name.as_deref()));
        let shown: Vec<_> = shown.collect();
        let expected = [
            ("crate::a", Some("a")),
            ("crate::a::b::C", Some("D")),
            ("crate::a::b", None),
            ("crate::a::type", Some("type")),
        ];
        assert_eq!(shown, expected.map(|(path, name)| (path.to_owned(), name)));
    }

    #[test]
    fn paths_in_tokens_are_found_in_groups_and_uses() {
        let text = "x = crate::a::b(super::c::D { e: f.g::<H>() }) \
                    => { use k::{l, m::N}; $o::p; $crate::q }";
        let found = in_tokens(text.parse().unwrap());
        let shown: Vec<_> = found.iter().map(NamePath::to_string).collect();
        assert_eq!(shown, ["crate::a::b", "super::c::D", "k::l", "k::m::N", "crate::q"]);
    }
}
