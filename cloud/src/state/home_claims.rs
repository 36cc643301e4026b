//! Decides whose an id without a home is. Pure: answers in, a verdict out.
//!
//! A node speaks for itself only. Its claim to an id is believed if every other node that may have
//! the id is known not to have it. So no single node can take what another one has.

use proto::csi::Id;
use proto::names::NodeName;

use crate::state::affinity::{NodesOf, VolumeFacts, claimant_of, used_at};
use crate::state::driver_state::DriverState;

/// The answers of a driver's nodes to the question for an id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// The nodes that say that they have it.
    pub claimants: Vec<NodeName>,
    /// The nodes that did not answer.
    pub silent: Vec<NodeName>,
    /// The nodes whose driver cannot be asked.
    pub unable: Vec<NodeName>,
    /// The nodes that say that they do not have it.
    pub deniers: Vec<NodeName>,
}

/// The owner of an id without a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// This node's.
    At(NodeName),
    /// No node claims it.
    Unclaimed {
        /// The nodes that did not answer.
        silent: Vec<NodeName>,
        /// The nodes whose driver cannot be asked. No later answer of theirs can differ.
        unable: Vec<NodeName>,
    },
    /// Several nodes claim it. None is believed.
    Disputed(Vec<NodeName>),
    /// One node claims it, and these may have it too.
    Unconfirmed {
        /// The node that claims it.
        claimant: NodeName,
        /// The nodes that must be asked first.
        silent: Vec<NodeName>,
    },
}

impl Answers {
    /// Decides the owner of the id. `lacks` is true for a silent node that is known not to have the
    /// id.
    pub fn verdict(mut self, lacks: impl Fn(&NodeName) -> bool) -> ClaimVerdict {
        self.claimants.sort();
        match self.claimants.pop() {
            None => {
                self.silent.sort();
                self.unable.sort();
                ClaimVerdict::Unclaimed { silent: self.silent, unable: self.unable }
            }
            Some(claimant) if self.claimants.is_empty() => {
                let mut silent = self.silent;
                silent.append(&mut self.unable);
                silent.retain(|node| !lacks(node));
                silent.sort();
                if silent.is_empty() {
                    ClaimVerdict::At(claimant)
                } else {
                    ClaimVerdict::Unconfirmed { claimant, silent }
                }
            }
            Some(last) => {
                self.claimants.push(last);
                ClaimVerdict::Disputed(self.claimants)
            }
        }
    }
}

impl ClaimVerdict {
    /// The node that has the volume by its PersistentVolumes: among claimants the one that they
    /// name, and without one only a node that they name by a key that tells nodes apart.
    pub fn named(&self, volumes: &[VolumeFacts], nodes: NodesOf<'_>) -> Option<NodeName> {
        let claimants = match self {
            Self::Unclaimed { .. } => return used_at(volumes, nodes),
            Self::Disputed(claimants) => claimants.as_slice(),
            Self::At(claimant) | Self::Unconfirmed { claimant, .. } => {
                std::slice::from_ref(claimant)
            }
        };
        claimant_of(volumes, claimants, nodes)
    }
}

/// True if a node is known not to have a volume. It gave a complete list once, and later volumes
/// have a home. The volume may have got one there since the nodes were asked.
pub fn is_known_without(driver: &DriverState, node: &NodeName, id: &Id) -> bool {
    let is_listed = driver.at(node).is_some_and(|at| at.listed > 0);
    let is_home = driver.home(id).is_some_and(|home| home.node == *node);
    matches!(id, Id::Volume(_)) && is_listed && !is_home
}

#[cfg(test)]
mod tests {
    use proto::host::tasks::Tasks;
    use proto::names::DriverName;

    use super::*;
    use crate::state::record::{Home, NodeDriver};
    use crate::state::store::memory::Memory;
    use crate::state::store::writer::Store;

    fn nodes(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    /// The verdict if n4 was listed.
    fn verdict(claimants: &[&str], silent: &[&str]) -> ClaimVerdict {
        let answers =
            Answers { claimants: nodes(claimants), silent: nodes(silent), ..Answers::default() };
        answers.verdict(|node| node.as_str() == "n4")
    }

    #[test]
    fn a_claim_counts_if_no_other_node_can_have_it() {
        let n1 = || "n1".parse::<NodeName>().unwrap();
        assert_eq!(verdict(&["n1"], &[]), ClaimVerdict::At(n1()));
        assert_eq!(verdict(&["n1"], &["n4"]), ClaimVerdict::At(n1()));
        let unconfirmed =
            ClaimVerdict::Unconfirmed { claimant: n1(), silent: nodes(&["n2", "n3"]) };
        assert_eq!(verdict(&["n1"], &["n3", "n4", "n2"]), unconfirmed);
    }

    #[test]
    fn of_two_claimants_none_is_believed() {
        assert_eq!(verdict(&["n2", "n1"], &[]), ClaimVerdict::Disputed(nodes(&["n1", "n2"])));
        assert_eq!(verdict(&["n2", "n1"], &["n3"]), ClaimVerdict::Disputed(nodes(&["n1", "n2"])));
    }

    #[test]
    fn a_driver_that_cannot_be_asked_confirms_no_claim() {
        let answers = |claimants: &[&str]| Answers {
            claimants: nodes(claimants),
            silent: Vec::new(),
            unable: nodes(&["n2"]),
            deniers: Vec::new(),
        };
        let claimant = "n1".parse().unwrap();
        let unconfirmed = ClaimVerdict::Unconfirmed { claimant, silent: nodes(&["n2"]) };
        assert_eq!(answers(&["n1"]).verdict(|_| false), unconfirmed);
        let unclaimed = ClaimVerdict::Unclaimed { silent: Vec::new(), unable: nodes(&["n2"]) };
        assert_eq!(answers(&[]).verdict(|_| false), unclaimed);
    }

    /// An older list proves nothing here: the answer would be final.
    #[test]
    fn what_nobody_claims_names_all_who_were_silent() {
        let unclaimed =
            |silent| ClaimVerdict::Unclaimed { silent: nodes(silent), unable: Vec::new() };
        assert_eq!(verdict(&[], &["n4", "n3"]), unclaimed(&["n3", "n4"]));
        assert_eq!(verdict(&[], &[]), unclaimed(&[]));
    }

    #[tokio::test]
    async fn a_node_that_was_listed_may_have_what_got_its_home_there() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let driver: DriverName = "d.example".parse().unwrap();
        let id = Id::Volume("v".into());
        let lacks = |store: &Store| {
            let node = "n1".parse().unwrap();
            store.read(|state| is_known_without(state.driver(&driver).unwrap(), &node, &id))
        };
        let listed = store.write({
            let driver = driver.clone();
            move |txn| {
                let at = NodeDriver { listed: 1, ..NodeDriver::default() };
                txn.set_at(&driver, &"n1".parse().unwrap(), Some(at));
            }
        });
        listed.await.unwrap();
        assert!(lacks(&store));
        for (node, is_lacking) in [("n2", true), ("n1", false)] {
            let kept = store.write({
                let driver = driver.clone();
                let id = id.clone();
                move |txn| txn.set_home(&driver, &id, Some(Home::at(node.parse().unwrap(), 1)))
            });
            kept.await.unwrap();
            assert_eq!(lacks(&store), is_lacking, "its home is at {node}");
        }
    }
}
