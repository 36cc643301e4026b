//! An edge node: containerd, kubelet, csi-edge, and for each driver a hostdir and a registrar, in
//! namespaces of the node's own. Its way to the cloud goes through a relay that a test can cut.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use proto::host::publish::{Existing, publish};
use serde_json::{Value, json};

use super::access::Access;
use super::drivers::{here, is_shared, options};
use super::files::Files;
use super::ground::{Ground, ports};
use super::image::IMAGE;
use super::layout::{Layout, Network, Plan, place};
use super::program::{Launch, Program};
use super::space::Space;
use guest::wrapper::{HANDLER, RUNTIMES};
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
    /// Where hostdir listens.
    pub socket: PathBuf,
    /// Where hostdir keeps its volumes.
    pub state: PathBuf,
}

/// See the module.
pub struct Node {
    /// Its Kubernetes name.
    pub name: &'static str,
    /// Its namespaces.
    pub space: Arc<Space>,
    /// The container runtime.
    pub containerd: Program,
    /// The kubelet.
    pub kubelet: Program,
    /// csi-edge.
    pub edge: Program,
    /// Its drivers, in the order of the plan.
    pub drivers: Vec<Driver>,
    /// Between csi-edge and csi-cloud.
    pub relay: Relay,
    /// Where the kubelet answers.
    port: u16,
    layout: Layout,
    /// Its disk.
    pub(super) dir: PathBuf,
    /// The control group below which its containers are.
    pub(super) cgroup: String,
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
        let Machine { ground, image, layout, files } = *machine;
        let place = place(&layout, plan.name)?;
        let at = Place { ground, node: plan.name, place, layout, files };
        for dir in ["cni", "containerd", "plugins", "fronts", "kubelet/plugins_registry", "logs"] {
            std::fs::create_dir_all(at.path(dir))?;
        }
        let space = Arc::new(Space::new().await?);
        let containerd = containerd(&at, &space, image).await?;
        let mut drivers = Vec::new();
        for name in here(plan.drivers) {
            drivers.push(driver(&at, &space, name, "fronts").await?);
        }
        let relay = Relay::to(cloud).await?;
        let edge = edge(&at, &space, plan, relay.url()).await?;
        let [port] = ports()?;
        let kubelet = kubelet(&at, &space, access, port).await?;
        Ok(Self {
            name: plan.name,
            space,
            containerd,
            kubelet,
            edge,
            drivers,
            relay,
            port,
            layout,
            dir: ground.dir().join(plan.name),
            cgroup: format!("{}-{}", ground.name(), plan.name),
        })
    }

    /// Where its kubelet listens.
    ///
    /// # Errors
    /// The layout has no such node.
    pub fn address(&self) -> anyhow::Result<Ipv4Addr> {
        Ok(self.layout.network.address(place(&self.layout, self.name)?))
    }

    /// The kubelet's summary of its pods and their volumes. The kubelet renews it every few
    /// seconds.
    ///
    /// # Errors
    /// It does not say.
    pub async fn summary(&self) -> anyhow::Result<Value> {
        let address = self.address()?;
        let mut config = kube::Config::new(format!("https://{address}:{}", self.port).parse()?);
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
    pub async fn import(&self, ground: &Ground, image: &std::path::Path) -> anyhow::Result<()> {
        let socket = ground.dir().join(self.name).join("containerd.sock");
        import(&socket.display().to_string(), &self.space, image).await
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
        driver(&at, &self.space, name, "plugins").await
    }

    /// All programs of it, the first to stop first.
    pub fn programs(&self) -> Vec<&Program> {
        let registrars = self.drivers.iter().map(|driver| &driver.registrar);
        let drivers = self.drivers.iter().map(|driver| &driver.program);
        [&self.kubelet]
            .into_iter()
            .chain(registrars)
            .chain([&self.edge])
            .chain(drivers)
            .chain([&self.containerd])
            .collect()
    }
}

/// What a node is made on.
pub(super) struct Machine<'a> {
    pub(super) ground: &'a Ground,
    /// The image of all containers.
    pub(super) image: &'a std::path::Path,
    pub(super) layout: Layout,
    /// The file server, if there is one.
    pub(super) files: Option<&'a Files>,
}

/// Paths of a node.
struct Place<'a> {
    ground: &'a Ground,
    node: &'a str,
    place: u8,
    layout: Layout,
    files: Option<&'a Files>,
}

impl Place<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.ground.dir().join(self.node).join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn log(&self, name: &str) -> String {
        format!("{}-{name}", self.node)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<String> {
        publish(&self.path(name), text.as_bytes(), 0o600, Existing::Replace)?;
        Ok(self.text(name))
    }
}

async fn containerd(
    at: &Place<'_>,
    space: &Arc<Space>,
    image: &std::path::Path,
) -> anyhow::Result<Program> {
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

async fn import(socket: &str, space: &Space, image: &std::path::Path) -> anyhow::Result<()> {
    let image = image.to_str().context("the directory's path is no text")?;
    let args =
        ["--address", socket, "-n", "k8s.io", "image", "import", "--snapshotter", "native", image];
    space.run("ctr", &args).await.map(drop)
}

/// A driver and its registrar, which registers the socket with the kubelet of this directory.
async fn driver(
    at: &Place<'_>,
    space: &Arc<Space>,
    name: &'static str,
    told: &str,
) -> anyhow::Result<Driver> {
    let logs = at.ground.logs();
    let socket = at.path(&format!("plugins/{name}.sock"));
    let state = at.path(&format!("state-{name}"));
    let mut args = vec![
        format!("--endpoint=unix://{}", socket.display()),
        format!("--node-id={}", at.node),
        format!("--state={}", state.display()),
        format!("--name={name}"),
    ];
    args.extend(options(name, at.files, at.layout.attach_limit));
    let launch = Launch::new(at.ground.program("hostdir"), args);
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
    // What is mounted there is seen in the node's namespace only.
    let files = at.files.filter(|_| is_shared(name));
    let state = files.map_or(state, |files| files.dir.clone());
    Ok(Driver { name, program, registrar, socket, state })
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

async fn kubelet(
    at: &Place<'_>,
    space: &Arc<Space>,
    access: &Access,
    port: u16,
) -> anyhow::Result<Program> {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup(at.ground, at.node),
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
    let config = at.write("kubelet.json", &serde_json::to_string_pretty(&config)?)?;
    let user = format!("system:node:{}", at.node);
    let kubeconfig = access.user(&format!("kubelet-{}", at.node), &user, Some("system:nodes"))?;
    let mut args = vec![
        format!("--config={config}"),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", at.text("kubelet")),
        format!("--hostname-override={}", at.node),
        format!("--cert-dir={}", at.text("kubelet-pki")),
    ];
    if at.layout.network == Network::Own {
        args.push(format!("--node-ip={}", at.layout.network.address(at.place)));
    }
    let launch = Launch::new(at.ground.tool("kubelet"), args);
    Program::within(space, &at.log("kubelet"), &at.ground.logs(), launch).await
}

/// The control group below which a node's containers are.
pub(super) fn cgroup(ground: &Ground, node: &str) -> String {
    format!("/{}-{node}", ground.name())
}
