//! csi-cloud in Kubernetes, against a real API server over a real etcd. It has only the rights of
//! the table at the top of `cloud/src/kubernetes/api.rs`. Without the two programs the tier is
//! skipped, which fails in CI.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::testdriver::{TOPOLOGY_KEY, TestDriver};
use harness::port;
use harness::process::Process;
use harness::requests::{controller, create, created};
use harness::stand::Stand;
use harness::tier;
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, World};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use prost::Message;
use proto::csi;
use proto::host::publish::{Existing, publish};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::process::Command;

mod affinity;
mod away;
mod dashboard;
mod doctor;
mod edges;
mod exhausted;
mod expansion;
mod explain;
mod labels;
mod metadata;
mod not_taken;
mod snapshots;

const RBAC: &str = "rbac.authorization.k8s.io";
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// The programs, or why the tier is skipped.
fn programs() -> Option<(PathBuf, PathBuf)> {
    let apiserver = Path::new(env!("CARGO_MANIFEST_DIR")).join("../go/bin/kube-apiserver");
    let etcd = ["/usr/bin/etcd", "/usr/local/bin/etcd"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.exists());
    let missing = match &etcd {
        Some(etcd) if apiserver.exists() => return Some((apiserver, etcd.clone())),
        Some(_) => "kube-apiserver is not built (tests/go)",
        None => "etcd is not installed",
    };
    let said = tier::skipped("csi-cloud in Kubernetes", missing, tier::is_without_kubernetes());
    assert!(said.is_ok(), "{said:?}");
    None
}

/// A control plane that has nothing but its API.
struct Plane {
    etcd: Process,
    apiserver: Option<Process>,
    programs: (PathBuf, PathBuf),
    dir: PathBuf,
    ports: (u16, u16),
    /// Somebody who may do everything.
    admin: Client,
}

impl Plane {
    async fn new(stand: &Stand, programs: (PathBuf, PathBuf)) -> anyhow::Result<Self> {
        let dir = stand.dir().to_owned();
        let ports = (port::free()?, port::free()?);
        let tokens = "admin-token,admin,1,system:masters\nedge-csi-token,edge-csi,2\n";
        publish(&dir.join("tokens.csv"), tokens.as_bytes(), 0o600, Existing::Keep)?;
        for user in ["admin", "edge-csi"] {
            let config = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "x",
                "clusters": [{"name": "x", "cluster": {
                    "server": format!("https://127.0.0.1:{}", ports.0),
                    "certificate-authority": dir.join("pki/ca.crt"),
                }}],
                "users": [{"name": "x", "user": {"token": format!("{user}-token")}}],
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            });
            let path = dir.join(format!("{user}.kubeconfig"));
            publish(&path, config.to_string().as_bytes(), 0o600, Existing::Keep)?;
        }
        let client = format!("http://127.0.0.1:{}", ports.1);
        let peer = format!("http://127.0.0.1:{}", port::free()?);
        let mut command = Command::new(&programs.1);
        command.arg(format!("--data-dir={}", dir.join("etcd").display()));
        for flag in ["listen-client-urls", "advertise-client-urls"] {
            command.arg(format!("--{flag}={client}"));
        }
        command.args([
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
        ]);
        command.args([format!("--initial-cluster=default={peer}"), "--unsafe-no-fsync".into()]);
        let etcd = Process::start("etcd", command, &dir)?;
        let file = kube::config::Kubeconfig::read_from(dir.join("admin.kubeconfig"))?;
        let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await?;
        let admin = Client::try_from(config)?;
        let mut plane = Self { etcd, apiserver: None, programs, dir, ports, admin };
        plane.serve().await?;
        plane.allow().await?;
        Ok(plane)
    }

    /// Starts the API server, and waits until it serves.
    async fn serve(&mut self) -> anyhow::Result<()> {
        let at = |name: &str| self.dir.join(name).display().to_string();
        let mut command = Command::new(&self.programs.0);
        command.args([
            format!("--etcd-servers=http://127.0.0.1:{}", self.ports.1),
            format!("--secure-port={}", self.ports.0),
            "--service-cluster-ip-range=10.0.0.0/24".into(),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            format!("--cert-dir={}", at("apiserver")),
            format!("--tls-cert-file={}", at("pki/cloud.crt")),
            format!("--tls-private-key-file={}", at("pki/cloud.key")),
            format!("--token-auth-file={}", at("tokens.csv")),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-key-file={}", at("pki/cloud.crt")),
            format!("--service-account-signing-key-file={}", at("pki/cloud.key")),
            "--authorization-mode=RBAC".into(),
            "--disable-admission-plugins=ServiceAccount".into(),
            "--endpoint-reconciler-type=none".into(),
        ]);
        self.apiserver = Some(Process::start("apiserver", command, &self.dir)?);
        let apiserver = self.apiserver.as_ref().context("just started")?;
        until("the API server serves", || async {
            let answer =
                self.admin.request_text(http::Request::get("/readyz").body(Vec::new())?).await;
            answer.map(drop).with_context(|| apiserver.log_tail())
        })
        .await?;
        let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(self.admin.clone());
        until("there is a namespace", || async { Ok(namespaces.get("default").await?) })
            .await
            .map(drop)
    }

    async fn kill_apiserver(&mut self) -> anyhow::Result<()> {
        self.apiserver.take().context("it does not run")?.kill().await
    }

    /// Gives csi-cloud the rights of the table, and no others.
    async fn allow(&self) -> anyhow::Result<()> {
        let table = include_str!("../../../../../cloud/src/kubernetes/api.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("//! | "));
        let cells = table.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
        let rules = cells.filter(|cells| cells.len() > 3 && cells[0] != "group").map(|cells| {
            let group = if cells[0] == "(core)" { "" } else { cells[0] };
            let verbs: Vec<_> = cells[2].split(", ").collect();
            json!({"apiGroups": [group], "resources": [cells[1]], "verbs": verbs})
        });
        let rules: Vec<_> = rules.collect();
        ensure!(rules.len() == 21, "{rules:?}");
        let role = json!({"metadata": {"name": "edge-csi"}, "rules": rules});
        self.make::<ClusterRole>(role, "admin").await?;
        let binding = json!({
            "metadata": {"name": "edge-csi"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "edge-csi"},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "edge-csi"}],
        });
        self.make::<ClusterRoleBinding>(binding, "admin").await.map(drop)
    }

    fn all<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.admin.clone())
    }

    /// Makes an object in the name of this manager.
    async fn make<K>(&self, object: Value, manager: &str) -> anyhow::Result<K>
    where
        K: kube::Resource<DynamicType = ()>
            + Clone
            + DeserializeOwned
            + serde::Serialize
            + std::fmt::Debug,
    {
        let params = PostParams { field_manager: Some(manager.into()), ..PostParams::default() };
        Ok(self.all().create(&params, &serde_json::from_value(object)?).await?)
    }

    /// An Event of this reason about something of this name.
    async fn event(&self, reason: &str, name: &str) -> anyhow::Result<Event> {
        let events = self.all::<Event>();
        let what = format!("an Event {reason} about {name}");
        until(&what, || async {
            let found = events.list(&ListParams::default()).await?.items;
            let regards = |event: &Event| {
                event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(name)
            };
            let mut of = found
                .iter()
                .filter(|event| event.reason.as_deref() == Some(reason) && regards(event));
            of.next().cloned().with_context(|| {
                format!("there are {:?}", found.iter().map(|e| &e.note).collect::<Vec<_>>())
            })
        })
        .await
    }

    async fn stop(self) -> anyhow::Result<()> {
        if let Some(apiserver) = self.apiserver {
            apiserver.kill().await?;
        }
        self.etcd.kill().await
    }
}

/// csi-cloud with one edge at [`NODE`], at a control plane that has that node.
struct Site {
    world: World,
    plane: Plane,
}

impl Site {
    async fn new(nodes: &[Value]) -> anyhow::Result<Option<Self>> {
        Self::with(nodes, "").await
    }

    /// With more lines in the driver's section.
    async fn with(nodes: &[Value], section: &str) -> anyhow::Result<Option<Self>> {
        Self::configured(nodes, "grace_s = 1", section).await
    }

    /// Ends the node's csi-edge. If the next one began while it runs, each would take the link from
    /// the other.
    async fn end_edge(&self) -> anyhow::Result<()> {
        self.world.edge.signal(rustix::process::Signal::TERM)?;
        let admin = self.world.stand.at(&format!("{NODE}/_admin.sock"));
        until("the first csi-edge has ended", || async {
            ensure!(!Path::new(&admin).exists(), "its admin socket is there");
            Ok(())
        })
        .await
    }

    async fn say(&self, command: &[&str]) -> anyhow::Result<String> {
        let admin = self.world.stand.at("cloud/_admin.sock");
        self.world.stand.run("csi-cloud", &[command, &["--admin", &admin]].concat()).await
    }

    /// Waits until csi-cloud has logged this, however much it logged after it.
    async fn logged(&self, what: &str) -> anyhow::Result<()> {
        until(what, || async {
            let process = &self.world.cloud.process;
            ensure!(String::from_utf8_lossy(&process.log()).contains(what), process.log_tail());
            Ok(())
        })
        .await
    }

    /// The state of the CSIDriver object in csi-cloud's output.
    async fn stands(&self, expected: &str) -> anyhow::Result<()> {
        until(expected, || async {
            let drivers: Value =
                serde_json::from_str(&self.say(&["drivers", "-o", "json"]).await?)?;
            ensure!(drivers[0]["csidriver"] == expected, "{drivers}");
            Ok(())
        })
        .await
    }

    /// Waits until the driver is, or is not, published at a node: entry, labels and id, all or
    /// nothing.
    async fn published(&self, node: &str, expected: bool) -> anyhow::Result<()> {
        let csinodes = self.plane.all::<CSINode>();
        let nodes = self.plane.all::<Node>();
        until(&format!("{node} published: {expected}"), || async {
            let entries = csinodes
                .get_opt(node)
                .await?
                .map(|csinode| csinode.spec.drivers)
                .unwrap_or_default();
            let entry = entries.iter().find(|entry| entry.name == DRIVER);
            let live = nodes.get(node).await?;
            let label = live.labels().get(TOPOLOGY_KEY).map(String::as_str);
            let ids = live.annotations().get(NODE_IDS).map(String::as_str).unwrap_or("{}");
            let ids: BTreeMap<String, String> = serde_json::from_str(ids)?;
            let said = (
                entry.map(|entry| entry.node_id.as_str()),
                label,
                ids.get(DRIVER).map(String::as_str),
            );
            let all = Some(node).filter(|_| expected);
            ensure!(said == (all, all, all), "{said:?}; {}", self.world.cloud.process.log_tail());
            let keys = entry.and_then(|entry| entry.topology_keys.clone()).unwrap_or_default();
            ensure!(!expected || keys == [TOPOLOGY_KEY], "{keys:?}");
            Ok(())
        })
        .await
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.plane.stop().await?;
        self.world.stop().await
    }
}

fn node(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}})
}

#[tokio::test]
async fn a_csidriver_is_made_and_kept_and_somebody_elses_is_left_alone() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[]).await? else { return Ok(()) };
    let drivers = site.plane.all::<CSIDriver>();
    site.stands("ours").await?;
    let made = drivers.get(DRIVER).await?;
    assert_eq!((made.spec.attach_required, made.spec.storage_capacity), (Some(true), Some(true)));
    let managers = made.metadata.managed_fields.unwrap_or_default();
    assert_eq!(
        managers.iter().filter_map(|entry| entry.manager.as_deref()).collect::<Vec<_>>(),
        ["edge-csi"]
    );
    // An administrator edits it: his word stays.
    let edit = Patch::Merge(json!({"spec": {"storageCapacity": false}}));
    let params =
        PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() };
    drivers.patch(DRIVER, &params, &edit).await?;
    site.stands("left to kubectl-edit").await?;
    assert_eq!(drivers.get(DRIVER).await?.spec.storage_capacity, Some(false));
    // Deleted, it is made again; with another attachRequired it is not ours to change.
    drivers.delete(DRIVER, &DeleteParams::default()).await?;
    site.stands("ours").await?;
    let wrong = json!({
        "metadata": {"name": DRIVER, "annotations": {"meta.helm.sh/release-name": "vendor"}},
        "spec": {"attachRequired": false},
    });
    drivers.delete(DRIVER, &DeleteParams::default()).await?;
    until("Helm is faster once", || async {
        let _ = drivers.delete(DRIVER, &DeleteParams::default()).await;
        site.plane.make::<CSIDriver>(wrong.clone(), "helm").await
    })
    .await?;
    site.stands("left to a Helm release (vendor)").await?;
    assert_eq!(drivers.get(DRIVER).await?.spec.attach_required, Some(false));
    site.logged("is somebody else's, and is left alone").await?;
    site.stop().await
}

#[tokio::test]
async fn a_node_is_published_and_withdrawn_and_a_kubelets_own_is_left_alone() -> anyhow::Result<()>
{
    let theirs = r#"{"vendor.example":"theirs"}"#;
    let mut first = node(NODE, json!({"rack": "7"}));
    first["metadata"]["annotations"] = json!({NODE_IDS: theirs});
    let nodes = [first, node("n2", json!({})), node("n3", json!({TOPOLOGY_KEY: "elsewhere"}))];
    let Some(mut site) = Site::new(&nodes).await? else { return Ok(()) };
    let kubelets = json!({
        "metadata": {"name": "n2"},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": "its-own", "topologyKeys": []}]},
    });
    site.plane.make::<CSINode>(kubelets, "kubelet").await?;
    let vendor = json!({"name": "vendor.example", "nodeID": "theirs"});
    let vendors = json!({"metadata": {"name": NODE}, "spec": {"drivers": [vendor]}});
    site.plane.make::<CSINode>(vendors, "kubelet").await?;
    let url = site.world.url().to_owned();
    let mut others = Vec::new();
    for name in ["n2", "n3"] {
        let driver = site.world.driver.beside(name);
        let socket = site.world.stand.at(&format!("{name}.sock"));
        let serving = driver.serve(Path::new(&socket))?;
        let edge = site.world.stand.edge(name, &url, &[(DRIVER, &socket)]).await?;
        others.push((edge, driver, serving));
    }
    site.published(NODE, true).await?;
    let csinode = site.plane.all::<CSINode>().get(NODE).await?;
    let owner = csinode.metadata.owner_references.unwrap_or_default();
    assert_eq!(owner.iter().map(|owner| owner.kind.as_str()).collect::<Vec<_>>(), ["Node"]);
    // A segment differs from the node's label: nothing is published, and an Event says so.
    let event = site.plane.event("LabelCollision", "n3").await?;
    assert!(event.note.is_some_and(|note| note.contains("elsewhere")));
    assert!(site.plane.all::<CSINode>().get_opt("n3").await?.is_none());
    assert_eq!(site.plane.all::<Node>().get("n3").await?.labels()[TOPOLOGY_KEY], "elsewhere");
    // Removed and let in again.
    site.say(&["node", "remove", NODE, "--yes"]).await?;
    site.published(NODE, false).await?;
    let live = site.plane.all::<Node>().get(NODE).await?;
    assert_eq!(live.labels()["rack"], "7");
    assert_eq!(live.annotations()[NODE_IDS], theirs, "the kubelet's id is not ours");
    let left = site.plane.all::<CSINode>().get(NODE).await?.spec.drivers;
    let names: Vec<_> = left.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["vendor.example"]);
    site.say(&["node", "admit", NODE]).await?;
    site.published(NODE, true).await?;
    // The driver leaves the node: its csi-edge comes back with another one.
    let other = TestDriver::new("other.edge-csi.io", NODE);
    let socket = site.world.stand.at("other.sock");
    let _serving = other.serve(Path::new(&socket))?;
    site.end_edge().await?;
    let edge = site.world.stand.edge(NODE, &url, &[("other.edge-csi.io", &socket)]).await?;
    std::mem::replace(&mut site.world.edge, edge).stop(START).await?;
    site.published(NODE, false).await?;
    // The entries of n2's kubelet did not change in all that time.
    let entry = &site.plane.all::<CSINode>().get("n2").await?.spec.drivers[0];
    assert_eq!((entry.node_id.as_str(), &entry.topology_keys), ("its-own", &None));
    assert!(site.plane.all::<Node>().get("n2").await?.labels().is_empty());
    for (edge, ..) in others {
        edge.stop(START).await?;
    }
    site.stop().await
}

fn create_for(uid: &str) -> Vec<u8> {
    let mut request =
        csi::CreateVolumeRequest::decode(&*create(&format!("pvc-{uid}"))).unwrap_or_default();
    for (key, value) in [("pvc/name", "data"), ("pvc/namespace", "default"), ("pv/name", "pv-1")] {
        request.parameters.insert(format!("csi.storage.k8s.io/{key}"), value.into());
    }
    request.encode_to_vec()
}

fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "annotations": {
            "volume.kubernetes.io/storage-provisioner": DRIVER,
            "volume.kubernetes.io/selected-node": NODE,
        }},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "x",
            "resources": {"requests": {"storage": "1Mi"}}},
    })
}

#[tokio::test]
async fn an_outage_costs_no_call_and_what_came_meanwhile_is_done_after_it() -> anyhow::Result<()> {
    let Some(mut site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    site.published(NODE, true).await?;
    site.plane.kill_apiserver().await?;
    site.logged("Kubernetes is away").await?;
    let begun = tokio::time::Instant::now();
    let answer =
        site.world.front().await?.call(&controller("CreateVolume"), &create("meanwhile")).await?;
    created(&answer)?;
    assert!(begun.elapsed() < Duration::from_secs(5), "a call waited for Kubernetes");
    site.say(&["node", "remove", NODE, "--yes"]).await?;
    site.plane.serve().await?;
    site.published(NODE, false).await?;
    site.logged("answers again").await?;
    site.stop().await
}

#[tokio::test]
async fn claims_and_volumes_are_told_what_is_the_matter() -> anyhow::Result<()> {
    let Some(site) = Site::new(&[node(NODE, json!({}))]).await? else { return Ok(()) };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(site.plane.admin.clone(), "default");
    let params = PostParams::default();
    let data = claims.create(&params, &serde_json::from_value(claim("data"))?).await?;
    let volume = json!({
        "metadata": {"name": "pv-1"},
        "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": DRIVER, "volumeHandle": "v"}},
    });
    site.plane.make::<PersistentVolume>(volume, "admin").await?;
    let uid = data.uid().context("no uid")?;
    let answer =
        site.world.front().await?.call(&controller("CreateVolume"), &create_for(&uid)).await?;
    let made = created(&answer)?;
    let shown: Value = serde_json::from_str(&site.say(&["volumes", "-o", "json"]).await?)?;
    assert_eq!(
        (&shown[0]["claim_name"], &shown[0]["persistent_volume"]),
        (&json!("data"), &json!("pv-1"))
    );
    site.logged("default/data").await?;
    // The edge goes, and a claim waits for it.
    site.world.edge.signal(rustix::process::Signal::KILL)?;
    claims.create(&params, &serde_json::from_value(claim("waits"))?).await?;
    let event = site.plane.event("EdgeAway", "waits").await?;
    assert!(event.note.is_some_and(|note| note.contains("node n1 has had no link")));
    // Gone for good: the volume is lost, and both that speak of it say so.
    site.say(&["node", "remove", NODE, "--yes"]).await?;
    for name in ["data", "pv-1"] {
        let event = site.plane.event("VolumeLost", name).await?;
        assert!(event.note.is_some_and(|note| note.contains(&made.volume_id)), "{name}");
    }
    let event = site.plane.event("VolumeLost", "data").await?;
    assert_eq!(event.regarding.and_then(|about| about.uid), Some(uid));
    site.plane.event("EdgeRemoved", "waits").await?;
    let told = site.plane.all::<Event>().list(&ListParams::default()).await?.items;
    let of =
        |reason: &str| told.iter().filter(|event| event.reason.as_deref() == Some(reason)).count();
    assert_eq!((of("EdgeAway"), of("VolumeLost")), (2, 2), "each once");
    site.plane.stop().await?;
    site.world.cloud.process.stop(START).await
}
