//! What is counted in one file, for the table.

use std::collections::BTreeSet;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::prune;

/// A line longer than this is counted.
const COLUMNS: usize = 100;

/// The figures of one file, or of many together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) files: usize,
    /// Lines outside tests.
    pub(crate) lines: usize,
    pub(crate) test_lines: usize,
    /// The length of each function in lines, from its signature to its last brace.
    pub(crate) functions: Vec<usize>,
    /// Statements of the form `let (a, b) = (x, y);`.
    pub(crate) tuple_lets: usize,
    pub(crate) long_lines: usize,
    /// Statements of the form `let f = |x| …;` on one line.
    pub(crate) closures: usize,
    pub(crate) product: Product,
}

/// The figures of product code: what is left without tests, comments, blank lines and generated
/// code. Frozen together with `rustfmt.toml`, so that figures of two commits can be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Product {
    /// Files with product code.
    pub(crate) files: usize,
    /// Those of fewer than [`SMALL`] pure lines.
    pub(crate) small_files: usize,
    pub(crate) pure_lines: usize,
    /// Statements of the form `let f = |x| …;`, on any number of lines.
    pub(crate) closures: usize,
    /// `let` statements that bind a name again that the same function bound by a `let` before.
    pub(crate) rebound: usize,
}

/// A file of fewer pure lines is a small one.
const SMALL: usize = 60;

impl Product {
    /// The figures of one file of `pure_lines`.
    fn file(pure_lines: usize) -> Self {
        Self {
            files: usize::from(pure_lines > 0),
            small_files: usize::from((1..SMALL).contains(&pure_lines)),
            pure_lines,
            ..Self::default()
        }
    }

    /// Measures a script, a style sheet or a template, none of which has tests inside.
    pub(crate) fn script(text: &str) -> Self {
        let mut in_comment = false;
        let is_pure = |line: &&str| {
            let line = line.trim();
            let opens = line.starts_with("/*");
            let is_comment = in_comment || opens || line.starts_with("//");
            in_comment = (in_comment || opens) && !line.contains("*/");
            !line.is_empty() && !is_comment
        };
        Self::file(text.lines().filter(is_pure).count())
    }

    /// Adds the figures of another file.
    pub(crate) fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.small_files += other.small_files;
        self.pure_lines += other.pure_lines;
        self.closures += other.closures;
        self.rebound += other.rebound;
    }

    /// So many per 1,000 pure lines, in tenths.
    pub(crate) fn tenths_per_thousand(&self, count: usize) -> usize {
        (count * 10_000).checked_div(self.pure_lines).unwrap_or_default()
    }
}

impl Size {
    /// Measures one file. In a file of tests every function counts, elsewhere those outside tests.
    ///
    /// # Errors
    /// The file is not Rust.
    pub(crate) fn of(text: &str, is_test: bool) -> syn::Result<Self> {
        let mut syntax = syn::parse_file(text)?;
        let mut size = Self { files: 1, ..Self::default() };
        let mut lets = Lets::default();
        lets.visit_file(&syntax);
        size.tuple_lets = lets.tuples;
        size.closures = lets.closures;
        size.long_lines = text.lines().filter(|line| line.chars().count() > COLUMNS).count();
        let all = text.lines().count();
        let tests = if is_test { vec![(1, all)] } else { prune::prune(&mut syntax) };
        let test_lines = tests.iter().map(count).sum();
        size.test_lines = test_lines;
        if !is_test {
            size.product = Product::file(pure_lines(text, &tests));
            let mut bindings = Bindings::default();
            bindings.visit_file(&syntax);
            size.product.closures = bindings.closures;
            size.product.rebound = bindings.rebound;
        }
        size.lines = all.saturating_sub(test_lines);
        let mut functions = Functions::default();
        functions.visit_file(&syntax);
        size.functions = functions.lengths;
        Ok(size)
    }

    /// Adds the figures of another file.
    pub(crate) fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.lines += other.lines;
        self.test_lines += other.test_lines;
        self.functions.extend(&other.functions);
        self.tuple_lets += other.tuple_lets;
        self.long_lines += other.long_lines;
        self.closures += other.closures;
        self.product.add(&other.product);
    }

    /// The length that so many percent of the functions do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> usize {
        let mut lengths = self.functions.clone();
        lengths.sort_unstable();
        let rank = (lengths.len() * percent).div_ceil(100).max(1);
        lengths.get(rank - 1).copied().unwrap_or_default()
    }
}

fn count((first, last): &prune::Lines) -> usize {
    last - first + 1
}

/// Lines of code outside these tests.
fn pure_lines(text: &str, tests: &[prune::Lines]) -> usize {
    let is_tested =
        |number: &usize| tests.iter().any(|(first, last)| (first..=last).contains(&number));
    let code = (1..).zip(text.lines()).filter(|(number, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//") && !is_tested(number)
    });
    code.count()
}

/// Counts named closures, and names that one function binds twice.
#[derive(Default)]
struct Bindings {
    /// Names bound by `let` in the functions around this place, the innermost last.
    names: Vec<BTreeSet<String>>,
    closures: usize,
    rebound: usize,
}

impl Bindings {
    fn inside(&mut self, visit: impl FnOnce(&mut Self)) {
        self.names.push(BTreeSet::new());
        visit(self);
        self.names.pop();
    }
}

impl<'ast> Visit<'ast> for Bindings {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.inside(|bindings| visit::visit_item_fn(bindings, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.inside(|bindings| visit::visit_impl_item_fn(bindings, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.inside(|bindings| visit::visit_trait_item_fn(bindings, item));
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let is_closure =
            local.init.as_ref().is_some_and(|init| matches!(*init.expr, syn::Expr::Closure(_)));
        let pattern = match &local.pat {
            syn::Pat::Type(typed) => &*typed.pat,
            pattern => pattern,
        };
        self.closures += usize::from(is_closure && matches!(pattern, syn::Pat::Ident(_)));
        if let (syn::Pat::Ident(bound), Some(names)) = (pattern, self.names.last_mut()) {
            self.rebound += usize::from(!names.insert(bound.ident.to_string()));
        }
        visit::visit_local(self, local);
    }
}

#[derive(Default)]
struct Functions {
    lengths: Vec<usize>,
}

impl Functions {
    fn note(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let lines = (signature.span().start().line, block.brace_token.span.close().end().line);
        self.lengths.push(count(&lines));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.note(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.note(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.note(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[derive(Default)]
struct Lets {
    tuples: usize,
    closures: usize,
}

impl<'ast> Visit<'ast> for Lets {
    fn visit_local(&mut self, local: &'ast syn::Local) {
        visit::visit_local(self, local);
        // With `else`, several values are matched together.
        let Some(init) = local.init.as_ref().filter(|init| init.diverge.is_none()) else {
            return;
        };
        let pattern = match &local.pat {
            syn::Pat::Type(typed) => &*typed.pat,
            pattern => pattern,
        };
        match (pattern, &*init.expr) {
            (syn::Pat::Tuple(_), syn::Expr::Tuple(tuple)) if tuple.elems.len() > 1 => {
                self.tuples += 1;
            }
            (syn::Pat::Ident(_), syn::Expr::Closure(_)) => {
                let span = local.span();
                self.closures += usize::from(span.start().line == span.end().line);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_counted_with_its_tests_apart() {
        let text = "\
fn a() {
    let (b, c) = (1, 2);
    let (d, e): (u8, u8) = (3, 4);
    let (Some(f), Some(g)) = (b, c) else { return };
    let (h, i) = pair();
    let j = |x| x;
    let k = |x| {
        x
    };
    let l = move || { let (m, n) = (1, 2); };
}

#[cfg(test)]
mod tests {
    fn o() {}
}
";
        let long = format!("// {}\n", "x".repeat(98));
        let size = Size::of(&format!("{text}{long}"), false).unwrap();
        let expected = Size {
            files: 1,
            lines: 13,
            test_lines: 4,
            functions: vec![11],
            tuple_lets: 3,
            long_lines: 1,
            closures: 2,
            product: Product { files: 1, small_files: 1, pure_lines: 11, closures: 3, rebound: 0 },
        };
        assert_eq!(size, expected);
        assert_eq!(Size::of(text, true).unwrap().functions, [11, 1]);
    }

    #[test]
    fn product_code_is_counted_without_comments_blanks_and_tests() {
        let text = "\
//! A plate.

/// A comment.
fn a(b: u8) -> u8 {
    let c = b;
    let c = c + 1;
    let d = c;
    if d > 1 {
        let d = 2;
    }

    c
}

fn e() {
    let c = 1;
}

#[test]
fn f() {
    let g = 1;
    let g = 2;
}
";
        let size = Size::of(text, false).unwrap();
        let expected =
            Product { files: 1, small_files: 1, pure_lines: 12, closures: 0, rebound: 2 };
        assert_eq!(size.product, expected);
        assert_eq!(Size::of(text, true).unwrap().product, Product::default());
    }

    #[test]
    fn a_script_is_counted_without_comments_and_blanks() {
        let script = "/* One\n * two */\n\nlet a = 1; // three\n// four\nlet b = 2;\n";
        assert_eq!(Product::script(script).pure_lines, 2);
    }

    #[test]
    fn a_rate_is_per_thousand_lines() {
        let product = Product { pure_lines: 500, ..Product::default() };
        assert_eq!(product.tenths_per_thousand(3), 60);
        assert_eq!(Product::default().tenths_per_thousand(3), 0);
    }

    #[test]
    fn percentiles_are_lengths_that_occur() {
        let size = Size { functions: (1..=10).collect(), ..Size::default() };
        assert_eq!([50, 90, 100].map(|percent| size.percentile(percent)), [5, 9, 10]);
        assert_eq!(Size::default().percentile(50), 0);
    }
}
