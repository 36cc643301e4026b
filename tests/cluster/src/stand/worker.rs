//! A node without what is ours: containerd and the kubelet, in namespaces of the node's own. A
//! kubelet is not started before what it must find.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use guest::wrapper::HANDLER;
use proto::host::publish::{Existing, publish};
use serde_json::{Value, json};
use tokio::process::Command;

use super::access::Access;
use super::files::Files;
use super::ground::{Ground, ports};
use super::image::IMAGE;
use super::layout::{
    CENTRE, Layout, Network, Plan, balancer_address, place, relay_address, stand_address,
};
use super::program::{Launch, Program};
use super::space::{Apart, Space};
use super::wire::Wire;

/// How long containerd may take until it answers.
const READY: Duration = Duration::from_secs(60);
/// Where a machine has its kubelet, and pods look for it.
const KUBELET: &str = "/var/lib/kubelet";

/// A node's containerd and kubelet.
pub struct Worker {
    /// Its Kubernetes name.
    pub name: &'static str,
    /// Its namespaces.
    pub space: Arc<Space>,
    /// The container runtime.
    pub containerd: Program,
    /// The kubelet.
    pub kubelet: Program,
    /// Where the kubelet listens.
    pub address: Ipv4Addr,
    port: u16,
    /// Its disk.
    pub(super) dir: PathBuf,
    /// The control group below which its containers are.
    pub(super) cgroup: String,
}

impl Worker {
    /// Starts containerd. The kubelet runs when it is told to.
    ///
    /// # Errors
    /// Something does not start; the error holds the end of its log.
    pub(super) async fn start(
        plan: &Plan,
        machine: &Machine<'_>,
        access: &Access,
    ) -> anyhow::Result<Self> {
        let at = machine.place(plan)?;
        for dir in ["cni", "containerd", "logs"] {
            std::fs::create_dir_all(at.path(dir))?;
        }
        let address = at.layout.network.address(at.place);
        let apart = match at.layout.network {
            Network::Host | Network::Own => None,
            Network::Apart => Some(apart(&at, address).await?),
        };
        let space = Arc::new(Space::new(apart).await?);
        let containerd = containerd(&at, &space, machine.image).await?;
        let [port] = ports()?;
        let kubelet = kubelet(&at, &space, access, port)?;
        let dir = at.ground.dir().join(plan.name);
        let cgroup = format!("{}-{}", at.ground.name(), plan.name);
        Ok(Self { name: plan.name, space, containerd, kubelet, address, port, dir, cgroup })
    }

    /// The kubelet's summary of its pods and their volumes. The kubelet renews it every few
    /// seconds.
    ///
    /// # Errors
    /// It does not say.
    pub async fn summary(&self) -> anyhow::Result<Value> {
        let mut config =
            kube::Config::new(format!("https://{}:{}", self.address, self.port).parse()?);
        // It has made its certificate by itself.
        config.accept_invalid_certs = true;
        let request = http::Request::get("/stats/summary").body(Vec::new())?;
        Ok(kube::Client::try_from(config)?.request(request).await?)
    }

    /// A path as it is at the node, whose `/run` is its own.
    pub fn sees(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.space.pid()))
    }

    /// Gives the node one more image, for pods that do not pull theirs.
    ///
    /// # Errors
    /// containerd does not take it.
    pub async fn import(&self, image: &Path) -> anyhow::Result<()> {
        let socket = self.dir.join("containerd.sock");
        import(&socket.display().to_string(), &self.space, image).await
    }
}

/// The directories and the wire of a node that is apart.
async fn apart(at: &Place<'_>, address: Ipv4Addr) -> anyhow::Result<Apart> {
    let stores = ["", "-1", "-2"].map(|number| format!("var-lib/csi-cloud-store{number}"));
    for dir in stores.iter().map(String::as_str).chain(["var-lib/kubelet"]) {
        std::fs::create_dir_all(at.path(dir))?;
    }
    let mut command = Command::new("cp");
    let copied = command.arg("-a").arg("/etc").arg(at.path("etc")).status().await?;
    ensure!(copied.success(), "/etc cannot be copied for {}", at.node);
    // The name server of a site knows where the cloud is.
    let mut hosts = "127.0.0.1 localhost\n".to_owned();
    let mut balanced = Vec::new();
    for (cloud, name) in (0..).zip(at.layout.clouds()) {
        hosts += &format!("{} {name}\n", relay_address(at.place, cloud));
        balanced.extend((at.node == CENTRE.name).then(|| balancer_address(cloud)));
    }
    at.write("etc/hosts", &hosts)?;
    let wire = Wire { place: at.place, address, balanced };
    Ok(Apart { dir: at.path(""), wire })
}
/// What a node is made on.
pub(super) struct Machine<'a> {
    pub(super) ground: &'a Ground,
    /// The image of all containers.
    pub(super) image: &'a Path,
    pub(super) layout: Layout,
    /// The file server, if there is one.
    pub(super) files: Option<&'a Files>,
}

impl Machine<'_> {
    /// The paths of one of its nodes.
    ///
    /// # Errors
    /// It has no such node.
    pub(super) fn place(&self, plan: &Plan) -> anyhow::Result<Place<'_>> {
        let Machine { ground, layout, files, .. } = *self;
        Ok(Place { ground, node: plan.name, place: place(&layout, plan.name)?, layout, files })
    }
}

/// Paths of a node.
pub(super) struct Place<'a> {
    pub(super) ground: &'a Ground,
    pub(super) node: &'a str,
    pub(super) place: u8,
    pub(super) layout: Layout,
    pub(super) files: Option<&'a Files>,
}

impl Place<'_> {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.ground.dir().join(self.node).join(name)
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(super) fn log(&self, name: &str) -> String {
        format!("{}-{name}", self.node)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<String> {
        publish(&self.path(name), text.as_bytes(), 0o600, Existing::Replace)?;
        Ok(self.text(name))
    }
}

async fn containerd(at: &Place<'_>, space: &Arc<Space>, image: &Path) -> anyhow::Result<Program> {
    let network = at.layout.network.cni(at.place, &at.text("addresses"));
    at.write("cni/10-stand.conflist", &network.to_string())?;
    let dir = at.text("containerd");
    let cni = at.text("cni");
    let socket = at.text("containerd.sock");
    let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
    let text = format!(
        "version = 2\nroot = \"{dir}/root\"\nstate = \"{dir}/state\"\n\
         [grpc]\naddress = \"{socket}\"\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{dir}/opt\"\n\
         [{cri}]\nsandbox_image = \"{IMAGE}\"\nrestrict_oom_score_adj = true\n\
         stream_server_address = \"127.0.0.1\"\nstream_server_port = \"0\"\n\
         [{cri}.cni]\nbin_dir = \"/usr/lib/cni\"\nconf_dir = \"{cni}\"\n\
         [{cri}.containerd]\nsnapshotter = \"native\"\ndefault_runtime_name = \"runc\"\n\
         [{cri}.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
         [{cri}.containerd.runtimes.{HANDLER}]\nruntime_type = \"io.containerd.runc.v2\"\n\
         [{cri}.containerd.runtimes.{HANDLER}.options]\nBinaryName = \"{wrapper}\"\n",
        wrapper = at.ground.program("oci-wrapper").display()
    );
    let config = at.write("containerd.toml", &text)?;
    let launch = Launch::new("/usr/bin/containerd", ["--config", &config]);
    let program = Program::within(space, &at.log("containerd"), &at.ground.logs(), launch).await?;
    let answers = || async { space.run("ctr", &["--address", &socket, "version"]).await.map(drop) };
    program.until("answer", READY, answers).await?;
    import(&socket, space, image).await?;
    Ok(program)
}

async fn import(socket: &str, space: &Space, image: &Path) -> anyhow::Result<()> {
    let image = image.to_str().context("the directory's path is no text")?;
    let args =
        ["--address", socket, "-n", "k8s.io", "image", "import", "--snapshotter", "native", image];
    space.run("ctr", &args).await.map(drop)
}

fn kubelet(
    at: &Place<'_>,
    space: &Arc<Space>,
    access: &Access,
    port: u16,
) -> anyhow::Result<Program> {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}-{}", at.ground.name(), at.node),
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": format!("unix://{}", at.text("containerd.sock")),
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": at.layout.network.address(at.place),
        "port": port,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "failSwapOn": false,
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        // Without it there is no summary.
        "localStorageCapacityIsolation": true,
        "makeIPTablesUtilChains": false,
        "podLogsDir": at.text("logs"),
        "volumePluginDir": at.text("volumeplugins"),
        // How soon it sees that a pod's volume is to grow, by default after a minute or so.
        "syncFrequency": "10s",
        // How old its volumes' statistics may be, by default a minute.
        "volumeStatsAggPeriod": "5s",
        // A volume is mounted, and detached, only once the kubelet has reported it; that is with
        // its status, by default every 10 s.
        "nodeStatusUpdateFrequency": "1s",
        "kubeAPIQPS": 50,
        "kubeAPIBurst": 100,
    });
    let is_apart = at.layout.network == Network::Apart;
    if is_apart {
        config["clusterDNS"] = json!([stand_address()]);
        config["clusterDomain"] = json!("cluster.local");
        // A container that rows kill several times is back soon; by default it waits for minutes.
        config["crashLoopBackOff"] = json!({"maxContainerRestartPeriod": "1s"});
    }
    let config = at.write("kubelet.json", &serde_json::to_string_pretty(&config)?)?;
    let user = format!("system:node:{}", at.node);
    let kubeconfig = access.user(&format!("kubelet-{}", at.node), &user, Some("system:nodes"))?;
    let mut args = vec![
        format!("--config={config}"),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", if is_apart { KUBELET.to_owned() } else { at.text("kubelet") }),
        format!("--hostname-override={}", at.node),
        format!("--cert-dir={}", at.text("kubelet-pki")),
    ];
    if at.layout.network != Network::Host {
        args.push(format!("--node-ip={}", at.layout.network.address(at.place)));
    }
    let launch = Launch::new(at.ground.tool("kubelet"), args);
    Ok(Program::later_within(space, &at.log("kubelet"), &at.ground.logs(), launch))
}
