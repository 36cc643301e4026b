//! What a stand has besides Kubernetes itself: its nodes with their drivers, and its network.

use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::drivers::{DRIVER, SECOND, SHARED, SHARES};

/// The nodes: one over QUIC, two with a second driver.
pub const NODES: [Plan; 3] = [
    Plan { name: "n1", scheme: "wss", drivers: &[DRIVER, SECOND, SHARED] },
    Plan { name: "n2", scheme: "wss", drivers: &[DRIVER, SECOND, SHARED] },
    Plan { name: "n3", scheme: "quic", drivers: &[DRIVER, SHARES, SHARED] },
];
/// The stand of `make stand` and `make e2e`.
const ORDINARY: Layout = Layout {
    nodes: &NODES,
    fronts: &[DRIVER, SECOND, SHARED],
    network: Network::Host,
    attach_limit: None,
    deployed: None,
};
/// The nodes of a stand to which `deploy/` is applied.
const EDGES: [Plan; 3] = [
    Plan { name: "n1", scheme: "wss", drivers: &[DRIVER] },
    Plan { name: "n2", scheme: "wss", drivers: &[DRIVER] },
    Plan { name: "n3", scheme: "quic", drivers: &[DRIVER] },
];
/// The nodes of a stand on which pages are followed, by the names that the pages have.
const READERS: [Plan; 2] = [
    Plan { name: "node-1", scheme: "wss", drivers: &[] },
    Plan { name: "node-2", scheme: "quic", drivers: &[] },
];
/// The node of that stand for csi-cloud and the sidecars.
pub(super) const CENTRE: Plan = Plan { name: "c1", scheme: "wss", drivers: &[] };
/// The first two bytes of all addresses of a [`Network::Own`]; RFC 2544 keeps them for tests.
const PREFIX: [u8; 2] = [198, 18];
/// Where a stand whose nodes are apart has its API server and cluster DNS.
const STAND: u8 = 100;
/// The first of the addresses by which its edges dial csi-cloud: a relay for each.
const RELAYS: u8 = 101;
/// How many of these addresses one csi-cloud has.
const RELAYS_OF_ONE: u8 = 10;
/// The first of those that its load balancer gives csi-clouds' Services.
const BALANCER: u8 = 200;
/// By this name edges dial csi-cloud, as in `deploy/`. Several have names below it.
pub(super) const CLOUD: &str = "csi-cloud.example";
/// The pods of several csi-clouds. Each has a Service of its name.
pub(super) const PODS: [&str; 3] = ["csi-cloud-0", "csi-cloud-1", "csi-cloud-2"];
/// The Service of the csi-cloud that is alone.
const ALONE: [&str; 1] = ["csi-cloud"];
/// The environment variable that tells a program that it is in a network namespace of its own.
const INSIDE: &str = "STAND_NETWORK";

/// The nodes of a stand, their drivers, and the network.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The edge nodes.
    pub nodes: &'static [Plan],
    /// The drivers that csi-cloud serves, if this machine can have them.
    pub fronts: &'static [&'static str],
    /// What nodes and pods have of a network.
    pub network: Network,
    /// How many volumes of a driver without own options may be at a node; no limit if none.
    pub attach_limit: Option<u32>,
    /// What applies `deploy/`. If none, the stand itself starts csi-cloud, the sidecars, csi-edge
    /// and the drivers.
    pub deployed: Option<Tool>,
}

/// What makes objects of `deploy/`, and which.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Tool {
    /// The manifests that the chart renders
    Manifests,
    /// The chart
    Helm,
    /// The same of three csi-clouds with one store in etcd
    Ha,
    /// Nothing: a reader of the pages does
    #[value(skip)]
    Pages,
}

impl Tool {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Manifests => "manifests",
            Self::Helm => "helm",
            Self::Ha => "ha",
            Self::Pages => "pages",
        }
    }

    /// The Services by which edges dial csi-cloud, one for each that is there.
    pub(super) fn services(self) -> &'static [&'static str] {
        match self {
            Self::Manifests | Self::Helm | Self::Pages => &ALONE,
            Self::Ha => &PODS,
        }
    }

    /// The names by which edges dial csi-clouds, in the order of their Services.
    pub(super) fn clouds(self) -> Vec<String> {
        match self {
            Self::Manifests | Self::Helm | Self::Pages => vec![CLOUD.to_owned()],
            Self::Ha => PODS.iter().map(|pod| format!("{pod}.{CLOUD}")).collect(),
        }
    }
}

impl Layout {
    /// The stand of `make e2e`, with `deploy/` as pods if a tool applies it.
    pub fn of(deployed: Option<Tool>) -> Self {
        let apart = Self { network: Network::Apart, deployed, ..ORDINARY };
        match deployed {
            None => ORDINARY,
            Some(Tool::Pages) => Self { nodes: &READERS, fronts: &[], ..apart },
            Some(_) => Self { nodes: &EDGES, fronts: &[DRIVER], ..apart },
        }
    }

    /// The names by which edges dial csi-clouds that are pods.
    pub(super) fn clouds(&self) -> Vec<String> {
        self.deployed.map(Tool::clouds).unwrap_or_default()
    }

    /// Goes into the network namespace that it needs. It must be called before any thread is
    /// started.
    ///
    /// # Errors
    /// As for `own`.
    pub fn enter(&self) -> anyhow::Result<()> {
        let nodes = u8::try_from(self.nodes.len())?;
        match self.network {
            Network::Host => Ok(()),
            Network::Own => own((0..nodes).map(node_address)),
            Network::Apart => {
                let clouds = u8::try_from(self.clouds().len())?;
                let of = |cloud| (0..nodes).map(move |node| relay_address(node, cloud));
                own(std::iter::once(stand_address()).chain((0..clouds).flat_map(of)))
            }
        }
    }
}

/// The plan of a node.
pub struct Plan {
    /// Its Kubernetes name.
    pub name: &'static str,
    /// How it reaches the cloud: `wss` or `quic`.
    pub scheme: &'static str,
    /// The drivers that it has.
    pub drivers: &'static [&'static str],
}

/// What nodes and pods have of a network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// The machine's network, in which kubelets listen on loopback, and pods have loopback alone.
    Host,
    /// A network namespace of the stand's own (`own`). Each node has an address, and each pod
    /// one of its node's subnet.
    Own,
    /// The same, but each node is in a network namespace of its own, behind a wire. So all nodes
    /// can use the same ports, as pods in their hosts' network do.
    Apart,
}

impl Network {
    /// Where the kubelet of a node listens, by the node's place in the layout.
    pub(super) fn address(self, node: u8) -> Ipv4Addr {
        match self {
            Self::Host => Ipv4Addr::LOCALHOST,
            Self::Own | Self::Apart => node_address(node),
        }
    }

    /// Where the API server is.
    pub(super) fn api(self) -> Ipv4Addr {
        match self {
            Self::Host | Self::Own => Ipv4Addr::LOCALHOST,
            Self::Apart => stand_address(),
        }
    }

    /// The CNI configuration of a node. `state` is where the addresses in use are kept.
    pub(super) fn cni(self, node: u8, state: &str) -> Value {
        let loopback = json!({"type": "loopback"});
        let plugins = match self {
            // Without a network a node is never Ready.
            Self::Host => vec![loopback],
            Self::Own | Self::Apart => vec![
                json!({"type": "ptp", "ipMasq": false, "ipam": {
                    "type": "host-local",
                    "dataDir": state,
                    "ranges": [[{"subnet": pods(node)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                }}),
                loopback,
            ],
        };
        json!({"cniVersion": "0.4.0", "name": "stand", "plugins": plugins})
    }
}

fn host(last: u8) -> Ipv4Addr {
    let [first, second] = PREFIX;
    Ipv4Addr::new(first, second, 0, last)
}

fn node_address(node: u8) -> Ipv4Addr {
    host(node + 1)
}

/// The stand itself, where the nodes are apart.
pub(super) fn stand_address() -> Ipv4Addr {
    host(STAND)
}

/// Where the edge of a node dials a csi-cloud, by the place of its name.
pub(super) fn relay_address(node: u8, cloud: u8) -> Ipv4Addr {
    host(RELAYS + RELAYS_OF_ONE * cloud + node)
}

/// A csi-cloud's Service from outside of the cluster, by its place.
pub(super) fn balancer_address(cloud: u8) -> Ipv4Addr {
    host(BALANCER + cloud)
}

/// The addresses of a node's pods.
pub(super) fn pods(node: u8) -> String {
    let [first, second] = PREFIX;
    format!("{first}.{second}.{}.0/24", node + 1)
}

/// Starts this program again in a network namespace that has loopback and these addresses. It
/// returns there; it ends with all that is connected to it when its last process ends.
///
/// # Errors
/// Namespaces are not allowed here, or `unshare` or `ip` is not installed.
fn own(addresses: impl Iterator<Item = Ipv4Addr>) -> anyhow::Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        for address in addresses {
            ip(&["address", "replace", &format!("{address}/32"), "dev", "lo"])?;
        }
        return ip(&["link", "set", "lo", "up"]);
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new("unshare");
    command.arg("--net").arg("--").arg(program).args(std::env::args_os().skip(1));
    let error = command.env(INSIDE, "own").exec();
    Err(error).context("cannot become `unshare --net`")
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(args).output();
    let output = output.context("`ip` of iproute2 cannot be started")?;
    if output.status.success() {
        return Ok(());
    }
    bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim())
}

/// A node's place in its layout.
///
/// # Errors
/// There is no node of this name, or there are too many nodes for the addresses.
pub(super) fn place(layout: &Layout, node: &str) -> anyhow::Result<u8> {
    let place = match node == CENTRE.name {
        true => Some(layout.nodes.len()),
        false => layout.nodes.iter().position(|plan| plan.name == node),
    };
    let place = place.with_context(|| format!("the layout has no node {node}"))?;
    ensure!(place < 100, "{node} has no subnet: there are more than 100 nodes");
    Ok(u8::try_from(place)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_an_own_network_have_different_subnets_and_addresses_outside_of_them() {
        let subnet = |node| {
            let cni = Network::Own.cni(node, "/state");
            cni["plugins"][0]["ipam"]["ranges"][0][0]["subnet"].as_str().unwrap().to_owned()
        };
        assert_eq!([subnet(0), subnet(2)], ["198.18.1.0/24", "198.18.3.0/24"]);
        assert_eq!(Network::Own.address(2).to_string(), "198.18.0.3");
        assert_eq!(Network::Host.address(2), Ipv4Addr::LOCALHOST);
        assert_eq!(Network::Host.cni(1, "/state")["plugins"].as_array().unwrap().len(), 1);
        assert_eq!(place(&ORDINARY, "n3").unwrap(), 2);
        assert!(place(&ORDINARY, "n4").is_err());
    }

    #[test]
    fn only_deployed_edges_are_apart_and_each_dials_another_relay() {
        assert!(Layout::of(None).network == Network::Host);
        let layout = Layout::of(Some(Tool::Helm));
        assert!(layout.network == Network::Apart);
        assert_eq!(place(&layout, CENTRE.name).unwrap(), 3);
        let addresses: Vec<_> = (0..3).map(|node| relay_address(node, 0)).collect();
        assert_eq!(addresses.last().unwrap().to_string(), "198.18.0.103");
        assert!(!addresses.contains(&stand_address()), "{addresses:?}");
    }

    #[test]
    fn each_of_several_csi_clouds_has_addresses_of_its_own() {
        let layout = Layout::of(Some(Tool::Ha));
        assert_eq!(layout.clouds()[2], "csi-cloud-2.csi-cloud.example");
        assert_eq!(Layout::of(Some(Tool::Helm)).clouds(), [CLOUD]);
        assert!(Layout::of(None).clouds().is_empty());
        let relays = (0..3).flat_map(|cloud| (0..3).map(move |node| relay_address(node, cloud)));
        let services = (0..3).map(balancer_address);
        let nodes = (0..4).map(node_address).chain([stand_address()]);
        let all: Vec<_> = relays.chain(services).chain(nodes).collect();
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
        assert_eq!(Tool::Ha.services().len(), layout.clouds().len());
    }
}
