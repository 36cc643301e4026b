//! The cloud half as its pod has it: csi-cloud behind the socket relay, and four sidecars for each
//! driver. csi-cloud, the sidecars and the snapshot-controller each have an account of their own,
//! as in our manifests.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use proto::host::publish::{Existing, publish};

use super::access::Access;
use super::ask::{admin, get, output};
use super::container::{Container, Home};
use super::drivers::{DRIVER, is_shared, section};
use super::ground::{Ground, ports};
use super::layout::{CLOUD, PODS, Tool};
use super::program::{Launch, Program};
use super::several::{REPLICAS, Several, own_file};
use guest::wrapper::HANDLER;
use harness::stand::begin_long_ago;
use harness::wait::START;

/// The namespace of the cloud half.
pub const NAMESPACE: &str = "edge-csi";
/// How long a token of the stand is good, in seconds.
const TOKEN: i64 = 86_400;
/// Where operators ask csi-cloud, below the stand's directory.
pub const ADMIN: &str = "admin.sock";
/// For sidecars at each node. By default, 20 to 60 s pass until one owns a claim that is bound at
/// once.
const NODE_DEPLOYMENT: [&str; 3] =
    ["--node-deployment", "--node-deployment-base-delay=1s", "--node-deployment-max-delay=5s"];
/// Its store, there too.
pub(super) const STORE: &str = "cloud.redb";
/// Where a socket relay finds csi-cloud.
pub const HOLDERS: &str = "holders.sock";
/// The sidecars and their containers in `deploy/`.
const CONTAINERS: [(&str, &str); 4] = [
    ("csi-provisioner", "provisioner-hostdir"),
    ("csi-attacher", "attacher-hostdir"),
    ("csi-resizer", "resizer-hostdir"),
    ("csi-snapshotter", "snapshotter-hostdir"),
];

/// csi-cloud with its sidecars.
pub struct Cloud {
    /// csi-cloud; of several, the first.
    pub program: Program,
    /// `csi-cloud relay`, which has the sidecars' sockets.
    pub front: Program,
    /// Where edges can dial: WebSocket, QUIC.
    pub urls: [String; 2],
    /// Four for each driver, and as many for each further set. Those of the first set come first.
    pub sidecars: Vec<Program>,
    /// The snapshot-controller.
    pub snapshots: Program,
    /// What rows with several csi-clouds have besides.
    pub several: Several,
    admin: String,
    kubeconfig: PathBuf,
}

impl Cloud {
    /// Starts csi-cloud with a front for each driver, and waits until it is ready. The sidecars
    /// wait for the drivers.
    ///
    /// # Errors
    /// It does not get ready; the error holds the end of its log.
    pub(super) async fn start(
        ground: &Ground,
        access: &Access,
        client: &Client,
        drivers: &[&str],
    ) -> anyhow::Result<Self> {
        admin(ground, &["ca", "init", "--host", "127.0.0.1", "--dir", &ground.at("pki")]).await?;
        let kubeconfig = account(access, client, NAMESPACE, "csi-cloud").await?;
        let [wss, quic] = ports()?;
        let urls = [format!("wss://127.0.0.1:{wss}"), format!("quic://127.0.0.1:{quic}")];
        let launch = serve(ground, &urls, drivers, &kubeconfig)?;
        // An older csi-cloud writes no begin.
        if ground.older().is_none() {
            begin_long_ago(&ground.dir().join(STORE))?;
        }
        // Of the sidecars, which have an account of their own.
        let kubeconfig = account(access, client, NAMESPACE, "csi-sidecars").await?;
        let program = Program::keep("csi-cloud", &ground.logs(), launch).await?;
        let front =
            Program::keep("csi-cloud-front", &ground.logs(), front(ground, drivers)).await?;
        for program in [&program, &front] {
            let ready = || async {
                ensure!(program.log().lines().any(|line| line == "ready"), "it is not ready");
                Ok(())
            };
            program.until("word that it is ready", START, ready).await?;
        }
        let mut sidecars = Vec::new();
        for driver in drivers {
            let socket = ground.dir().join(format!("fronts/{driver}.sock"));
            for (name, launch) in sidecars_of(ground, &kubeconfig, &socket, is_shared(driver)) {
                sidecars.push(
                    Program::keep(&format!("{name}-{driver}"), &ground.logs(), launch).await?,
                );
            }
        }
        let snapshots = snapshots(ground, access, client).await?;
        let several = Several::new(ground);
        let admin = ground.at(ADMIN);
        Ok(Self { program, front, urls, sidecars, snapshots, several, admin, kubeconfig })
    }

    /// The handles of what was deployed, and the snapshot-controller, which is the cluster's own.
    ///
    /// # Errors
    /// The snapshot-controller does not start.
    pub(super) async fn deployed(
        ground: &Ground,
        access: &Access,
        client: &Client,
        tool: Tool,
        home: impl Fn(&str) -> Home,
    ) -> anyhow::Result<Self> {
        let of = |name: &str, container, pod: &str| {
            Container::of(name.to_owned(), container, home(pod), client)
        };
        let cloud = |name: &str, pod: &str| Program::Container(of(name, "csi-cloud", pod).whole());
        let [first, second, third] = PODS;
        let program = cloud("csi-cloud", first);
        let several = match tool {
            Tool::Manifests | Tool::Helm | Tool::Pages => Several::new(ground),
            Tool::Ha => Several::deployed(ground, [cloud(second, second), cloud(third, third)]),
        };
        let front = of("csi-cloud-front", "front", "csi-sidecars-hostdir-0");
        let front = Program::Container(front);
        let mut sidecars = Vec::new();
        for set in 0..tool.services().len() {
            let pod = format!("csi-sidecars-hostdir-{set}");
            let suffix = if set == 0 { String::new() } else { format!("-{set}") };
            for (name, container) in CONTAINERS {
                let name = format!("{name}-{DRIVER}{suffix}");
                sidecars.push(Program::Container(of(&name, container, &pod)));
            }
        }
        let kubeconfig = match tool {
            // There is no such account before the reader has made it.
            Tool::Pages => access.user("reader", "reader", Some("system:masters"))?,
            _ => account(access, client, NAMESPACE, "csi-sidecars").await?,
        };
        let snapshots = snapshots(ground, access, client).await?;
        let urls = ["wss", "quic"].map(|scheme| format!("{scheme}://{CLOUD}:7443"));
        let admin = ground.at(ADMIN);
        Ok(Self { program, front, urls, sidecars, snapshots, several, admin, kubeconfig })
    }

    /// All of it, the first to stop first.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.sidecars.iter().chain([&self.snapshots, &self.front, &self.program])
    }

    /// The csi-clouds of a row with several, by name.
    pub fn replicas(&self) -> [&Program; 3] {
        let [second, third] = &self.several.others;
        [&self.program, second, third]
    }

    /// A sidecar, by its program and its driver.
    ///
    /// # Errors
    /// There is none.
    pub fn sidecar(&self, program: &str, driver: &str) -> anyhow::Result<&Program> {
        let name = format!("{program}-{driver}");
        self.sidecars
            .iter()
            .find(|sidecar| sidecar.name() == name)
            .with_context(|| format!("there is no {name}"))
    }

    /// An external-provisioner with the same flags and rights that calls a driver straight, without
    /// us.
    pub fn straight(&self, ground: &Ground, socket: &Path) -> Launch {
        let [(_, provisioner), ..] = sidecars_of(ground, &self.kubeconfig, socket, false);
        provisioner
    }

    /// The four sidecars of a driver that is called without us, with the same flags and rights.
    pub fn central(
        &self,
        ground: &Ground,
        driver: &str,
        socket: &Path,
    ) -> [(&'static str, Launch); 4] {
        sidecars_of(ground, &self.kubeconfig, socket, is_shared(driver))
    }

    /// The sidecars of a driver that is called without us, at its node. external-attacher is not
    /// among them: it cannot be told which node it is for.
    pub fn beside(
        &self,
        ground: &Ground,
        node: &str,
        driver: &str,
        socket: &Path,
    ) -> Vec<(String, Launch)> {
        let all = self.central(ground, driver, socket).into_iter();
        let ours = all.filter(|(name, _)| *name != "csi-attacher");
        let at_node = |(name, launch): (&str, Launch)| {
            let mut launch = launch.with("NODE_NAME", node);
            match name {
                "csi-provisioner" => launch.args.extend(NODE_DEPLOYMENT.map(str::to_owned)),
                "csi-snapshotter" => launch.args.push(NODE_DEPLOYMENT[0].to_owned()),
                _ => {}
            }
            (name.to_owned(), launch)
        };
        ours.map(at_node).collect()
    }

    /// The JSON output of a csi-cloud command.
    ///
    /// # Errors
    /// It fails.
    pub async fn shows(
        &self,
        ground: &Ground,
        args: &[&str],
    ) -> anyhow::Result<Vec<serde_json::Value>> {
        let said = self.says(ground, &[args, &["-o", "json"]].concat()).await?;
        serde_json::from_str(&said)
            .with_context(|| format!("csi-cloud {} says {said}", args.join(" ")))
    }

    /// All metrics of csi-cloud.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        let address = match &self.program {
            // That of the last start.
            Program::Process(process) => {
                let log = process.log();
                log.lines().rev().find_map(|line| line.strip_prefix("http ").map(str::to_owned))
            }
            Program::Container(only) => {
                let container = self.leader(only).await?;
                Some(format!("{}:9808", container.address().await?))
            }
        };
        get(&address.context("it serves no HTTP")?, "/metrics").await
    }

    /// The output of a csi-cloud command, of the version that runs: a person has it in the pod.
    ///
    /// # Errors
    /// It fails.
    pub async fn says(&self, ground: &Ground, args: &[&str]) -> anyhow::Result<String> {
        match &self.program {
            Program::Process(process) => {
                let program = process.file().await;
                output(ground, &program, &[args, &["--admin", &self.admin]].concat()).await
            }
            Program::Container(only) => {
                let container = self.leader(only).await?;
                container.exec(&[&["csi-cloud"], args].concat()).await
            }
        }
    }

    /// The container of csi-cloud, if it is alone; of several, that of the one which leads.
    async fn leader<'a>(&'a self, only: &'a Container) -> anyhow::Result<&'a Container> {
        let replicas = self.replicas().map(Program::container);
        let containers: Vec<_> = replicas.into_iter().flatten().collect();
        if containers.len() == 1 {
            return Ok(only);
        }
        let mut failed = Vec::new();
        for container in containers {
            let said = match container.exec(&["csi-cloud", "replicas", "-o", "json"]).await {
                Ok(said) => said,
                Err(error) => {
                    failed.push(format!("{error:#}"));
                    continue;
                }
            };
            let shown: Vec<serde_json::Value> = serde_json::from_str(&said)
                .with_context(|| format!("csi-cloud replicas says {said}"))?;
            let leads = shown.iter().find(|one| one["leads"] == true);
            let leads = leads.and_then(|one| one["name"].as_str());
            let mut named = self.several.names.iter().zip(replicas);
            let leader = named.find(|(name, _)| Some(**name) == leads);
            let leader = leader.and_then(|(_, container)| container);
            return leader.with_context(|| format!("none leads: {said}"));
        }
        bail!("no csi-cloud says who leads: {}", failed.join("; "))
    }
}

/// csi-cloud, which keeps the drivers' CSIDriver objects by itself.
fn serve(
    ground: &Ground,
    urls: &[String],
    drivers: &[&str],
    kubeconfig: &Path,
) -> anyhow::Result<Launch> {
    let pki = ground.at("pki");
    let mut config = match ground.older() {
        Some(_) => String::new(),
        None => settings(&pki),
    };
    config.extend(drivers.iter().map(|driver| section(driver)));
    publish(&ground.dir().join("cloud.toml"), config.as_bytes(), 0o600, Existing::Replace)?;
    let mut args = vec![
        "serve".to_owned(),
        format!("--config={}", ground.at("cloud.toml")),
        format!("--holders=unix:{}", ground.at(HOLDERS)),
        format!("--admin={}", ground.at(ADMIN)),
        "--http=127.0.0.1:0".to_owned(),
        format!("--store=file:{}", ground.at(STORE)),
        format!("--kubernetes={}", kubeconfig.display()),
        "--publish-csinode=auto".to_owned(),
        format!("--ca={pki}/ca.crt"),
        format!("--cert={pki}/cloud.crt"),
        format!("--key={pki}/cloud.key"),
    ];
    args.extend(urls.iter().map(|url| format!("--listen={url}")));
    args.extend(drivers.iter().map(|driver| format!("--driver={driver}")));
    Ok(Launch::new(ground.program("csi-cloud"), args))
}

/// The settings that are newer than the oldest csi-cloud that a stand runs.
fn settings(pki: &str) -> String {
    // Nodes that join or renew in a row get certificates of the shortest life.
    format!(
        "[ca]\ncert = \"{pki}/ca.crt\"\nkey = \"{pki}/ca.key\"\nnode_life = \"2m\"\n\
         [kubernetes]\njoin_service_account = \"{NAMESPACE}/csi-edge\"\n\
         metadata = true\ndirect_handlers = [\"{HANDLER}\"]\n"
    )
}

/// The socket relay, which holds the sidecars' sockets.
fn front(ground: &Ground, drivers: &[&str]) -> Launch {
    let mut args = vec!["front".to_owned(), format!("--fronts={}", ground.at("fronts"))];
    // The others are there in rows with several csi-clouds, which an older version is not.
    let count = if ground.older().is_some() { 1 } else { REPLICAS.len() };
    let places = (0..count).map(|place| own_file(ground, HOLDERS, place));
    args.extend(places.map(|place| format!("--to=unix:{place}")));
    args.extend(drivers.iter().map(|driver| format!("--driver={driver}")));
    Launch::new(ground.program("csi-cloud"), args)
}

/// The snapshot-controller, with an account of its own.
async fn snapshots(ground: &Ground, access: &Access, client: &Client) -> anyhow::Result<Program> {
    let controller = account(access, client, "kube-system", "snapshot-controller").await?;
    let launch = snapshot_controller(ground, &controller);
    Program::keep("snapshot-controller", &ground.logs(), launch).await
}

/// The snapshot-controller of a kubeconfig's account.
pub(crate) fn snapshot_controller(ground: &Ground, kubeconfig: &Path) -> Launch {
    let args = [format!("--kubeconfig={}", kubeconfig.display()), groups()];
    Launch::new(ground.tool("snapshot-controller"), args)
}

fn groups() -> String {
    "--feature-gates=CSIVolumeGroupSnapshot=true".to_owned()
}

/// Long deadlines and short retry intervals, as docs/reference/manifests.md has them for edges that
/// are often away. A shared driver's calls get a short deadline: for so long nobody else has a call
/// that is in doubt.
fn sidecars_of(
    ground: &Ground,
    kubeconfig: &Path,
    socket: &Path,
    is_shared: bool,
) -> [(&'static str, Launch); 4] {
    let common = [
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--csi-address={}", socket.display()),
        format!("--timeout={}", if is_shared { "15s" } else { "60s" }),
        "--retry-interval-start=1s".to_owned(),
        "--retry-interval-max=30s".to_owned(),
        "--kube-api-qps=50".to_owned(),
        "--kube-api-burst=100".to_owned(),
        "--v=4".to_owned(),
    ];
    let launch = |name: &str, more: &[&str]| {
        let args = common.iter().map(String::as_str).chain(more.iter().copied());
        Launch::new(ground.tool(name), args)
            .with("NAMESPACE", NAMESPACE)
            .with("POD_NAME", "csi-cloud-0")
    };
    let local = [
        "--strict-topology",
        "--extra-create-metadata",
        "--feature-gates=Topology=true",
        "--enable-capacity",
        // There is no pod of the stand's csi-cloud that could own them.
        "--capacity-ownerref-level=-1",
        "--capacity-poll-interval=15s",
        // The capacities of all classes at all nodes change at once, because they share one disk.
        // By default external-provisioner updates one a second.
        "--kube-api-capacity-qps=50",
        "--kube-api-capacity-burst=100",
    ];
    let provisioner = if is_shared { &["--extra-create-metadata"][..] } else { &local };
    [
        ("csi-provisioner", launch("csi-provisioner", provisioner)),
        ("csi-attacher", launch("csi-attacher", &[])),
        ("csi-resizer", launch("csi-resizer", &[])),
        ("csi-snapshotter", launch("csi-snapshotter", &["--extra-create-metadata", &groups()])),
    ]
}

/// The stand's external-provisioner for a driver without GetCapacity. With a node it serves the
/// driver of that node alone.
pub(crate) fn provisioner(
    ground: &Ground,
    kubeconfig: &Path,
    socket: &Path,
    node: Option<&str>,
) -> Launch {
    let [(_, mut launch), ..] = sidecars_of(ground, kubeconfig, socket, false);
    launch.args.retain(|arg| !arg.contains("capacity"));
    if let Some(node) = node {
        launch = launch.with("NODE_NAME", node);
        launch.args.extend(NODE_DEPLOYMENT.map(str::to_owned));
    }
    launch
}

/// One of the stand's sidecars for the driver behind a socket, by its program.
///
/// # Errors
/// No sidecar of the stand is this program.
pub(crate) fn sidecar(
    ground: &Ground,
    kubeconfig: &Path,
    socket: &Path,
    program: &str,
) -> anyhow::Result<Launch> {
    let mut all = sidecars_of(ground, kubeconfig, socket, false).into_iter();
    let found = all.find(|(name, _)| *name == program);
    found.map(|(_, launch)| launch).with_context(|| format!("there is no {program}"))
}

/// The kubeconfig of a service account.
async fn account(
    access: &Access,
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<PathBuf> {
    let api = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN), ..Default::default() };
    let request = TokenRequest { spec: Some(spec), ..Default::default() };
    let issued = api.create_token_request(name, &PostParams::default(), &request).await;
    let issued =
        issued.with_context(|| format!("no token for the service account {namespace}/{name}"))?;
    let token = issued
        .status
        .and_then(|status| status.token)
        .context("a token request without an answer")?;
    access.account(namespace, name, &token)
}
