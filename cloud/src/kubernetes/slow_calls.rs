//! Events about calls that take long: a driver does not answer, or the node's link is lost.
//!
//! A sidecar says nothing before its own deadline, which is minutes. The user looks earlier.

use std::collections::HashMap;
use std::time::Duration;

use kube::runtime::events::EventType;
use proto::admin::cells::age;
use proto::csi::{Id, Learn, Method};
use proto::names::{DriverName, NodeName};

use crate::kubernetes::claims::Pending;
use crate::kubernetes::events::{About, Notice, claimants};
use crate::kubernetes::keeper::Keeper;
use crate::kubernetes::objects::attachment_name;
use crate::kubernetes::waits::{AwaitedOperation, WaitingAttachment};
use crate::state::default_name::{claim_uid, is_snapshot};
use crate::state::known::State;
use crate::telemetry::calls::{LONG, Running, Stage};

/// A call that takes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlowCall {
    rpc: &'static str,
    driver: DriverName,
    node: NodeName,
    stage: Stage,
    lasts: Duration,
    /// The id or name that it is about.
    subject: String,
}

impl SlowCall {
    /// A call that is at a node, or waits for one, for long.
    fn of(call: &Running) -> Option<Self> {
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
        })
    }

    /// What an attachment waits for while this call runs.
    fn of_attachment(&self) -> Option<AwaitedOperation> {
        match Method::of_name(self.rpc)?.learn() {
            Learn::Attached(_) => Some(AwaitedOperation::Attach),
            Learn::Detached(_) => Some(AwaitedOperation::Detach),
            Learn::Nothing | Learn::Made(_) | Learn::Gone | Learn::Resized(_) => None,
        }
    }

    /// Whether it does what this attachment waits for.
    pub(super) fn carries_out(&self, waiting: &WaitingAttachment) -> bool {
        let About::Attachment { name, .. } = &waiting.about else { return false };
        let Self { driver, subject, .. } = self;
        self.of_attachment() == Some(waiting.wanted)
            && *driver == waiting.driver
            && *name == attachment_name(driver.as_str(), subject, waiting.node.as_str())
    }

    /// What its object is told.
    pub(super) fn notice(&self, about: About) -> Notice {
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
    /// The calls that take long now and make a snapshot, by its name.
    pub(super) fn slow_snapshots(&self) -> HashMap<String, SlowCall> {
        let slow = self.slow().into_iter();
        let of_default_name = slow.filter(|call| is_snapshot(&call.subject));
        of_default_name.map(|call| (call.subject.clone(), call)).collect()
    }

    /// The calls that take long now and attach or detach.
    pub(super) fn slow_attaches(&self) -> Vec<SlowCall> {
        let slow = self.slow().into_iter();
        slow.filter(|call| call.of_attachment().is_some()).collect()
    }

    fn slow(&self) -> Vec<SlowCall> {
        let running = self.facts.calls.running();
        running.iter().filter_map(|(_, call)| SlowCall::of(call)).collect()
    }

    /// What is told of the calls that take long now.
    pub(super) fn slow_calls(&self) -> Vec<Notice> {
        let slow = self.slow();
        if slow.is_empty() {
            return Vec::new();
        }
        let objects = self.mirror.objects();
        let pending = objects.claims.items();
        self.facts.store.read(|state| {
            let notices = |call: &SlowCall| {
                let about = concerned(state, pending.iter(), call);
                about.into_iter().map(|about| call.notice(about)).collect::<Vec<_>>()
            };
            slow.iter().flat_map(notices).collect()
        })
    }
}

/// The objects that wait for a call: the claim of a create, or claim and volume of what exists.
fn concerned<'a>(
    state: &State,
    mut pending: impl Iterator<Item = (&'a String, &'a Pending)>,
    call: &SlowCall,
) -> Vec<About> {
    let home = state.driver(&call.driver).and_then(|of| of.home(&Id::Volume(call.subject.clone())));
    if let Some(home) = home {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::record::{Change, Claim, Home};

    fn slow(subject: &str, stage: Stage) -> SlowCall {
        SlowCall {
            rpc: "CreateVolume",
            driver: "d.example".parse().unwrap(),
            node: "n1".parse().unwrap(),
            stage,
            lasts: Duration::from_secs(30),
            subject: subject.into(),
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
        let made_for =
            Claim { namespace: "shop".into(), name: "old".into(), volume: "pv-7".into() };
        let home = Home { claim: Some(made_for.into()), ..Home::at(call.node.clone(), 1) };
        let change = Change::Home(call.driver.clone(), Id::Volume("v1".into()), Some(home));
        let state = State::of([change]);
        let about =
            |subject: &str| concerned(&state, pending.into_iter(), &slow(subject, Stage::Sent));
        let uid = Some("u1".to_owned());
        assert_eq!(
            about("pvc-u1"),
            [About::Claim { namespace: "shop".into(), name: "data".into(), uid }]
        );
        assert_eq!(about("v1").len(), 2, "claim and volume");
        assert_eq!(about("v2"), []);
        assert_eq!(about("pvc-u9"), []);
    }

    #[test]
    fn an_attachment_is_told_of_its_own_call_alone() {
        let call = |rpc, subject: &str| SlowCall { rpc, ..slow(subject, Stage::Sent) };
        let waiting = |node: &str, wanted| {
            // printf v1d.examplen1 | sha256sum
            let name = "csi-e98b043887a605463d13ce6cd41ebad6172c192e4f1bde2e928f43926e4c9d8e";
            WaitingAttachment {
                about: About::Attachment { name: name.into(), uid: "u".into() },
                driver: "d.example".parse().unwrap(),
                node: node.parse().unwrap(),
                volume: Some("pv-7".into()),
                wanted,
            }
        };
        let attaches = call("ControllerPublishVolume", "v1");
        let detaches = call("ControllerUnpublishVolume", "v1");
        assert!(attaches.carries_out(&waiting("n1", AwaitedOperation::Attach)));
        assert!(!attaches.carries_out(&waiting("n1", AwaitedOperation::Detach)));
        assert!(detaches.carries_out(&waiting("n1", AwaitedOperation::Detach)));
        assert!(
            !attaches.carries_out(&waiting("n2", AwaitedOperation::Attach)),
            "it is another node's"
        );
        let other = call("ControllerPublishVolume", "v2");
        assert!(!other.carries_out(&waiting("n1", AwaitedOperation::Attach)));
        let expands = call("ControllerExpandVolume", "v1");
        assert!(!expands.carries_out(&waiting("n1", AwaitedOperation::Attach)));
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
}
