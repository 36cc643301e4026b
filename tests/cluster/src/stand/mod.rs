//! A whole Kubernetes on this machine: a control plane, our cloud half with the unmodified
//! sidecars, and edge nodes with kubelets and containers. No mock of Kubernetes is in it.
//!
//! Everything listens on loopback and lives below one directory; several stands do not disturb each
//! other.

mod access;
pub mod ask;
pub mod cloud;
pub mod command;
pub mod container;
pub mod control;
pub mod deployed;
mod drivers;
pub mod files;
pub mod ground;
pub mod image;
pub mod layout;
mod members;
pub mod moving;
mod names;
pub mod node;
pub mod objects;
mod power;
pub mod process;
pub mod program;
pub mod several;
mod shipped;
mod sockets;
pub mod space;
mod wire;
pub mod worker;

pub use self::drivers::{DRIVER, ONE, SECOND, SHARED, SHARES, STRAIGHT, here};
pub use self::layout::NODES;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::leftovers;
use k8s_openapi::api::core::v1::Node as KubeNode;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::{Api, Client};
use proto::host::tasks::Tasks;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::Instant;
use tracing::warn;

use self::access::Access;
use self::cloud::Cloud;
use self::control::Control;
use self::deployed::{Centre, Deployed, Site};
use self::files::Files;
use self::ground::Ground;
use self::layout::Layout;
use self::node::Node;
use self::program::Program;
use self::worker::Machine;

/// How long all nodes may take until they are ready and have their drivers.
const READY: Duration = Duration::from_secs(180);
/// How long the kernel may take to end a node's processes.
const STOP: Duration = Duration::from_secs(20);
/// How often programs that are kept are looked after.
const TENDED: Duration = Duration::from_millis(200);

/// What a cluster operator applies before our cloud half starts.
const MANIFESTS: [&str; 2] = [
    "tests/cluster/src/stand/manifests/snapshot-controller.yaml",
    "tests/cluster/src/stand/manifests/drivers.yaml",
];
/// Kinds of `deploy/manifests`, for programs that the stand starts by itself.
pub const RIGHTS: [&str; 6] =
    ["Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"];
/// What the stand takes of the manifests for KubeEdge; the row `kubeedge` takes the rest.
pub const METADATA: &str = "edge-csi-cloud-metadata";

/// A whole Kubernetes on this machine.
pub struct Cluster {
    /// Where everything is.
    pub ground: Ground,
    /// Kubernetes' own part.
    pub control: Control,
    /// Our part in the cloud.
    pub cloud: Arc<Cloud>,
    /// The edge nodes, as in the layout.
    pub nodes: Vec<Node>,
    /// The file server, if it can be had here.
    pub files: Option<Files>,
    /// The node of csi-cloud, if that is in a pod.
    pub centre: Option<Centre>,
    /// The administrator's client.
    pub client: Client,
    layout: Layout,
    tasks: Tasks,
    dir: TempDir,
}

/// Tells how far the start is, each time with the seconds since it began.
struct Progress(Instant);

impl Progress {
    fn say(&self, what: &str) {
        eprintln!("stand {:6.1} s  {what}", self.0.elapsed().as_secs_f64());
    }
}

impl Cluster {
    /// Starts everything, and waits until all nodes are ready and have their drivers.
    ///
    /// # Errors
    /// Something is missing on the machine, or does not get ready; the error holds the end of its
    /// log.
    pub async fn of(layout: Layout) -> anyhow::Result<Self> {
        let progress = Progress(Instant::now());
        // A short path: a socket's has at most 107 bytes.
        let dir = tempfile::Builder::new().prefix("ecs-").tempdir()?;
        let ground = Ground::new(dir.path())?;
        progress.say(&format!("in {}", dir.path().display()));
        let (control, access, client) = Control::start(&ground, layout.network).await?;
        progress.say("the API server is ready");
        snapshot_kinds(&ground, &client).await?;
        for file in MANIFESTS {
            objects::apply(&client, "default", &ground.source(file)?).await?;
        }
        let image = image::own(ground.dir()).await?;
        let files = match Files::missing().is_empty() {
            true => Some(Files::serve(&dir.path().join("server")).await?),
            false => None,
        };
        let machine = Machine { ground: &ground, image: &image, layout, files: files.as_ref() };
        let tasks = Tasks::default();
        let (cloud, nodes, centre) = match layout.deployed {
            Some(tool) => {
                let site = Site { machine, access: &access, client: &client, tasks: &tasks, tool };
                let Deployed { cloud, nodes, centre } = site.start().await?;
                (cloud, nodes, Some(centre))
            }
            None => {
                let (cloud, nodes) = processes(&machine, &access, &client, &progress).await?;
                (cloud, nodes, None)
            }
        };
        progress.say("containerd, csi-edge and hostdir run at each node");
        let cloud = Arc::new(cloud);
        tasks.spawn_until_stop("tend", tend(cloud.clone()));
        let cluster =
            Self { ground, control, cloud, nodes, files, centre, client, layout, tasks, dir };
        cluster.ready().await?;
        progress.say("all nodes are ready and have their drivers");
        Ok(cluster)
    }

    /// Waits until all nodes are ready and their kubelets have registered the drivers.
    ///
    /// # Errors
    /// They are not in time; the error holds the ends of the kubelets' logs.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let asked = objects::within("the nodes", READY, || self.nodes_ready()).await;
        let tails = || {
            self.nodes
                .iter()
                .map(|node| node.worker.kubelet.log_tail())
                .collect::<Vec<_>>()
                .join("\n")
        };
        asked.with_context(|| format!("the kubelets' logs end:\n{}", tails()))
    }

    async fn nodes_ready(&self) -> anyhow::Result<()> {
        for driver in here(self.layout.fronts) {
            Api::<CSIDriver>::all(self.client.clone()).get(driver).await?;
        }
        for plan in self.layout.nodes {
            let node = Api::<KubeNode>::all(self.client.clone()).get(plan.name).await?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let is_ready =
                conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
            ensure!(is_ready, "{} is not ready", plan.name);
            let csi = Api::<CSINode>::all(self.client.clone()).get(plan.name).await?;
            for driver in here(plan.drivers) {
                let has = csi.spec.drivers.iter().any(|one| one.name == driver);
                ensure!(has, "{} has not registered {driver}", plan.name);
            }
        }
        Ok(())
    }

    /// Undoes a row's faults: it restores links and switched off nodes, and restarts or resumes
    /// stopped programs.
    ///
    /// # Errors
    /// A program cannot be started.
    pub async fn mend(&self) -> anyhow::Result<()> {
        for node in &self.nodes {
            node.relay.mend();
            node.boot().await?;
        }
        // A program before those that need it, and containers after the kubelets.
        let mut programs: Vec<_> = self.programs().into_iter().rev().collect();
        programs.sort_by_key(|program| program.process().is_err());
        for program in programs {
            program.run().await?;
            program.signal(Signal::CONT).await?;
        }
        self.single().await
    }

    /// Upgrades a stand that began with an older version's manifests: to the products of this
    /// checkout, and to the chart's manifests.
    ///
    /// # Errors
    /// Nothing is deployed, an object is refused, or pods are not replaced in time.
    pub async fn upgrade_deployed(&self) -> anyhow::Result<()> {
        let none = "nothing is deployed";
        let centre = self.centre.as_ref().context(none)?;
        let tool = self.layout.deployed.context(none)?;

        centre.worker.import(&shipped::newest(&self.ground, true).await?).await?;
        let archive = shipped::newest(&self.ground, false).await?;
        for node in &self.nodes {
            node.worker.import(&archive).await?;
        }

        deployed::upgrade(&self.ground, &self.client, tool).await?;
        deployed::all_linked(&self.ground, &self.cloud, &self.nodes).await
    }

    /// A node by its name.
    ///
    /// # Errors
    /// There is none.
    pub fn node(&self, name: &str) -> anyhow::Result<&Node> {
        self.nodes
            .iter()
            .find(|node| node.name == name)
            .with_context(|| format!("there is no node {name}"))
    }

    /// All programs, the first to stop first.
    pub fn programs(&self) -> Vec<&Program> {
        let nodes = self.nodes.iter().flat_map(Node::programs);
        let centre = self.centre.iter().flat_map(Centre::programs);
        nodes.chain(self.cloud.programs()).chain(centre).chain(self.control.programs()).collect()
    }

    /// The ends of all logs.
    pub fn log_tails(&self) -> String {
        let tail = |program: &&Program| format!("--- {}\n{}", program.name(), program.log_tail());
        let several = self.cloud.several.programs().filter(|program| !program.log().is_empty());
        self.programs()
            .iter()
            .copied()
            .chain(several)
            .map(|one| tail(&one))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Stops everything in order, removes it, and checks for leftovers.
    ///
    /// # Errors
    /// Something is left behind, or could not be removed.
    pub async fn down(self) -> anyhow::Result<()> {
        let dir = self.ground.dir().to_owned();
        let name = self.ground.name();
        self.tasks.finish(Duration::from_secs(5)).await;
        let nodes = self.nodes.iter().map(|node| stop(node.programs()));
        futures_util::future::join_all(nodes).await;
        let sidecars =
            self.cloud.sidecars.iter().chain([&self.cloud.snapshots]).map(|one| stop(vec![one]));
        futures_util::future::join_all(sidecars).await;
        stop(self.cloud.several.programs().collect()).await;
        stop(self.centre.iter().flat_map(Centre::programs).collect()).await;
        stop(
            [&self.cloud.front, &self.cloud.program]
                .into_iter()
                .chain(self.control.programs())
                .collect(),
        )
        .await;
        let devices = leftovers::devices(&dir)?;
        let centre = self.centre.iter().map(|centre| &centre.worker);
        for worker in self.nodes.iter().map(|node| &node.worker).chain(centre) {
            worker.space.end().await?;
        }
        objects::within("what is left of the nodes", STOP, || async {
            leftovers::remove(&name, &devices)
        })
        .await?;
        self.dir.close().context("the stand's directory cannot be removed")?;
        leftovers::check(&dir)
    }
}

/// Stops processes. Containers end with their nodes.
async fn stop(programs: Vec<&Program>) {
    for program in programs.into_iter().filter(|program| program.process().is_ok()) {
        if program.is_running().await
            && let Err(error) = program.stop().await
        {
            warn!("{error:#}");
        }
    }
}

/// Starts csi-cloud, the sidecars, csi-edge and the drivers as processes.
async fn processes(
    machine: &Machine<'_>,
    access: &Access,
    client: &Client,
    progress: &Progress,
) -> anyhow::Result<(Cloud, Vec<Node>)> {
    let Machine { ground, layout, .. } = *machine;
    let plain = ground.source("deploy/manifests/plain.yaml")?;
    let kubeedge = ground.source("deploy/manifests/kubeedge.yaml")?;
    let rights = objects::only(&plain, |kind, _| RIGHTS.contains(&kind))?;
    let metadata = objects::only(&kubeedge, |_, name| name == METADATA)?;
    for text in [rights, metadata] {
        objects::apply(client, "default", &text).await?;
    }
    let cloud = Cloud::start(ground, access, client, &here(layout.fronts)).await?;
    progress.say("csi-cloud is ready");
    let starting = layout.nodes.iter().map(|plan| {
        let url = &cloud.urls[usize::from(plan.scheme == "quic")];
        Node::start(plan, machine, access, url)
    });
    let nodes = futures_util::future::try_join_all(starting).await?;
    Ok((cloud, nodes))
}

/// Starts programs again that are kept, as a kubelet does with the containers of csi-cloud's pod.
async fn tend(cloud: Arc<Cloud>) {
    loop {
        for program in cloud.programs().chain(&cloud.several.others) {
            if let Err(error) = program.tend().await {
                warn!("{error:#}");
            }
        }
        tokio::time::sleep(TENDED).await;
    }
}

/// Gives the API server the snapshots' kinds, and waits until it serves them.
///
/// # Errors
/// It refuses one, or does not serve it in time.
pub(crate) async fn snapshot_kinds(ground: &Ground, client: &Client) -> anyhow::Result<()> {
    for text in ground.sources("tests/go/bin/crd")? {
        objects::apply(client, "default", &text).await?;
    }
    let kinds = [
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshot"),
        ("groupsnapshot.storage.k8s.io/v1", "VolumeGroupSnapshot"),
    ];
    for (version, kind) in kinds {
        let object = serde_json::json!({"apiVersion": version, "kind": kind});
        let ask = || async { objects::api(client, &object, "default").await.map(drop) };
        objects::within(kind, Duration::from_secs(30), ask).await?;
    }
    Ok(())
}
