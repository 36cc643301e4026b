//! `csi-cloud doctor`: what keeps an installation from working, and what to do.
//!
//! What the configuration alone shows is in `installation`; it is used without a csi-cloud too.

pub mod installation;
mod sockets;
mod udp_buffer;
mod versions;

use std::path::Path;
use std::time::SystemTime;

use proto::admin::doctor::Finding;
use proto::link::endpoint::Transport;

use crate::admin::admin_state::AdminState;
use crate::admin::doctor::installation::Installation;
use crate::admin::refused::CommandError;

/// The path of `csi-cloud doctor`.
pub(crate) const PATH: &str = "/doctor";
/// The path of `csi-cloud doctor kubeedge`.
pub(crate) const KUBEEDGE: &str = "/doctor/kubeedge";

impl AdminState {
    /// Looks at all that csi-cloud needs.
    pub(super) async fn doctor(&self) -> Vec<Finding> {
        let version = env!("CARGO_PKG_VERSION");
        let found = format!("version {version} answers");
        let mut findings = vec![Finding::ok("csi-cloud", "admin socket", found)];
        if let Some(installation) = &self.installation {
            findings.extend(installation.look(SystemTime::now()).await);
            findings.extend(self.served(installation));
        }
        findings.push(self.open_store());
        findings.push(versions::finding(&self.versions(), version));
        match &self.doctor {
            Some(doctor) => findings.extend(doctor.installation().await),
            None => {
                if let Some(installation) = &self.installation {
                    findings.push(installation.clock(SystemTime::now()).await);
                }
                let found = "csi-cloud is not told of any ([kubernetes])";
                findings.push(Finding::ok("api-server", "Kubernetes", found));
            }
        }
        findings
    }

    /// The sockets and listeners that a running csi-cloud has.
    fn served(&self, installation: &Installation) -> Vec<Finding> {
        let linked = self.links.by_transport();
        let links = |transport: Transport| linked.get(transport.scheme()).copied().unwrap_or(0);
        let listening = installation.listen.iter().map(|endpoint| {
            let transport = endpoint.transport;
            let by = transport.scheme();
            let found = format!("it listens; links by {by}: {}", links(transport));
            Finding::ok("listen", endpoint.to_string(), found)
        });
        let takes_udp = installation.listen.iter().any(|endpoint| !endpoint.transport.is_tcp());
        let buffer = takes_udp.then(|| {
            let over_udp = Transport::ALL.into_iter().filter(|transport| !transport.is_tcp());
            udp_buffer::finding(Path::new(udp_buffer::MOST), over_udp.map(links).sum())
        });
        listening.chain(buffer).chain(sockets::findings(installation)).collect()
    }

    fn open_store(&self) -> Finding {
        const CHECK: &str = "store-open";
        if self.store.is_open() {
            let found = format!("it is open; changes that wait: {}", self.store.queued());
            return Finding::ok(CHECK, "store", found);
        }
        Finding::fault(
            CHECK,
            "store",
            "it is closed after a commit that failed, so whatever must be kept is refused",
            "look at its disk (full, read-only, failing), and start csi-cloud again",
        )
    }

    /// The linked nodes, with their versions.
    fn versions(&self) -> Vec<(String, String)> {
        let version = |node| {
            let handle = self.links.now(&node)?;
            Some((node.to_string(), handle.peer.version.to_string()))
        };
        self.links.linked().into_iter().filter_map(version).collect()
    }

    /// Looks at all that KubeEdge needs.
    ///
    /// # Errors
    /// This csi-cloud knows no Kubernetes.
    pub(super) async fn doctor_kubeedge(&self) -> Result<Vec<Finding>, CommandError> {
        match &self.doctor {
            Some(doctor) => Ok(doctor.kubeedge().await),
            None => Err(CommandError::conflict(
                "this csi-cloud knows no Kubernetes, so it cannot look there; set [kubernetes] in \
                 its configuration (--kubernetes)",
            )),
        }
    }
}
