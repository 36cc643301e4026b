use prost::Message;
use proto::control::hello::{Driver, Protobuf};
use proto::csi;
use proto::csi::controller_service_capability::{Rpc, Type, rpc};
use proto::host::tasks::Tasks;

use super::*;
use crate::state::authority::Authority;
use crate::state::ingest;
use crate::state::known::NamedNodes;
use crate::state::record::Node;
use crate::state::store::memory::Memory;

const ALL: [rpc::Type; 3] =
    [rpc::Type::CreateDeleteVolume, rpc::Type::ListVolumes, rpc::Type::ExpandVolume];

struct Fleet {
    store: Store,
    driver: DriverName,
}

impl Fleet {
    fn new() -> Self {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        Self { store, driver: "d.example".parse().unwrap() }
    }

    /// A node says that its driver has this name and these capabilities.
    async fn says(&self, node: &str, name: &str, can: &[rpc::Type]) {
        let capability = |can: &rpc::Type| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: (*can).into() })),
        };
        let capabilities = can.iter().map(capability).collect();
        let can = csi::ControllerGetCapabilitiesResponse { capabilities }.encode_to_vec();
        let info = csi::GetPluginInfoResponse {
            name: name.into(),
            vendor_version: node.into(),
            ..Default::default()
        };
        let answers = [
            ("GetPluginInfo", info.encode_to_vec()),
            ("GetPluginCapabilities", Vec::new()),
            ("ControllerGetCapabilities", can),
        ];
        let answers = answers.map(|(method, answer)| (method.into(), Protobuf(answer.into())));
        let said = Driver { name: self.driver.clone(), answers: answers.into(), health: None };
        let authority = Authority::default();
        ingest::drivers(&self.store, &authority, &node.parse().unwrap(), vec![said]).await.unwrap();
    }

    async fn remove(&self, node: &str) {
        let node: NodeName = node.parse().unwrap();
        let removed = Some(Node { since: 1, removed: Some(2), ..Node::default() });
        self.store.write(move |txn| txn.set_node(&node, removed)).await.unwrap();
    }

    /// What the front says that the controller can, and the vendor's version.
    fn front(&self) -> (usize, String) {
        self.store.read(|state| {
            let info = state.driver(&self.driver).unwrap().info();
            let local = Local::Capabilities(Capabilities::Controller);
            let can = info.answer(local, false).unwrap().unwrap_or_default();
            let can = csi::ControllerGetCapabilitiesResponse::decode(can).unwrap();
            let said = info.answer(Local::Info, false).unwrap().unwrap_or_default();
            let said = csi::GetPluginInfoResponse::decode(said).unwrap();
            (can.capabilities.len(), said.vendor_version)
        })
    }

    fn why(&self, node: &str) -> Option<ReasonKind> {
        let why = self.store.why_apart(&node.parse().unwrap(), &self.driver);
        why.map(|reason| reason.kind())
    }

    fn pinned(&self) -> Option<Vec<NodeName>> {
        self.store.read(|state| Some(state.driver(&self.driver)?.profile()?.from.clone()))
    }
}

const D: &str = "d.example";

#[tokio::test]
async fn later_nodes_change_nothing_that_the_front_says() {
    let fleet = Fleet::new();
    fleet.says("n1", D, &ALL).await;
    fleet.says("n2", D, &ALL).await;
    let before = fleet.front();
    assert_eq!((before.0, fleet.pinned().map(|from| from.len())), (3, Some(1)));
    fleet.says("a0", D, &[]).await;
    assert_eq!(
        (fleet.front(), fleet.why("a0")),
        (before.clone(), Some(ReasonKind::LessThanProfile))
    );
    fleet.says("a1", "other.example", &ALL).await;
    assert_eq!((fleet.front(), fleet.why("a1")), (before.clone(), Some(ReasonKind::OtherName)));
    // A node that had agreed may say something else later.
    fleet.says("n1", "other.example", &[]).await;
    assert_eq!((fleet.front(), fleet.why("n1")), (before.clone(), Some(ReasonKind::OtherName)));
    fleet.says("n1", D, &ALL[..2]).await;
    assert_eq!(
        (fleet.front(), fleet.why("n1")),
        (before.clone(), Some(ReasonKind::LessThanProfile))
    );
    for node in ["n1", "a0", "a1"] {
        fleet.says(node, D, &ALL).await;
        assert_eq!((fleet.front(), fleet.why(node)), (before.clone(), None), "{node}");
    }
    for node in ["n1", "n2"] {
        fleet.remove(node).await;
    }
    assert_eq!(fleet.front(), before, "the profile outlives the nodes that agreed");
}

#[tokio::test]
async fn nothing_is_pinned_before_three_agree_or_all() {
    let fleet = Fleet::new();
    fleet.remove("n0").await;
    // Two nodes that come together and differ: nobody is set apart.
    let driver = fleet.driver.clone();
    let store = fleet.store.clone();
    fleet.says("n1", "other.example", &ALL).await;
    assert_eq!((fleet.pinned(), fleet.why("n1")), (None, Some(ReasonKind::OtherName)));
    assert!(store.read(|state| state.driver(&driver).is_none()), "nothing is stored of it");
    fleet.says("n2", D, &ALL).await;
    assert_eq!(fleet.pinned(), Some(vec!["n2".parse().unwrap()]));
}

#[test]
fn most_of_three_or_more_agree() {
    let state = |nodes: &[(&str, &str)]| {
        let changes = nodes.iter().map(|(node, says)| {
            let answers =
                [("ControllerGetCapabilities".to_owned(), Bytes::from((*says).to_owned()))];
            let at = NodeDriver { answers: Arc::new(answers.into()), ..NodeDriver::default() };
            crate::state::record::Change::NodeDriver(
                D.parse().unwrap(),
                node.parse().unwrap(),
                Some(at),
            )
        });
        State::of(changes)
    };
    let agreed = |nodes: &[(&str, &str)]| {
        let driver = D.parse().unwrap();
        agreed(&state(nodes), &driver).map(|profile| profile.from.len())
    };
    assert_eq!(agreed(&[("n1", "x")]), Some(1));
    assert_eq!(agreed(&[("n1", "x"), ("n2", "y")]), None);
    assert_eq!(agreed(&[("n1", "x"), ("n2", "x")]), Some(2));
    assert_eq!(agreed(&[("n1", "x"), ("n2", "x"), ("n3", "y")]), None);
    assert_eq!(agreed(&[("n1", "x"), ("n2", "x"), ("n3", "y"), ("n4", "x")]), Some(3));
    let six: Vec<_> =
        ["a", "b", "c", "d", "e", "f"].into_iter().zip(["x", "y"].into_iter().cycle()).collect();
    assert_eq!(agreed(&six), None, "two groups of one size");
}

#[tokio::test]
async fn before_labels_are_known_three_nodes_must_agree() {
    let fleet = Fleet::new();
    fleet.store.set_awaits_labels(&fleet.driver, true);
    let pinned =
        || fleet.store.read(|state| state.driver(&fleet.driver).unwrap().profile().is_some());
    for (node, is_pinned) in [("n1", false), ("n2", false), ("n3", true)] {
        fleet.says(node, "d.example", &ALL).await;
        assert_eq!(pinned(), is_pinned, "{node}");
    }
}

#[tokio::test]
async fn nodes_that_the_operator_names_are_waited_for() {
    let fleet = Fleet::new();
    let named = ["n1", "n2", "n3"].map(|node| node.parse().unwrap());
    let named = NamedNodes { nodes: named.into(), are_all: true };
    fleet.store.set_named(fleet.driver.clone(), named);
    let pinned =
        || fleet.store.read(|state| state.driver(&fleet.driver).unwrap().profile().is_some());
    for (node, is_pinned) in [("n1", false), ("n2", false), ("n3", true)] {
        fleet.says(node, "d.example", &ALL).await;
        assert_eq!(pinned(), is_pinned, "{node}");
    }
}
