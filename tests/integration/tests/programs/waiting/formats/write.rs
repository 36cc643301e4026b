//! Writes stores, a state directory, a hello and a welcome with older programs, for
//! `tests/formats/make.sh`. Not a test: it needs root, loop devices, etcd and those programs.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, TestDriver, Times};
use harness::etcd_server::EtcdServer;
use harness::process::Process;
use harness::raw::RawClient;
use harness::replicas;
use harness::replicas::Replica;
use harness::requests::{controller, created};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE, ready, section};
use prost::Message;
use proto::csi;
use proto::csi::volume_capability::access_mode::Mode;
use proto::host::publish::{Existing, publish};
use tonic::Code;

use super::super::routing::create_at;
use super::etcd;
use super::supplement::supplemented;
use super::things::{DIRECT, OPEN, POD, REMOVED, REVOKED_NODE, SHARED, TOKEN_NODE, claimed, make};
use super::wire::{RawCloud, RawLink};

/// The older version's world.
struct Older {
    stand: Stand,
    drivers: [TestDriver; 2],
    url: String,
}

#[tokio::test]
#[ignore = "it writes tests/formats, by older programs"]
async fn older_programs_write() -> anyhow::Result<()> {
    let into = PathBuf::from(std::env::var("FORMATS").context("FORMATS=DIR is not set")?);
    let mut stand = Stand::new().await?;
    stand.issuing(&format!("{}{}", section(DRIVER, "node"), section(SHARED, "shared")))?;
    let drivers = ["n1", "n2"].map(|node| TestDriver::new(DRIVER, node));
    // No id is at both.
    drivers[1].count_from(100);
    let mut serving = Vec::new();
    for (driver, node) in drivers.iter().zip(["n1", "n2"]) {
        serving.push(driver.serve(stand.at(&format!("{node}.sock")).as_ref())?);
    }
    let hostdir = hostdir(&stand).await?;
    let cloud = start(&stand, "wss://127.0.0.1:0").await?;
    let url = cloud.urls.first().context("no listener")?.clone();
    let mut edges = Vec::new();
    for node in ["n1", "n2"] {
        let mut edge = edge(&mut stand, node, &url).await?;
        edge.line_starting("linked ", START).await?;
        edges.push(edge);
    }
    let mut older = Older { stand, drivers, url };
    older.fill().await?;
    let volume = older.hand_over().await?;
    older.remove_second().await?;
    let token = older.trust().await?;
    cloud.process.stop(STOP).await?;
    for edge in edges {
        edge.stop(STOP).await?;
    }
    older.supplement().await?;
    older.keep(&into, &token).await?;
    older.record(&into).await?;
    older.take_back(&volume).await?;
    hostdir.stop(STOP).await?;
    for serving in serving {
        serving.stop().await;
    }
    Ok(())
}

async fn hostdir(stand: &Stand) -> anyhow::Result<Process> {
    let mut command = stand.program("hostdir")?;
    let endpoint = format!("unix://{}", stand.at("hostdir.sock"));
    let state = stand.at("hostdir");
    command.args(["--endpoint", &endpoint, "--node-id", "both", "--state", &state]);
    let mut driver = Process::start("hostdir", command, stand.dir())?;
    driver.line_starting("ready", START).await?;
    Ok(driver)
}

async fn start(stand: &Stand, listen: &str) -> anyhow::Result<Cloud> {
    let config = stand.at("ca.toml");
    stand.cloud(&[listen], &[DRIVER, SHARED], &["--config", &config]).await
}

async fn edge(stand: &mut Stand, node: &str, url: &str) -> anyhow::Result<Process> {
    let [state, entries, sandboxes] =
        ["state", "entries", "sandboxes"].map(|what| stand.at(&format!("{node}-{what}")));
    let [own, shared] = [format!("{node}.sock"), "hostdir.sock".into()].map(|name| stand.at(&name));
    let more = [
        "--cloud",
        url,
        "--state",
        &state,
        "--direct-volumes",
        &entries,
        "--sandboxes",
        &sandboxes,
    ];
    stand.edge_with(node, &[(DRIVER, &own), (SHARED, &shared)], &more).await
}

impl Older {
    async fn front(&self, driver: &str) -> anyhow::Result<RawClient> {
        let front = RawClient::connect(&self.stand.cloud_front(driver)).await?;
        until("the cloud learns of the driver", || ready(&front)).await?;
        Ok(front)
    }

    async fn say(&self, command: &[&str]) -> anyhow::Result<String> {
        let admin = self.stand.at("cloud/_admin.sock");
        self.stand.run("csi-cloud", &[command, &["--admin", &admin]].concat()).await
    }

    /// Volumes, snapshots and intents of the driver of scope `node`.
    async fn fill(&self) -> anyhow::Result<()> {
        let front = self.front(DRIVER).await?;
        let path = controller("CreateVolume");
        until("the second node can be had", || async {
            let request = claimed(REMOVED, "n2")?.encode_to_vec();
            created(&front.call(&path, &request).await?).map(drop)
        })
        .await?;
        until("the first node can be had", || async { make(&front).await.map(drop) }).await?;
        let fault = Fault::error(Code::Unavailable, "not now");
        self.drivers[0].inject("CreateVolume", fault, Times::Next(1));
        let answer = front.call(&path, &create_at(OPEN, &["n1"])?.encode_to_vec()).await?;
        ensure!(answer.code() == Code::Unavailable, "{}", answer.status());
        // Lists are kept too.
        let answer = front.call(&controller("ListVolumes"), &[]).await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
        Ok(())
    }

    fn capability() -> csi::VolumeCapability {
        guest::scene::mount(Mode::SingleNodeMultiWriter, "ext4", "")
    }

    fn target(&self) -> anyhow::Result<(String, String)> {
        let volumes = format!("kubelet/pods/{POD}/volumes/kubernetes.io~csi/pv");
        for directory in ["staging", volumes.as_str()] {
            std::fs::create_dir_all(self.stand.at(directory))?;
        }
        Ok((self.stand.at("staging"), self.stand.at(&format!("{volumes}/mount"))))
    }

    /// Has the first node hand a volume of the shared driver over to a pod.
    async fn hand_over(&self) -> anyhow::Result<csi::Volume> {
        let class = [("direct", "kata"), ("direct-access", "ReadWriteOnce")];
        let class = class.map(|(key, value)| (format!("edge-csi.io/{key}"), value.to_owned()));
        let request = csi::CreateVolumeRequest {
            name: DIRECT.into(),
            capacity_range: Some(csi::CapacityRange { required_bytes: 64 << 20, limit_bytes: 0 }),
            volume_capabilities: vec![Self::capability()],
            parameters: class.into(),
            ..Default::default()
        };
        let front = self.front(SHARED).await?;
        let made = front.call(&controller("CreateVolume"), &request.encode_to_vec()).await?;
        let volume = created(&made)?;
        let (staging_target_path, target_path) = self.target()?;
        let stage = csi::NodeStageVolumeRequest {
            volume_id: volume.volume_id.clone(),
            staging_target_path: staging_target_path.clone(),
            volume_capability: Some(Self::capability()),
            volume_context: volume.volume_context.clone(),
            ..Default::default()
        };
        self.node("NodeStageVolume", &stage).await?;
        let request = csi::NodePublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            staging_target_path,
            target_path,
            volume_capability: Some(Self::capability()),
            volume_context: volume.volume_context.clone(),
            ..Default::default()
        };
        self.node("NodePublishVolume", &request).await?;
        Ok(volume)
    }

    async fn node(&self, method: &str, request: &impl Message) -> anyhow::Result<()> {
        let front = RawClient::connect(&self.stand.edge_front(NODE, SHARED)).await?;
        let path = format!("/csi.v1.Node/{method}");
        let answer = front.call(&path, &request.encode_to_vec()).await?;
        ensure!(answer.code() == Code::Ok, "{method}: {}", answer.status());
        Ok(())
    }

    async fn remove_second(&self) -> anyhow::Result<()> {
        self.say(&["node", "remove", "n2", "--yes"]).await.map(drop)
    }

    /// A token for a node that joins later, and a node whose certificates count no more. Returns
    /// the token.
    async fn trust(&self) -> anyhow::Result<String> {
        self.say(&["node", "revoke", REVOKED_NODE]).await?;
        let command = self.say(&["token", "create", TOKEN_NODE, "--cloud", &self.url]).await?;
        let shown = command.trim().strip_prefix("printf %s ").context("no token")?;
        let (token, _) = shown.split_once(' ').context("no command")?;
        Ok(token.into())
    }

    async fn export(&self, store: &str, more: &[&str]) -> anyhow::Result<String> {
        let command = ["store", "export", "--store", store];
        self.stand.run("csi-cloud", &[&command, more].concat()).await
    }

    /// Has the older csi-cloud make its store of an export with further records, and open it.
    async fn supplement(&self) -> anyhow::Result<()> {
        let [path, first, file] =
            ["cloud.redb", "first.redb", "supplemented"].map(|name| self.stand.at(name));
        let store = format!("file:{path}");
        let export = supplemented(&self.export(&store, &["--with-secrets"]).await?)?;
        std::fs::rename(&path, &first)?;
        publish(file.as_ref(), export.as_bytes(), 0o600, Existing::Keep)?;
        self.stand.run("csi-cloud", &["store", "import", "--store", &store, &file]).await?;
        start(&self.stand, &self.url).await?.process.stop(STOP).await
    }

    /// Has an older csi-cloud lead with a store in etcd that is made of the export, and returns the
    /// keys of it.
    async fn in_etcd(&self, export: &str) -> anyhow::Result<String> {
        let etcd = EtcdServer::start(self.stand.dir(), 1).await?;
        let store = etcd.url(etcd::PREFIX);
        self.stand.run("csi-cloud", &["store", "import", "--store", &store, export]).await?;
        let config = self.stand.at("ca.toml");
        let drivers = [DRIVER, SHARED];
        let replica = Replica::new("replica", &["wss"], &store, &drivers)?;
        let mut replicas = [replica.with(&["--config", &config])];
        for replica in &mut replicas {
            replica.start(&self.stand).await?;
        }
        replicas::leader(&replicas, &[]).await?;
        for replica in &mut replicas {
            replica.take()?.stop(STOP).await?;
        }
        etcd::dump(etcd.addresses().first().context("no member")?).await
    }

    /// Keeps the store, the same as an export and in etcd, the first node's state, and the token.
    async fn keep(&self, into: &Path, token: &str) -> anyhow::Result<()> {
        std::fs::create_dir_all(into)?;
        let export = self.export(&format!("file:{}", self.stand.at("cloud.redb")), &[]).await?;
        let write = |name: &str, text: &str| {
            publish(self.stand.at(name).as_ref(), text.as_bytes(), 0o644, Existing::Keep)
        };
        write("export.jsonl", &export)?;
        write("etcd.jsonl", &self.in_etcd(&self.stand.at("export.jsonl")).await?)?;
        publish(&into.join("token"), token.as_bytes(), 0o644, Existing::Replace)?;
        let [here, state] = [".", "n1-state"].map(|name| self.stand.at(name));
        for (file, of, name) in [
            ("store.tar.gz", &here, "cloud.redb"),
            ("export.tar.gz", &here, "export.jsonl"),
            ("etcd.tar.gz", &here, "etcd.jsonl"),
            ("state.tar.gz", &state, "."),
        ] {
            // The zeros of the store are most of it.
            let mut tar = std::process::Command::new("tar");
            tar.args(["--owner=0", "--group=0", "-C", of, "-czf"]).arg(into.join(file)).arg(name);
            ensure!(tar.status()?.success(), "tar failed");
        }
        Ok(())
    }

    /// What the programs say first on a link.
    async fn record(&mut self, into: &Path) -> anyhow::Result<()> {
        let (listener, url) = RawCloud::listen(&self.stand).await?;
        let first = edge(&mut self.stand, NODE, &url).await?;
        // The drivers have introduced themselves by the second one.
        let hello = until("a hello with all drivers", || async {
            let hello = listener.accept().await?.next().await?;
            ensure!(hello.matches("NodeGetInfo").count() == 2, "{hello}");
            Ok(hello)
        })
        .await?;
        first.stop(STOP).await?;
        let cloud = start(&self.stand, &self.url).await?;
        let mut link = RawLink::dial(&self.stand, &self.url).await?;
        link.send(&hello).await?;
        let welcome = link.next().await?;
        cloud.process.stop(STOP).await?;
        for (name, text) in [("hello.json", &hello), ("welcome.json", &welcome)] {
            publish(&into.join(name), text.as_bytes(), 0o644, Existing::Replace)?;
        }
        Ok(())
    }

    /// Ends the pod, so that no device is left.
    async fn take_back(&mut self, volume: &csi::Volume) -> anyhow::Result<()> {
        let cloud = start(&self.stand, &self.url).await?;
        let url = self.url.clone();
        let mut edge = edge(&mut self.stand, NODE, &url).await?;
        edge.line_starting("linked ", START).await?;
        let volume_id = volume.volume_id.clone();
        let (staging_target_path, target_path) = self.target()?;
        let request = csi::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path };
        self.node("NodeUnpublishVolume", &request).await?;
        let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
        self.node("NodeUnstageVolume", &request).await?;
        edge.stop(STOP).await?;
        cloud.process.stop(STOP).await
    }
}
