//! What a driver reports at its nodes, what csi-cloud makes of it, and what contradicts it.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use proto::csi::topology::{NODE_SEGMENT, constrained, has_segments};
use proto::csi::{self, Capabilities, GetPluginInfoResponse, Id, Local, Method};
use proto::host::plain;
use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Verdict};
use crate::kubernetes::object_facts::{ClassFacts, CsiDriverFacts};
use crate::rewrite::placed::{Placed, volume_placed};
use crate::state::affinity::NodesOf;
use crate::state::capabilities::capability_names;
use crate::state::driver_state::DriverState;
use crate::state::node_names::{first_few, names};
use crate::state::policy::{KeyKind, Policy, Scope};
use crate::state::record::Home;

/// The most volumes of a driver whose place is looked at.
const LOOKED_AT: usize = 10_000;

/// A step of the chain: an object, its state, and what was found.
pub(super) type Step = (String, String, String);

/// What the nodes of a driver report of it.
pub(super) fn reported(of: &DriverState, policy: Option<&Policy>) -> Vec<Step> {
    let mut steps = vec![versions(of), scope(of, policy)];
    steps.extend(topology_keys(of, policy));
    for kind in Capabilities::ALL {
        let local = Local::Capabilities(kind);
        let Ok(Some(answer)) = of.info().answer(local, false) else { continue };
        let method = Method::answering(local).name();
        let capabilities = capability_names(kind, &answer).join(", ");
        steps.push((method.to_owned(), "answered".to_owned(), capabilities));
    }
    let mismatches = of.info().mismatches().iter();
    steps.extend(mismatches.map(|odd| ("nodes".into(), "differ".into(), plain(&odd.to_string()))));
    steps
}

/// How many nodes have which version of the driver.
fn versions(of: &DriverState) -> Step {
    let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
    for (_, at) in of.members().filter(|(_, at)| at.has_spoken()) {
        let info = at.answer(Local::Info).cloned().unwrap_or_default();
        let info = GetPluginInfoResponse::decode(info).unwrap_or_default();
        *nodes.entry(plain(&info.vendor_version)).or_default() += 1;
    }
    let of_each = nodes.iter().map(|(version, nodes)| format!("{version:?} at {nodes} nodes"));
    let state = if nodes.len() > 1 { "differ" } else { "reported" };
    ("versions".into(), state.into(), of_each.collect::<Vec<_>>().join(", "))
}

/// The scope, and where it comes from.
fn scope(of: &DriverState, policy: Option<&Policy>) -> Step {
    let written = policy.and_then(|policy| policy.scope);
    let state = match effective_scope(of, policy) {
        Scope::Node => "node",
        Scope::Shared => "shared",
    };
    let why = match written {
        Some(_) => "written in its section".to_owned(),
        None => format!("inferred: {}; write scope = {state:?} if that is true", inferred(of)),
    };
    ("scope".into(), state.into(), why)
}

/// The scope in the driver's section, or else the inferred one.
fn effective_scope(of: &DriverState, policy: Option<&Policy>) -> Scope {
    policy.and_then(|policy| policy.scope).unwrap_or_else(|| of.info().scope())
}

fn inferred(of: &DriverState) -> &'static str {
    let plugin = Local::Capabilities(Capabilities::Plugin);
    let spoken: Vec<_> = of.members().map(|(_, at)| at).filter(|at| at.has_spoken()).collect();
    if spoken.is_empty() {
        return "no node has answered yet";
    }
    if !spoken.iter().any(|at| at.answer(plugin).is_some_and(|answer| constrained(answer))) {
        return "no node reports VOLUME_ACCESSIBILITY_CONSTRAINTS";
    }
    match spoken.iter().any(|at| at.answer(Local::NodeInfo).is_none_or(|info| has_segments(info))) {
        true => "a node reports VOLUME_ACCESSIBILITY_CONSTRAINTS",
        false => "nodes report VOLUME_ACCESSIBILITY_CONSTRAINTS, and none a topology",
    }
}

/// The topology keys, and what each means.
fn topology_keys(of: &DriverState, policy: Option<&Policy>) -> Vec<Step> {
    let mut values: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for (_, at) in of.members() {
        for segment in at.segments.iter().filter(|segment| segment.0 != NODE_SEGMENT) {
            let (nodes, different) = values.entry(&segment.0).or_default();
            *nodes += 1;
            different.insert(&segment.1);
        }
    }
    if values.is_empty() {
        let found = format!("of its own; csi-cloud adds {NODE_SEGMENT} with scope \"node\"");
        return vec![("topology".into(), "none".into(), found)];
    }
    let steps = values.into_iter().map(|(key, (nodes, different))| {
        let meaning = match policy.and_then(|policy| policy.topology.get(key)) {
            Some(KeyKind::Node) => "a value is one node's",
            Some(KeyKind::Any) => "nodes may share a value",
            None => "not declared",
        };
        let found = format!("{} values at {nodes} nodes", different.len());
        (format!("topology key {}", plain(key)), meaning.to_owned(), found)
    });
    steps.collect()
}

/// Whether the driver says of volumes that they are not at the nodes that have them. csi-cloud
/// corrects that only with `scope = "node"` written out, and if it knows the nodes that are named.
pub(super) fn misplaced(
    driver: &DriverName,
    of: &DriverState,
    policy: Option<&Policy>,
    homes: &BTreeMap<Id, Box<Home>>,
) -> Option<Verdict> {
    if effective_scope(of, policy) == Scope::Shared {
        return None;
    }
    let nodes = NodesOf { driver: of, policy };
    let elsewhere = homes.iter().take(LOOKED_AT).filter_map(|(id, home)| {
        let Id::Volume(id) = id else { return None };
        let at = of.at(&home.node).filter(|at| at.has_own_topology())?;
        let volume = csi::list_volumes_response::Entry::decode(home.entry.clone()).ok()?.volume?;
        let placed = volume_placed(volume, &home.node, at, nodes);
        let is_misplaced = placed != Placed::Here && !placed.is_corrected(policy);
        is_misplaced.then(|| format!("{id:?} at {}", home.node))
    });
    let elsewhere: Vec<_> = elsewhere.collect();
    if elsewhere.is_empty() {
        return None;
    }
    let text = format!(
        "driver {driver} says of {} volumes that they are not at the nodes that made them, and \
         their pods are scheduled where it says: {}",
        elsewhere.len(),
        first_few(elsewhere.into_iter())
    );
    let next = "if a volume is at the node that made it, write scope = \"node\" in the driver's \
                section, and declare its topology keys; volumes made before keep their affinity";
    Some(Verdict::of(Cause::DriverContradicted, text, next))
}

/// Whether the CSIDriver object says what the driver reports.
pub(super) fn contradicted(
    driver: &DriverName,
    of: &DriverState,
    object: &CsiDriverFacts,
) -> Option<Verdict> {
    let controller = Local::Capabilities(Capabilities::Controller);
    let answer = of.info().answer(controller, false).ok().flatten()?;
    let reports = capability_names(Capabilities::Controller, &answer);
    let has = |wanted: &str| reports.iter().any(|name| name == wanted);
    let (text, next) = if !object.attach_required && has("PUBLISH_UNPUBLISH_VOLUME") {
        (
            "has attachRequired: false, but the driver reports PUBLISH_UNPUBLISH_VOLUME, so no \
             volume is attached before it is mounted",
            "Kubernetes lets nobody change that: delete the object while no volume is in use, and \
             make it again",
        )
    } else if object.storage_capacity && !has("GET_CAPACITY") {
        (
            "has storageCapacity: true, but the driver does not report GET_CAPACITY, so the \
             scheduler finds room at no node",
            "set storageCapacity to false",
        )
    } else {
        return None;
    };
    Some(Verdict::of(Cause::DriverContradicted, format!("CSIDriver {driver} {text}"), next))
}

/// What a StorageClass of the driver makes of it.
pub(super) fn class(name: &str, facts: &ClassFacts) -> Step {
    let binds = match facts.waits_for_pod {
        true => "a volume is made where its pod runs",
        false => "a volume is made at once, before its pod has a node",
    };
    let expands = if facts.expands { "may grow" } else { "do not grow" };
    (format!("StorageClass {name}"), "there".into(), format!("{binds}; its volumes {expands}"))
}

/// The fault of a StorageClass that lets volumes grow, if the driver cannot expand them.
pub(super) fn class_contradicted(
    driver: &DriverName,
    of: &DriverState,
    name: &str,
    facts: &ClassFacts,
) -> Option<Verdict> {
    if !facts.expands {
        return None;
    }
    // What is not known yet contradicts nothing.
    if expands(of, Capabilities::Controller)? || expands(of, Capabilities::Node)? {
        return None;
    }
    let text = format!(
        "StorageClass {name} has allowVolumeExpansion: true, but driver {driver} does not report \
         EXPAND_VOLUME, so a claim that asks for more never gets it"
    );
    let next = "set allowVolumeExpansion to false, or use a version of the driver that expands";
    Some(Verdict::of(Cause::DriverContradicted, text, next))
}

/// The fault of a StorageClass with secrets that every node with a certificate may get, because any
/// of them may be chosen for the next volume. A shared driver has its `controllers`.
pub(super) fn class_open_to_all(
    driver: &DriverName,
    of: &DriverState,
    policy: Option<&Policy>,
    name: &str,
    facts: &ClassFacts,
) -> Option<Verdict> {
    let is_open = policy.is_none_or(|policy| policy.nodes.is_none());
    if !facts.has_secrets || !is_open || effective_scope(of, policy) == Scope::Shared {
        return None;
    }
    let text = format!(
        "creates of StorageClass {name} carry its secrets, and every node with a certificate may \
         be chosen for them, also one that joins today: the section of driver {driver} has no \
         `nodes`"
    );
    let next = "name them, as nodes = [\"node-1\", \"shop-*\"]; if every node may have the \
                secrets, write nodes = \"*\". A later release refuses such creates without it";
    Some(Verdict::of(Cause::DriverContradicted, text, next))
}

/// True if the driver reports EXPAND_VOLUME among these capabilities; `None` if they are not known.
fn expands(of: &DriverState, kind: Capabilities) -> Option<bool> {
    let answer = of.info().answer(Local::Capabilities(kind), false).ok().flatten()?;
    Some(capability_names(kind, &answer).iter().any(|name| name == "EXPAND_VOLUME"))
}

/// The nodes whose kubelet does not have the driver.
pub(super) fn unregistered_at(driver: &DriverName, nodes: &[NodeName]) -> Option<Verdict> {
    if nodes.is_empty() {
        return None;
    }
    Some(Verdict::of(
        Cause::NotRegistered,
        format!("the CSINodes of {} do not have driver {driver}", names(nodes)),
        "look at csi-edge and the driver's registrar there",
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto::csi::controller_service_capability::{Rpc, Type, rpc};

    use super::*;
    use crate::state::node_set::NodeSet;
    use crate::state::record::NodeDriver;

    const KEY: &str = "d.example/node";

    fn driver_name() -> DriverName {
        "d.example".parse().unwrap()
    }

    /// Two nodes with a topology key, and these capabilities of the controller.
    fn driver(capabilities: &[rpc::Type]) -> DriverState {
        let mut driver = DriverState::default();
        let capability = |wanted: &rpc::Type| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: (*wanted).into() })),
        };
        let capabilities = capabilities.iter().map(capability).collect();
        let controller = csi::ControllerGetCapabilitiesResponse { capabilities }.encode_to_vec();
        for (node, version) in [("n1", "1.0"), ("n2", "2.0")] {
            let info = GetPluginInfoResponse {
                name: "d.example".into(),
                vendor_version: version.into(),
                ..Default::default()
            };
            let answers = [
                ("GetPluginInfo".to_owned(), info.encode_to_vec().into()),
                ("ControllerGetCapabilities".to_owned(), controller.clone().into()),
                ("NodeGetCapabilities".to_owned(), Vec::new().into()),
            ];
            let at = NodeDriver {
                answers: Arc::new(answers.into()),
                segments: [(KEY.to_owned(), node.to_owned()).into()].into(),
                ..NodeDriver::default()
            };
            driver.set_at(node.parse().unwrap(), Some(at));
        }
        driver
    }

    #[test]
    fn a_vendor_sees_versions_scope_topology_and_capabilities() {
        let driver = driver(&[rpc::Type::CreateDeleteVolume]);
        let lines = |policy| {
            let steps = reported(&driver, policy);
            steps.iter().map(|(a, b, c)| format!("{a} | {b} | {c}")).collect::<Vec<_>>()
        };
        let inferred = lines(None);
        for line in [
            "versions | differ | \"1.0\" at 1 nodes, \"2.0\" at 1 nodes",
            "topology key d.example/node | not declared | 2 values at 2 nodes",
            "ControllerGetCapabilities | answered | CREATE_DELETE_VOLUME",
        ] {
            assert!(inferred.iter().any(|one| one == line), "{line} is not in {inferred:#?}");
        }
        let scope = "scope | shared | inferred: no node reports VOLUME_ACCESSIBILITY_CONSTRAINTS; \
                     write scope = \"shared\" if that is true";
        assert_eq!(inferred[1], scope);
        let topology = [(KEY.to_owned(), KeyKind::Node)].into();
        let written = Policy { scope: Some(Scope::Node), topology, ..Policy::new(None) };
        let written = lines(Some(&written));
        assert_eq!(written[1], "scope | node | written in its section");
        assert!(written[2].contains("a value is one node's"), "{written:#?}");
    }

    #[test]
    fn a_csidriver_that_says_otherwise_is_told() {
        let name = driver_name();
        let object = |attach_required, storage_capacity| CsiDriverFacts {
            attach_required,
            storage_capacity,
        };
        let attaches = driver(&[rpc::Type::PublishUnpublishVolume]);
        let text = contradicted(&name, &attaches, &object(false, false)).unwrap().text;
        assert!(text.contains("attachRequired"), "{text}");
        assert_eq!(contradicted(&name, &attaches, &object(true, false)), None);
        let text = contradicted(&name, &attaches, &object(true, true)).unwrap().text;
        assert!(text.contains("storageCapacity"), "{text}");
        let sized = driver(&[rpc::Type::GetCapacity]);
        assert_eq!(contradicted(&name, &sized, &object(false, true)), None);
    }

    #[test]
    fn a_volume_that_is_elsewhere_by_its_drivers_word_is_told() {
        let name = driver_name();
        let mut of = DriverState::default();
        let plugin = Method::answering(Local::Capabilities(Capabilities::Plugin)).name();
        for node in ["n1", "n2"] {
            let segments = [(KEY.to_owned(), node.to_owned())];
            let topology = csi::Topology { segments: segments.clone().into() };
            let info = csi::NodeGetInfoResponse {
                accessible_topology: Some(topology),
                ..csi::NodeGetInfoResponse::default()
            };
            let at = NodeDriver {
                info: Some(info.encode_to_vec().into()),
                // VOLUME_ACCESSIBILITY_CONSTRAINTS.
                answers: Arc::new([(plugin.into(), b"\x0a\x04\x0a\x02\x08\x02"[..].into())].into()),
                segments: [segments[0].clone().into()].into(),
                ..NodeDriver::default()
            };
            of.set_at(node.parse().unwrap(), Some(at));
        }
        let made_at_n1 = |says: &[&str]| {
            let topology = |node: &&str| csi::Topology {
                segments: [(KEY.to_owned(), (*node).to_owned())].into(),
            };
            let volume = csi::Volume {
                volume_id: "v".into(),
                accessible_topology: says.iter().map(topology).collect(),
                ..csi::Volume::default()
            };
            let entry = csi::list_volumes_response::Entry { volume: Some(volume), status: None };
            Home {
                node: "n1".parse().unwrap(),
                name: None,
                entry: entry.encode_to_vec().into(),
                claim: None,
                parameters: None,
                source: None,
                since: 0,
                absent: false,
                lost: false,
                conflicts: Vec::new(),
                adopted: false,
            }
        };
        let scope = |scope| Policy { scope, ..Policy::new(None) };
        let (inferred, written) = (scope(None), scope(Some(Scope::Node)));
        let told = |says: &[&str], policy| {
            let homes = [(Id::Volume("v".into()), Box::new(made_at_n1(says)))].into();
            misplaced(&name, &of, Some(policy), &homes).map(|of| of.text)
        };
        for here in [&[][..], &["n1"], &["n2", "n1"]] {
            assert_eq!(told(here, &inferred), None);
        }
        let text = told(&["n2"], &inferred).unwrap();
        assert!(text.contains("of 1 volumes") && text.contains("\"v\" at n1"), "{text}");
        assert_eq!(told(&["n2"], &written), None, "it was corrected");
        assert!(told(&["n9"], &written).is_some(), "nobody knows n9");
        assert_eq!(told(&["n2"], &scope(Some(Scope::Shared))), None);
    }

    fn class_facts(expands: bool, has_secrets: bool) -> ClassFacts {
        let provisioner = "d.example".into();
        ClassFacts { provisioner, waits_for_pod: true, expands, has_secrets }
    }

    #[test]
    fn a_class_that_promises_growth_is_told() {
        let name = driver_name();
        let told = |of: &DriverState, expands| {
            class_contradicted(&name, of, "fast", &class_facts(expands, false)).map(|of| of.text)
        };
        let never = driver(&[rpc::Type::CreateDeleteVolume]);
        let text = told(&never, true).unwrap();
        assert!(text.starts_with("StorageClass fast has allowVolumeExpansion"), "{text}");
        assert_eq!(told(&never, false), None);
        assert_eq!(told(&driver(&[rpc::Type::ExpandVolume]), true), None);
        assert_eq!(told(&DriverState::default(), true), None, "nothing is known of it yet");
        let found = class("fast", &class_facts(true, false)).2;
        assert_eq!(found, "a volume is made where its pod runs; its volumes may grow");
    }

    #[test]
    fn a_class_whose_secrets_any_node_may_get_is_told() {
        let name = driver_name();
        let of = driver(&[rpc::Type::CreateDeleteVolume]);
        let told = |scope, nodes: Option<&str>, has_secrets| {
            let nodes = nodes.map(|nodes| NodeSet::new(vec![nodes.parse().unwrap()]));
            let policy = Policy { scope, nodes, ..Policy::new(None) };
            class_open_to_all(&name, &of, Some(&policy), "fast", &class_facts(false, has_secrets))
        };
        let text = told(Some(Scope::Node), None, true).unwrap().text;
        assert!(text.contains("StorageClass fast carry its secrets"), "{text}");
        assert_eq!(told(Some(Scope::Node), None, false), None);
        assert_eq!(told(Some(Scope::Node), Some("*"), true), None, "by the operator's word");
        assert_eq!(told(Some(Scope::Shared), None, true), None, "controllers say it");
    }
}
