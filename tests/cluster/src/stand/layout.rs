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
pub(super) const STAND: Layout = Layout {
    nodes: &NODES,
    fronts: &[DRIVER, SECOND, SHARED],
    network: Network::Host,
    attach_limit: None,
};
/// The first two bytes of all addresses of a [`Network::Own`]; RFC 2544 keeps them for tests.
const PREFIX: [u8; 2] = [198, 18];
/// The environment variable that tells a program that it is in a network namespace of its own.
const INSIDE: &str = "STAND_NETWORK";

/// See the module.
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
    /// A network namespace of the stand's own ([`own`]). Each node has an address, and each pod
    /// one of its node's subnet.
    Own,
}

impl Network {
    /// Where the kubelet of a node listens, by the node's place in the layout.
    pub(super) fn address(self, node: u8) -> Ipv4Addr {
        match self {
            Self::Host => Ipv4Addr::LOCALHOST,
            Self::Own => node_address(node),
        }
    }

    /// The CNI configuration of a node. `state` is where the addresses in use are kept.
    pub(super) fn cni(self, node: u8, state: &str) -> Value {
        let loopback = json!({"type": "loopback"});
        let [first, second] = PREFIX;
        let plugins = match self {
            // Without a network a node is never Ready.
            Self::Host => vec![loopback],
            Self::Own => vec![
                json!({"type": "ptp", "ipMasq": false, "ipam": {
                    "type": "host-local",
                    "dataDir": state,
                    "ranges": [[{"subnet": format!("{first}.{second}.{}.0/24", node + 1)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                }}),
                loopback,
            ],
        };
        json!({"cniVersion": "0.4.0", "name": "stand", "plugins": plugins})
    }
}

fn node_address(node: u8) -> Ipv4Addr {
    let [first, second] = PREFIX;
    Ipv4Addr::new(first, second, 0, node + 1)
}

/// Starts this program again in a network namespace that has loopback and an address for each
/// node. It returns there; it ends with all that is connected to it when its last process ends.
///
/// # Errors
/// Namespaces are not allowed here, or `unshare` or `ip` is not installed.
pub fn own(nodes: u8) -> anyhow::Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        for node in 0..nodes {
            let address = format!("{}/32", node_address(node));
            ip(&["address", "replace", &address, "dev", "lo"])?;
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
    let place = layout.nodes.iter().position(|plan| plan.name == node);
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
        assert_eq!(place(&STAND, "n3").unwrap(), 2);
        assert!(place(&STAND, "n4").is_err());
    }
}
