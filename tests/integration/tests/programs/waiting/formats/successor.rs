//! Today's programs, started with the files of an older version.

use std::process::Command;

use anyhow::{Context, ensure};
use drivers::testdriver::{Running, TestDriver};
use harness::etcd_server::EtcdServer;
use harness::port;
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::{controller, created, delete};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE, section};
use prost::Message;
use proto::csi;
use serde_json::{Value, json};
use tonic::Code;

use super::super::routing::create_at;
use super::etcd;
use super::things::{
    CLAIMED, DIRECT, FIRST, Ids, OLDEST, OPEN, POD, REMOVED, REVOKED_NODE, SHARED, TOKEN_NODE,
    UNCOUNTED, UNPROVEN, claimed, committed, make, restored,
};

/// How an older csi-cloud kept its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// In a file.
    File,
    /// As an export of such a file.
    Export,
    /// In etcd.
    Etcd,
}

impl Kept {
    /// Makes the store again, and returns its URL.
    async fn restore(
        self,
        version: &str,
        stand: &Stand,
    ) -> anyhow::Result<(String, Option<EtcdServer>)> {
        let file = format!("file:{}", stand.at("cloud.redb"));
        match self {
            Self::File => unpack(version, "store", &stand.at("."))?,
            Self::Export => {
                unpack(version, "export", &stand.at("."))?;
                let export = stand.at("export.jsonl");
                let import = ["store", "import", "--store", &file, "--move", "none", &export];
                stand.run("csi-cloud", &import).await?;
            }
            Self::Etcd => {
                unpack(version, "etcd", &stand.at("."))?;
                let server = EtcdServer::start(stand.dir(), 1).await?;
                let addresses = server.addresses();
                let dump = std::fs::read_to_string(stand.at("etcd.jsonl"))?;
                etcd::restore(addresses.first().context("no member")?, &dump).await?;
                return Ok((server.url(etcd::PREFIX), Some(server)));
            }
        }
        Ok((file, None))
    }

    /// The format that the store states.
    fn format(self, version: &str) -> u64 {
        match self {
            Self::File | Self::Export if version == OLDEST => 1,
            // Nodes claim a lease by their words.
            Self::File | Self::Export => 2,
            // Several csi-clouds may have led.
            Self::Etcd => 3,
        }
    }
}

fn unpack(version: &str, name: &str, into: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(into)?;
    let archive = committed(version, &format!("{name}.tar.gz"));
    let output = Command::new("tar").args(["-C", into, "-xzf"]).arg(archive).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The creates whose outcome is not known, by name.
fn open_creates(version: &str) -> &'static [&'static str] {
    if version == OLDEST { &[OPEN] } else { &[OPEN, UNCOUNTED] }
}

/// This version's programs, started with what an older version kept of a cloud and its node n1.
pub(super) struct Successor {
    stand: Stand,
    /// The store's, if it is in etcd.
    _etcd: Option<EtcdServer>,
    cloud: Cloud,
    edges: Vec<Process>,
    driver: TestDriver,
    /// `None` while the driver of the first node is away.
    serving: Option<Running>,
    /// The things at n1, which the driver has again.
    ids: Ids,
}

impl Successor {
    pub(super) async fn start(version: &str, kept: Kept) -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        unpack(version, "state", &stand.at("n1-state"))?;
        let (store, etcd) = kept.restore(version, &stand).await?;
        let checked = stand.run("csi-cloud", &["store", "check", "--store", &store]).await?;
        let format = kept.format(version);
        let expected = format!("in format {format}, and nothing is wrong");
        ensure!(checked.contains(&expected), "{checked}");
        let driver = TestDriver::new(DRIVER, NODE);
        let socket = stand.at("n1.sock");
        let serving = Some(driver.serve(socket.as_ref())?);
        let ids = make(&RawClient::connect(&socket).await?).await?;
        driver.forget_calls();
        let config =
            stand.issuing(&format!("{}{}", section(DRIVER, "node"), section(SHARED, "shared")))?;
        let url = format!("wss://127.0.0.1:{}", port::free()?);
        let [relays, store] =
            [format!("unix:{}", stand.at("relays.sock")), format!("--store={store}")];
        let mut more = vec!["--config", &config, &store];
        if etcd.is_some() {
            more.extend(["--replica", "cloud", "--advertise", &url, "--holders", &relays]);
        }
        let cloud = stand.cloud(&[&url], &[DRIVER, SHARED], &more).await?;
        let [state, entries, away] =
            ["n1-state", "entries", "away.sock"].map(|name| stand.at(name));
        let more = ["--cloud", &url, "--state", &state, "--direct-volumes", &entries];
        let at_n1 = [(DRIVER, socket.as_str()), (SHARED, away.as_str())];
        let mut edge = stand.edge_with(NODE, &at_n1, &more).await?;
        edge.line_starting("linked ", START).await?;
        let edges = vec![edge];
        Ok(Self { stand, _etcd: etcd, cloud, edges, driver, serving, ids })
    }

    async fn json(&self, command: &[&str]) -> anyhow::Result<Vec<Value>> {
        let admin = self.stand.at("cloud/_admin.sock");
        let command = [command, &["-o", "json", "--admin", &admin]].concat();
        let said = self.stand.run("csi-cloud", &command).await?;
        Ok(serde_json::from_str::<Vec<Value>>(&said)?)
    }

    async fn call(&self, method: &str, request: &[u8]) -> anyhow::Result<harness::raw::RawAnswer> {
        let front = RawClient::connect(&self.stand.cloud_front(DRIVER)).await?;
        front.call(method, request).await
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        for edge in self.edges {
            edge.stop(STOP).await?;
        }
        if let Some(serving) = self.serving {
            serving.stop().await;
        }
        self.cloud.process.stop(STOP).await
    }

    /// All that the store has is shown.
    pub(super) async fn shows_it(&self, version: &str) -> anyhow::Result<()> {
        let volumes = self.json(&["volumes", "--all"]).await?;
        let of = |id: &str| volumes.iter().find(|volume| volume["id"] == id);
        let first = of(&self.ids.volume).context("no first volume")?;
        for (key, expected) in
            [("node", NODE), ("name", FIRST), ("claim_namespace", "shop"), ("claim_name", FIRST)]
        {
            ensure!(first[key] == expected, "{first}");
        }
        for (id, kind) in [
            (&self.ids.snapshot, "snapshot"),
            (&self.ids.group, "group"),
            (&self.ids.clone, "volume"),
        ] {
            let thing = of(id).with_context(|| format!("no {kind} {id}"))?;
            ensure!(thing["kind"] == kind && thing["node"] == NODE, "{thing}");
            ensure!(thing["state"] == "ok", "{thing}");
        }
        let lost = volumes.iter().find(|volume| volume["name"] == REMOVED);
        let lost = lost.context("no volume of the removed node")?;
        ensure!(lost["node"] == "n2" && lost["state"] == "lost", "{lost}");
        let direct = volumes.iter().find(|volume| volume["name"] == DIRECT).context("no direct")?;
        ensure!(direct["holder_node"] == NODE && direct["holder_pod"] == POD, "{direct}");
        let nodes = self.json(&["nodes"]).await?;
        let state = |name: &str| Some(&nodes.iter().find(|node| node["name"] == name)?["state"]);
        ensure!(state("n1") == Some(&"linked".into()), "{nodes:?}");
        ensure!(state("n2") == Some(&"removed".into()), "{nodes:?}");
        let intents = self.json(&["intents"]).await?;
        let open: Vec<_> = intents.iter().map(|intent| &intent["name"]).collect();
        ensure!(open == open_creates(version), "{intents:?}");
        ensure!(intents.iter().all(|intent| intent["node"] == NODE), "{intents:?}");
        Ok(())
    }

    /// Calls about it go where they went.
    pub(super) async fn serves_it(&self) -> anyhow::Result<()> {
        let path = controller("CreateVolume");
        // As a provisioner that was restarted asks again.
        let again = self.call(&path, &claimed(FIRST, "n1")?.encode_to_vec()).await?;
        ensure!(created(&again)?.volume_id == self.ids.volume, "it was made twice");
        let again = self.call(&path, &restored(&self.ids.snapshot)?).await?;
        ensure!(created(&again)?.volume_id == self.ids.clone, "it was made twice");
        let lost = self.call(&path, &claimed(REMOVED, "n1")?.encode_to_vec()).await?;
        ensure!(lost.code() != Code::Ok, "what is at a removed node was made again");
        let listed = self.call(&controller("ListVolumes"), &[]).await?;
        let listed = csi::ListVolumesResponse::decode(listed.message().context("no list")?)?;
        let ids = listed.entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id));
        let ids: Vec<_> = ids.collect();
        ensure!(ids.contains(&self.ids.volume) && ids.contains(&self.ids.clone), "{ids:?}");
        let request = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: self.ids.group.clone(),
            ..Default::default()
        };
        let path = "/csi.v1.GroupController/GetVolumeGroupSnapshot";
        let group = self.call(path, &request.encode_to_vec()).await?;
        ensure!(group.code() == Code::Ok, "{}", group.status());
        let gone = self.call(&controller("DeleteVolume"), &delete(&self.ids.clone)).await?;
        ensure!(gone.code() == Code::Ok, "{}", gone.status());
        ensure!(self.driver.calls_of("DeleteVolume").len() == 1, "it did not reach its home");
        Ok(())
    }

    /// The node still has what it handed over, and the cloud knows which leases are proven.
    pub(super) async fn keeps_the_leases(&self, version: &str) -> anyhow::Result<()> {
        let [state, entries] = ["n1-state", "entries"].map(|name| self.stand.at(name));
        let at = ["--state", &state, "--entries", &entries];
        let listed = [&["direct", "list", "-o", "json"], at.as_slice()].concat();
        let listed = self.stand.run("csi-edge", &listed).await?;
        let listed: Vec<Value> = serde_json::from_str(&listed)?;
        ensure!(listed.len() == 1 && listed[0]["driver"] == SHARED, "{listed:?}");
        // Its device went with the machine that it was made on.
        ensure!(listed[0]["lease"]["state"] == "held", "{listed:?}");
        ensure!(listed[0]["podUid"] == POD, "{listed:?}");
        let leases = self.json(&["leases"]).await?;
        let proven = leases.iter().find(|lease| lease["holder_pod"] == POD);
        let proven = proven.context("no lease of the pod")?;
        ensure!(proven["holder_node"] == NODE && proven["holder_unproven"] == false, "{proven}");
        ensure!(proven["claimed_by"] == Value::Array(Vec::new()), "{proven}");
        if version == OLDEST {
            ensure!(leases.len() == 1, "{leases:?}");
            return Ok(());
        }
        let of = |id: &str| leases.iter().find(|lease| lease["id"] == id).context("no lease");
        let word = of(UNPROVEN)?;
        ensure!(word["holder_node"] == "n3" && word["holder_unproven"] == true, "{word}");
        let claimed = of(CLAIMED)?;
        ensure!(claimed["holder_node"].is_null(), "{claimed}");
        ensure!(claimed["claimed_by"] == json!(["n3", "n4"]), "{claimed}");
        Ok(())
    }

    /// The token lets its node join, and the revoked node gets no link.
    pub(super) async fn trusts_the_same(&mut self, version: &str) -> anyhow::Result<()> {
        if version == OLDEST {
            return Ok(());
        }
        let url = self.cloud.urls.first().context("no listener")?.clone();
        let admin = self.stand.at("cloud/_admin.sock");
        let create = ["token", "create", "n9", "--cloud", &url, "--admin", &admin];
        let command = self.stand.run("csi-cloud", &create).await?;
        let (_, join) = command.split_once(" | ").context("no token")?;
        let token = std::fs::read_to_string(committed(version, "token"))?;
        self.stand.join(&format!("printf %s {token} | {join}"), "joined").await?;
        let tokens = self.json(&["token", "list"]).await?;
        let used = tokens.iter().find(|token| token["node"] == TOKEN_NODE);
        ensure!(used.is_some_and(|token| token["state"] == "used"), "{tokens:?}");
        let socket = self.stand.at("n1.sock");
        let edge = self.stand.edge_started(REVOKED_NODE, &url, &[(DRIVER, &socket)]).await?;
        until("the revoked node is told", || async {
            let log = edge.log_tail();
            ensure!(log.contains("it has revoked our certificate"), "{log}");
            Ok(())
        })
        .await?;
        edge.stop(STOP).await
    }

    /// A create of unknown outcome stays at its node, also if that node's driver does not get it
    /// now and another node is asked for.
    pub(super) async fn holds_names(&mut self, version: &str) -> anyhow::Result<()> {
        let other = TestDriver::new(DRIVER, "n3");
        other.count_from(300);
        let socket = self.stand.at("n3.sock");
        let elsewhere = other.serve(socket.as_ref())?;
        let url = self.cloud.urls.first().context("no listener")?.clone();
        self.edges.push(self.stand.edge("n3", &url, &[(DRIVER, &socket)]).await?);
        let path = controller("CreateVolume");
        until("the third node can be had", || async {
            let request = create_at("pvc-third", &["n3"])?.encode_to_vec();
            created(&self.call(&path, &request).await?).map(drop)
        })
        .await?;
        other.forget_calls();
        let serving = self.serving.take().context("no driver")?;
        serving.stop().await;
        for name in open_creates(version).iter().cycle().take(4) {
            let asked = create_at(name, &["n3"])?.encode_to_vec();
            let answer = self.call(&path, &asked).await?;
            ensure!(answer.code() == Code::Unavailable, "{name}: {}", answer.status());
        }
        let at_n3 = other.calls_of("CreateVolume").len();
        ensure!(at_n3 == 0, "a create of unknown outcome was sent to another node");
        self.serving = Some(self.driver.serve(self.stand.at("n1.sock").as_ref())?);
        for name in open_creates(version) {
            let asked = create_at(name, &["n1"])?.encode_to_vec();
            until("the create is carried out at its node", || async {
                let answer = self.call(&path, &asked).await?;
                ensure!(answer.code() == Code::Ok, "{name}: {}", answer.status());
                Ok(())
            })
            .await?;
        }
        ensure!(other.calls_of("CreateVolume").is_empty(), "it was made at another node");
        elsewhere.stop().await;
        Ok(())
    }
}
