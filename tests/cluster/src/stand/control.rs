//! The control plane: etcd, kube-apiserver with RBAC and NodeRestriction, kube-controller-manager
//! with an account for each controller, kube-scheduler. Stopped in the opposite order: an apiserver
//! without etcd hangs for minutes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use kube::Client;
use tokio::net::TcpStream;

use super::access::Access;
use super::ground::{Ground, ports};
use super::layout::Network;
use super::program::{Launch, Program};

/// How long a component may take until it is ready.
const READY: Duration = Duration::from_secs(90);

/// The four programs.
pub struct Control {
    /// Kubernetes' store.
    pub etcd: Program,
    /// The API server.
    pub apiserver: Program,
    /// kube-controller-manager.
    pub controllers: Program,
    /// kube-scheduler.
    pub scheduler: Program,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
}

impl Control {
    /// Starts it and waits until the API server is ready.
    ///
    /// # Errors
    /// A component does not get ready; the error holds the end of its log.
    pub(super) async fn start(
        ground: &Ground,
        network: Network,
    ) -> anyhow::Result<(Self, Access, Client)> {
        let [client, peer, api, kcm, sched] = ports()?;
        let address = network.api();
        let access = Access::new(&ground.dir().join("pki-kubernetes"), address, api)?;
        let logs = ground.logs();
        let etcd = Program::start("etcd", &logs, etcd(ground, client, peer)).await?;
        let apiserver = Program::start(
            "kube-apiserver",
            &logs,
            apiserver(ground, &access, client, network, api),
        )
        .await?;
        let kubeconfig = access.user("admin", "stand-admin", Some("system:masters"))?;
        let admin = super::objects::client(&kubeconfig).await?;
        let ready = || async {
            // Before anything with a client, which logs that it cannot connect.
            TcpStream::connect((address, api)).await?;
            let request = http::Request::get("/readyz").body(Vec::new())?;
            let said = admin.request_text(request).await?;
            ensure!(said.trim() == "ok", "it says {said}");
            Ok(())
        };
        apiserver.until("answer to /readyz", READY, ready).await?;
        let user = "system:kube-controller-manager";
        let launch = controllers(ground, &access, &access.user("controllers", user, None)?, kcm);
        let controllers = Program::start("kube-controller-manager", &logs, launch).await?;
        let launch =
            scheduler(ground, &access.user("scheduler", "system:kube-scheduler", None)?, sched);
        let scheduler = Program::start("kube-scheduler", &logs, launch).await?;
        Ok((Self { etcd, apiserver, controllers, scheduler, kubeconfig }, access, admin))
    }

    /// Starts it on this machine's network, for programs that all are the administrator.
    ///
    /// # Errors
    /// A component does not get ready.
    pub async fn alone(ground: &Ground) -> anyhow::Result<(Self, Client)> {
        let (control, _, client) = Self::start(ground, Network::Host).await?;
        Ok((control, client))
    }

    /// All of them, the first to stop first.
    pub fn programs(&self) -> [&Program; 4] {
        [&self.controllers, &self.scheduler, &self.apiserver, &self.etcd]
    }
}

fn etcd(ground: &Ground, client: u16, peer: u16) -> Launch {
    let client = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    let args = [
        "--name=stand".to_owned(),
        format!("--data-dir={}", ground.at("etcd")),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=stand={peer}"),
        // The stand's data is worth nothing once it has ended.
        "--unsafe-no-fsync".to_owned(),
    ];
    Launch::new("/usr/bin/etcd", args)
}

fn apiserver(ground: &Ground, access: &Access, etcd: u16, network: Network, port: u16) -> Launch {
    let address = network.api();
    // Without pods that ask for it, there is nobody to find it by its Service.
    let endpoints = if network == Network::Apart { "lease" } else { "none" };
    let args = [
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        format!("--secure-port={port}"),
        format!("--bind-address={address}"),
        format!("--advertise-address={address}"),
        format!("--cert-dir={}", ground.at("apiserver")),
        format!("--client-ca-file={}", access.at("ca.crt")),
        format!("--tls-cert-file={}", access.at("apiserver.crt")),
        format!("--tls-private-key-file={}", access.at("apiserver.key")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", access.at("accounts.pub")),
        format!("--service-account-signing-key-file={}", access.at("accounts.key")),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        format!("--endpoint-reconciler-type={endpoints}"),
        "--allow-privileged=true".to_owned(),
        // The names of the nodes are in no DNS.
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
    ];
    Launch::new(ground.tool("kube-apiserver"), args)
}

fn controllers(ground: &Ground, access: &Access, kubeconfig: &Path, port: u16) -> Launch {
    let args = [
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--service-account-private-key-file={}", access.at("accounts.key")),
        format!("--root-ca-file={}", access.at("ca.crt")),
        "--use-service-account-credentials=true".to_owned(),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", ground.at("controllers")),
        "--controllers=*,-node-ipam-controller,-service-lb-controller,-node-route-controller"
            .to_owned(),
        "--kube-api-qps=100".to_owned(),
        "--kube-api-burst=200".to_owned(),
    ];
    Launch::new(ground.tool("kube-controller-manager"), args)
}

fn scheduler(ground: &Ground, kubeconfig: &Path, port: u16) -> Launch {
    let args = [
        format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", ground.at("scheduler")),
    ];
    Launch::new(ground.tool("kube-scheduler"), args)
}
