//! `deploy/` as a user applies it, with the steps of docs/start/install.md. csi-cloud and the
//! sidecars are pods of a fourth node, csi-edge and the tests' driver those of the edges.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use harness::relay::Relay;
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod, Service};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use serde_json::{Value, json};

use super::access::Access;
use super::ask::admin;
use super::cloud::{Cloud, NAMESPACE};
use super::container::{Container, Home};
use super::ground::Ground;
use super::layout::{
    CENTRE, Layout, Plan, Tool, balancer_address, place, pods, relay_address, stand_address,
};
use super::members;
use super::names;
use super::node::{Driver, Node};
use super::objects::{apply, list, within};
use super::program::{Launch, Program};
use super::shipped;
use super::sockets::Listens;
use super::worker::{Machine, Worker};

/// The chart's manifests with the tests' driver, from `make e2e`.
const BUNDLES: &str = "tests/go/bin/bundles";
/// What an older version's manifests make, in the directory of its programs, from `make skew`.
const OLDER: &str = "deployed.yaml";
/// The Service by which the sidecars' relays dial csi-cloud.
const RELAYS: &str = "csi-cloud-relays";
/// Where csi-cloud listens.
const PORT: u16 = 7443;
/// How long a step may take.
const SOON: Duration = Duration::from_secs(120);
/// How long all pods may take. Three csi-clouds and their sidecars are 18 containers.
const READY: Duration = Duration::from_secs(240);
/// How often the load balancer looks for Services.
const BALANCED: Duration = Duration::from_secs(1);
/// Programs that it needs besides those of any stand, and Debian's packages of them.
const NEEDED: [(&str, &str); 3] =
    [("iptables", "iptables"), ("strip", "binutils"), ("ldd", "libc-bin")];
/// How many pods are not of the edges, for each csi-cloud: its own, and the sidecars'.
const CENTRAL_PODS: usize = 2;

/// The node of csi-cloud and the sidecars.
pub struct Centre {
    /// It.
    pub worker: Worker,
    /// Leads Services to their pods.
    pub proxy: Program,
}

impl Centre {
    /// All programs of it, the first to stop first.
    pub fn programs(&self) -> [&Program; 3] {
        [&self.worker.kubelet, &self.proxy, &self.worker.containerd]
    }
}

/// What was deployed.
pub(super) struct Deployed {
    pub(super) cloud: Cloud,
    pub(super) nodes: Vec<Node>,
    pub(super) centre: Centre,
}

/// What it is deployed with.
pub(super) struct Site<'a> {
    pub(super) machine: Machine<'a>,
    pub(super) access: &'a Access,
    pub(super) client: &'a Client,
    pub(super) tasks: &'a Tasks,
    pub(super) tool: Tool,
}

impl Site<'_> {
    /// Starts the nodes, applies `deploy/`, and waits until every pod is ready and every edge is
    /// linked.
    ///
    /// # Errors
    /// A node does not start, an object is refused, or pods are not ready in time.
    pub(super) async fn start(&self) -> anyhow::Result<Deployed> {
        let lacks = |program: &str| {
            let dirs = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
            !dirs.iter().any(|dir| Path::new(dir).join(program).exists())
        };
        let missing = NEEDED.iter().filter(|(program, _)| lacks(program));
        let missing: Vec<_> = missing.map(|(_, package)| *package).collect();
        ensure!(missing.is_empty(), "install Debian's packages {}", missing.join(" "));
        names::serve(stand_address(), self.client, self.tasks).await?;
        let centre = self.centre();
        let edges = self.edges();
        let (centre, workers) = tokio::try_join!(centre, edges)?;
        if self.tool != Tool::Pages {
            self.trust(&workers).await?;
            self.labelled().await?;
        }
        apply(self.client, "default", include_str!("manifests/store.yaml")).await?;
        if self.tool == Tool::Ha {
            apply(self.client, "default", include_str!("manifests/stores.yaml")).await?;
        }
        let nodes: Vec<_> =
            try_join_all(workers.into_iter().map(|worker| self.edge(worker))).await?;
        match self.tool {
            Tool::Pages => {
                let balancing = balancing(self.client.clone(), self.tool);
                self.tasks.spawn_until_stop("load balancer", balancing);
            }
            _ => self.apply().await?,
        }

        let home = |pod: &str| home(&centre.worker, pod);
        let cloud =
            Cloud::deployed(self.ground(), self.access, self.client, self.tool, home).await?;
        if self.tool == Tool::Ha {
            members::start(self.ground(), self.access, &cloud.several).await?;
        }
        if self.tool != Tool::Pages {
            let ready = within("the pods of deploy/", READY, || self.pods_ready()).await;
            ready.with_context(|| logs(&cloud, &nodes))?;
            all_linked(self.ground(), &cloud, &nodes).await?;
        }
        Ok(Deployed { cloud, nodes, centre })
    }

    /// Applies `deploy/`, and gives its Services their addresses.
    async fn apply(&self) -> anyhow::Result<()> {
        let bundle = match self.ground().older() {
            Some(older) => read_text(&older.join(OLDER))?,
            None => self.ground().source(&bundle(self.tool))?,
        };
        apply(self.client, NAMESPACE, &bundle).await?;
        balanced(self.client, self.tool).await
    }

    fn ground(&self) -> &Ground {
        self.machine.ground
    }

    fn layout(&self) -> Layout {
        self.machine.layout
    }

    async fn centre(&self) -> anyhow::Result<Centre> {
        let worker = Worker::start(&CENTRE, &self.machine, self.access).await?;
        for archive in shipped::images(self.ground(), true).await? {
            worker.import(&archive).await?;
        }
        worker.kubelet.run().await?;
        let proxy = self.proxy(&worker).await?;
        Ok(Centre { worker, proxy })
    }

    async fn edges(&self) -> anyhow::Result<Vec<Worker>> {
        let archives = shipped::images(self.ground(), false).await?;
        let starting = self.layout().nodes.iter().map(|plan| async {
            let worker = Worker::start(plan, &self.machine, self.access).await?;
            for archive in &archives {
                worker.import(archive).await?;
            }
            worker.kubelet.run().await?;
            anyhow::Ok(worker)
        });
        try_join_all(starting).await
    }

    /// kube-proxy. Only the node of csi-cloud needs one, since edges are in their hosts' network.
    async fn proxy(&self, worker: &Worker) -> anyhow::Result<Program> {
        let user = "system:kube-proxy";
        let kubeconfig = self.access.user("kube-proxy", user, None)?;
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": kubeconfig},
            "hostnameOverride": worker.name,
            "mode": "iptables",
            "clusterCIDR": pods(place(&self.layout(), worker.name)?),
            "iptables": {"localhostNodePorts": false, "minSyncPeriod": "0s"},
            // These are the machine's.
            "conntrack": {
                "maxPerCore": 0, "min": 0,
                "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            },
        });
        let file = worker.dir.join("kube-proxy.json");
        publish(&file, config.to_string().as_bytes(), 0o600, Existing::Replace)?;
        let launch =
            Launch::new(self.ground().tool("kube-proxy"), [format!("--config={}", file.display())]);
        let name = format!("{}-kube-proxy", worker.name);
        Program::within(&worker.space, &name, &self.ground().logs(), launch).await
    }

    /// The CA, the certificates of csi-cloud and of the relays as Secrets, and each node's own.
    /// With Helm csi-cloud makes all of it, and the nodes join.
    async fn trust(&self, workers: &[Worker]) -> anyhow::Result<()> {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {
                "pod-security.kubernetes.io/enforce": "privileged"}},
        });
        apply(self.client, NAMESPACE, &namespace.to_string()).await?;
        if self.tool == Tool::Helm {
            return Ok(());
        }
        let ground = self.ground();
        let pki = ground.at("pki");
        let hosts = self.hosts();
        let mut init = vec!["ca", "init", "--dir", pki.as_str()];
        init.extend(hosts.iter().flat_map(|host| ["--host", host.as_str()]));
        admin(ground, &init).await?;
        admin(ground, &["ca", "issue", "--dir", &pki, "--front", "csi-sidecars"]).await?;
        self.secret("csi-cloud-tls", &format!("{pki}/ca.crt"), &format!("{pki}/cloud")).await?;
        let sidecars = format!("{pki}/csi-sidecars");
        self.secret("csi-sidecars-tls", &format!("{pki}/ca.crt"), &sidecars).await?;
        if self.tool == Tool::Ha {
            self.access.etcd(stand_address())?;
            let client = self.access.at("csi-cloud-etcd");
            self.secret("csi-cloud-etcd", &self.access.at("ca.crt"), &client).await?;
        }
        for worker in workers {
            admin(ground, &["ca", "issue", worker.name, "--dir", &pki]).await?;
            let to = worker.dir.join("etc/edge-csi");
            std::fs::create_dir_all(&to)?;
            let files = [("ca.crt", "ca.crt".to_owned())].into_iter().chain([
                ("edge.crt", format!("{}.crt", worker.name)),
                ("edge.key", format!("{}.key", worker.name)),
            ]);
            for (name, from) in files {
                let bytes = std::fs::read(format!("{pki}/{from}"))?;
                publish(&to.join(name), &bytes, 0o600, Existing::Replace)?;
            }
        }
        Ok(())
    }

    /// The names and hosts of csi-cloud's certificate.
    fn hosts(&self) -> Vec<String> {
        let mut hosts = self.tool.clouds();
        hosts.push(RELAYS.to_owned());
        if self.tool == Tool::Ha {
            hosts.extend((0..self.tool.services().len()).map(|place| format!("{RELAYS}-{place}")));
        }
        hosts
    }

    /// Makes a Secret of a CA's certificate, and of a certificate and its key, by their path
    /// without the ending.
    async fn secret(&self, name: &str, ca: &str, certificate: &str) -> anyhow::Result<()> {
        let data = json!({
            "ca.crt": read_text(Path::new(ca))?,
            "tls.crt": read_text(Path::new(&format!("{certificate}.crt")))?,
            "tls.key": read_text(Path::new(&format!("{certificate}.key")))?,
        });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE}, "stringData": data,
        });
        apply(self.client, NAMESPACE, &secret.to_string()).await
    }

    /// Labels the edges, as soon as their kubelets have told of them.
    async fn labelled(&self) -> anyhow::Result<()> {
        let nodes = Api::<KubeNode>::all(self.client.clone());
        let label = Patch::Merge(json!({"metadata": {"labels": {"edge-csi.io/edge": "true"}}}));
        for plan in self.layout().nodes {
            let patch = || async {
                Ok(nodes.patch(plan.name, &PatchParams::default(), &label).await.map(drop)?)
            };
            within(&format!("the node {}", plan.name), SOON, patch).await?;
        }
        Ok(())
    }

    /// The relay of an edge to all csi-clouds.
    async fn relay(&self, plan: &Plan) -> anyhow::Result<Relay> {
        let node = place(&self.layout(), plan.name)?;
        let way = |cloud| {
            let listen = SocketAddr::from((relay_address(node, cloud), PORT));
            (listen, format!("{}://{}", plan.scheme, at(balancer_address(cloud))))
        };
        let (listen, url) = way(0);
        let relay = Relay::at(listen, &url).await?;
        // Nodes join by WebSocket, and link as their plan says.
        if matches!(self.tool, Tool::Helm | Tool::Pages) && plan.scheme == "quic" {
            relay.also(listen, &format!("wss://{}", at(balancer_address(0)))).await?;
        }
        for (cloud, _) in (0..).zip(self.tool.services()).skip(1) {
            let (listen, url) = way(cloud);
            relay.also(listen, &url).await?;
        }
        Ok(relay)
    }

    /// The handles of what runs at an edge, and its relay.
    async fn edge(&self, worker: Worker) -> anyhow::Result<Node> {
        let layout = self.layout();
        let plan = layout.nodes.iter().find(|plan| plan.name == worker.name);
        let plan = plan.context("a worker without a plan")?;
        let relay = self.relay(plan).await?;
        let name = plan.name;
        let of = |container: &'static str, as_named: &str| {
            let home = home(&worker, "csi-edge-");
            let container =
                Container::of(format!("{name}-{as_named}"), container, home, self.client);
            Program::Container(container)
        };
        let drivers = plan.drivers.iter().map(|driver| Driver {
            name: driver,
            program: of("driver-hostdir", driver),
            registrar: of("registrar-hostdir", &format!("registrar-{driver}")),
            state: worker.dir.join("var-lib/csi-hostdir-data"),
            listens: Listens::InPod {
                space: worker.space.clone(),
                link: worker.dir.join(format!("{driver}.sock")),
            },
        });
        let drivers = drivers.collect();
        let edge = of("csi-edge", "csi-edge");
        Ok(Node { name, edge, drivers, relay, layout, worker })
    }

    async fn pods_ready(&self) -> anyhow::Result<()> {
        let pods = list(&Api::<Pod>::namespaced(self.client.clone(), NAMESPACE)).await?;
        let clouds = self.tool.services().len();
        let expected = self.layout().nodes.len() + CENTRAL_PODS * clouds;
        ensure!(pods.len() == expected, "of {expected} pods there are {}", pods.len());
        for pod in pods {
            let name = pod.name_any();
            let status = pod.status.unwrap_or_default();
            let mut conditions = status.conditions.iter().flatten();
            let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
            let containers = status.container_statuses.iter().flatten();
            let states: Vec<_> =
                containers.filter(|one| !one.ready).map(|one| (&one.name, &one.state)).collect();
            ensure!(is_ready, "{name} is not ready: {states:?} {:?}", status.conditions);
        }
        Ok(())
    }
}

/// Gives each csi-cloud's Service its address, as a cloud's load balancer does.
async fn balanced(client: &Client, tool: Tool) -> anyhow::Result<()> {
    let services = Api::<Service>::namespaced(client.clone(), NAMESPACE);
    for (cloud, name) in (0..).zip(tool.services()) {
        let ingress = json!([{"ip": balancer_address(cloud), "ipMode": "VIP"}]);
        let status = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": ingress}}}));
        services.patch_status(name, &PatchParams::default(), &status).await?;
    }
    Ok(())
}

/// Does that again and again, as Services come and go.
async fn balancing(client: Client, tool: Tool) {
    loop {
        // Until somebody makes the Service, there is none.
        let _ = balanced(&client, tool).await;
        tokio::time::sleep(BALANCED).await;
    }
}

fn bundle(tool: Tool) -> String {
    format!("{BUNDLES}/deployed-{}.yaml", tool.name())
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Applies the chart's manifests over an older version's, and waits until all pods are new ones.
///
/// # Errors
/// An object is refused, or pods are not replaced in time.
pub(super) async fn upgrade(ground: &Ground, client: &Client, tool: Tool) -> anyhow::Result<()> {
    apply(client, NAMESPACE, &ground.source(&bundle(tool))?).await?;
    within("the new pods of deploy/", READY, || replaced(client)).await
}

/// Waits until all edges are linked, as an operator sees it.
///
/// # Errors
/// One is not in time.
pub(super) async fn all_linked(
    ground: &Ground,
    cloud: &Cloud,
    nodes: &[Node],
) -> anyhow::Result<()> {
    within("all links", SOON, || linked(ground, cloud, nodes)).await
}

/// Fails while a workload has pods of an older template, or ones that are not ready.
async fn replaced(client: &Client) -> anyhow::Result<()> {
    for set in list(&Api::<StatefulSet>::namespaced(client.clone(), NAMESPACE)).await? {
        let name = set.name_any();
        let wanted = set.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let status = set.status.unwrap_or_default();
        let is_new = status.observed_generation == set.metadata.generation
            && status.updated_replicas == Some(wanted)
            && status.ready_replicas == Some(wanted);
        ensure!(is_new, "{name} is not replaced: {status:?}");
    }
    for set in list(&Api::<DaemonSet>::namespaced(client.clone(), NAMESPACE)).await? {
        let name = set.name_any();
        let status = set.status.unwrap_or_default();
        let wanted = Some(status.desired_number_scheduled);
        let is_new = status.observed_generation == set.metadata.generation
            && status.updated_number_scheduled == wanted
            && Some(status.number_ready) == wanted;
        ensure!(is_new, "{name} is not replaced: {status:?}");
    }
    Ok(())
}

/// Where a pod of this namespace is, of a worker.
fn home(worker: &Worker, pod: &str) -> Home {
    Home {
        namespace: NAMESPACE,
        pod: pod.to_owned(),
        node: worker.name,
        logs: worker.dir.join("logs"),
    }
}

fn at(address: Ipv4Addr) -> SocketAddr {
    SocketAddr::from((address, PORT))
}

/// Fails if an edge is not linked.
async fn linked(ground: &Ground, cloud: &Cloud, nodes: &[Node]) -> anyhow::Result<()> {
    let shown = cloud.shows(ground, &["nodes"]).await?;
    for node in nodes {
        let is_linked = |one: &Value| one["name"] == node.name && one["state"] == "linked";
        ensure!(shown.iter().any(is_linked), "{} is not linked: {shown:?}", node.name);
    }
    Ok(())
}

/// The ends of the logs of all containers.
fn logs(cloud: &Cloud, nodes: &[Node]) -> String {
    let drivers = nodes.iter().flat_map(|node| &node.drivers);
    let at_edges = drivers.flat_map(|driver| [&driver.program, &driver.registrar]);
    let others = cloud.several.others.iter().filter(|other| other.container().is_some());
    let edges = nodes.iter().map(|node| &node.edge);
    let all = others.chain(cloud.programs()).chain(edges).chain(at_edges);
    let tail = |program: &Program| format!("--- {}\n{}", program.name(), program.log_tail());
    all.map(tail).collect::<Vec<_>>().join("\n")
}
