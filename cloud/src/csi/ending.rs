//! Decides where the delete or detach of an id goes, if several nodes may have it. Pure.
//!
//! In this order: a confirmed home, the volume in Kubernetes, the home that ended, a home that is
//! one node's own word, for a detach the node with this id, and all nodes. So no node alone can
//! take an id that another one has.

use prost::Message;
use proto::csi::{Id, Method, NodeGetInfoResponse};
use proto::names::NodeName;

use crate::state::affinity::{NodesOf, VolumeAnswer, VolumeAt, deleted_at, used_at};
use crate::state::driver_state::DriverState;
use crate::state::policy::Policy;

/// The destination of a delete or detach.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EndsAt {
    /// The node that has the id.
    Node(NodeName),
    /// The node that alone says that it has the id.
    Claimed(NodeName),
    /// The node with the detach's node id, by its own word.
    Detached(NodeName),
    /// The node that deleted the id before.
    Before {
        node: NodeName,
        /// False if that node alone said that it had the id.
        is_confirmed: bool,
    },
    /// Every node.
    Everywhere,
    /// Kubernetes has to be asked first about this volume.
    Unasked(String),
    /// It is not certain, for this reason.
    Unclear(String),
}

/// A delete or detach, and the facts about its id.
pub(super) struct Ending<'a> {
    pub(super) method: Method,
    pub(super) id: &'a Id,
    /// The CSI node id of a detach.
    pub(super) node_id: Option<&'a str>,
    pub(super) driver: &'a DriverState,
    pub(super) policy: &'a Policy,
    /// Kubernetes' answer about the volume. `None` before it was asked.
    pub(super) kubernetes: Option<&'a VolumeAnswer>,
    /// True if other nodes may have the id than those that are known.
    pub(super) awaits: bool,
    /// The current time, in ms since 1970.
    pub(super) now: u64,
}

impl Ending<'_> {
    /// The destination.
    pub(super) fn destination(&self, is_removed: impl Fn(&NodeName) -> bool) -> EndsAt {
        let Self { driver, id, policy, .. } = self;
        let home = driver.home(id);
        if let Some(home) = home.filter(|home| policy.is_confirmed(home)) {
            return EndsAt::Node(home.node.clone());
        }
        let last = driver.ended().at(id, self.now);
        let ended = last.map(|last| &last.node);
        match self.in_kubernetes() {
            None => return EndsAt::Unasked(id.text().to_owned()),
            Some(VolumeAt::Refused(why)) => return self.unclear(&why),
            Some(VolumeAt::Node(node)) => {
                let other = ended.filter(|ended| **ended != node && !is_removed(ended));
                return match other {
                    None => EndsAt::Node(node),
                    Some(other) => self.unclear(&format!(
                        "its PersistentVolume says that it is at {node}, and it was deleted at \
                         {other} before"
                    )),
                };
            }
            Some(VolumeAt::Unsaid) => {}
        }
        // What a removed node had is gone, but it says nothing of what another one has.
        if let Some(last) = last.filter(|last| home.is_none() || !is_removed(&last.node)) {
            let is_confirmed = last.confirmed || policy.allows_just(&last.node);
            return EndsAt::Before { node: last.node.clone(), is_confirmed };
        }
        match home {
            Some(home) => EndsAt::Claimed(home.node.clone()),
            None => self.detached_node().map_or(EndsAt::Everywhere, EndsAt::Detached),
        }
    }

    /// What Kubernetes says of a volume. `None` before it was asked.
    fn in_kubernetes(&self) -> Option<VolumeAt> {
        let Self { driver, id, method, policy, .. } = self;
        if !matches!(id, Id::Volume(text) if !text.is_empty()) {
            return Some(VolumeAt::Unsaid);
        }
        let nodes = NodesOf { driver, policy: Some(policy) };
        Some(match self.kubernetes? {
            VolumeAnswer::Unknown => VolumeAt::Unsaid,
            VolumeAnswer::Known(volumes) if method.detaches() => {
                used_at(volumes, nodes).map_or(VolumeAt::Unsaid, VolumeAt::Node)
            }
            VolumeAnswer::Known(volumes) => deleted_at(volumes, nodes),
            // A detach destroys nothing.
            VolumeAnswer::Silent if method.detaches() => VolumeAt::Unsaid,
            VolumeAnswer::Silent => VolumeAt::Refused(
                "Kubernetes does not say which PersistentVolumes have this id".into(),
            ),
        })
    }

    /// The node with the node id of a detach, if no other one can have that id; or else the one
    /// that had it before.
    fn detached_node(&self) -> Option<NodeName> {
        let node_id = self.node_id.filter(|id| !id.is_empty() && !self.awaits)?;
        let mut found = None;
        for (node, at) in self.driver.members() {
            let info = NodeGetInfoResponse::decode(at.info.clone()?).ok()?;
            if info.node_id == node_id && found.replace(node).is_some() {
                return None;
            }
        }
        found.cloned().or_else(|| match self.driver.formerly(node_id).as_slice() {
            [node] => Some((*node).clone()),
            _ => None,
        })
    }

    fn unclear(&self, why: &str) -> EndsAt {
        let id = self.id.text();
        EndsAt::Unclear(format!(
            "it is not certain which node has {id:?}: {why}; `csi-cloud volume adopt` with the \
             node says it"
        ))
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::topology::NODE_SEGMENT;
    use proto::names::DriverName;

    use super::*;
    use crate::state::affinity::{Affinity, VolumeFacts};
    use crate::state::known::State;
    use crate::state::record::{Change, EndedHome, Home, NodeDriver};

    fn name(node: &str) -> NodeName {
        node.parse().unwrap()
    }

    fn volume() -> Id {
        Id::Volume("v".into())
    }

    fn driver_name() -> DriverName {
        "d.example".parse().unwrap()
    }

    /// A node with this node id.
    fn at(node: &str, node_id: &str) -> Change {
        let info = NodeGetInfoResponse { node_id: node_id.into(), ..Default::default() };
        let segment = (NODE_SEGMENT.to_owned(), node.to_owned());
        let at = NodeDriver {
            info: Some(info.encode_to_vec().into()),
            segments: [segment.into()].into(),
            ..NodeDriver::default()
        };
        Change::NodeDriver(driver_name(), name(node), Some(at))
    }

    /// A node with this node id, which had the other one before.
    fn changed(node: &str, node_id: &str, former: &str) -> Change {
        match at(node, node_id) {
            Change::NodeDriver(driver, node, Some(at)) => {
                let at = NodeDriver { former_ids: [former.into()].into(), ..at };
                Change::NodeDriver(driver, node, Some(at))
            }
            other => other,
        }
    }

    fn home(node: &str, adopted: bool) -> Change {
        let home = Home { adopted, ..Home::at(name(node), 1) };
        Change::Home(driver_name(), volume(), Some(home))
    }

    fn ended(node: &str) -> Change {
        let home = EndedHome { node: name(node), ended: 1, confirmed: false };
        Change::EndedHome(driver_name(), volume(), Some(home))
    }

    fn pv(node: &str, is_ended: bool) -> VolumeFacts {
        let term = [(NODE_SEGMENT.to_owned(), node.to_owned())].into();
        let affinity = Some(Affinity::new(vec![term]));
        VolumeFacts { name: "pv".into(), affinity, is_ended, ..VolumeFacts::default() }
    }

    fn deleted<const N: usize>(more: [Change; N], kubernetes: &VolumeAnswer) -> EndsAt {
        ends(more, Method::DeleteVolume, None, Some(kubernetes))
    }

    /// The end of two nodes, which have their names as node ids, and these changes.
    fn ends<const N: usize>(
        more: [Change; N],
        method: Method,
        node_id: Option<&str>,
        kubernetes: Option<&VolumeAnswer>,
    ) -> EndsAt {
        let state = State::of([at("n1", "n1"), at("n2", "n2")].into_iter().chain(more));
        let driver = state.driver(&driver_name()).unwrap();
        let id = &volume();
        let policy = &Policy::new(None);
        let ending =
            Ending { method, id, node_id, driver, policy, kubernetes, awaits: false, now: 2 };
        ending.destination(|node| node.as_str() == "removed")
    }

    fn released(node: &str) -> VolumeAnswer {
        VolumeAnswer::Known(vec![pv(node, true)])
    }

    fn why(ends: EndsAt) -> String {
        match ends {
            EndsAt::Unclear(why) => why,
            ends => panic!("{ends:?}"),
        }
    }

    fn node(node: &str) -> EndsAt {
        EndsAt::Node(name(node))
    }

    fn before(node: &str) -> EndsAt {
        EndsAt::Before { node: name(node), is_confirmed: false }
    }

    #[test]
    fn only_a_confirmed_home_needs_no_word_of_kubernetes() {
        let unasked = EndsAt::Unasked("v".into());
        assert_eq!(ends([], Method::DeleteVolume, None, None), unasked);
        assert_eq!(ends([home("n2", false)], Method::DeleteVolume, None, None), unasked);
        assert_eq!(ends([home("n2", true)], Method::DeleteVolume, None, None), node("n2"));
    }

    #[test]
    fn a_find_outranks_neither_kubernetes_nor_an_ended_home() {
        let in_kubernetes = released("n1");
        let unknown = &VolumeAnswer::Unknown;
        assert_eq!(deleted([home("n2", false)], &in_kubernetes), node("n1"));
        assert_eq!(deleted([home("n2", false), ended("n1")], unknown), before("n1"));
        let claimed = EndsAt::Claimed(name("n2"));
        assert_eq!(deleted([home("n2", false)], unknown), claimed);
        let removed = [home("n2", false), ended("removed")];
        assert_eq!(deleted(removed, unknown), claimed, "it says nothing of another node");
        assert_eq!(deleted([ended("removed")], unknown), before("removed"));
        assert_eq!(deleted([], unknown), EndsAt::Everywhere);
    }

    #[test]
    fn a_delete_that_kubernetes_contradicts_or_cannot_answer_goes_nowhere() {
        let said = why(deleted([ended("n2")], &released("n1")));
        assert!(said.contains("n1") && said.contains("n2"), "{said}");
        let two = VolumeAnswer::Known(vec![pv("n1", true), pv("n2", false)]);
        why(deleted([], &two));
        why(deleted([], &VolumeAnswer::Known(vec![pv("n1", false)])));
        why(deleted([home("n1", false)], &VolumeAnswer::Silent));
        assert_eq!(deleted([ended("removed")], &released("n1")), node("n1"));
    }

    #[test]
    fn a_detach_goes_to_the_only_node_with_the_node_id() {
        fn detach<const N: usize>(more: [Change; N], node_id: Option<&str>) -> EndsAt {
            let method = Method::ControllerUnpublishVolume;
            ends(more, method, node_id, Some(&VolumeAnswer::Silent))
        }
        assert_eq!(detach([], Some("n2")), EndsAt::Detached(name("n2")));
        for node_id in [Some("n3"), Some(""), None] {
            assert_eq!(detach([], node_id), EndsAt::Everywhere);
        }
        assert_eq!(detach([at("n5", "n2")], Some("n2")), EndsAt::Everywhere);
        assert_eq!(detach([changed("n2", "b", "a")], Some("a")), EndsAt::Detached(name("n2")));
        let present = [changed("n2", "b", "a"), at("n3", "a")];
        assert_eq!(detach(present, Some("a")), EndsAt::Detached(name("n3")));
        let two = [changed("n2", "b", "a"), changed("n3", "c", "a")];
        assert_eq!(detach(two, Some("a")), EndsAt::Everywhere);
        let unknown = Change::NodeDriver(driver_name(), name("n4"), Some(NodeDriver::default()));
        assert_eq!(detach([unknown], Some("n2")), EndsAt::Everywhere, "n4 may have that id too");
    }
}
