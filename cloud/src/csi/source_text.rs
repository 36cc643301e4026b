//! Texts for a volume's source and a requested topology, in errors, Events and logs.

use std::collections::BTreeSet;

use proto::csi::{Id, Segments};

use crate::state::node_names::first_few;

/// The kind and id of a volume's source.
pub(super) fn source_text(source: &Id) -> String {
    match source {
        Id::Snapshot(id) => format!("snapshot {id}"),
        Id::Volume(id) | Id::Group(id) | Id::Name(_, id) => format!("volume {id}"),
    }
}

/// A requested topology: the first few of its alternatives.
pub(super) fn topology_text(requested: &[Segments]) -> String {
    let different: BTreeSet<_> = requested.iter().collect();
    first_few(different.into_iter().map(|segments| written(segments.iter())))
}

/// The segments of a topology.
pub(super) fn written<'a>(segments: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let pairs: Vec<_> = segments.map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(","))
}
