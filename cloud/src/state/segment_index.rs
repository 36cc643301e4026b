//! The index from topology segments to nodes.
//!
//! Most segments belong to one node, so each segment is stored once.

use std::collections::HashMap;

use proto::names::NodeName;

use crate::state::record::Segment;

/// The nodes of each segment, by name.
#[derive(Default)]
pub(super) struct SegmentIndex(HashMap<Segment, Vec<NodeName>>);

impl SegmentIndex {
    /// The nodes of this segment.
    pub(super) fn of(&self, key: &str, value: &str) -> &[NodeName] {
        self.0.get(&(key.to_owned(), value.to_owned())).map_or(&[], |nodes| nodes)
    }

    /// Adds a node to these segments. Equal segments share one copy afterwards.
    pub(super) fn add(&mut self, segments: &mut [Segment], node: &NodeName) {
        for segment in segments {
            if let Some((known, _)) = self.0.get_key_value(&*segment) {
                *segment = known.clone();
            }
            let nodes = self.0.entry(segment.clone()).or_insert_with(|| Vec::with_capacity(1));
            if let Err(at) = nodes.binary_search(node) {
                nodes.insert(at, node.clone());
            }
        }
    }

    /// Removes a node from these segments.
    pub(super) fn remove(&mut self, segments: &[Segment], node: &NodeName) {
        for segment in segments {
            let Some(nodes) = self.0.get_mut(segment) else { continue };
            if let Ok(at) = nodes.binary_search(node) {
                nodes.remove(at);
            }
            if nodes.is_empty() {
                self.0.remove(segment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn zone(name: &str) -> Segment {
        Arc::new(("zone".into(), name.into()))
    }

    #[test]
    fn a_segment_has_its_nodes_by_name_and_is_there_once() {
        let mut index = SegmentIndex::default();
        let [one, two] = ["n1", "n2"].map(|node| node.parse::<NodeName>().unwrap());
        let mut first = [zone("a")];
        let mut second = [zone("a"), zone("b")];
        index.add(&mut first, &two);
        index.add(&mut second, &one);
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        assert_eq!(index.of("zone", "a"), [one.clone(), two.clone()]);
        index.remove(&second, &one);
        assert_eq!((index.of("zone", "a"), index.of("zone", "b")), (&[two][..], &[][..]));
        assert_eq!(index.0.len(), 1, "what has no nodes is not kept");
    }
}
