//! Texts for a volume's source, a requested topology and the nodes of a driver, in errors, Events
//! and logs.

use std::collections::BTreeSet;

use proto::csi::{Id, Segments};

use crate::state::driver_state::DriverState;
use crate::state::node_names::first_few;

/// The reason to elect no node for a driver that only its nodes report as shared.
pub(super) const UNNAMED: &str = "it reports no topology, so it is taken for a shared one, and its \
    section does not say which nodes may be elected. If a volume is at the node that made it, \
    write scope = \"node\". Otherwise name `controllers`: whoever is elected sees all secrets of \
    the driver; controllers = \"any\" allows every node";

/// The reason to elect no node for a driver whose nodes all lack CONTROLLER_SERVICE.
pub(super) const NODE_ONLY: &str = "its nodes report no CONTROLLER_SERVICE, so it makes no \
    volumes: it needs no provisioner, attacher, resizer or snapshotter. If its controller is at a \
    socket of its own, name that one as `controller_socket` in csi-edge's configuration";

/// The kind and id of a volume's source.
pub(super) fn source_text(source: &Id) -> String {
    match source {
        Id::Snapshot(id) => format!("snapshot {id}"),
        Id::Volume(id) | Id::Group(id) | Id::Name(_, id) => format!("volume {id}"),
    }
}

/// A requested topology: the first few of its alternatives.
pub(super) fn topology_text(requested: &[Segments]) -> String {
    let different: BTreeSet<_> = requested.iter().collect();
    first_few(different.into_iter().map(|segments| written(segments.iter())))
}

/// No node of a driver may be elected.
pub(super) fn no_controller(driver: &DriverState) -> String {
    format!("none of the nodes {} is among the driver's `controllers`", all(driver))
}

/// No node of a driver has a link.
pub(super) fn no_link(driver: &DriverState) -> String {
    format!("none of the nodes {} has a link", all(driver))
}

fn all(driver: &DriverState) -> String {
    first_few(driver.nodes().keys().map(ToString::to_string))
}

/// No node of a driver is at a topology; names the topologies that there are.
pub(super) fn no_such_topology(driver: Option<&DriverState>, requested: &[Segments]) -> String {
    let requested: Vec<_> = requested.iter().map(|segments| written(segments.iter())).collect();
    let nodes = driver.map(|driver| driver.nodes().iter()).unwrap_or_default();
    let known = first_few(nodes.map(|(node, at)| {
        let segments = at.segments.iter().map(|segment| (&segment.0, &segment.1));
        format!("{node} {}", written(segments))
    }));
    format!("no known node is at the topology {}; known: {known}", requested.join(" or "))
}

/// The segments of a topology.
fn written<'a>(segments: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let pairs: Vec<_> = segments.map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(","))
}
