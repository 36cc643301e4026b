//! Nodes as the disruptive tests need them: they run commands over SSH, and start and stop kubelets
//! with `systemctl`, which a script stands in for. The script asks this program by files.

use std::path::{Path, PathBuf};

use proto::host::publish::{Existing, publish};
use rcgen::KeyPair;

use crate::stand::Cluster;
use crate::stand::node::Node;
use crate::stand::program::{Launch, Program};

/// DIR is replaced. `down` is there while the kubelet does not run, `stop` while it must not.
const SYSTEMCTL: &str = r#"#!/bin/sh
until_there() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; exit 1; }
case "$1 $2" in
    'stop kubelet') touch DIR/stop; until_there test -e DIR/down ;;
    'start kubelet') rm -f DIR/stop; until_there test ! -e DIR/down ;;
    'show kubelet') if [ -e DIR/down ]; then echo inactive; else echo active; fi ;;
    *) echo "the stand knows no systemctl $*" >&2; exit 1 ;;
esac
"#;

/// The suite takes it for present, unless the shell says "command not found" like bash. It looks
/// below /var/lib/kubelet, where KUBELET is for its command alone.
const SUDO: &str = r#"#!/bin/sh
exec unshare --mount --propagation slave sh -c '
    mount -t tmpfs sudo /var/lib && mkdir /var/lib/kubelet &&
    mount --rbind KUBELET /var/lib/kubelet && exec "$@"' sudo "$@"
"#;

/// The SSH servers of the nodes.
pub(super) struct Kubelets {
    servers: Vec<Program>,
    key: PathBuf,
}

impl Kubelets {
    /// Starts an SSH server in each node.
    ///
    /// # Errors
    /// A file cannot be written, or a server cannot be started.
    pub(super) async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let ground = &cluster.ground;
        let key = ground.dir().join("nodes.key");
        let pem = KeyPair::generate()?.serialize_pem();
        publish(&key, pem.as_bytes(), 0o600, Existing::Replace)?;
        let mut servers = Vec::new();
        for node in &cluster.nodes {
            let dir = dir(cluster, node);
            std::fs::create_dir_all(&dir)?;
            let script = SYSTEMCTL.replace("DIR", &dir.display().to_string());
            let kubelet = ground.dir().join(node.name).join("kubelet");
            let sudo = SUDO.replace("KUBELET", &kubelet.display().to_string());
            for (name, text) in [("systemctl", &script), ("sudo", &sudo)] {
                publish(&dir.join(name), text.as_bytes(), 0o755, Existing::Replace)?;
            }
            let args = [
                format!("-listen={}:22", node.worker.address),
                format!("-key={}", key.display()),
                format!("-path={}", dir.display()),
            ];
            let launch = Launch::new(ground.tool("nodessh"), args);
            let name = format!("{}-ssh", node.name);
            servers.push(Program::within(&node.worker.space, &name, &ground.logs(), launch).await?);
        }
        Ok(Self { servers, key })
    }

    /// The private key that the servers let in.
    pub(super) fn key(&self) -> &Path {
        &self.key
    }

    /// Starts and stops kubelets as the scripts asked.
    ///
    /// # Errors
    /// A kubelet does not start, or does not end.
    pub(super) async fn tend(&self, cluster: &Cluster) -> anyhow::Result<()> {
        for node in &cluster.nodes {
            let dir = dir(cluster, node);
            let must_stop = dir.join("stop").exists();
            let is_down = dir.join("down").exists();
            if must_stop && !is_down {
                node.worker.kubelet.stop().await?;
                publish(&dir.join("down"), b"", 0o644, Existing::Replace)?;
            } else if !must_stop && is_down {
                node.worker.kubelet.run().await?;
                std::fs::remove_file(dir.join("down"))?;
            }
        }
        Ok(())
    }

    /// Stops the servers.
    pub(super) async fn stop(&self) {
        for server in &self.servers {
            let _ = server.stop().await;
        }
    }
}

fn dir(cluster: &Cluster, node: &Node) -> PathBuf {
    cluster.ground.dir().join(node.name).join("systemctl")
}
