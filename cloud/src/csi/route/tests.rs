//! Each row of the routing table, against a small world.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use proto::csi;
use proto::names::DriverName;

use crate::csi::facts::{Nodes, Plan, RoutingFacts};
use crate::csi::route::*;
use crate::state::affinity::VolumeAnswer;
use crate::state::known::State;
use crate::state::policy::{Controllers, Policy, Scope};
use crate::state::record::{Change, Elected, EndedHome, Home, NodeDriver};

mod apart;
mod health;
mod unconfirmed;

const GRACE: Duration = Duration::from_secs(10);

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn topology(pairs: &[(&str, &str)]) -> Segments {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

fn volume(id: &str) -> Id {
    Id::Volume(id.into())
}

fn driver() -> DriverName {
    "d.example".parse().unwrap()
}

fn at(name: &str, zone: &str) -> Change {
    let place =
        [("node", name), ("zone", zone)].map(|(k, v)| Arc::new((k.to_owned(), v.to_owned())));
    Change::NodeDriver(
        driver(),
        node(name),
        Some(NodeDriver { segments: place.into(), ..NodeDriver::default() }),
    )
}

fn home(id: &Id, at: &str) -> Change {
    let home = Home { adopted: true, ..Home::at(node(at), 0) };
    Change::Home(driver(), id.clone(), Some(home))
}

fn intent(method: Method, name: &str, at: &str, until: u64, made: Option<&str>) -> Change {
    let made = made.map(Into::into);
    let intent = Intent {
        node: node(at),
        since: 0,
        until,
        made,
        claim: None,
        attempts: None,
        direct: None,
        narrowed: None,
        machine: None,
    };
    Change::Intent(driver(), Id::Name(method, name.into()), Some(intent))
}

/// Nodes n1 and n2 are in zone a, n3 and n4 in zone b; n4 has no link. Volume v1 lives on n1, v3
/// and w3 on n3. The node `out` was removed; the volume vo lived there.
struct World {
    changes: Vec<Change>,
    linked: Vec<&'static str>,
    /// Linked nodes whose driver is not up.
    down: Vec<&'static str>,
    /// Nodes that lost their link lately.
    just_left: Vec<&'static str>,
    apart: Vec<&'static str>,
    controllers: Option<Controllers>,
    scope: Scope,
    placement: Placement,
    beside_source: bool,
    reschedule: bool,
    only: Option<NodeName>,
    /// Whether the operator names a node that never reported the driver.
    awaits: bool,
    uncounted: Option<&'static str>,
    may_grow: bool,
    exhausted: Vec<NodeName>,
    kubernetes: BTreeMap<String, VolumeAnswer>,
    request: Vec<u8>,
    now: u64,
}

impl Default for World {
    fn default() -> Self {
        let mut changes: Vec<_> =
            [("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "b"), ("out", "c")]
                .map(|(name, zone)| at(name, zone))
                .into();
        changes.extend(
            [("v1", "n1"), ("v3", "n3"), ("w3", "n3"), ("vo", "out")]
                .map(|(id, at)| home(&volume(id), at)),
        );
        let linked = vec!["n1", "n2", "n3"];
        Self {
            changes,
            linked,
            down: Vec::new(),
            just_left: vec!["n4"],
            apart: Vec::new(),
            controllers: Some(Controllers::Any),
            scope: Scope::Node,
            placement: Placement::Spread,
            beside_source: true,
            reschedule: false,
            only: None,
            awaits: false,
            uncounted: None,
            may_grow: false,
            exhausted: Vec::new(),
            kubernetes: BTreeMap::new(),
            request: Vec::new(),
            now: 1_000,
        }
    }
}

impl World {
    fn with(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut world = Self::default();
        world.changes.extend(changes);
        world
    }

    fn route(&self, method: Method, key: &Key) -> Result<Plan, Unclear> {
        let state = State::of(self.changes.iter().cloned());
        let policy = Policy {
            placement: self.placement.clone(),
            reschedule: self.reschedule,
            beside_source: self.beside_source,
            grace: GRACE,
            controllers: self.controllers.clone(),
            ..Policy::new(None)
        };
        let mut kubernetes = self.kubernetes.clone();
        for id in method.about(key) {
            kubernetes.entry(id.text().to_owned()).or_insert(VolumeAnswer::Unknown);
        }
        let facts = RoutingFacts {
            driver: state.driver(&driver()),
            nodes: self,
            only: self.only.as_ref(),
            scope: self.scope,
            policy: &policy,
            now: self.now,
            kubernetes: &kubernetes,
            request: &self.request,
            node_id: None,
            exhausted: &self.exhausted,
        };
        route(method, key, &facts)
    }

    fn place(&self, source: Option<Id>, topology: Vec<Segments>) -> Result<Plan, Unclear> {
        let required = !topology.is_empty();
        let name = "pvc-1".into();
        self.route(Method::CreateVolume, &Key::Create { name, source, topology, required })
    }
}

impl Nodes for World {
    fn status(&self, node: &NodeName) -> NodeStatus {
        let is_in = |nodes: &[&str]| nodes.contains(&node.as_str());
        let linked = is_in(&self.linked);
        NodeStatus {
            linked,
            driver: match (linked, is_in(&self.down)) {
                (true, false) => DriverStatus::Up,
                (true, true) => DriverStatus::Down(GRACE),
                (false, _) => DriverStatus::Unknown,
            },
            away: match (linked, is_in(&self.just_left)) {
                (true, _) => None,
                (false, true) => Some(Duration::ZERO),
                (false, false) => Some(GRACE),
            },
            removed: node.as_str() == "out",
            apart: is_in(&self.apart).then(|| ("why".to_owned(), Duration::ZERO)),
        }
    }

    fn awaits(&self) -> bool {
        self.awaits
    }

    fn why_uncounted(&self) -> Option<&'static str> {
        self.uncounted
    }

    fn may_grow(&self) -> bool {
        self.may_grow
    }
}

fn reason(decided: Result<Plan, Unclear>) -> String {
    match decided {
        Err(Unclear::Yet(reason) | Unclear::Nowhere(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

fn to(name: &str) -> Result<Plan, Unclear> {
    Ok(Plan::Node(node(name)))
}

fn make<const N: usize>(names: [&str; N]) -> Result<Plan, Unclear> {
    created(Method::CreateVolume, "pvc-1", names)
}

fn created<const N: usize>(method: Method, name: &str, nodes: [&str; N]) -> Result<Plan, Unclear> {
    Ok(Plan::Create(Id::Name(method, name.into()), nodes.map(node).into()))
}

/// An earlier attempt of this create was sent to that node.
fn again(method: Method, name: &str, at: &str) -> Result<Plan, Unclear> {
    Ok(Plan::CreateAgain(Id::Name(method, name.into()), node(at)))
}

#[test]
fn a_volume_goes_to_the_first_topology_that_a_node_has() {
    let world = World::default();
    let n3 = topology(&[("node", "n3")]);
    let zone_a = topology(&[("zone", "a")]);
    let nowhere = topology(&[("zone", "d")]);
    assert_eq!(world.place(None, vec![n3, zone_a.clone()]), make(["n3"]));
    assert_eq!(world.place(None, vec![nowhere.clone(), zone_a]), make(["n1", "n2"]));
    let both = topology(&[("zone", "b"), ("node", "n1")]);
    let refused = reason(world.place(None, vec![nowhere, both]));
    assert!(
        refused.contains("{zone=d} or {node=n1,zone=b}; known: n1 {node=n1,zone=a}"),
        "{refused}"
    );
    // A removed node does not count.
    assert!(matches!(
        world.place(None, vec![topology(&[("zone", "c")])]),
        Err(Unclear::Nowhere(_))
    ));
}

#[test]
fn a_volume_goes_to_its_source_whatever_the_topology() {
    let world = World::default();
    assert_eq!(world.place(Some(volume("v3")), vec![topology(&[("node", "n1")])]), make(["n3"]));
    assert_eq!(world.place(Some(volume("vo")), vec![]), Err(Unclear::Removed(node("out"))));
    assert_eq!(world.place(Some(volume("?")), vec![]), Ok(Plan::Discover(vec![volume("?")])));
}

#[test]
fn a_volume_is_refused_beside_its_source_if_the_operator_says_so() {
    let mut world = World::with([intent(Method::CreateVolume, "sent", "n3", 0, None)]);
    world.beside_source = false;
    let elsewhere = vec![topology(&[("node", "n1")]), topology(&[("zone", "a")])];
    let refused = Err(Unclear::NotBesideSource {
        node: node("n3"),
        made_from: "volume v3".into(),
        topology: "{node=n1}, {zone=a}".into(),
    });
    assert_eq!(world.place(Some(volume("v3")), elsewhere.clone()), refused);
    assert_eq!(world.place(None, vec![topology(&[("node", "n1")])]), make(["n1"]));
    // A topology that includes the node, or is only preferred, is no reason to refuse.
    for asked in [vec![], vec![topology(&[("node", "n1")]), topology(&[("zone", "b")])]] {
        assert_eq!(world.place(Some(volume("v3")), asked), make(["n3"]));
    }
    let create = |name: &str, required| Key::Create {
        name: name.into(),
        source: Some(volume("v3")),
        topology: elsewhere.clone(),
        required,
    };
    assert_eq!(world.route(Method::CreateVolume, &create("pvc-1", false)), make(["n3"]));
    // A create that was sent may exist already.
    let at_n3 = again(Method::CreateVolume, "sent", "n3");
    assert_eq!(world.route(Method::CreateVolume, &create("sent", true)), at_n3);
    // The reason is the topology even while the node has no link. A removed node comes first.
    world.linked = vec!["n1"];
    assert_eq!(world.place(Some(volume("v3")), elsewhere.clone()), refused);
    let removed = Err(Unclear::Removed(node("out")));
    assert_eq!(world.place(Some(volume("vo")), elsewhere.clone()), removed);
    // The home of the source is discovered first.
    let asked_for = Ok(Plan::Discover(vec![volume("?")]));
    assert_eq!(world.place(Some(volume("?")), elsewhere.clone()), asked_for);
    // A node's own front refuses too.
    world.linked = vec!["n3"];
    world.only = Some(node("n3"));
    assert_eq!(world.place(Some(volume("v3")), elsewhere.clone()), refused);
    // Every node can reach a shared driver's sources.
    world.scope = Scope::Shared;
    assert_eq!(world.place(Some(volume("v3")), elsewhere), make(["n3"]));
}

#[test]
fn without_a_word_it_is_the_linked_node_with_the_fewest_volumes_or_the_pinned_one() {
    let mut world = World::default();
    for topology in [vec![], vec![Segments::default()]] {
        assert_eq!(world.place(None, topology), make(["n2", "n1", "n3"]));
    }
    // A pending create counts as a volume, and a created volume counts once.
    world.changes.push(intent(Method::CreateVolume, "other", "n2", 0, None));
    world.changes.push(intent(Method::CreateVolume, "another", "n1", 0, Some("v1")));
    assert_eq!(world.place(None, vec![]), make(["n1", "n2", "n3"]));
    world.placement = Placement::Pinned(node("n3"));
    assert_eq!(world.place(None, vec![]), make(["n3"]));
    world.placement = Placement::Pinned(node("n4"));
    assert_eq!(world.place(None, vec![]), Err(Unclear::Away(node("n4"))));
    world.placement = Placement::Spread;
    world.linked = vec![];
    assert!(reason(world.place(None, vec![])).contains("none of the nodes n1, n2, n3, n4"));
}

#[test]
fn what_lives_somewhere_is_called_there_and_what_has_no_home_is_asked_for() {
    let world = World::default();
    let home = |id| world.route(Method::ControllerPublishVolume, &Key::Home(id));
    assert_eq!(home(volume("v3")), to("n3"));
    assert_eq!(home(volume("vo")), Err(Unclear::Removed(node("out"))));
    assert_eq!(home(volume("other")), Ok(Plan::Discover(vec![volume("other")])));
    // A snapshot with the same id is something else.
    let snapshot = Id::Snapshot("v3".into());
    assert_eq!(home(snapshot.clone()), Ok(Plan::Discover(vec![snapshot])));
}

/// A driver answers OK to the delete of an unknown volume. On the wrong node that would leak it.
#[test]
fn nothing_is_ended_on_a_guess() {
    let world = World::default();
    let end = |method, id| world.route(method, &Key::Delete(volume(id)));
    assert_eq!(end(Method::DeleteVolume, "v3"), to("n3"));
    assert_eq!(end(Method::DeleteVolume, "other"), Ok(Plan::Everywhere(volume("other"))));
    // CSI: "can be safely regarded as unpublished". The data on the node is not deleted.
    assert_eq!(end(Method::ControllerUnpublishVolume, "vo"), Ok(Plan::Done));
    assert_eq!(end(Method::DeleteVolume, "vo"), Err(Unclear::Removed(node("out"))));
}

/// What node n1 had.
fn ended(id: &str, confirmed: bool) -> Change {
    let ended = EndedHome { node: node("n1"), ended: 1, confirmed };
    Change::EndedHome(driver(), volume(id), Some(ended))
}

#[test]
fn a_repeated_delete_has_secrets_only_if_more_than_the_node_said_that_it_was_there() {
    let world = World::with([ended("made", true), ended("claimed", false)]);
    let end = |method, id| world.route(method, &Key::Delete(volume(id)));
    assert_eq!(end(Method::DeleteVolume, "made"), to("n1"));
    for method in [Method::DeleteVolume, Method::ControllerUnpublishVolume] {
        assert_eq!(end(method, "claimed"), Ok(Plan::Claimed(node("n1"))));
    }
}

/// What was deleted there may be another node's by now.
#[test]
fn an_ended_home_directs_a_delete_and_neither_a_create_nor_an_attach() {
    let world = World::with([ended("gone", true)]);
    let gone = volume("gone");
    let sought = Ok(Plan::Discover(vec![gone.clone()]));
    assert_eq!(world.place(Some(gone.clone()), Vec::new()), sought);
    let snapshot = Key::Snapshot { name: "s".into(), volumes: vec![gone.clone()] };
    assert_eq!(world.route(Method::CreateSnapshot, &snapshot), sought);
    let attach = Key::Home(gone.clone());
    assert_eq!(world.route(Method::ControllerPublishVolume, &attach), sought);
    assert_eq!(world.route(Method::DeleteVolume, &Key::Delete(gone)), to("n1"));
}

#[test]
fn if_one_node_has_the_driver_all_is_there() {
    let world = World { changes: vec![at("n1", "a")], ..World::default() };
    assert_eq!(world.route(Method::DeleteVolume, &Key::Delete(volume("other"))), to("n1"));
    assert_eq!(world.route(Method::ControllerGetVolume, &Key::Home(volume("other"))), to("n1"));
    assert_eq!(world.place(Some(volume("other")), vec![]), make(["n1"]));
    let none = World { changes: vec![], ..World::default() };
    // A lost store knows no node: an OK for an unknown volume would leak it.
    for (method, key) in [
        (Method::ListVolumes, Key::All),
        (Method::DeleteVolume, Key::Delete(volume("v1"))),
        (Method::ControllerUnpublishVolume, Key::Delete(volume("v1"))),
        (Method::ControllerGetVolume, Key::Home(volume("v1"))),
    ] {
        assert!(reason(none.route(method, &key)).contains("has ever linked"), "{method}");
    }
    assert!(reason(none.place(None, vec![])).contains("has ever linked"));
}

#[test]
fn the_only_node_has_nothing_for_certain_while_a_named_one_never_linked() {
    let mut world = World { changes: vec![at("n1", "a")], ..World::default() };
    let unknown = || volume("unknown");
    for (awaits, get, delete) in [
        (false, to("n1"), to("n1")),
        (true, Ok(Plan::Discover(vec![unknown()])), Ok(Plan::Everywhere(unknown()))),
    ] {
        world.awaits = awaits;
        assert_eq!(world.route(Method::ControllerGetVolume, &Key::Home(unknown())), get);
        assert_eq!(world.route(Method::DeleteVolume, &Key::Delete(unknown())), delete);
    }
}

#[test]
fn a_group_has_one_home() {
    let world = World::with([intent(Method::CreateVolumeGroupSnapshot, "sent", "n2", 0, None)]);
    let group = |name: &str, ids: &[&str]| {
        let volumes = ids.iter().map(|id| volume(id)).collect();
        world
            .route(Method::CreateVolumeGroupSnapshot, &Key::Snapshot { name: name.into(), volumes })
    };
    assert_eq!(
        group("g", &["v3", "w3", "v3"]),
        created(Method::CreateVolumeGroupSnapshot, "g", ["n3"])
    );
    assert_eq!(group("g", &["v1", "?"]), Ok(Plan::Discover(vec![volume("?")])));
    assert_eq!(group("g", &["v3", "v1"]), Err(Unclear::SeveralHomes(vec![node("n1"), node("n3")])));
    assert_eq!(group("g", &["vo"]), Err(Unclear::Removed(node("out"))));
    assert_eq!(group("sent", &["v1"]), again(Method::CreateVolumeGroupSnapshot, "sent", "n2"));
}

#[test]
fn of_many_nodes_a_reason_names_a_few() {
    let changes = (0..20_000).map(|n| at(&format!("n{n:05}"), "a")).collect();
    let world = World { changes, linked: vec![], ..World::default() };
    for topology in [vec![], vec![topology(&[("zone", "d")])]] {
        let refused = reason(world.place(None, topology));
        assert!(refused.contains("n00009") && refused.contains("and 19990 more"), "{refused}");
        assert!(refused.len() < 500, "{}", refused.len());
    }
}

#[test]
fn lists_are_of_all_nodes_and_capacity_is_where_the_topology_is() {
    let world = World::default();
    assert_eq!(world.route(Method::ListVolumes, &Key::All), Ok(Plan::All));
    let capacity = |topology| world.route(Method::GetCapacity, &Key::Capacity(topology));
    assert_eq!(
        capacity(Some(topology(&[("zone", "b")]))),
        Ok(Plan::Capacity(vec![node("n3"), node("n4")]))
    );
    assert_eq!(capacity(Some(topology(&[("zone", "d")]))), Ok(Plan::Capacity(vec![])));
    assert_eq!(capacity(None), Ok(Plan::Capacity(["n1", "n2", "n3", "n4"].map(node).into())));
}

#[test]
fn a_shared_driver_is_called_where_it_was_elected() {
    let mut world = World::with([Change::Elected(driver(), Some(Elected::first(node("n2"))))]);
    world.scope = Scope::Shared;
    for (method, key) in [
        (Method::ListVolumes, Key::All),
        (Method::GetCapacity, Key::Capacity(None)),
        (Method::DeleteVolume, Key::Delete(volume("v3"))),
        (Method::ControllerPublishVolume, Key::Home(volume("unknown"))),
    ] {
        assert_eq!(world.route(method, &key), to("n2"), "{method}");
    }
    assert_eq!(world.place(Some(volume("v3")), vec![]), make(["n2"]));
    // A create that may still begin elsewhere is refused. A finished create is only repeated.
    world.changes.push(intent(Method::CreateVolume, "pvc-1", "n1", 1_001, None));
    assert!(reason(world.place(None, vec![])).contains("sent to n1"));
    world.now = 1_001;
    assert_eq!(world.place(None, vec![]), make(["n2"]));
    world.changes.push(intent(Method::CreateVolume, "pvc-1", "n1", 9_999, Some("v9")));
    assert_eq!(world.place(None, vec![]), again(Method::CreateVolume, "pvc-1", "n2"));
    let nobody = World { scope: Scope::Shared, ..World::default() };
    assert!(reason(nobody.route(Method::ListVolumes, &Key::All)).contains("none of the nodes"));
    // That it is shared is only what nodes say.
    world.controllers = None;
    assert!(reason(world.route(Method::ListVolumes, &Key::All)).contains("name `controllers`"));
}

#[test]
fn the_front_answers_for_itself_and_refuses_what_is_a_nodes() {
    let world = World::default();
    assert_eq!(world.route(Method::Probe, &Key::Local), Ok(Plan::Local));
    assert_eq!(world.route(Method::NodeStageVolume, &Key::Node(None)), Ok(Plan::NodeOnly));
}

/// A create without a source and a topology.
fn anywhere(name: &str) -> Key {
    Key::Create { name: name.into(), source: None, topology: vec![], required: false }
}

#[test]
fn a_nodes_own_front_is_for_what_is_there() {
    let mut world = World::with([intent(Method::CreateVolume, "sent", "n1", 0, None)]);
    world.only = Some(node("n2"));
    for scope in [Scope::Node, Scope::Shared] {
        world.scope = scope;
        assert_eq!(world.place(None, vec![topology(&[("node", "n3")])]), make(["n2"]));
        assert_eq!(world.route(Method::ListVolumes, &Key::All), to("n2"));
        assert_eq!(world.route(Method::GetCapacity, &Key::Capacity(None)), to("n2"));
        assert_eq!(world.route(Method::DeleteVolume, &Key::Delete(volume("unknown"))), to("n2"));
        assert_eq!(
            world.route(Method::DeleteVolume, &Key::Delete(volume("v1"))),
            to("n1"),
            "it lives there"
        );
        let sent = anywhere("sent");
        let at_n1 = again(Method::CreateVolume, "sent", "n1");
        assert_eq!(world.route(Method::CreateVolume, &sent), at_n1, "it was sent there");
        // The driver itself refuses a create without a name.
        let nameless = anywhere("");
        assert_eq!(world.route(Method::CreateVolume, &nameless), to("n2"));
        let nameless = Key::Snapshot { name: String::new(), volumes: vec![volume("v1")] };
        assert_eq!(world.route(Method::CreateSnapshot, &nameless), to("n2"));
        assert_eq!(world.route(Method::NodeGetInfo, &Key::Local), Ok(Plan::Local));
    }
    world.only = Some(node("n4"));
    assert_eq!(world.place(None, vec![]), Err(Unclear::Away(node("n4"))));
}

/// One line for each RPC of CSI, about the volume v3, the snapshot s3 and the group g3 on n3.
#[test]
fn every_rpc_goes_where_the_table_says() {
    let world =
        World::with([home(&Id::Snapshot("s3".into()), "n3"), home(&Id::Group("g3".into()), "n3")]);
    // The id is field 1 of all requests except those below.
    let about = |id: &str| {
        csi::DeleteVolumeRequest { volume_id: id.into(), ..Default::default() }.encode_to_vec()
    };
    let snapshot = csi::CreateSnapshotRequest {
        source_volume_id: "v3".into(),
        name: "s".into(),
        ..Default::default()
    };
    let group = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids: vec!["v3".into()],
        ..Default::default()
    };
    let all = || Ok(Plan::Capacity(["n1", "n2", "n3", "n4"].map(node).into()));
    for method in Method::ALL.iter().copied() {
        let service = method.path().split('/').nth(1).unwrap();
        let (request, expected) = match method {
            Method::NodeGetCapabilities | Method::NodeGetInfo => (vec![], Ok(Plan::Local)),
            _ if service == "csi.v1.Node" => (vec![], Ok(Plan::NodeOnly)),
            _ if service == "csi.v1.Identity" => (vec![], Ok(Plan::Local)),
            Method::ControllerGetCapabilities | Method::GroupControllerGetCapabilities => {
                (vec![], Ok(Plan::Local))
            }
            Method::ListVolumes | Method::ListSnapshots | Method::ControllerListVolumeHealth => {
                (vec![], Ok(Plan::All))
            }
            Method::GetCapacity => (vec![], all()),
            Method::CreateVolume => (
                csi::CreateVolumeRequest { name: "new".into(), ..Default::default() }
                    .encode_to_vec(),
                created(method, "new", ["n2", "n1", "n3"]),
            ),
            Method::CreateSnapshot => (snapshot.encode_to_vec(), created(method, "s", ["n3"])),
            Method::CreateVolumeGroupSnapshot => {
                (group.encode_to_vec(), created(method, "g", ["n3"]))
            }
            Method::DeleteSnapshot | Method::GetSnapshot => (about("s3"), to("n3")),
            Method::GetMetadataAllocated | Method::GetMetadataDelta => {
                (about("s3"), Ok(Plan::Stream(node("n3"))))
            }
            Method::DeleteVolumeGroupSnapshot | Method::GetVolumeGroupSnapshot => {
                (about("g3"), to("n3"))
            }
            _ => (about("v3"), to("n3")),
        };
        let key = method.key(&request).unwrap();
        assert_eq!(world.route(method, &key), expected, "{method}");
        // An edge takes from a link what is sent here, and nothing else.
        let stays = matches!(expected, Ok(Plan::Local | Plan::NodeOnly));
        assert_eq!(method.sent(), !stays, "{method}");
    }
}

/// A world in which these nodes had no room for a create.
fn exhausted(nodes: &[&str]) -> World {
    World {
        exhausted: nodes.iter().map(|name| name.parse().unwrap()).collect(),
        ..World::default()
    }
}

#[test]
fn a_node_without_room_is_passed_over() {
    let zones = [topology(&[("zone", "a")]), topology(&[("zone", "b")])];
    assert_eq!(exhausted(&["n1"]).place(None, zones.to_vec()), make(["n2"]));
    assert_eq!(exhausted(&["n1", "n2"]).place(None, zones.to_vec()), make(["n3"]));
    let all = exhausted(&["n1", "n2", "n3"]);
    assert!(all.place(None, zones.to_vec()).is_err() && all.place(None, Vec::new()).is_err());
    // What comes from a source has no other place.
    let beside = exhausted(&["n1"]).place(Some(volume("v1")), Vec::new());
    assert_eq!(beside, make(["n1"]));
}
