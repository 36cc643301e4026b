//! The configuration of csi-edge: a TOML file, and flags that override it.
//!
//! All that is wrong is reported at once. It may use `identity`, `cli`, `discovery`, `edge-calls`
//! and `edge-direct`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use edge_calls::denied_methods::Denial;
use edge_calls::drivers::Sockets;
use edge_calls::expansions::NodeExpansion;
use edge_direct::Nvme;
use edge_direct::runtimes::Roots;
use edge_direct::runtimes::prerequisites::Checks;
use proto::admin::http1::SOCKET_NAME;
use proto::config::{Common, HOUR, Problems, Reader};
use proto::link::endpoint::Endpoint;
use proto::link::proxy::{ProxySetting, ProxyText};
use proto::link::tls::{Files, Pin};
use proto::names::DriverName;

use crate::cli::place::{direct, runtimes};
use crate::cli::{DriverAt, Serve};
use crate::discovery::settings::Settings as Discovery;
use crate::identity::join::{Automatic, Cloud};

/// The configuration of csi-edge.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// The endpoints of the cloud, the preferred first; at least one, each once.
    pub cloud: Vec<Endpoint>,
    /// The HTTP proxy for WebSocket.
    pub proxy: ProxySetting,
    /// The delay before a preferred endpoint is tried again.
    pub return_after: Duration,
    /// The directory of this node's own CSI sockets; none without one.
    pub fronts: Option<PathBuf>,
    /// The admin socket; none without it and without fronts.
    pub admin: Option<PathBuf>,
    /// The address of `/livez`, `/readyz` and `/metrics`.
    pub http: Option<SocketAddr>,
    /// The state directory for a restart without the cloud; without one nothing is kept.
    pub state: Option<PathBuf>,
    /// The directories in which VM runtimes look for direct volumes and have their sandboxes.
    pub runtimes: Roots,
    /// The check of the installed runtimes.
    pub checks: Checks,
    /// Whether they take NVMe controllers.
    pub nvme: Nvme,
    /// The directories in which targets of direct volumes may be; at least one.
    pub targets: Vec<PathBuf>,
    /// The caller of NodeExpandVolume after ControllerExpandVolume.
    pub node_expansion: NodeExpansion,
    /// What is denied to the cloud.
    pub deny: BTreeSet<Denial>,
    /// Certificates.
    pub tls: Files,
    /// The way to join, if there is no identity yet; none without a token's file.
    pub join: Option<Automatic>,
    /// The discovery of further drivers; none if only named drivers are used.
    pub discovery: Option<Discovery>,
    /// The drivers' sockets.
    pub drivers: BTreeMap<DriverName, Sockets>,
    /// Settings that csi-cloud has too.
    pub common: Common,
}

/// The default delay before a preferred endpoint is tried again, in seconds.
const RETURN_AFTER: u16 = 30;
/// The default directory of targets of direct volumes: the kubelet's.
const KUBELET: &str = "/var/lib/kubelet";

impl Config {
    /// Reads the file that the flags name, and applies the flags over it.
    ///
    /// # Errors
    /// Everything that is wrong with either.
    pub fn load(flags: Serve) -> Result<Self, Problems> {
        let mut file = Reader::open(flags.common.config.as_deref());
        let listed = file.one_or_list("cloud", str::parse::<Endpoint>);
        let cloud = each_once(if flags.cloud.is_empty() { listed } else { flags.cloud });
        file.required("cloud (--cloud)", cloud.first());
        let proxy = proxy(&mut file, flags.proxy);
        let deny = file.list("deny", str::parse::<Denial>).into_iter().collect();
        let fronts = file.path("fronts");
        let state = file.path("state");
        let fronts = flags.fronts.or(fronts);
        let named = file.path("admin");
        let admin = flags.admin.or(named).or_else(|| Some(fronts.as_ref()?.join(SOCKET_NAME)));
        let http = file.parsed("http", str::parse::<SocketAddr>);
        let http = flags.http.or(http);
        let state = flags.state.or(state);
        let runtimes = runtimes(&mut file, flags.direct_volumes, flags.sandboxes);
        let node_expansion = node_expansion(&mut file, state.is_some(), fronts.is_some());
        let (checks, nvme, listed) = direct(&mut file);
        let mut targets = if flags.targets.is_empty() { listed } else { flags.targets };
        if targets.is_empty() {
            targets.push(KUBELET.into());
        }
        let link = file.section("link", |link| {
            [link.number("dead_after_s", HOUR), link.number("return_after_s", HOUR)]
        });
        let [dead_after, return_after] = link.unwrap_or_default();
        let return_after = Duration::from_secs(return_after.unwrap_or(RETURN_AFTER).into());
        let identity = file.path("identity");
        let identity = flags.identity.or(identity);
        let tls = file.certificates(&flags.common, identity.as_deref());
        let common = file.common(&flags.common, dead_after);
        let join = join(&mut file, flags.ca_hash, flags.token_file, &cloud, identity.is_some());
        let discovery = discovery(&mut file);
        let drivers = drivers(&mut file, flags.drivers, discovery.is_some());
        file.finish()?;
        // A missing setting has been reported, so this satisfies the compiler only.
        let Some(tls) = tls else { return Err(Problems(Vec::new())) };
        Ok(Self {
            cloud,
            proxy,
            return_after,
            fronts,
            admin,
            http,
            state,
            runtimes,
            checks,
            nvme,
            targets,
            node_expansion,
            deny,
            tls,
            join,
            discovery,
            drivers,
            common,
        })
    }
}

/// `proxy`, or the flag's. It may hold a password, so no problem shows it.
fn proxy(file: &mut Reader, flag: Option<ProxyText>) -> ProxySetting {
    let listed = file.secret("proxy").map(ProxyText::new);
    let read = flag.or(listed).map(|text| text.read()).transpose();
    read.unwrap_or_else(|error| {
        file.problem(format!("proxy (--proxy): {error}"));
        None
    })
    .unwrap_or_default()
}

/// `[join]`: how csi-edge joins by itself, at the `wss://` endpoints in turn.
fn join(
    file: &mut Reader,
    ca_hash: Option<Pin>,
    token_file: Option<PathBuf>,
    cloud: &[Endpoint],
    has_identity: bool,
) -> Option<Automatic> {
    let read = |join: &mut Reader| (join.parsed("ca_hash", str::parse), join.path("token_file"));
    let (listed_hash, listed_file) = file.section("join", read).unwrap_or_default();
    let ca = ca_hash.or(listed_hash);
    let token_file = token_file.or(listed_file);
    if ca.is_none() && token_file.is_none() {
        return None;
    }
    let ca = file.required("[join] ca_hash (--ca-hash)", ca);
    let token_file = file.required("[join] token_file (--token-file)", token_file);
    if !has_identity {
        file.problem("[join] needs identity (--identity): where the certificate is kept");
    }
    let takes_tokens = |endpoint: &&Endpoint| endpoint.transport.takes_tokens();
    let endpoints: Vec<_> = cloud.iter().filter(takes_tokens).cloned().collect();
    file.required("[join] a wss:// endpoint among cloud (--cloud)", endpoints.first())?;
    let ca = ca?;
    let clouds = endpoints.into_iter().map(|endpoint| Cloud { endpoint, ca }).collect();
    Some(Automatic { clouds, token_file: token_file? })
}

/// Reads `node_expansion`. It needs a state directory, since owed growth must survive a restart. It
/// needs fronts, since only these know the staged volumes.
fn node_expansion(file: &mut Reader, has_state: bool, has_fronts: bool) -> NodeExpansion {
    let word = |text: &str| match text {
        "kubelet" => Ok(NodeExpansion::Kubelet),
        "edge" => Ok(NodeExpansion::Edge),
        other => Err(format!("{other:?} is neither \"kubelet\" nor \"edge\"")),
    };
    let by = file.parsed("node_expansion", word).unwrap_or_default();
    if by == NodeExpansion::Edge && !has_state {
        file.problem(
            "node_expansion = \"edge\" needs state (--state): the cloud is told that a volume has \
             grown before its next staging grows it on this node, so a restart may not forget that",
        );
    }
    if by == NodeExpansion::Edge && !has_fronts {
        file.problem(
            "node_expansion = \"edge\" needs fronts (--fronts): csi-edge sees what is staged if \
             the kubelet calls it by its own sockets",
        );
    }
    by
}

/// `[discovery]`: where drivers announce themselves, and which may be used.
fn discovery(file: &mut Reader) -> Option<Discovery> {
    let read = |section: &mut Reader| {
        let directory = section.path("directory");
        let kubelet = section.path("kubelet");
        let allow = section.some("allow", str::parse);
        if directory.is_none() && kubelet.is_none() {
            section.problem(
                "[discovery] needs directory, one of csi-edge's own, or kubelet, the kubelet's \
                 plugins_registry",
            );
        }
        if directory.is_some() && directory == kubelet {
            section.problem(
                "[discovery] directory is the kubelet's; name it as kubelet only, so that its \
                 registrars hear one kubelet",
            );
        }
        let allow = section.required("[discovery] allow, such as [\"*.example.com\"],", allow);
        Some(Discovery { directory, kubelet, allow: allow? })
    };
    file.section("discovery", read).flatten()
}

fn each_once(listed: Vec<Endpoint>) -> Vec<Endpoint> {
    let mut once: Vec<Endpoint> = Vec::new();
    for endpoint in listed {
        if !once.contains(&endpoint) {
            once.push(endpoint);
        }
    }
    once
}

/// `[[drivers]]`, or those of the flags.
fn drivers(
    file: &mut Reader,
    flags: Vec<DriverAt>,
    others_are_found: bool,
) -> BTreeMap<DriverName, Sockets> {
    let listed = file.sections("drivers", |driver| {
        let name = driver.parsed("name", str::parse::<DriverName>);
        let socket = driver.socket("socket");
        let controller = driver.socket("controller_socket");
        if name.is_none() || socket.is_none() {
            driver.problem("[[drivers]] a driver has a name and a socket");
        }
        Some(DriverAt { name: name?, sockets: Sockets { socket: socket?, controller } })
    });
    let named = if flags.is_empty() { listed.into_iter().flatten().collect() } else { flags };
    if named.is_empty() && !others_are_found {
        file.problem(
            "no driver is named ([[drivers]] or --driver), and none is found ([discovery])",
        );
    }
    let mut drivers = BTreeMap::new();
    for DriverAt { name, sockets } in named {
        let socket = sockets.socket.clone();
        if let Some(other) = drivers.insert(name.clone(), sockets) {
            let other = other.socket.display();
            let socket = socket.display();
            file.problem(format!("driver {name} is named twice, at {other} and at {socket}"));
        }
    }
    drivers
}

#[cfg(test)]
mod tests;
