//! Finds code that treats one RPC differently from another outside the table of RPCs.
//!
//! Three forms count:
//! - a string that is a method's name or path;
//! - a pattern or a comparison with a variant of `Method`, or with the name or path of one;
//! - a constant that is the name or path of one, because a pattern may have it.
//!
//! A variant as a value is fine.

use std::collections::BTreeSet;

use anyhow::Context;
use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Expr, Pat, Token};

use crate::modules::House;
use crate::tree::Tree;

/// Where the RPCs are declared.
const SERVICES: &str = "proto/csi/v1/csi.proto";
/// Where the table of RPCs is.
const TABLE: &str = "proto/src/csi/";

/// A place that names a method.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mention {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) what: String,
    /// The place of its crate in [`House::packages`].
    pub(crate) package: usize,
}

/// All places in production code that name a method, outside the table.
///
/// # Errors
/// There is no list of the RPCs.
pub(crate) fn all(tree: &Tree, house: &House) -> anyhow::Result<Vec<Mention>> {
    let text = tree.get(SERVICES).with_context(|| format!("{SERVICES} is missing"))?;
    let names = Names::of(text);
    let mut mentions = BTreeSet::new();
    for file in &house.files {
        let is_production = !house.packages[file.package].is_for_tests();
        if !is_production || file.path.starts_with(TABLE) {
            continue;
        }
        let mut visitor = Mentions { names: &names, found: Vec::new() };
        visitor.visit_file(&file.syntax);
        mentions.extend(visitor.found.into_iter().map(|(line, what)| Mention {
            file: file.path.clone(),
            line,
            what,
            package: file.package,
        }));
    }
    Ok(mentions.into_iter().collect())
}

/// The names of all RPCs.
struct Names {
    methods: BTreeSet<String>,
    paths: BTreeSet<String>,
}

impl Names {
    /// Reads them from the `service` and `rpc` lines of a protobuf file.
    fn of(text: &str) -> Self {
        let mut names = Self { methods: BTreeSet::new(), paths: BTreeSet::new() };
        let mut service = "";
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.trim_end_matches('{').trim();
            } else if let Some((method, _)) =
                line.strip_prefix("rpc ").and_then(|rest| rest.split_once('('))
            {
                let method = method.trim();
                names.methods.insert(method.to_owned());
                names.paths.insert(format!("csi.v1.{service}/{method}"));
            }
        }
        names
    }

    fn has(&self, text: &str) -> bool {
        let text = text.strip_prefix('/').unwrap_or(text);
        self.methods.contains(text) || self.paths.contains(text)
    }

    /// Whether a path ends with a variant of `Method`.
    fn variant(&self, path: &syn::Path) -> Option<String> {
        let mut last = path.segments.iter().rev().map(|segment| segment.ident.unraw().to_string());
        let variant = last.next()?;
        let owner = last.next()?;
        (owner == "Method" && self.methods.contains(&variant)).then(|| format!("Method::{variant}"))
    }
}

struct Mentions<'a> {
    names: &'a Names,
    found: Vec<(usize, String)>,
}

impl Mentions<'_> {
    /// Notes a variant that a value is compared with.
    fn compared(&mut self, expression: &Expr) {
        match expression {
            Expr::Path(path) => self.variant(&path.path, "comparison with"),
            Expr::Reference(inner) => self.compared(&inner.expr),
            Expr::Paren(inner) => self.compared(&inner.expr),
            Expr::Group(inner) => self.compared(&inner.expr),
            Expr::Call(call) => call.args.iter().for_each(|value| self.compared(value)),
            Expr::Array(array) => array.elems.iter().for_each(|value| self.compared(value)),
            Expr::Tuple(tuple) => tuple.elems.iter().for_each(|value| self.compared(value)),
            // `Method::X.name()` and `Method::X.path()`.
            Expr::MethodCall(call) if call.args.is_empty() => self.compared(&call.receiver),
            _ => {}
        }
    }

    /// Notes a constant that is the name or path of a variant, or a list of them.
    fn constant(&mut self, initialiser: &Expr) {
        match initialiser {
            Expr::Reference(inner) => self.constant(&inner.expr),
            Expr::Paren(inner) => self.constant(&inner.expr),
            Expr::Group(inner) => self.constant(&inner.expr),
            Expr::Array(array) => array.elems.iter().for_each(|value| self.constant(value)),
            Expr::Tuple(tuple) => tuple.elems.iter().for_each(|value| self.constant(value)),
            Expr::MethodCall(call) if call.method == "name" || call.method == "path" => {
                if let Expr::Path(path) = &*call.receiver {
                    self.variant(&path.path, "constant of");
                }
            }
            _ => {}
        }
    }

    fn variant(&mut self, path: &syn::Path, how: &str) {
        if let (Some(variant), Some(last)) = (self.names.variant(path), path.segments.last()) {
            self.found.push((last.ident.span().start().line, format!("{how} {variant}")));
        }
    }

    fn literal(&mut self, text: &str, line: usize) {
        if self.names.has(text) {
            self.found.push((line, format!("string \"{text}\"")));
        }
    }

    /// Visits the body of a macro call as the expressions and patterns that it has.
    fn parsed(&mut self, call: &syn::Macro) {
        let name = call.path.segments.last().map(|last| last.ident.to_string());
        let name = name.unwrap_or_default();
        let tokens = call.tokens.clone();
        if name == "matches" {
            if let Ok((value, pattern, guard)) = matched.parse2(tokens) {
                self.visit_expr(&value);
                self.visit_pat(&pattern);
                guard.iter().for_each(|guard| self.visit_expr(guard));
            }
            return;
        }
        match Punctuated::<Expr, Token![,]>::parse_terminated.parse2(tokens) {
            Ok(values) => {
                let compares = name.ends_with("assert_eq") || name.ends_with("assert_ne");
                values.iter().filter(|_| compares).for_each(|value| self.compared(value));
                values.iter().for_each(|value| self.visit_expr(value));
            }
            Err(_) => self.arms(call.tokens.clone()),
        }
    }

    /// Finds variants in a body that is no list of expressions, by the tokens beside them.
    fn arms(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.arms(group.stream()),
                TokenTree::Ident(ident) if self.is_variant(&tokens, at) => {
                    let before = at.checked_sub(4).map(|before| text(tokens.get(before)));
                    let is_compared = matches!(before.as_deref(), Some("=" | "|"));
                    let end = end_of_calls(&tokens, at);
                    let after = [1, 2].map(|after| text(tokens.get(end + after)));
                    let is_arm = match after.each_ref().map(String::as_str) {
                        ["=", ">" | "="] | ["!", "="] | ["|", _] | ["if", _] => true,
                        _ => is_compared,
                    };
                    if is_arm {
                        let what = format!("pattern Method::{ident}");
                        self.found.push((ident.span().start().line, what));
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether an identifier is the last of `Method::X`.
    fn is_variant(&self, tokens: &[TokenTree], at: usize) -> bool {
        let before = |back: usize| at.checked_sub(back).map(|at| text(tokens.get(at)));
        let is_method = before(3).as_deref() == Some("Method");
        let is_path = before(1).as_deref() == Some(":") && before(2).as_deref() == Some(":");
        is_method && is_path && self.names.methods.contains(&text(tokens.get(at)))
    }
}

/// The last token of the calls without arguments that follow a token, as in `.name()`.
fn end_of_calls(tokens: &[TokenTree], at: usize) -> usize {
    match tokens.get(at + 1..at + 4) {
        Some([TokenTree::Punct(dot), TokenTree::Ident(_), TokenTree::Group(arguments)])
            if dot.as_char() == '.' && arguments.stream().is_empty() =>
        {
            end_of_calls(tokens, at + 3)
        }
        _ => at,
    }
}

/// Reads `value, pattern if guard`, as `matches!` takes them.
fn matched(input: ParseStream<'_>) -> syn::Result<(Expr, Pat, Option<Expr>)> {
    let value = input.parse()?;
    input.parse::<Token![,]>()?;
    let pattern = Pat::parse_multi_with_leading_vert(input)?;
    let guard =
        if input.parse::<Option<Token![if]>>()?.is_some() { Some(input.parse()?) } else { None };
    input.parse::<Option<Token![,]>>()?;
    Ok((value, pattern, guard))
}

fn text(token: Option<&TokenTree>) -> String {
    token.map(ToString::to_string).unwrap_or_default()
}

impl<'ast> Visit<'ast> for Mentions<'_> {
    fn visit_lit_str(&mut self, literal: &'ast syn::LitStr) {
        self.literal(&literal.value(), literal.span().start().line);
    }

    fn visit_lit_byte_str(&mut self, literal: &'ast syn::LitByteStr) {
        let value = literal.value();
        self.literal(&String::from_utf8_lossy(&value), literal.span().start().line);
    }

    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        for token in tokens.clone() {
            match token {
                TokenTree::Group(group) => self.visit_token_stream(&group.stream()),
                TokenTree::Literal(literal) => {
                    if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                        self.literal(&text.value(), literal.span().start().line);
                    }
                }
                _ => {}
            }
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if !attribute.path().is_ident("doc") {
            visit::visit_attribute(self, attribute);
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.parsed(call);
        visit::visit_macro(self, call);
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        match pattern {
            Pat::Path(path) => self.variant(&path.path, "pattern"),
            Pat::TupleStruct(path) => self.variant(&path.path, "pattern"),
            Pat::Struct(path) => self.variant(&path.path, "pattern"),
            // A variant that a `use` brought in.
            Pat::Ident(name) if self.names.methods.contains(&name.ident.to_string()) => {
                let line = name.ident.span().start().line;
                self.found.push((line, format!("pattern {}", name.ident)));
            }
            _ => {}
        }
        visit::visit_pat(self, pattern);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(&item.expr);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(&item.expr);
        visit::visit_item_static(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(&item.expr);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_expr_binary(&mut self, expression: &'ast syn::ExprBinary) {
        if matches!(expression.op, syn::BinOp::Eq(_) | syn::BinOp::Ne(_)) {
            self.compared(&expression.left);
            self.compared(&expression.right);
        }
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if ["contains", "eq", "ne", "starts_with", "ends_with"]
            .iter()
            .any(|name| call.method == name)
        {
            self.compared(&call.receiver);
            call.args.iter().for_each(|value| self.compared(value));
        }
        visit::visit_expr_method_call(self, call);
    }
}

#[cfg(test)]
#[path = "test_methods.rs"]
mod tests;
