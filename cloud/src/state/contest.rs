//! Settles who has a topology segment, when a node reports a driver.
//!
//! What a node may not claim is not recorded, so that no create goes by it. The loser is set apart.

use bytes::Bytes;
use prost::Message;
use proto::control::hello::{Driver, Protobuf};
use proto::csi;
use proto::csi::topology::{self, NODE_SEGMENT};
use proto::csi::{Local, Method, Segments};
use proto::names::{DriverName, NodeName};

use crate::state::authority::Authority;
use crate::state::claims::{Claimant, contested};
use crate::state::lost_segments::{is_loser, set_apart};
use crate::state::record::NodeDriver;
use crate::state::set_apart::ReasonKind;
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;

/// The driver as it may be recorded: without segments that are another node's.
///
/// # Errors
/// A change is not durable.
pub(super) async fn before_record(
    store: &Store,
    authority: &Authority,
    node: &NodeName,
    mut driver: Driver,
) -> Result<Driver, StoreError> {
    let method = Method::answering(Local::NodeInfo).name();
    let said = driver.answers.get(method).map(|Protobuf(info)| info.clone());
    let Some(info) = said else { return Ok(driver) };
    let is_known = store.read(|state| {
        let at = state.driver(&driver.name).and_then(|of| of.at(node));
        at.is_some_and(|at| at.info.as_ref() == Some(&info))
    });
    if is_known && !is_loser(store, &driver.name, node) {
        return Ok(driver);
    }
    let refused = settle(store, authority, node, &driver.name, &info, false).await?;
    // Our own segment is never the driver's.
    let keys: Vec<_> = refused.iter().map(String::as_str).chain([NODE_SEGMENT]).collect();
    // A malformed answer says nothing.
    let cleaned = topology::out_of_node_info(&info, &keys).unwrap_or_default();
    driver.answers.insert(method.into(), Protobuf(cleaned));
    Ok(driver)
}

/// Looks once more after the record was made: two nodes may have claimed the same at a time.
///
/// # Errors
/// A change is not durable.
pub(super) async fn after_record(
    store: &Store,
    authority: &Authority,
    node: &NodeName,
    driver: &DriverName,
) -> Result<(), StoreError> {
    let info = store.read(|state| state.driver(driver)?.at(node)?.info.clone());
    let Some(info) = info else { return Ok(()) };
    // What was refused is not in the record any more, so this would end that.
    if is_loser(store, driver, node) {
        return Ok(());
    }
    let refused = settle(store, authority, node, driver, &info, true).await?;
    if refused.is_empty() {
        return Ok(());
    }
    strip(store, driver, node, refused).await
}

/// Sets the losers apart; returns the keys that this node may not have.
async fn settle(
    store: &Store,
    authority: &Authority,
    node: &NodeName,
    driver: &DriverName,
    info: &Bytes,
    is_new: bool,
) -> Result<Vec<String>, StoreError> {
    let info = csi::NodeGetInfoResponse::decode(info.clone()).unwrap_or_default();
    let segments = info.accessible_topology.map(|at| at.segments).unwrap_or_default();
    let segments: Segments = segments.into_iter().collect();
    let claimant = Claimant { node, segments: &segments, is_new };
    let policy = authority.policy(driver);
    let contested = store.read(|state| contested(state, driver, policy, &claimant));
    let (lost, won): (Vec<_>, Vec<_>) =
        contested.into_iter().partition(|contested| contested.claimant == *node);
    for contested in &won {
        set_apart(store, driver, contested);
        let keys = vec![contested.key.clone()];
        strip(store, driver, &contested.claimant, keys).await?;
    }
    match lost.first() {
        Some(contested) => set_apart(store, driver, contested),
        None => store.clear_apart(node, Some(driver), ReasonKind::OthersSegment),
    }
    Ok(lost.into_iter().map(|contested| contested.key).collect())
}

/// Removes segments with these keys from a node's record.
async fn strip(
    store: &Store,
    driver: &DriverName,
    node: &NodeName,
    keys: Vec<String>,
) -> Result<(), StoreError> {
    let driver = driver.clone();
    let node = node.clone();
    let write = store.write(move |txn| {
        let Some(at) = txn.at(&driver, &node).cloned() else { return };
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let stays = |key: &str| key == NODE_SEGMENT || !keys.contains(&key);
        let segments = at.segments.iter().filter(|segment| stays(&segment.0)).cloned().collect();
        let info = at.info.as_ref();
        let info = info.map(|info| topology::out_of_node_info(info, &keys).unwrap_or_default());
        txn.set_at(&driver, &node, Some(NodeDriver { segments, info, ..at }));
    });
    write.await
}

#[cfg(test)]
mod tests {
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::state::ingest;
    use crate::state::policy::{KeyKind, Policy};
    use crate::state::store::memory::Memory;

    const KEY: &str = "d.example/node";

    struct Fleet {
        store: Store,
        authority: Authority,
        driver: DriverName,
    }

    impl Fleet {
        /// One whose operator declares the key to be of one node.
        fn new() -> Self {
            Self::declaring(&[(KEY, KeyKind::Node)])
        }

        fn declaring(keys: &[(&str, KeyKind)]) -> Self {
            let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
            let driver: DriverName = "d.example".parse().unwrap();
            let topology = keys.iter().map(|(key, kind)| ((*key).to_owned(), *kind)).collect();
            let policy = Policy { topology, ..Policy::new(None) };
            let authority = Authority::new([(driver.clone(), policy)].into());
            Self { store, authority, driver }
        }

        async fn says(&self, node: &str, segments: &[(&str, &str)]) {
            self.says_as(node, node, segments).await;
        }

        /// The same with this node id.
        async fn says_as(&self, node: &str, id: &str, segments: &[(&str, &str)]) {
            let pairs = segments.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            let info = csi::NodeGetInfoResponse {
                node_id: id.into(),
                accessible_topology: Some(csi::Topology { segments: pairs.collect() }),
                ..Default::default()
            };
            let info = Protobuf(info.encode_to_vec().into());
            let answers = [("NodeGetInfo".to_owned(), info)].into();
            let said = Driver { name: self.driver.clone(), answers, health: None };
            let node = node.parse().unwrap();
            ingest::drivers(&self.store, &self.authority, &node, vec![said]).await.unwrap();
        }

        /// The nodes with this segment.
        fn at(&self, key: &str, value: &str) -> Vec<String> {
            let wanted = Segments::from([(key.to_owned(), value.to_owned())]);
            self.store.read(|state| {
                let of = state.driver(&self.driver).unwrap();
                of.located(&wanted).map(ToString::to_string).collect()
            })
        }

        fn why(&self, node: &str) -> Option<String> {
            let why = self.store.why_apart(&node.parse().unwrap(), &self.driver);
            why.map(|reason| reason.to_string())
        }
    }

    #[tokio::test]
    async fn our_segment_is_the_certificates_name_whatever_the_driver_says() {
        let fleet = Fleet::new();
        fleet.says("victim", &[]).await;
        fleet.says("thief", &[(NODE_SEGMENT, "victim"), ("zone", "a")]).await;
        assert_eq!(fleet.at(NODE_SEGMENT, "victim"), ["victim"]);
        assert_eq!(fleet.at(NODE_SEGMENT, "thief"), ["thief"]);
        assert_eq!(fleet.at("zone", "a"), ["thief"]);
        let why = fleet.why("thief").unwrap();
        assert!(why.contains("of node victim"), "{why}");
        fleet.says("thief", &[("zone", "a")]).await;
        assert_eq!(fleet.why("thief"), None, "it does not claim it any more");
    }

    #[tokio::test]
    async fn a_victim_that_comes_later_gets_its_segment_back() {
        let fleet = Fleet::new();
        fleet.says("thief", &[(KEY, "victim")]).await;
        assert_eq!((fleet.at(KEY, "victim"), fleet.why("thief")), (vec!["thief".into()], None));
        fleet.says("victim", &[(KEY, "victim")]).await;
        assert_eq!((fleet.at(KEY, "victim"), fleet.why("victim")), (vec!["victim".into()], None));
        for _ in 0..2 {
            assert!(fleet.why("thief").is_some());
            // On its next link it says the same again.
            fleet.says("thief", &[(KEY, "victim")]).await;
            assert_eq!(fleet.at(KEY, "victim"), ["victim"]);
        }
        let info = fleet.store.read(|state| {
            let of = state.driver(&fleet.driver)?;
            of.at(&"thief".parse().unwrap())?.info.clone()
        });
        let info = csi::NodeGetInfoResponse::decode(info.unwrap()).unwrap();
        assert!(info.accessible_topology.is_none(), "nor does Kubernetes get it");
    }

    #[tokio::test]
    async fn one_node_takes_no_zone_from_others_whatever_it_reports() {
        let fleet = Fleet::declaring(&[]);
        let zone = [("zone", "zone-a")];
        for node in ["n1", "n2"] {
            fleet.says(node, &zone).await;
        }
        fleet.says_as("liar", "zone-a", &zone).await;
        fleet.says_as("liar", "zone-a", &[("zone", "liar")]).await;
        // The others link again, and another one comes.
        for node in ["n1", "n2", "n3"] {
            fleet.says(node, &[]).await;
            fleet.says(node, &zone).await;
            assert_eq!(fleet.why(node), None);
        }
        assert_eq!(fleet.at("zone", "zone-a"), ["n1", "n2", "n3"]);
    }

    #[tokio::test]
    async fn a_name_that_its_node_reports_is_protected_without_a_declaration() {
        let fleet = Fleet::declaring(&[]);
        fleet.says("thief", &[(KEY, "victim")]).await;
        fleet.says("victim", &[(KEY, "victim")]).await;
        fleet.says("thief", &[(KEY, "victim")]).await;
        assert_eq!(fleet.at(KEY, "victim"), ["victim"]);
        assert!(fleet.why("thief").is_some() && fleet.why("victim").is_none());
    }
}
