//! Events on claims that wait for a node, volumes that are lost or claimed twice, and label
//! collisions. Others name volumes that were colocated with their source, and direct volumes that
//! no runtime took.
//!
//! Pure.

use std::ops::Bound;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use proto::control::not_taken::Pod;
use proto::csi::Id;
use proto::host::plain;
use proto::names::{DriverName, NodeName};

use crate::kubernetes::claims::Reason;
use crate::kubernetes::node::Collision;
use crate::nodes::cordon;
use crate::nodes::driver_health::DriverHealth;
use crate::nodes::link_history::CertificateFault;
use crate::state::colocated::Colocated;
use crate::state::condition::HomeCondition;
use crate::state::default_name::claim_uid;
use crate::state::known::State;
use crate::state::not_taken::UnnotifiedPod;
use crate::state::record::Home;
use crate::state::set_apart::ApartNodes;

/// Homes that are looked at while the store is locked.
const SLICE: usize = 1000;
/// The longest note that the API accepts, in bytes.
const NOTE: usize = 1024;

/// An Event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) about: About,
    /// Whether it is trouble.
    pub(super) type_: EventType,
    /// A word for programs, and for `kubectl get events`.
    pub(super) reason: &'static str,
    pub(super) note: String,
}

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum About {
    /// A PersistentVolumeClaim, with its uid if known.
    Claim { namespace: String, name: String, uid: Option<String> },
    /// A PersistentVolume.
    Volume(String),
    /// A Node, with its uid.
    Node { name: String, uid: String },
    /// A Pod, which must run at this node.
    Pod(Pod, NodeName),
}

impl About {
    /// The reference to the object in an Event.
    pub(super) fn reference(&self, uid: Option<String>) -> ObjectReference {
        let (kind, namespace, name) = match self {
            Self::Claim { namespace, name, .. } => {
                ("PersistentVolumeClaim", Some(namespace.clone()), name)
            }
            Self::Volume(name) => ("PersistentVolume", None, name),
            Self::Node { name, .. } => ("Node", None, name),
            Self::Pod(pod, _) => ("Pod", Some(pod.namespace.clone()), &pod.name),
        };
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some(kind.into()),
            namespace,
            name: Some(name.clone()),
            uid,
            ..ObjectReference::default()
        }
    }
}

/// A claim waits for a node.
pub(super) fn waiting(key: &str, uid: &str, waits_for: &Reason) -> Notice {
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    let about =
        About::Claim { namespace: namespace.into(), name: name.into(), uid: Some(uid.into()) };
    let (reason, note) = match waits_for {
        Reason::Away(node, away) => (
            "EdgeAway",
            format!(
                "node {node} has had no link to csi-cloud for {}; the volume is made when it is \
                 back",
                minutes(*away)
            ),
        ),
        Reason::Ended(node) => ("CertificateEnded", certificate_ended(node.as_str())),
        Reason::Revoked(node) => (
            "EdgeRevoked",
            format!(
                "the certificates of node {node} were revoked (csi-cloud token create {node} lets \
                 it join again)"
            ),
        ),
        Reason::Removed(node) => (
            "EdgeRemoved",
            format!(
                "node {node} was removed for good (csi-cloud node admit {node} lets it in again)"
            ),
        ),
        Reason::Unknown(node) => (
            "EdgeUnknown",
            format!(
                "no csi-edge at node {node} has linked and told of this driver; does it run there?"
            ),
        ),
        Reason::Down { node, driver, lasts, state, why } => (
            "DriverDown",
            format!(
                "node {node}: driver {driver} has been {state} for {}; what only this node can do \
                 waits until it is up again ({why})",
                minutes(*lasts)
            ),
        ),
    };
    Notice { about, type_: EventType::Warning, reason, note }
}

/// A volume was colocated with its source, outside the requested topology.
pub(super) fn colocated(colocated: &Colocated) -> Notice {
    let Colocated { name, claim, node, made_from, requested } = colocated;
    let about = About::Claim {
        namespace: claim.namespace.to_string(),
        name: claim.name.to_string(),
        uid: claim_uid(name).map(str::to_owned),
    };
    let note = format!(
        "the volume was made from {made_from}, so it is at node {node}; asked for was {requested}. \
         Pods that use the claim run at its node"
    );
    Notice { about, type_: EventType::Normal, reason: "PlacedAtSource", note }
}

/// A pod's runtime did not take direct volumes as devices.
pub(super) fn not_taken(unnotified: &UnnotifiedPod) -> Notice {
    let UnnotifiedPod { node, pod, volumes, withheld } = unnotified;
    let volumes = volumes.join(", ");
    let about = About::Pod(pod.clone(), node.clone());
    let type_ = EventType::Warning;
    if *withheld {
        let note = format!(
            "csi-edge at node {node} gives no guest the device of a direct volume, because an \
             earlier guest may have it still; containers of this pod are made again when nobody \
             has it open. {volumes}"
        );
        return Notice { about, type_, reason: "DirectVolumeNotTaken", note };
    }
    // Advice first: the end of a long note is cut.
    let note = format!(
        "the container runtime at node {node} did not take a direct volume as a device, so this \
         pod has a read-only directory in its place and its writes fail; nothing of the volume is \
         lost. Run `csi-edge direct check` at the node and set what it says (a stock Kata has \
         disable_block_device_use = true), or give the pod a RuntimeClass of a VM runtime and no \
         subPath; then delete the pod. Not taken: {volumes}"
    );
    Notice { about, type_, reason: "DirectVolumeNotTaken", note }
}

/// A time in whole units, for people.
pub(super) fn minutes(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s => format!("{} min", s / 60),
    }
}

/// A driver is not published at a node, because a label collides.
pub(super) fn collision(node: &NodeName, uid: &str, collision: &Collision) -> Notice {
    let Collision { driver, key, value, why } = collision;
    let about = About::Node { name: node.to_string(), uid: uid.into() };
    let note =
        format!("driver {driver} is not published at this node: it says {key}={value}, but {why}");
    Notice { about, type_: EventType::Warning, reason: "LabelCollision", note }
}

/// A node is set apart: it gets no new volumes.
pub(super) fn set_apart(node: &NodeName, uid: &str, apart: &ApartNodes) -> Notice {
    let about = About::Node { name: node.to_string(), uid: uid.into() };
    let reasons = apart.at(node).map(|(driver, apart)| match driver {
        Some(driver) => format!("driver {driver}: {}", apart.reason),
        None => apart.reason.to_string(),
    });
    let reasons: Vec<_> = reasons.collect();
    let note = format!("this node gets no new volumes: {}", reasons.join("; "));
    Notice { about, type_: EventType::Warning, reason: "NodeSetApart", note }
}

/// Drivers are down at a node, which is linked.
pub(super) fn drivers_down(
    node: &NodeName,
    uid: &str,
    down: &[(&DriverName, DriverHealth)],
) -> Notice {
    let about = About::Node { name: node.to_string(), uid: uid.into() };
    let drivers = down
        .iter()
        .map(|(driver, health)| format!("driver {driver} is {}: {}", health.name(), health.why));
    let drivers: Vec<_> = drivers.collect();
    let drivers = drivers.join("; ");
    let note = format!(
        "node {node}: new volumes go elsewhere, where that is possible, until it is up again: \
         {drivers}"
    );
    Notice { about, type_: EventType::Warning, reason: "DriverDown", note }
}

/// The certificate of a node is no good.
pub(super) fn certificate(node: &str, uid: &str, fault: &CertificateFault) -> Notice {
    let about = About::Node { name: node.into(), uid: uid.into() };
    let (reason, note) = match fault {
        CertificateFault::Ended(_) => ("CertificateEnded", certificate_ended(node)),
        CertificateFault::Shared(addresses) => {
            let at = addresses.iter().flatten().map(ToString::to_string);
            let at = at.collect::<Vec<_>>().join(" and ");
            let note = format!(
                "two csi-edges use the certificate of node {node} and replace each other's links \
                 ({at}); end the one that is not this node, and give it an identity of its own"
            );
            ("CertificateShared", note)
        }
        CertificateFault::OtherMachine(refused) => {
            let machine = refused.machine;
            let note = format!(
                "another machine has the certificate of node {node} and is refused: machine \
                 {refused}; if the node has moved there: csi-cloud node accept {node} --machine \
                 {machine}; if it is a copy of the node's disk, delete its identity and state there"
            );
            ("CertificateShared", note)
        }
        CertificateFault::Cordoned(runs) => {
            let runs = cordon::in_words(runs);
            let note = format!(
                "two csi-edges are alive with the certificate of node {node}, and none may link: \
                 runs {runs}; csi-cloud node accept {node} --run RUN links the one that is the node"
            );
            ("CertificateShared", note)
        }
        CertificateFault::Older(from) => {
            let from = from.map(|from| format!(" ({from})")).unwrap_or_default();
            let note = format!(
                "an older certificate of node {node} was shown{from}, and was not renewed; if that \
                 is the node, whose disk was restored: csi-cloud token create {node}; if it is a \
                 copy, delete it"
            );
            ("CertificateShared", note)
        }
    };
    Notice { about, type_: EventType::Warning, reason, note }
}

fn certificate_ended(node: &str) -> String {
    format!(
        "the certificate of node {node} has ended, so its csi-edge has no link; look at both \
         clocks, and let the node join again (csi-cloud token create {node})"
    )
}

/// Trouble of one slice of a driver's volumes, after this id; and where the next slice begins.
pub(super) fn trouble(
    state: &State,
    driver: &DriverName,
    after: Option<Id>,
) -> (Vec<Notice>, Option<Id>) {
    let Some(of) = state.driver(driver) else { return (Vec::new(), None) };
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let homes = of.homes().range((from, Bound::Unbounded));
    // Volumes sort before snapshots and groups.
    let volumes = homes.take_while(|(id, _)| matches!(id, Id::Volume(_)));
    let mut notices = Vec::new();
    let mut seen = 0;
    let mut last = None;
    for (id, home) in volumes.take(SLICE) {
        seen += 1;
        last = Some(id);
        let Some((reason, note)) = trouble_of(state, id, home) else { continue };
        for about in claimants(home) {
            let note = note.clone();
            notices.push(Notice { about, type_: EventType::Warning, reason, note });
        }
    }
    (notices, last.filter(|_| seen == SLICE).cloned())
}

/// The reason and the note, if a volume is lost, absent or claimed twice.
fn trouble_of(state: &State, id: &Id, home: &Home) -> Option<(&'static str, String)> {
    let id = id.text();
    let node = &home.node;
    match HomeCondition::of(state, home) {
        HomeCondition::Lost => {
            let note = format!(
                "volume {id} lived on node {node}, which was removed for good; its data is lost"
            );
            Some(("VolumeLost", note))
        }
        HomeCondition::Claimed => {
            let rival = home.conflicts.first()?;
            let note = format!(
                "nodes {node} and {rival} both say that they have volume {id}; calls go to \
                 {node}. Two drivers that hand out the same ids must not share a name"
            );
            Some(("VolumeClaimedTwice", note))
        }
        HomeCondition::Absent => {
            let note = format!(
                "node {node}: the driver no longer has volume {id}; look at its storage there. \
                 Without it the data is gone, and pods that use it do not start"
            );
            Some(("VolumeAbsent", note))
        }
        HomeCondition::Ok => None,
    }
}

/// The claim and the PersistentVolume of a volume, as far as they are known.
pub(super) fn claimants(home: &Home) -> Vec<About> {
    let not_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let name = home.name.as_deref();
    let mut claimants = Vec::new();
    let mut volume = None;
    if let Some(claim) = home.claim.as_deref() {
        claimants.push(About::Claim {
            namespace: claim.namespace.to_string(),
            name: claim.name.to_string(),
            uid: name.and_then(claim_uid).map(str::to_owned),
        });
        volume = not_empty(&claim.volume);
    }
    let volume = volume.or_else(|| name.and_then(not_empty));
    claimants.extend(volume.map(About::Volume));
    claimants
}

/// The note without control characters, cut to the length that the API accepts.
pub(super) fn cut(note: &str) -> String {
    let mut note = plain(note);
    let end = note.floor_char_boundary(NOTE);
    note.truncate(end);
    note
}

#[cfg(test)]
mod tests {
    use proto::control::health::{Health, HealthState};
    use proto::control::machine::MachineId;

    use super::*;
    use crate::nodes::link_history::RefusedMachine;
    use crate::state::record::{Change, Claim, Node};
    use crate::state::set_apart;

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    #[test]
    fn what_is_wrong_with_volumes_is_told_of_claim_and_volume_slice_by_slice() {
        let driver: DriverName = "d.example".parse().unwrap();
        let claim = Claim { namespace: "shop".into(), name: "data".into(), volume: "pv-7".into() };
        let mut changes: Vec<_> = (0..SLICE)
            .map(|number| (Id::Volume(format!("v{number:04}")), Home::at(node("n1"), 1)))
            .collect();
        let lost = Home {
            claim: Some(claim.into()),
            name: Some("pvc-u1".into()),
            ..Home::at(node("n2"), 1)
        };
        changes.push((Id::Volume("w-lost".into()), lost));
        let conflicts = vec![node("n3")];
        let twice = Home { name: Some("pvc-u2".into()), conflicts, ..Home::at(node("n1"), 1) };
        changes.push((Id::Volume("x-twice".into()), twice));
        let absent = Home { name: Some("pvc-u3".into()), absent: true, ..Home::at(node("n1"), 1) };
        changes.push((Id::Volume("y-absent".into()), absent));
        changes.push((Id::Snapshot("s".into()), Home { lost: true, ..Home::at(node("n2"), 1) }));
        let homes =
            changes.into_iter().map(|(id, home)| Change::Home(driver.clone(), id, Some(home)));
        let removed =
            Change::Node(node("n2"), Some(Node { since: 1, removed: Some(2), ..Node::default() }));
        let state = State::of(homes.chain([removed]));
        let (notices, next) = trouble(&state, &driver, None);
        assert_eq!((notices.len(), next.clone()), (0, Some(Id::Volume("v0999".into()))));
        let (notices, next) = trouble(&state, &driver, next);
        assert_eq!(next, None);
        let notices: Vec<_> =
            notices.iter().map(|notice| (notice.reason, notice.about.clone())).collect();
        let uid = Some("u1".to_owned());
        assert_eq!(
            notices,
            [
                ("VolumeLost", About::Claim { namespace: "shop".into(), name: "data".into(), uid }),
                ("VolumeLost", About::Volume("pv-7".into())),
                ("VolumeClaimedTwice", About::Volume("pvc-u2".into())),
                ("VolumeAbsent", About::Volume("pvc-u3".into())),
            ]
        );
    }

    #[test]
    fn a_claim_is_told_that_its_volume_is_beside_its_source() {
        let claim = Claim { namespace: "shop".into(), name: "data".into(), volume: "pv-7".into() };
        let placed = Colocated {
            name: "pvc-u1".into(),
            claim: claim.into(),
            node: node("n1"),
            made_from: "snapshot s1".into(),
            requested: "{node=n2}".into(),
        };
        let notice = colocated(&placed);
        let uid = Some("u1".to_owned());
        let about = About::Claim { namespace: "shop".into(), name: "data".into(), uid };
        assert_eq!(
            (notice.about, notice.type_, notice.reason),
            (about, EventType::Normal, "PlacedAtSource")
        );
        for word in ["node n1", "snapshot s1", "{node=n2}"] {
            assert!(notice.note.contains(word), "{word} is not in {}", notice.note);
        }
    }

    #[test]
    fn a_node_is_told_why_it_is_set_apart() {
        let n1 = node("n1");
        let driver = "d.example".parse().unwrap();
        let mut state = State::default();
        state.set_apart(&n1, Some(&driver), set_apart::Reason::NotAllowed);
        let notice = set_apart(&n1, "u1", state.apart());
        let about = About::Node { name: "n1".into(), uid: "u1".into() };
        assert_eq!((notice.about, notice.reason), (about, "NodeSetApart"));
        for word in ["driver d.example", "not among the driver's `nodes`"] {
            assert!(notice.note.contains(word), "{word} is not in {}", notice.note);
        }
    }

    #[test]
    fn a_node_and_a_claim_are_told_of_a_certificate_that_is_no_good() {
        let one = Some(([192, 0, 2, 1], 7).into());
        let other = Some(([192, 0, 2, 2], 8).into());
        let ended = CertificateFault::Ended(std::time::SystemTime::UNIX_EPOCH);
        let shared = CertificateFault::Shared([one, other]);
        let machine = MachineId::new("board 2");
        let refused = CertificateFault::OtherMachine(RefusedMachine { machine, address: one });
        let older = CertificateFault::Older(one);
        let accept = format!("node accept n1 --machine {machine}");
        for (notice, reason, word) in [
            (certificate("n1", "u", &refused), "CertificateShared", accept.as_str()),
            (certificate("n1", "u", &ended), "CertificateEnded", "token create n1"),
            (certificate("n1", "u", &older), "CertificateShared", "(192.0.2.1:7)"),
            (certificate("n1", "u", &shared), "CertificateShared", "192.0.2.1:7 and 192.0.2.2:8"),
            (waiting("s/a", "u", &Reason::Ended(node("n1"))), "CertificateEnded", "both clocks"),
            (waiting("s/a", "u", &Reason::Revoked(node("n1"))), "EdgeRevoked", "create n1"),
        ] {
            assert_eq!((notice.type_, notice.reason), (EventType::Warning, reason));
            assert!(notice.note.contains("node n1") && notice.note.contains(word), "{notice:?}");
        }
    }

    #[tokio::test]
    async fn a_node_and_a_claim_are_told_of_a_driver_that_is_down_node_first() {
        let driver: DriverName = "d.example".parse().unwrap();
        let reported = Health { state: HealthState::Gone, seconds: 9, why: "no socket".into() };
        let health = DriverHealth::reported(&reported);
        let of_node = drivers_down(&node("n1"), "u1", &[(&driver, health)]);
        let down = Reason::Down {
            node: node("n1"),
            driver,
            lasts: Duration::from_secs(300),
            state: "gone",
            why: "no socket".into(),
        };
        for notice in [of_node, waiting("shop/data", "u2", &down)] {
            assert_eq!(notice.reason, "DriverDown");
            assert!(notice.note.starts_with("node n1: "), "{}", notice.note);
            for word in ["driver d.example", "gone", "no socket"] {
                assert!(notice.note.contains(word), "{word} is not in {}", notice.note);
            }
        }
    }

    #[test]
    fn a_pod_is_told_that_its_volume_was_not_taken() {
        let pod = Pod { namespace: "shop".into(), name: "db-0".into(), uid: "u1".into() };
        let volumes = vec!["v1 of d.example".to_owned(), "v2 of d.example".to_owned()];
        let unnotified = UnnotifiedPod { node: node("n1"), pod, volumes, withheld: false };
        let held = UnnotifiedPod { withheld: true, ..unnotified.clone() };
        let held = not_taken(&held).note;
        assert!(held.contains("an earlier guest may have it") && held.ends_with("v2 of d.example"));
        let notice = not_taken(&unnotified);
        assert_eq!((notice.type_, notice.reason), (EventType::Warning, "DirectVolumeNotTaken"));
        for word in ["node n1", "direct check", "v1 of d.example, v2 of d.example"] {
            assert!(notice.note.contains(word), "{word} is not in {}", notice.note);
        }
        assert_eq!(cut(&notice.note), notice.note, "it is short enough");
        let reference = notice.about.reference(Some("u1".into()));
        assert_eq!(
            (reference.kind.as_deref(), reference.namespace.as_deref(), reference.name.as_deref()),
            (Some("Pod"), Some("shop"), Some("db-0"))
        );
    }

    #[test]
    fn a_note_is_cut_between_characters() {
        assert_eq!(cut(&"é".repeat(600)).len(), 1024);
        assert_eq!(cut(&format!("a{}", "é".repeat(600))).len(), 1023);
    }

    #[test]
    fn a_note_has_no_control_characters_of_a_volumes_id() {
        let pod = Pod { namespace: "shop".into(), name: "db-0".into(), uid: "u1".into() };
        let volumes = vec!["v1\u{1b}[2J\nforged\u{202e}".to_owned()];
        let unnotified = UnnotifiedPod { node: node("n1"), pod, volumes, withheld: false };
        let note = cut(&not_taken(&unnotified).note);
        assert!(note.ends_with("v1\\u{1b}[2J\\nforged\\u{202e}"), "{note}");
    }
}
