//! Lists of names in messages for operators.
//!
//! A status message must fit in a caller's header list, so long lists are cut.

use proto::names::NodeName;

/// The names of these nodes.
pub fn names(nodes: &[NodeName]) -> String {
    first_few(nodes.iter().map(ToString::to_string))
}

/// The first ten, and the number of the others.
pub fn first_few(all: impl ExactSizeIterator<Item = String>) -> String {
    const FEW: usize = 10;
    let more = all.len().saturating_sub(FEW);
    let first = all.take(FEW).collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}
