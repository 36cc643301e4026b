//! Events about calls that wait: a driver does not answer, or a node has no link.
//!
//! A sidecar says nothing before its own deadline, which is minutes, and the user looks earlier.
//! All of it comes from calls in flight and from those that failed lately, so nothing is looked up
//! at the API server. An Event is on the claim and the PersistentVolume of the call's volume; a
//! snapshot's volume is its source.

use std::time::Duration;

use kube::runtime::events::EventType;
use proto::admin::cells::age;
use proto::csi::{Id, Learn, Method, Resource};
use proto::names::{DriverName, NodeName};

use crate::kubernetes::claims::Pending;
use crate::kubernetes::events::{About, Notice, claimants, minutes};
use crate::kubernetes::keeper::Keeper;
use crate::state::clock;
use crate::state::default_name::claim_uid;
use crate::state::known::State;
use crate::state::record::Home;
use crate::telemetry::calls::{LONG, Running, Stage};
use crate::telemetry::ended::EndedCall;

/// Sidecars try again within this time, in ms: by default at least every 5 minutes.
const RETRIED_MS: u64 = 600_000;

/// A call that takes long.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlowCall {
    rpc: &'static str,
    driver: DriverName,
    node: NodeName,
    stage: Stage,
    lasts: Duration,
    /// The id or name that it is about.
    subject: String,
    /// The volume of which it makes a snapshot.
    source: Option<String>,
}

impl SlowCall {
    /// A call that has been at a node, or waiting for one, for long.
    fn new(call: &Running) -> Option<Self> {
        let progress = call.progress();
        let lasts = call.begun.elapsed();
        let is_slow = lasts >= LONG && progress.stage != Stage::Front;
        Some(Self {
            rpc: call.rpc,
            driver: call.driver.clone(),
            node: progress.node.filter(|_| is_slow)?,
            stage: progress.stage,
            lasts,
            subject: progress.subject,
            source: progress.source,
        })
    }

    /// The Event on an object.
    fn notice(&self, about: About) -> Notice {
        let Self { rpc, driver, node, lasts, .. } = self;
        let lasts = age(*lasts);
        let (reason, note) = match self.stage {
            Stage::Waiting => (
                "EdgeAway",
                format!(
                    "node {node}: its link was lost during {rpc}, which began {lasts} ago; it goes \
                     on when the node is back"
                ),
            ),
            Stage::Front | Stage::Sent => (
                "CallHangs",
                format!(
                    "node {node}: driver {driver} has not answered {rpc} for {lasts}; look at its \
                     log there"
                ),
            ),
        };
        Notice { about, type_: EventType::Warning, reason, note }
    }
}

impl Keeper {
    /// The Events about calls that take long now.
    pub(super) fn slow_calls(&self) -> Vec<Notice> {
        let running = self.facts.calls.running();
        let slow: Vec<_> = running.iter().filter_map(|(_, call)| SlowCall::new(call)).collect();
        if slow.is_empty() {
            return Vec::new();
        }
        let objects = self.mirror.objects();
        let pending = objects.claims.items();
        self.facts.store.read(|state| {
            let mut notices = Vec::new();
            for call in &slow {
                let about = concerned(state, pending.iter(), call);
                notices.extend(about.into_iter().map(|about| call.notice(about)));
            }
            notices
        })
    }

    /// The Events about calls that failed lately, and whose node is away.
    pub(super) fn refused_calls(&self) -> Vec<Notice> {
        let now = clock::now();
        let mut notices = Vec::new();
        for (call, _) in self.facts.calls.ended.failing() {
            let refused = self.facts.store.read(|state| refused(state, &call, now));
            let Some((node, claimants)) = refused else { continue };
            let Some(away) = self.away_for(&call.driver, &node) else { continue };
            notices
                .extend(claimants.into_iter().map(|about| away_notice(about, &call, &node, away)));
        }
        notices
    }

    /// How long a node has been away, if that is longer than the driver's grace and the driver has
    /// a front. A removed node is not waited for.
    fn away_for(&self, driver: &DriverName, node: &NodeName) -> Option<Duration> {
        let policy = self.facts.policies.get(driver)?;
        if self.facts.store.read(|state| state.is_removed(node)) {
            return None;
        }
        self.facts.links.away(node).filter(|away| *away >= policy.grace)
    }
}

/// The objects that wait for a call: the claim of a create, or claim and volume of what exists.
fn concerned<'a>(
    state: &State,
    mut pending: impl Iterator<Item = (&'a String, &'a Pending)>,
    call: &SlowCall,
) -> Vec<About> {
    if let Some(home) = volume(state, &call.driver, &call.subject, call.source.as_deref()) {
        return claimants(home);
    }
    let Some(uid) = claim_uid(&call.subject) else { return Vec::new() };
    let claim = pending.find(|(_, claim)| claim.uid == uid && claim.driver == call.driver);
    let about = claim.and_then(|(key, _)| {
        let (namespace, name) = key.split_once('/')?;
        let uid = Some(uid.to_owned());
        Some(About::Claim { namespace: namespace.into(), name: name.into(), uid })
    });
    about.into_iter().collect()
}

/// The volume of a call: its subject, or the source of its snapshot.
fn volume<'a>(
    state: &'a State,
    driver: &DriverName,
    subject: &str,
    source: Option<&str>,
) -> Option<&'a Home> {
    let of = state.driver(driver)?;
    if let Some(home) = of.home(&Id::Volume(subject.to_owned())) {
        return Some(home);
    }
    match source {
        Some(source) => of.home(&Id::Volume(source.to_owned())),
        None => of.home(of.home(&Id::Snapshot(subject.to_owned()))?.source.as_deref()?),
    }
}

/// The node for which a failed call was meant, with the claim and the PersistentVolume of its
/// volume. `None` if its sidecar no longer tries it.
fn refused(state: &State, call: &EndedCall, now: u64) -> Option<(NodeName, Vec<About>)> {
    if !call.failed() || now.saturating_sub(call.at) >= RETRIED_MS {
        return None;
    }
    let home = volume(state, &call.driver, &call.subject, call.source.as_deref())?;
    // A shared driver's calls go to its controller.
    let elected = state.driver(&call.driver)?.elected();
    Some((elected.unwrap_or(&home.node).clone(), claimants(home)))
}

/// The Event on an object whose call waits for a node that has been away for so long.
fn away_notice(about: About, call: &EndedCall, node: &NodeName, away: Duration) -> Notice {
    let note = format!(
        "node {node} has had no link to csi-cloud for {}; {} when it is back (if it is off for \
         good: csi-cloud node remove {node})",
        minutes(away),
        outcome(call.rpc)
    );
    Notice { about, type_: EventType::Warning, reason: "EdgeAway", note }
}

/// What happens when the node is back.
fn outcome(rpc: &str) -> &'static str {
    let Some(method) = Method::of_name(rpc) else { return "the call is carried out" };
    match method.learn() {
        Learn::Attached(_) => "the volume is attached",
        Learn::Detached(_) => "the volume is detached",
        Learn::Resized(_) => "the volume grows",
        Learn::Made(_) if method.creates() == Some(Resource::Volume) => "the volume is made",
        Learn::Made(_) => "the snapshot is taken",
        Learn::Gone => "the deletion goes on",
        Learn::Nothing => "the call is carried out",
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::state::record::{Change, Claim, Elected};

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    /// At n1 the volume v1 of the claim shop/old, and s1, a snapshot of it.
    fn changes() -> [Change; 2] {
        let claim = Claim { namespace: "shop".into(), name: "old".into(), volume: "pv-7".into() };
        let volume = Home { claim: Some(claim.into()), ..Home::at(node("n1"), 1) };
        let source = Some(Id::Volume("v1".into()).into());
        let snapshot = Home { source, ..Home::at(node("n1"), 1) };
        [("v1", volume), ("s1", snapshot)].map(|(id, home)| {
            let id = if id == "v1" { Id::Volume(id.into()) } else { Id::Snapshot(id.into()) };
            Change::Home(driver(), id, Some(home))
        })
    }

    fn slow(subject: &str, stage: Stage) -> SlowCall {
        SlowCall {
            rpc: "CreateVolume",
            driver: driver(),
            node: node("n1"),
            stage,
            lasts: Duration::from_secs(30),
            subject: subject.into(),
            source: None,
        }
    }

    fn failed(rpc: &'static str, subject: &str, source: Option<&str>) -> EndedCall {
        EndedCall {
            number: 1,
            at: 1_000,
            id: 7.into(),
            rpc,
            driver: driver(),
            node: None,
            subject: subject.into(),
            source: source.map(Into::into),
            claim: None,
            code: Code::Unavailable,
            message: "node n1 has no link".into(),
            duration: Duration::ZERO,
            attempts: 0,
            failures: 1,
            failing_since: 1_000,
        }
    }

    #[test]
    fn the_claim_of_a_create_and_the_users_of_a_volume_are_told() {
        let call = slow("pvc-u1", Stage::Sent);
        let claim = Pending {
            uid: "u1".into(),
            driver: call.driver.clone(),
            node: Some(call.node.clone()),
        };
        let other = Pending { uid: "u2".into(), ..claim.clone() };
        let keys = ["shop/other".to_owned(), "shop/data".to_owned()];
        let pending = [(&keys[0], &other), (&keys[1], &claim)];
        let state = State::of(changes());
        let about =
            |subject: &str| concerned(&state, pending.into_iter(), &slow(subject, Stage::Sent));
        let uid = Some("u1".to_owned());
        assert_eq!(
            about("pvc-u1"),
            [About::Claim { namespace: "shop".into(), name: "data".into(), uid }]
        );
        let users = about("v1");
        let of_claim = About::Claim { namespace: "shop".into(), name: "old".into(), uid: None };
        assert_eq!(users, [of_claim, About::Volume("pv-7".into())]);
        assert_eq!(about("v2"), []);
        assert_eq!(about("pvc-u9"), []);
        // A snapshot that is made, and one that is deleted.
        let source = Some("v1".to_owned());
        let taking = SlowCall { source, ..slow("snapshot-u3", Stage::Sent) };
        assert_eq!(concerned(&state, pending.into_iter(), &taking), users);
        assert_eq!(about("s1"), users);
    }

    #[test]
    fn a_lost_link_and_a_silent_driver_are_told_apart() {
        let notice = |stage| slow("v", stage).notice(About::Volume("pv".into()));
        assert_eq!(notice(Stage::Waiting).reason, "EdgeAway");
        let silent = notice(Stage::Sent);
        assert_eq!(silent.reason, "CallHangs");
        assert_eq!(
            silent.note,
            "node n1: driver d.example has not answered CreateVolume for 30s; look at its log there"
        );
    }

    #[test]
    fn claim_and_volume_are_told_of_a_call_that_fails_and_is_tried_again() {
        let state = State::of(changes());
        let told = |call: &EndedCall, now| refused(&state, call, now);
        for call in [
            failed("ControllerExpandVolume", "v1", None),
            failed("ControllerPublishVolume", "v1", None),
            failed("ControllerUnpublishVolume", "v1", None),
            failed("CreateSnapshot", "snapshot-u1", Some("v1")),
            failed("DeleteSnapshot", "s1", None),
        ] {
            let (node, about) = told(&call, RETRIED_MS).unwrap();
            assert_eq!((node.as_str(), about.len()), ("n1", 2), "{}", call.rpc);
            assert_eq!(told(&call, RETRIED_MS + 1_000), None, "{}", call.rpc);
        }
        let done = EndedCall { code: Code::Ok, ..failed("ControllerExpandVolume", "v1", None) };
        assert_eq!(told(&done, RETRIED_MS), None);
        for (subject, source) in [("v2", None), ("snapshot-u1", Some("v2")), ("s2", None)] {
            assert_eq!(told(&failed("CreateSnapshot", subject, source), RETRIED_MS), None);
        }
    }

    #[test]
    fn a_shared_drivers_call_waits_for_its_controller() {
        let elected = Change::Elected(driver(), Some(Elected::first(node("n2"))));
        let state = State::of(changes().into_iter().chain([elected]));
        let call = failed("ControllerPublishVolume", "v1", None);
        assert_eq!(refused(&state, &call, RETRIED_MS).unwrap().0, node("n2"));
    }

    #[test]
    fn the_note_names_the_node_first() {
        let note = |rpc| {
            let call = failed(rpc, "v1", None);
            let about = About::Volume("pv-7".into());
            let notice = away_notice(about, &call, &node("n1"), Duration::from_secs(300));
            assert_eq!(notice.reason, "EdgeAway");
            notice.note
        };
        assert_eq!(
            note("ControllerPublishVolume"),
            "node n1 has had no link to csi-cloud for 5 min; the volume is attached when it is \
             back (if it is off for good: csi-cloud node remove n1)"
        );
        for (rpc, text) in [
            ("ControllerUnpublishVolume", "the volume is detached when"),
            ("ControllerExpandVolume", "the volume grows when"),
            ("CreateSnapshot", "the snapshot is taken when"),
            ("CreateVolumeGroupSnapshot", "the snapshot is taken when"),
            ("CreateVolume", "the volume is made when"),
            ("DeleteSnapshot", "the deletion goes on when"),
            ("ControllerModifyVolume", "the call is carried out when"),
        ] {
            assert!(note(rpc).contains(text), "{rpc}: {}", note(rpc));
        }
    }
}
