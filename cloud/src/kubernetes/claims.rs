//! Claims that wait for a volume because the node that is to create it is away.
//!
//! Pure. A claim's annotations say how far it is, so only its metadata is watched.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PartialObjectMeta;
use proto::csi::{Id, Method, Resource};
use proto::names::{DriverName, NodeName};

use crate::nodes::driver_health::DriverHealth;
use crate::state::condition::NodeCondition;
use crate::state::default_name::volume_for;
use crate::state::known::State;

pub(super) const PROVISIONERS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
pub(super) const SELECTED: &str = "volume.kubernetes.io/selected-node";
const BOUND: &str = "pv.kubernetes.io/bind-completed";

/// A claim that waits for its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) uid: String,
    pub(super) driver: DriverName,
    /// The node that the scheduler selected.
    pub(super) node: Option<NodeName>,
}

/// The reason why a claim waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The node has had no link for so long.
    Away(NodeName, Duration),
    /// The node's certificate has ended.
    Ended(NodeName),
    /// An operator revoked the node's certificates.
    Revoked(NodeName),
    /// An operator removed the node.
    Removed(NodeName),
    /// The node never reported the driver.
    Unknown(NodeName),
    /// The node says that the driver has been down for so long.
    Down {
        node: NodeName,
        driver: DriverName,
        lasts: Duration,
        /// Its state in a word, and the reason.
        state: &'static str,
        why: Box<str>,
    },
}

/// The key of a claim, and its facts while it waits.
pub(super) fn claim(claim: &PartialObjectMeta<PersistentVolumeClaim>) -> (String, Option<Pending>) {
    let metadata = &claim.metadata;
    let namespace = metadata.namespace.as_deref();
    let name = metadata.name.as_deref();
    (format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default()), pending(metadata))
}

fn pending(metadata: &ObjectMeta) -> Option<Pending> {
    let annotation = |key: &str| metadata.annotations.as_ref()?.get(key);
    if annotation(BOUND).is_some() {
        return None;
    }
    let driver = PROVISIONERS.into_iter().find_map(annotation)?.parse().ok()?;
    let node = annotation(SELECTED).and_then(|node| node.parse().ok());
    Some(Pending { uid: metadata.uid.clone()?, driver, node })
}

/// The reason why a claim waits, if a node is the reason.
///
/// `away` is how long a node has had no link, and `health` how the claim's driver is there. Less
/// than `patience` is no reason yet.
pub(super) fn reason(
    claim: &Pending,
    state: &State,
    away: impl Fn(&NodeName) -> Option<Duration>,
    health: impl Fn(&NodeName) -> Option<DriverHealth>,
    patience: Duration,
) -> Option<Reason> {
    let driver = state.driver(&claim.driver);
    let name = Id::Name(Method::creating(Resource::Volume), volume_for(&claim.uid));
    let sent = driver.and_then(|driver| driver.intent(&name)).map(|intent| intent.node.clone());
    let node = sent.or_else(|| claim.node.clone())?;
    let away = away(&node);
    match NodeCondition::of(state, &node, away.is_none()) {
        NodeCondition::Removed => return Some(Reason::Removed(node)),
        NodeCondition::Revoked => return Some(Reason::Revoked(node)),
        NodeCondition::Linked | NodeCondition::Away | NodeCondition::Unknown => {}
    }
    let Some(away) = away else {
        let health = health(&node)?;
        let lasts = health.down().filter(|down| *down >= patience)?;
        let driver = claim.driver.clone();
        let state = health.name();
        return Some(Reason::Down { node, driver, lasts, state, why: health.why });
    };
    if away < patience {
        return None;
    }
    let known = driver.is_some_and(|driver| driver.at(&node).is_some());
    Some(if known { Reason::Away(node, away) } else { Reason::Unknown(node) })
}

#[cfg(test)]
mod tests {
    use proto::control::health::{Health, HealthState};

    use super::*;
    use crate::state::record::{Change, Intent, Node, NodeDriver};

    fn metadata(annotations: &[(&str, &str)]) -> ObjectMeta {
        let annotations =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let annotations = Some(annotations.collect());
        ObjectMeta { uid: Some("u".into()), annotations, ..ObjectMeta::default() }
    }

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    #[test]
    fn a_claim_waits_until_it_is_bound() {
        let (by, at) =
            (("volume.kubernetes.io/storage-provisioner", "d.example"), (SELECTED, "n1"));
        let waiting = pending(&metadata(&[by, at])).unwrap();
        assert_eq!((waiting.driver.as_str(), waiting.node), ("d.example", Some(node("n1"))));
        assert!(pending(&metadata(&[by])).unwrap().node.is_none());
        assert_eq!(pending(&metadata(&[by, at, (BOUND, "yes")])), None);
        assert_eq!(pending(&metadata(&[at])), None);
    }

    #[test]
    fn the_reason_is_the_node_that_it_was_sent_to_or_that_was_selected() {
        let driver: DriverName = "d.example".parse().unwrap();
        let at = |name: &str| {
            Change::NodeDriver(driver.clone(), node(name), Some(NodeDriver::default()))
        };
        let removed =
            Change::Node(node("n3"), Some(Node { since: 1, removed: Some(2), ..Node::default() }));
        let intent = Intent {
            node: node("n2"),
            since: 1,
            until: 0,
            made: None,
            claim: None,
            attempts: None,
            direct: None,
            narrowed: None,
            machine: None,
        };
        let sent = Change::Intent(
            driver.clone(),
            Id::Name(Method::creating(Resource::Volume), "pvc-sent".into()),
            Some(intent),
        );
        let state = State::of([at("n1"), at("n2"), at("n3"), removed, sent]);
        let minute = Duration::from_secs(60);
        let second = Duration::from_secs(1);
        let why = |uid: &str, selected: Option<&str>, away: Option<Duration>| {
            let claim =
                Pending { uid: uid.into(), driver: driver.clone(), node: selected.map(node) };
            reason(&claim, &state, |_| away, |_| None, second * 10)
        };
        assert_eq!(why("x", Some("n1"), Some(minute)), Some(Reason::Away(node("n1"), minute)));
        assert_eq!(why("x", Some("n1"), Some(second)), None);
        assert_eq!(why("x", Some("n1"), None), None);
        assert_eq!(why("x", None, Some(minute)), None);
        assert_eq!(why("sent", Some("n1"), Some(minute)), Some(Reason::Away(node("n2"), minute)));
        assert_eq!(why("x", Some("n3"), None), Some(Reason::Removed(node("n3"))));
        assert_eq!(why("x", Some("n9"), Some(minute)), Some(Reason::Unknown(node("n9"))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_linked_node_whose_driver_is_down_is_a_reason_after_a_while() {
        let driver: DriverName = "d.example".parse().unwrap();
        let claim = Pending { uid: "x".into(), driver: driver.clone(), node: Some(node("n1")) };
        let why = |state, seconds| {
            let reported = Health { state, seconds, why: "no socket".into() };
            let health = |_: &NodeName| Some(DriverHealth::reported(&reported));
            reason(&claim, &State::default(), |_| None, health, Duration::from_secs(10))
        };
        assert_eq!(why(HealthState::Up, 99), None);
        assert_eq!(why(HealthState::Gone, 9), None);
        let Some(Reason::Down { node, lasts, state, why, .. }) = why(HealthState::Gone, 99) else {
            panic!("no reason")
        };
        assert_eq!((node.as_str(), lasts, state), ("n1", Duration::from_secs(99), "gone"));
        assert_eq!(&*why, "no socket");
    }
}
