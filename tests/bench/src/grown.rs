//! A store of the largest supported size: nodes in zones, and volumes with entries and names.
//! Volumes that were made through csi-cloud have the intent of their create.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cloud::state::record::{Change, Home, Intent, Node, NodeDriver};
use cloud::state::store::backend::Backend;
use cloud::state::store::file::File;
use harness::answers::node_local;
use prost::Message;
use proto::csi;
use proto::csi::controller_service_capability::rpc::Type as Rpc;
use proto::csi::{Id, Method};
use proto::names::{DriverName, NodeName};

/// The driver that all nodes have.
pub const DRIVER: &str = "size.test.edge-csi.io";
/// The segment that is a node's alone.
pub const NODE_KEY: &str = "topology.size.example/node";
/// The segment that a hundred nodes have in common.
pub const ZONE_KEY: &str = "topology.size.example/zone";
/// Nodes in a zone.
const ZONE: usize = 100;
/// Changes in one commit.
const BATCH: usize = 50_000;
/// When all of it was learned, in ms since 1970.
const SINCE: u64 = 1_700_000_000_000;

/// How large.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Nodes.
    pub nodes: usize,
    /// Volumes, spread evenly over the nodes.
    pub homes: usize,
    /// How many of them were made through us, so that the intents of their creates are kept.
    pub intents: usize,
}

/// A node's name.
///
/// # Errors
/// Never: the name is one.
pub fn node(number: usize) -> anyhow::Result<NodeName> {
    Ok(format!("edge-node-{number:05}").parse()?)
}

/// A volume's id.
pub fn volume_id(number: usize) -> String {
    format!("vol-0b9f7a52-77c4-4d0e-a3c1-{number:012}")
}

/// The name under which a volume was made.
pub fn name(number: usize) -> String {
    format!("pvc-5e3c1d42-9a60-4f6f-8c58-{number:012}")
}

/// The segments of a node.
pub fn segments(number: usize) -> [(String, String); 2] {
    let zone = format!("zone-{}", number / ZONE);
    [(NODE_KEY.to_owned(), format!("edge-node-{number:05}")), (ZONE_KEY.to_owned(), zone)]
}

/// Makes such a store in a file that is not there yet.
///
/// # Errors
/// The file cannot be written.
pub fn grow(path: &Path, size: Size) -> anyhow::Result<()> {
    let driver: DriverName = DRIVER.parse()?;
    let mut file = File::open(path)?;
    let alike = alike();
    let mut changes = Vec::with_capacity(BATCH + 1);
    for number in 0..size.nodes {
        changes.push(Change::Node(node(number)?, Some(Node { since: SINCE, ..Node::default() })));
        let info = csi::NodeGetInfoResponse {
            node_id: node(number)?.to_string(),
            accessible_topology: Some(csi::Topology { segments: segments(number).into() }),
            ..Default::default()
        };
        let info = Some(info.encode_to_vec().into());
        let place = segments(number).map(Arc::new).into();
        let at = NodeDriver {
            answers: alike.clone(),
            info,
            segments: place,
            listed: SINCE,
            ..NodeDriver::default()
        };
        changes.push(Change::NodeDriver(driver.clone(), node(number)?, Some(at)));
        flush(&mut file, &mut changes, BATCH)?;
    }
    for number in 0..size.homes {
        let [home, intent] = volume(&driver, number, number % size.nodes)?;
        changes.push(home);
        changes.extend((number < size.intents).then_some(intent));
        flush(&mut file, &mut changes, BATCH)?;
    }
    flush(&mut file, &mut changes, 1)
}

fn flush(file: &mut File, changes: &mut Vec<Change>, least: usize) -> anyhow::Result<()> {
    if changes.len() >= least {
        file.commit(changes)?;
        changes.clear();
    }
    Ok(())
}

fn volume(driver: &DriverName, number: usize, at: usize) -> anyhow::Result<[Change; 2]> {
    let id = volume_id(number);
    let name = name(number);
    let volume = csi::Volume {
        volume_id: id.clone(),
        capacity_bytes: 1 << 30,
        volume_context: [("type".to_owned(), "ssd".to_owned())].into(),
        accessible_topology: vec![csi::Topology { segments: segments(at).into() }],
        ..Default::default()
    };
    let status = csi::list_volumes_response::VolumeStatus {
        published_node_ids: vec![node(at)?.to_string()],
    };
    let entry = csi::list_volumes_response::Entry { volume: Some(volume), status: Some(status) };
    let home = Home {
        name: Some(name.as_str().into()),
        entry: entry.encode_to_vec().into(),
        ..Home::at(node(at)?, SINCE)
    };
    let made = Some(id.as_str().into());
    let intent = Intent {
        node: node(at)?,
        since: SINCE,
        until: SINCE,
        made,
        claim: None,
        attempts: None,
        direct: None,
        narrowed: None,
        machine: None,
    };
    Ok([
        Change::Home(driver.clone(), Id::Volume(id), Some(home)),
        Change::Intent(driver.clone(), Id::Name(Method::CreateVolume, name), Some(intent)),
    ])
}

/// The driver's answers at every node.
fn alike() -> Arc<BTreeMap<String, Bytes>> {
    let rpcs = [
        Rpc::CreateDeleteVolume,
        Rpc::PublishUnpublishVolume,
        Rpc::ListVolumes,
        Rpc::ListVolumesPublishedNodes,
        Rpc::GetCapacity,
        Rpc::CreateDeleteSnapshot,
        Rpc::CloneVolume,
        Rpc::ExpandVolume,
    ];
    let info = csi::GetPluginInfoResponse { name: DRIVER.into(), ..Default::default() };
    let [plugin, controller] = node_local(&rpcs);
    let answers = [
        ("GetPluginInfo", info.encode_to_vec()),
        plugin,
        controller,
        ("NodeGetCapabilities", Vec::new()),
    ];
    Arc::new(answers.map(|(method, answer)| (method.to_owned(), answer.into())).into())
}
