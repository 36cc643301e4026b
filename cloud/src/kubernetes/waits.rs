//! Pods, VolumeAttachments, VolumeSnapshots and growing claims that wait for a node which is away.
//!
//! Pure. Each object says what it waits for, and the store says for which node.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::events::EventType;
use proto::control::not_taken;
use proto::csi::{DirectCall, Id, Method};
use proto::names::{DriverName, NodeName};

use crate::kubernetes::events::{About, Notice, claimants, minutes};
use crate::kubernetes::object_facts::{AttachmentFacts, PodFacts};
use crate::kubernetes::snapshot_facts::ContentFacts;
use crate::state::default_name::snapshot_for;
use crate::state::known::State;
use crate::telemetry::ended::EndedCall;

/// A sidecar tries again within this time, in ms: external-resizer within 5 minutes.
const RETRIED: u64 = 600_000;

/// What an object waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedOperation {
    /// A pod's volumes are to be mounted.
    Mount,
    /// A pod is to end.
    End,
    /// A volume is to be attached.
    Attach,
    /// A volume is to be detached.
    Detach,
    /// A volume is to grow.
    Expand,
    /// A snapshot is to be taken.
    Snapshot,
    /// A snapshot is to be deleted.
    Delete,
}

impl AwaitedOperation {
    /// What happens when the node is back.
    fn text(self) -> &'static str {
        match self {
            Self::Mount => "the volumes of this pod are mounted",
            Self::End => "this pod ends",
            Self::Attach => "the volume is attached",
            Self::Detach => "the volume is detached",
            Self::Expand => "the volume grows",
            Self::Snapshot => "the snapshot is taken",
            Self::Delete => "the snapshot is deleted",
        }
    }
}

/// A pod that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WaitingPod {
    pub(super) pod: not_taken::Pod,
    /// The names of its claims.
    pub(super) claims: Vec<String>,
    pub(super) wanted: AwaitedOperation,
}

/// An attachment that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WaitingAttachment {
    pub(super) about: About,
    pub(super) driver: DriverName,
    pub(super) node: NodeName,
    /// The name of its PersistentVolume.
    pub(super) volume: Option<String>,
    pub(super) wanted: AwaitedOperation,
}

/// A snapshot that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WaitingSnapshot {
    pub(super) about: About,
    /// The name under which external-snapshotter makes it by default.
    pub(super) name: String,
    pub(super) driver: DriverName,
    /// The snapshot, or the volume of which it is to be made.
    pub(super) id: Id,
    pub(super) wanted: AwaitedOperation,
}

/// A pod with claims that has not started, or that has not ended in its grace period.
pub(super) fn pod(pod: &Pod, now: u64) -> Option<WaitingPod> {
    let facts = PodFacts::of(pod);
    let ends_by = pod.metadata.deletion_timestamp.as_ref();
    let is_overdue = |by: i64| u64::try_from(by).is_ok_and(|by| by < now);
    let wanted = match ends_by {
        Some(by) if is_overdue(by.0.as_millisecond()) => AwaitedOperation::End,
        None if facts.phase == "Pending" => AwaitedOperation::Mount,
        _ => return None,
    };
    if facts.claims.is_empty() {
        return None;
    }
    let metadata = &pod.metadata;
    let pod = not_taken::Pod {
        namespace: metadata.namespace.clone()?,
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
    };
    Some(WaitingPod { pod, claims: facts.claims, wanted })
}

/// An attachment that is not attached yet, or that is to end.
pub(super) fn attachment(attachment: &VolumeAttachment) -> Option<WaitingAttachment> {
    let facts = AttachmentFacts::of(attachment);
    let wanted = match facts {
        AttachmentFacts { is_ending: true, .. } => AwaitedOperation::Detach,
        AttachmentFacts { is_attached: false, .. } => AwaitedOperation::Attach,
        _ => return None,
    };
    let metadata = &attachment.metadata;
    let about = About::Attachment { name: metadata.name.clone()?, uid: metadata.uid.clone()? };
    let driver = attachment.spec.attacher.parse().ok()?;
    let node = attachment.spec.node_name.parse().ok()?;
    let volume = attachment.spec.source.persistent_volume_name.clone();
    Some(WaitingAttachment { about, driver, node, volume, wanted })
}

/// The node of a volume that is to grow, with its claim and its PersistentVolume.
///
/// `call` is the last one about the volume. external-resizer soon tries an expansion again that
/// failed.
pub(super) fn growing(state: &State, call: &EndedCall, now: u64) -> Option<(NodeName, Vec<About>)> {
    let is_recent = now.saturating_sub(call.at) < RETRIED;
    let expands = Method::of_name(call.rpc)?.direct() == Some(DirectCall::Expand);
    if !(is_recent && expands && call.failed()) {
        return None;
    }
    let id = Id::Volume((*call.subject).to_owned());
    let home = state.driver(&call.driver)?.home(&id)?;
    Some((self::home(state, &call.driver, &id)?, claimants(home)))
}

/// A snapshot that cannot be used yet, or that is to end.
pub(super) fn snapshot(content: ContentFacts) -> Option<WaitingSnapshot> {
    let wanted = match content {
        ContentFacts { is_ending: true, .. } => AwaitedOperation::Delete,
        ContentFacts { is_ready: false, .. } => AwaitedOperation::Snapshot,
        _ => return None,
    };
    let (namespace, name, uid) = content.of?;
    let of_snapshot = content.snapshot.map(Id::Snapshot);
    let id = of_snapshot.or_else(|| content.volume.map(Id::Volume))?;
    let driver = content.driver.parse().ok()?;
    let default_name = snapshot_for(&uid);
    let about = About::Snapshot { namespace, name, uid };
    Some(WaitingSnapshot { about, name: default_name, driver, id, wanted })
}

/// The node that carries out what a driver is to do for this node.
pub(super) fn carried_out_at(state: &State, driver: &DriverName, node: NodeName) -> NodeName {
    state.driver(driver).and_then(|of| of.elected().cloned()).unwrap_or(node)
}

/// The node that has a volume or snapshot; for a shared driver, its controller.
pub(super) fn home(state: &State, driver: &DriverName, id: &Id) -> Option<NodeName> {
    let of = state.driver(driver)?;
    of.elected().or_else(|| of.home(id).map(|home| &home.node)).cloned()
}

/// The object waits for a node that has been away for so long.
pub(super) fn notice(
    about: About,
    node: &NodeName,
    away: Duration,
    wanted: AwaitedOperation,
) -> Notice {
    let note = format!(
        "node {node} has had no link to csi-cloud for {}; {} when it is back (if it is off for \
         good: csi-cloud node remove {node})",
        minutes(away),
        wanted.text()
    );
    Notice { about, type_: EventType::Warning, reason: "EdgeAway", note }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tonic::Code;

    use super::*;
    use crate::state::record::{Change, Claim, Elected, Home};

    /// 2026-01-01T00:00:00Z, in ms since 1970.
    const DAY: u64 = 1_767_225_600_000;

    fn a_pod(phase: &str, deleted: Value, claims: &[&str]) -> Pod {
        let volumes = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
        let volumes: Vec<_> = volumes.collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "u",
                "deletionTimestamp": deleted},
            "spec": {"nodeName": "n1", "containers": [], "volumes": volumes},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_waits_until_it_runs_and_when_it_does_not_end() {
        let wanted = |pod: &Pod, now| self::pod(pod, now).map(|pod| pod.wanted);
        let by = || json!("2026-01-01T00:00:00Z");
        assert_eq!(
            wanted(&a_pod("Pending", json!(null), &["data"]), DAY),
            Some(AwaitedOperation::Mount)
        );
        assert_eq!(wanted(&a_pod("Running", json!(null), &["data"]), DAY), None);
        assert_eq!(wanted(&a_pod("Pending", json!(null), &[]), DAY), None);
        assert_eq!(wanted(&a_pod("Running", by(), &["data"]), DAY - 1), None, "it may yet end");
        assert_eq!(
            wanted(&a_pod("Running", by(), &["data"]), DAY + 1),
            Some(AwaitedOperation::End)
        );
    }

    #[test]
    fn an_attachment_waits_until_it_is_attached_or_gone() {
        let wanted = |deleted: Value, attached: bool| {
            let attachment = serde_json::from_value(json!({
                "metadata": {"name": "csi-1", "uid": "u", "deletionTimestamp": deleted},
                "spec": {"attacher": "d.example", "nodeName": "n1", "source": {}},
                "status": {"attached": attached},
            }));
            attachment.map(|object| self::attachment(&object)).unwrap().map(|of| of.wanted)
        };
        assert_eq!(wanted(json!(null), false), Some(AwaitedOperation::Attach));
        assert_eq!(wanted(json!(null), true), None);
        assert_eq!(wanted(json!("2026-01-01T00:00:00Z"), true), Some(AwaitedOperation::Detach));
    }

    #[test]
    fn a_claim_grows_while_its_expansion_fails_and_is_tried_again() {
        let driver: DriverName = "d.example".parse().unwrap();
        let n1: NodeName = "n1".parse().unwrap();
        let made_for =
            Claim { namespace: "shop".into(), name: "data".into(), volume: "pv-7".into() };
        let home = Home { claim: Some(made_for.into()), ..Home::at(n1.clone(), 1) };
        let change = Change::Home(driver.clone(), Id::Volume("v1".into()), Some(home));
        let state = State::of([change]);
        let call = |rpc, subject: &str, code| EndedCall {
            number: 1,
            at: 1_000,
            id: 7.into(),
            rpc,
            driver: driver.clone(),
            node: Some(n1.clone()),
            subject: subject.into(),
            claim: None,
            code,
            message: "node n1 has no link".into(),
            duration: Duration::ZERO,
            attempts: 0,
            failures: 1,
            failing_since: 1_000,
        };
        let expand = |subject, code| call("ControllerExpandVolume", subject, code);
        let (node, claimants) = growing(&state, &expand("v1", Code::Unavailable), RETRIED).unwrap();
        assert_eq!((&node, claimants.len()), (&n1, 2), "claim and volume");
        assert_eq!(growing(&state, &expand("v1", Code::Unavailable), RETRIED + 1_000), None);
        assert_eq!(growing(&state, &expand("v1", Code::Ok), RETRIED), None);
        assert_eq!(growing(&state, &expand("v2", Code::Unavailable), RETRIED), None);
        let publish = call("ControllerPublishVolume", "v1", Code::Unavailable);
        assert_eq!(growing(&state, &publish, RETRIED), None);
    }

    #[test]
    fn a_snapshot_waits_for_the_node_of_its_source_and_later_for_its_own() {
        let facts = ContentFacts {
            driver: "d.example".into(),
            volume: Some("v1".into()),
            of: Some(("shop".into(), "today".into(), "u".into())),
            ..ContentFacts::default()
        };
        let waiting = snapshot(facts.clone()).unwrap();
        assert_eq!(waiting.name, "snapshot-u");
        assert_eq!(
            (waiting.id, waiting.wanted),
            (Id::Volume("v1".into()), AwaitedOperation::Snapshot)
        );
        let ready = ContentFacts { is_ready: true, snapshot: Some("s1".into()), ..facts };
        assert_eq!(snapshot(ready.clone()), None);
        let ends = snapshot(ContentFacts { is_ending: true, ..ready.clone() }).unwrap();
        assert_eq!((ends.id, ends.wanted), (Id::Snapshot("s1".into()), AwaitedOperation::Delete));
        assert_eq!(snapshot(ContentFacts { of: None, is_ready: false, ..ready }), None);
    }

    #[test]
    fn a_shared_driver_waits_for_its_controller() {
        let driver: DriverName = "d.example".parse().unwrap();
        let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        let id = Id::Volume("v1".into());
        let made = Change::Home(driver.clone(), id.clone(), Some(Home::at(n1.clone(), 1)));
        let state = State::of([made.clone()]);
        assert_eq!(home(&state, &driver, &id), Some(n1.clone()));
        assert_eq!(home(&state, &driver, &Id::Volume("v2".into())), None);
        assert_eq!(carried_out_at(&state, &driver, n1.clone()), n1);
        let state =
            State::of([made, Change::Elected(driver.clone(), Some(Elected::first(n2.clone())))]);
        assert_eq!(home(&state, &driver, &id), Some(n2.clone()));
        assert_eq!(carried_out_at(&state, &driver, n1), n2);
    }

    #[test]
    fn the_note_names_the_node_first() {
        let about = About::Attachment { name: "csi-1".into(), uid: "u".into() };
        let node = "n1".parse().unwrap();
        let notice = notice(about, &node, Duration::from_secs(300), AwaitedOperation::Attach);
        assert_eq!(notice.reason, "EdgeAway");
        assert_eq!(
            notice.note,
            "node n1 has had no link to csi-cloud for 5 min; the volume is attached when it is \
             back (if it is off for good: csi-cloud node remove n1)"
        );
    }
}
