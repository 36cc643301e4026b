//! Volumes: where they live, and the calls about them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use proto::admin::cells::age;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::commands;
use super::explainer::Explainer;
use super::node::Need;
use super::subject::Namespaced;
use crate::state::condition::HomeCondition;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::record::{Claim, Home, Intent};
use crate::telemetry::calls::{LONG, Running, Stage};

/// Homes or intents that are looked at while the store is locked.
const SLICE: usize = 1000;

/// What is known of a volume's home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeFacts {
    node: NodeName,
    /// The name under which it was made.
    name: Option<String>,
    condition: HomeCondition,
    claimed_by: Vec<NodeName>,
}

impl VolumeFacts {
    fn of(state: &State, home: &Home) -> Self {
        Self {
            node: home.node.clone(),
            name: home.name.as_deref().map(str::to_owned),
            condition: HomeCondition::of(state, home),
            claimed_by: home.conflicts.clone(),
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

    /// What is wrong with a volume or snapshot by itself.
    pub fn home_trouble(&self, driver: &DriverName, id: &Id) -> Option<Verdict> {
        let facts = self.store.read(|state| {
            let home = state.driver(driver)?.home(id)?;
            Some(VolumeFacts::of(state, home))
        });
        judge(&facts?, driver, id)
    }

    /// Follows the chain from a volume to its node. Returns the node.
    pub(super) fn follow_volume(
        &self,
        chain: &mut Chain,
        driver: &DriverName,
        id: &str,
    ) -> Option<NodeName> {
        self.follow_home(chain, driver, &Id::Volume(id.into()))
    }

    /// Follows the chain from a volume or snapshot to its node. Returns the node.
    pub(super) fn follow_home(
        &self,
        chain: &mut Chain,
        driver: &DriverName,
        id: &Id,
    ) -> Option<NodeName> {
        let facts = self.store.read(|state| {
            let home = state.driver(driver)?.home(id)?;
            Some(VolumeFacts::of(state, home))
        });
        let object = format!("{} of {driver}", named(id));
        let Some(facts) = facts else {
            let shared = self.store.read(|state| state.driver(driver)?.elected().cloned());
            if let Some(controller) = shared {
                chain.step(object, "shared", format!("its controller is node {controller}"));
                self.follow_node(chain, &controller, Some(driver), Need::Use);
                let failed = self.follow_calls(chain, driver, &[id.text()]);
                chain.judge_weakly(failed);
                return Some(controller);
            }
            chain.step(object, "unknown", "no node is known to have it");
            chain.judge(Some(unknown(driver, id)));
            let failed = self.follow_calls(chain, driver, &[id.text()]);
            chain.judge_weakly(failed);
            return None;
        };
        chain.step(object, facts.condition.name(), format!("at node {}", facts.node));
        chain.judge(judge(&facts, driver, id));
        self.follow_node(chain, &facts.node, Some(driver), Need::Use);
        let subjects: Vec<_> = [id.text()].into_iter().chain(facts.name.as_deref()).collect();
        let failed = self.follow_calls(chain, driver, &subjects);
        chain.judge_weakly(failed);
        Some(facts.node)
    }

    /// The last calls and those in flight about something, by its id and its name. Returns the
    /// verdict if the last one failed.
    pub(super) fn follow_calls(
        &self,
        chain: &mut Chain,
        driver: &DriverName,
        subjects: &[&str],
    ) -> Option<Verdict> {
        let failed = self.follow_ended(chain, driver, subjects);
        for (_, call) in self.calls.running() {
            let progress = call.progress();
            let is_about = subjects.iter().any(|subject| progress.is_about(subject));
            if call.driver != *driver || !is_about {
                continue;
            }
            let lasts = call.begun.elapsed();
            let node = progress.node.filter(|_| progress.stage != Stage::Front);
            let at = node.as_ref().map(|node| format!("at node {node} ")).unwrap_or_default();
            let found = format!("{at}for {}", age(lasts));
            chain.step(format!("call {}", call.rpc), progress.stage.name(), found);
            chain.judge(hanging(&call));
        }
        failed
    }

    /// The volume that was made for a claim, and its driver, without Kubernetes.
    pub async fn volume_of(&self, claim: &Namespaced) -> Option<(DriverName, String)> {
        self.find(|home| home.claim.as_deref().is_some_and(|of| is(of, claim))).await
    }

    /// The volume of a PersistentVolume, and its driver, without Kubernetes.
    pub async fn volume_named(&self, name: &str) -> Option<(DriverName, String)> {
        let is_named = |home: &Home| {
            let made_for = home.claim.as_deref().map(|claim| &*claim.volume);
            made_for == Some(name) || home.name.as_deref() == Some(name)
        };
        self.find(is_named).await
    }

    /// The node to which a claim's create was sent, and its name there, without Kubernetes.
    pub async fn create_of(&self, claim: &Namespaced) -> Option<(DriverName, NodeName, String)> {
        let is_open = |intent: &Intent| {
            intent.made.is_none() && intent.claim.as_deref().is_some_and(|of| is(of, claim))
        };
        let found = self.look_through(
            |of| of.intents(),
            |name, intent| is_open(intent).then(|| (intent.node.clone(), name.text().to_owned())),
        );
        let (driver, (node, name)) = found.await?;
        Some((driver, node, name))
    }

    async fn find(
        &self,
        wanted: impl Fn(&Home) -> bool + Send + Sync,
    ) -> Option<(DriverName, String)> {
        let is_wanted = |id: &Id, home: &Home| matches!(id, Id::Volume(_)) && wanted(home);
        let found = self.look_through(
            |of| of.homes(),
            |id, home| is_wanted(id, home).then(|| id.text().to_owned()),
        );
        found.await
    }

    /// Looks through the records of all drivers for the first that `wanted` takes. Others come to
    /// the store, and calls to their turn, in between.
    async fn look_through<R, T: Send>(
        &self,
        records: impl Fn(&DriverState) -> &BTreeMap<Id, R> + Send + Sync,
        wanted: impl Fn(&Id, &R) -> Option<T> + Send + Sync,
    ) -> Option<(DriverName, T)> {
        for driver in &self.drivers {
            let mut after = None;
            loop {
                let slice = self.store.read(|state| {
                    let records = records(state.driver(driver)?);
                    Some(slice_of(records, after.as_ref(), &wanted))
                });
                match slice {
                    Some(Slice::Found(found)) => return Some((driver.clone(), found)),
                    Some(Slice::Until(last)) => after = Some(last),
                    Some(Slice::End) | None => break,
                }
                tokio::task::yield_now().await;
            }
        }
        None
    }
}

/// What a look at some records of a driver gave.
#[derive(Debug, PartialEq, Eq)]
enum Slice<T> {
    Found(T),
    /// The next slice begins after this one.
    Until(Id),
    End,
}

/// Looks at the records after this one.
fn slice_of<R, T>(
    records: &BTreeMap<Id, R>,
    after: Option<&Id>,
    wanted: impl Fn(&Id, &R) -> Option<T>,
) -> Slice<T> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut last = None;
    for (id, record) in records.range::<Id, _>((from, Bound::Unbounded)).take(SLICE) {
        if let Some(found) = wanted(id, record) {
            return Slice::Found(found);
        }
        last = Some(id);
    }
    last.map_or(Slice::End, |last| Slice::Until(last.clone()))
}

fn is(claim: &Claim, named: &Namespaced) -> bool {
    *claim.namespace == *named.namespace && *claim.name == *named.name
}

/// What it is, and its id.
fn named(id: &Id) -> String {
    format!("{} {}", id.word(), id.text())
}

fn unknown(driver: &DriverName, id: &Id) -> Verdict {
    let what = named(id);
    Verdict::of(
        Cause::VolumeUnknown,
        format!("no node is known to have {what} of driver {driver}"),
        format!(
            "`csi-cloud homes rebuild --driver {driver}` asks the nodes; if none lists it and you \
             know which one has it, csi-cloud volume adopt records that"
        ),
    )
}

/// Whether a call takes longer than it should.
pub fn hanging(call: &Running) -> Option<Verdict> {
    let lasts = call.begun.elapsed();
    if lasts < LONG {
        return None;
    }
    let progress = call.progress();
    let node = progress.node.filter(|_| progress.stage != Stage::Front);
    let verdict = hangs(call.rpc, &call.driver, node.as_ref(), lasts);
    Some(match &node {
        Some(node) => verdict.at(node),
        None => verdict,
    })
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
fn judge(facts: &VolumeFacts, driver: &DriverName, id: &Id) -> Option<Verdict> {
    let node = &facts.node;
    let what = named(id);
    let verdict = match facts.condition {
        HomeCondition::Lost => Verdict::of(
            Cause::VolumeLost,
            format!("{what} lived on node {node}, which was removed for good"),
            format!("its data is lost; `{}` lets it be deleted", commands::forget(driver, id)),
        ),
        HomeCondition::Claimed => {
            let others: Vec<_> = facts.claimed_by.iter().map(ToString::to_string).collect();
            let claimants = [node].into_iter().chain(&facts.claimed_by);
            let adopt = claimants.map(|node| format!("`{}`", commands::adopt(driver, id, node)));
            let adopt = adopt.collect::<Vec<_>>().join(" or ");
            Verdict::of(
                Cause::VolumeClaimedTwice,
                format!("node {node} and {} both say that they have {what}", others.join(", ")),
                format!("look at the disks of each, then say which one has it: {adopt}"),
            )
        }
        HomeCondition::Absent => Verdict::of(
            Cause::VolumeAbsent,
            format!("driver {driver} at node {node} no longer has {what}"),
            "look at the driver's storage there; without it the data is gone",
        ),
        HomeCondition::Ok => return None,
    };
    Some(verdict.at(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_a_volume_is_a_cause_of_its_own() {
        let node: NodeName = "n1".parse().unwrap();
        for (condition, expected) in [
            (HomeCondition::Ok, None),
            (HomeCondition::Absent, Some(Cause::VolumeAbsent)),
            (HomeCondition::Claimed, Some(Cause::VolumeClaimedTwice)),
            (HomeCondition::Lost, Some(Cause::VolumeLost)),
        ] {
            let claimed_by = vec!["n2".parse().unwrap()];
            let facts = VolumeFacts { node: node.clone(), name: None, condition, claimed_by };
            let id = Id::Volume("v1".into());
            let verdict = judge(&facts, &"d.example".parse().unwrap(), &id);
            assert_eq!(verdict.as_ref().map(|verdict| verdict.cause), expected, "{facts:?}");
            let Some(verdict) = verdict else { continue };
            assert!(verdict.text.contains("node n1"), "{verdict:?}");
            let commands = commands::check_commands(&verdict);
            assert_eq!(commands > 0, verdict.cause != Cause::VolumeAbsent, "{verdict:?}");
            assert!(commands == 0 || verdict.next.contains(" v1"), "{verdict:?}");
        }
        let unknown = unknown(&"d.example".parse().unwrap(), &Id::Snapshot("s1".into()));
        assert_eq!(commands::check_commands(&unknown), 1);
    }

    #[test]
    fn records_are_looked_through_slice_by_slice() {
        let id = |number: usize| Id::Volume(format!("v{number:05}"));
        let records: BTreeMap<_, _> = (0..SLICE + 2).map(|number| (id(number), number)).collect();
        let slice = |after: Option<Id>, wanted| {
            slice_of(&records, after.as_ref(), |_, number| (*number == wanted).then_some(*number))
        };
        assert_eq!(slice(None, 7), Slice::Found(7));
        assert_eq!(slice(None, SLICE), Slice::Until(id(SLICE - 1)));
        assert_eq!(slice(Some(id(SLICE - 1)), SLICE), Slice::Found(SLICE));
        assert_eq!(slice(Some(id(SLICE - 1)), 7), Slice::Until(id(SLICE + 1)));
        assert_eq!(slice(Some(id(SLICE + 1)), 7), Slice::End);
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
