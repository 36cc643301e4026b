//! Names of nodes in a text for an operator.

use proto::names::NodeName;

/// The nodes' names, for an operator.
pub fn names(nodes: &[NodeName]) -> String {
    first_few(nodes.iter().map(ToString::to_string))
}

/// The first few, and how many more: a status message has to fit in a caller's header list.
pub fn first_few(all: impl ExactSizeIterator<Item = String>) -> String {
    const FEW: usize = 10;
    let more = all.len().saturating_sub(FEW);
    let first = all.take(FEW).collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}
