//! Volumes: where they live, and the calls about them.

use std::ops::Bound;
use std::time::Duration;

use proto::admin::cells::age;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::explainer::Explainer;
use super::node::Need;
use super::subject::Namespaced;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::record::{Claim, Home};
use crate::telemetry::calls::Stage;

/// A call that runs for longer hangs.
const LONG: Duration = Duration::from_secs(20);
/// Homes that are looked at while the store is locked.
const SLICE: usize = 10_000;

/// What is known of a volume's home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeFacts {
    node: NodeName,
    is_lost: bool,
    is_absent: bool,
    claimed_by: Vec<NodeName>,
}

impl VolumeFacts {
    fn of(state: &State, home: &Home) -> Self {
        Self {
            node: home.node.clone(),
            is_lost: home.lost || state.is_removed(&home.node),
            is_absent: home.absent,
            claimed_by: home.conflicts.clone(),
        }
    }

    fn state(&self) -> &'static str {
        match self {
            Self { is_lost: true, .. } => "lost",
            Self { claimed_by, .. } if !claimed_by.is_empty() => "claimed",
            Self { is_absent: true, .. } => "absent",
            _ => "ok",
        }
    }
}

impl Explainer<'_> {
    /// A volume by itself.
    pub(super) fn volume(&self, driver: &DriverName, id: &str) -> Explanation {
        let mut chain = Chain::default();
        if self.has_front(&mut chain, driver) {
            self.follow_volume(&mut chain, driver, id);
        }
        chain.end(|| Verdict::fine(format!("nothing is wrong with volume {id} of {driver}")))
    }

    /// Follows the chain from a volume to its node. Returns the node.
    pub(super) fn follow_volume(
        &self,
        chain: &mut Chain,
        driver: &DriverName,
        id: &str,
    ) -> Option<NodeName> {
        let facts = self.store.read(|state| {
            let home = state.driver(driver)?.home(&Id::Volume(id.into()))?;
            Some(VolumeFacts::of(state, home))
        });
        let object = format!("volume {id} of {driver}");
        let Some(facts) = facts else {
            let shared = self.store.read(|state| state.driver(driver)?.elected().cloned());
            if let Some(controller) = shared {
                chain.step(object, "shared", format!("its controller is node {controller}"));
                self.follow_node(chain, &controller, Some(driver), Need::Use);
                self.follow_calls(chain, driver, id);
                return Some(controller);
            }
            chain.step(object, "unknown", "no node is known to have it");
            chain.judge(Some(unknown(driver, id)));
            return None;
        };
        chain.step(object, facts.state(), format!("at node {}", facts.node));
        chain.judge(judge(&facts, driver, id));
        self.follow_node(chain, &facts.node, Some(driver), Need::Use);
        self.follow_calls(chain, driver, id);
        Some(facts.node)
    }

    /// The calls in flight about a volume's id or name.
    pub(super) fn follow_calls(&self, chain: &mut Chain, driver: &DriverName, subject: &str) {
        for (_, call) in self.calls.running() {
            let progress = call.progress();
            if call.driver != *driver || !progress.is_about(subject) {
                continue;
            }
            let lasts = call.begun.elapsed();
            let node = progress.node.filter(|_| progress.stage != Stage::Front);
            let at = node.as_ref().map(|node| format!("at node {node} ")).unwrap_or_default();
            let found = format!("{at}for {}", age(lasts));
            chain.step(format!("call {}", call.rpc), progress.stage.name(), found);
            if lasts < LONG {
                continue;
            }
            let verdict = hangs(call.rpc, driver, node.as_ref(), lasts);
            chain.judge(Some(match &node {
                Some(node) => verdict.at(node),
                None => verdict,
            }));
        }
    }

    /// The volume that was made for a claim, and its driver, without Kubernetes.
    pub(super) fn volume_of(&self, claim: &Namespaced) -> Option<(DriverName, String)> {
        self.find(|home| home.claim.as_deref().is_some_and(|of| is(of, claim)))
    }

    /// The volume of a PersistentVolume, and its driver, without Kubernetes.
    pub(super) fn volume_named(&self, name: &str) -> Option<(DriverName, String)> {
        self.find(|home| {
            let made_for = home.claim.as_deref().map(|claim| &*claim.volume);
            made_for == Some(name) || home.name.as_deref() == Some(name)
        })
    }

    /// The node to which a claim's create was sent, and its name there, without Kubernetes.
    pub(super) fn create_of(&self, claim: &Namespaced) -> Option<(DriverName, NodeName, String)> {
        self.store.read(|state| {
            state.drivers().into_iter().find_map(|(driver, of)| {
                let mut intents = of.intents().iter();
                let (name, intent) = intents.find(|(_, intent)| {
                    intent.made.is_none() && intent.claim.as_deref().is_some_and(|of| is(of, claim))
                })?;
                Some((driver.clone(), intent.node.clone(), name.text().to_owned()))
            })
        })
    }

    fn find(&self, wanted: impl Fn(&Home) -> bool) -> Option<(DriverName, String)> {
        let mut drivers = self.drivers.iter();
        drivers.find_map(|driver| Some((driver.clone(), self.find_of(driver, &wanted)?)))
    }

    /// Looks through a driver's homes, and lets others at the store in between.
    fn find_of(&self, driver: &DriverName, wanted: impl Fn(&Home) -> bool) -> Option<String> {
        let mut slice = Slice::default();
        loop {
            slice =
                self.store.read(|state| Some(slice_of(state.driver(driver)?, &slice, &wanted)))?;
            if slice.found.is_some() || slice.last.is_none() {
                return slice.found;
            }
        }
    }
}

/// What a look at some of a driver's homes gave.
#[derive(Default)]
struct Slice {
    /// The id of a wanted volume.
    found: Option<String>,
    /// The last home that was looked at; none if there was none.
    last: Option<Id>,
}

/// Looks at the homes after those of the last slice.
fn slice_of(of: &DriverState, before: &Slice, wanted: impl Fn(&Home) -> bool) -> Slice {
    let from = before.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut homes = of.homes().range::<Id, _>((from, Bound::Unbounded)).take(SLICE);
    let mut last = None;
    let found = homes.find(|(id, home)| {
        last = Some((*id).clone());
        matches!(id, Id::Volume(_)) && wanted(home)
    });
    Slice { found: found.map(|(id, _)| id.text().to_owned()), last }
}

fn is(claim: &Claim, named: &Namespaced) -> bool {
    *claim.namespace == *named.namespace && *claim.name == *named.name
}

fn unknown(driver: &DriverName, id: &str) -> Verdict {
    Verdict::of(
        Cause::VolumeUnknown,
        format!("no node is known to have volume {id} of driver {driver}"),
        format!("if you know which one does, `csi-cloud volume adopt {driver} ID --node NODE`"),
    )
}

fn hangs(rpc: &str, driver: &DriverName, node: Option<&NodeName>, lasts: Duration) -> Verdict {
    let lasts = age(lasts);
    match node {
        Some(node) => Verdict::of(
            Cause::CallHangs,
            format!("{rpc} has been running at node {node} for {lasts} without an answer"),
            format!("look at the log of driver {driver} there"),
        ),
        None => Verdict::of(
            Cause::CallHangs,
            format!("{rpc} has been waiting in csi-cloud for {lasts}"),
            "look at csi-cloud's log",
        ),
    }
}

/// What is wrong with a volume by itself.
fn judge(facts: &VolumeFacts, driver: &DriverName, id: &str) -> Option<Verdict> {
    let node = &facts.node;
    let verdict = match facts.state() {
        "lost" => Verdict::of(
            Cause::VolumeLost,
            format!("volume {id} lived on node {node}, which was removed for good"),
            format!("its data is lost; `csi-cloud volume forget {driver} ID` lets it be deleted"),
        ),
        "claimed" => {
            let others: Vec<_> = facts.claimed_by.iter().map(ToString::to_string).collect();
            Verdict::of(
                Cause::VolumeClaimedTwice,
                format!(
                    "node {node} and {} both say that they have volume {id}",
                    others.join(", ")
                ),
                format!(
                    "look at the disks of each, and `csi-cloud volume adopt {driver} ID --node \
                     NODE` says which one has it"
                ),
            )
        }
        "absent" => Verdict::of(
            Cause::VolumeAbsent,
            format!("driver {driver} at node {node} no longer lists volume {id}"),
            "look at the driver's storage there; without it the volume's data is gone",
        ),
        _ => return None,
    };
    Some(verdict.at(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_a_volume_is_a_cause_of_its_own() {
        let node: NodeName = "n1".parse().unwrap();
        let good = VolumeFacts {
            node: node.clone(),
            is_lost: false,
            is_absent: false,
            claimed_by: Vec::new(),
        };
        let twice = vec!["n2".parse().unwrap()];
        let table = [
            (good.clone(), None),
            (VolumeFacts { is_absent: true, ..good.clone() }, Some(Cause::VolumeAbsent)),
            (
                VolumeFacts { claimed_by: twice, is_absent: true, ..good.clone() },
                Some(Cause::VolumeClaimedTwice),
            ),
            (VolumeFacts { is_lost: true, ..good }, Some(Cause::VolumeLost)),
        ];
        for (facts, expected) in table {
            let verdict = judge(&facts, &"d.example".parse().unwrap(), "v1");
            assert_eq!(verdict.as_ref().map(|verdict| verdict.cause), expected, "{facts:?}");
            assert!(verdict.is_none_or(|verdict| verdict.text.contains("node n1")));
        }
    }

    #[test]
    fn a_call_that_hangs_names_its_node() {
        let driver = "d.example".parse().unwrap();
        let node = "n1".parse().unwrap();
        let verdict = hangs("CreateVolume", &driver, Some(&node), LONG);
        assert_eq!(
            verdict.sentence(),
            "CreateVolume has been running at node n1 for 20s without an answer; look at the log \
             of driver d.example there"
        );
    }
}
