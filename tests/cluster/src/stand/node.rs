//! An edge node: besides a worker, csi-edge, and for each driver a hostdir and a registrar. Its way
//! to the cloud goes through a relay that a test can cut.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;

use super::access::Access;
use super::drivers::{here, is_shared, options};
use super::files::Files;
use super::ground::Ground;
use super::layout::{Layout, Plan, place};
use super::program::{Launch, Program};
use super::sockets::Listens;
use super::space::Space;
use super::worker::{Machine, Place, Worker};
use guest::wrapper::RUNTIMES;
use harness::relay::Relay;

/// How long a program of a node may take until it is ready.
const READY: Duration = Duration::from_secs(60);

/// A driver at a node.
pub struct Driver {
    /// Its CSI name.
    pub name: &'static str,
    /// hostdir under that name.
    pub program: Program,
    /// Tells the kubelet about it.
    pub registrar: Program,
    /// Where hostdir keeps its volumes.
    pub state: PathBuf,
    pub(super) listens: Listens,
}

impl Driver {
    /// Where hostdir listens.
    ///
    /// # Errors
    /// Its pod has no socket yet.
    pub fn socket(&self) -> anyhow::Result<PathBuf> {
        self.listens.path()
    }
}

/// An edge node with its csi-edge and drivers.
pub struct Node {
    /// Its Kubernetes name.
    pub name: &'static str,
    /// What every node has.
    pub worker: Worker,
    /// csi-edge.
    pub edge: Program,
    /// Its drivers, in the order of the plan.
    pub drivers: Vec<Driver>,
    /// Between csi-edge and csi-cloud.
    pub relay: Relay,
    pub(super) layout: Layout,
}

impl Node {
    /// Starts all of a node. The kubelet is started last and not waited for.
    ///
    /// # Errors
    /// Something does not start; the error holds the end of its log.
    pub(super) async fn start(
        plan: &Plan,
        machine: &Machine<'_>,
        access: &Access,
        cloud: &str,
    ) -> anyhow::Result<Self> {
        let at = machine.place(plan)?;
        for dir in ["plugins", "fronts", "kubelet/plugins_registry"] {
            std::fs::create_dir_all(at.path(dir))?;
        }
        let worker = Worker::start(plan, machine, access).await?;
        let mut drivers = Vec::new();
        for name in here(plan.drivers) {
            drivers.push(driver(&at, &worker.space, name, "fronts").await?);
        }
        let relay = Relay::to(cloud).await?;
        let edge = edge(&at, &worker.space, plan, relay.url()).await?;
        worker.kubelet.run().await?;
        Ok(Self { name: plan.name, worker, edge, drivers, relay, layout: machine.layout })
    }

    /// One more driver, which the kubelet calls without csi-edge. It is the caller's to stop.
    ///
    /// # Errors
    /// It does not start; the error holds the end of its log.
    pub async fn straight(
        &self,
        ground: &Ground,
        files: Option<&Files>,
        name: &'static str,
    ) -> anyhow::Result<Driver> {
        let place = place(&self.layout, self.name)?;
        let at = Place { ground, node: self.name, place, layout: self.layout, files };
        driver(&at, &self.worker.space, name, "plugins").await
    }

    /// One more driver, a vendor's program, which the kubelet calls without csi-edge. It is the
    /// caller's to stop.
    ///
    /// # Errors
    /// It does not start; the error holds the end of its log.
    pub async fn vendors(
        &self,
        ground: &Ground,
        name: &'static str,
        program: &str,
    ) -> anyhow::Result<Driver> {
        let place = place(&self.layout, self.name)?;
        let at = Place { ground, node: self.name, place, layout: self.layout, files: None };
        let args = [
            format!("--endpoint=unix://{}", socket(&at, name).display()),
            format!("--node-id={}", self.name),
        ];
        let launch = Launch::new(ground.tool(program), args);
        served(&at, &self.worker.space, name, "plugins", launch).await
    }

    /// All programs of it, the first to stop first.
    pub fn programs(&self) -> Vec<&Program> {
        let registrars = self.drivers.iter().map(|driver| &driver.registrar);
        let drivers = self.drivers.iter().map(|driver| &driver.program);
        [&self.worker.kubelet]
            .into_iter()
            .chain(registrars)
            .chain([&self.edge])
            .chain(drivers)
            .chain([&self.worker.containerd])
            .collect()
    }
}

/// Where a driver listens.
fn socket(at: &Place<'_>, name: &str) -> PathBuf {
    at.path(&format!("plugins/{name}.sock"))
}

/// hostdir as a driver, and its registrar, which registers the socket with the kubelet of this
/// directory.
async fn driver(
    at: &Place<'_>,
    space: &Arc<Space>,
    name: &'static str,
    told: &str,
) -> anyhow::Result<Driver> {
    let state = at.path(&format!("state-{name}"));
    let mut args = vec![
        format!("--endpoint=unix://{}", socket(at, name).display()),
        format!("--node-id={}", at.node),
        format!("--state={}", state.display()),
        format!("--name={name}"),
    ];
    args.extend(options(name, at.files, at.layout.attach_limit));
    let launch = Launch::new(at.ground.program("hostdir"), args);
    let driver = served(at, space, name, told, launch).await?;
    // What is mounted there is seen in the node's namespace only.
    let files = at.files.filter(|_| is_shared(name));
    let state = files.map_or(state, |files| files.dir.clone());
    Ok(Driver { state, ..driver })
}

/// A driver, once it serves its socket, and its registrar.
async fn served(
    at: &Place<'_>,
    space: &Arc<Space>,
    name: &'static str,
    told: &str,
    launch: Launch,
) -> anyhow::Result<Driver> {
    let logs = at.ground.logs();
    let socket = socket(at, name);
    let program = Program::within(space, &at.log(name), &logs, launch).await?;
    let serves = || async { Ok(tokio::net::UnixStream::connect(&socket).await.map(drop)?) };
    program.until("socket", READY, serves).await?;
    let args = [
        format!("-driver={name}"),
        format!("-endpoint={}", at.text(&format!("{told}/{name}.sock"))),
        format!("-listen={}", at.text(&format!("kubelet/plugins_registry/{name}-reg.sock"))),
    ];
    let launch = Launch::new(at.ground.tool("registrar"), args);
    let registrar =
        Program::within(space, &at.log(&format!("registrar-{name}")), &logs, launch).await?;
    let state = at.path(&format!("state-{name}"));
    Ok(Driver { name, program, registrar, state, listens: Listens::At(socket) })
}

async fn edge(
    at: &Place<'_>,
    space: &Arc<Space>,
    plan: &Plan,
    url: &str,
) -> anyhow::Result<Program> {
    let pki = at.ground.at("pki");
    // What runtimes are configured with is the node's own, unlike the machine's /etc.
    let kubelet = at.text("kubelet");
    let text = format!("[direct]\nruntime_root = \"{RUNTIMES}\"\ntargets = \"{kubelet}\"\n");
    let text = if at.ground.older().is_some() { "" } else { &text };
    let config = at.write("csi-edge.toml", text)?;
    super::ask::admin(at.ground, &["ca", "issue", plan.name, "--dir", &pki]).await?;
    let mut args = vec![
        "serve".to_owned(),
        format!("--fronts={}", at.text("fronts")),
        format!("--cloud={url}"),
        format!("--ca={pki}/ca.crt"),
        format!("--cert={pki}/{}.crt", plan.name),
        format!("--key={pki}/{}.key", plan.name),
        format!("--state={}", at.text("csi-edge")),
        format!("--config={config}"),
    ];
    let socket = |name| at.text(&format!("plugins/{name}.sock"));
    args.extend(here(plan.drivers).iter().map(|name| format!("--driver={name}={}", socket(name))));
    let launch = Launch::new(at.ground.program("csi-edge"), args);
    let program = Program::within(space, &at.log("csi-edge"), &at.ground.logs(), launch).await?;
    let linked = || async {
        ensure!(program.log().lines().any(|line| line.starts_with("linked ")), "it is not linked");
        Ok(())
    };
    program.until("link", READY, linked).await?;
    Ok(program)
}
