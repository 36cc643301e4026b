//! What is counted in one file, for the table.

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
        let test_lines =
            if is_test { all } else { prune::prune(&mut syntax).iter().map(count).sum() };
        size.test_lines = test_lines;
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
        };
        assert_eq!(size, expected);
        assert_eq!(Size::of(text, true).unwrap().functions, [11, 1]);
    }

    #[test]
    fn percentiles_are_lengths_that_occur() {
        let size = Size { functions: (1..=10).collect(), ..Size::default() };
        assert_eq!([50, 90, 100].map(|percent| size.percentile(percent)), [5, 9, 10]);
        assert_eq!(Size::default().percentile(50), 0);
    }
}
