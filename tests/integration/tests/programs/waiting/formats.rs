//! What an older version wrote is read by this one: its store, its state directory, its hello and
//! its welcome. They are committed in `tests/formats`, whose README says how they were made.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use drivers::testdriver::{Running, TestDriver};
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::{controller, created, delete};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE, section};
use prost::Message;
use proto::control::hello;
use proto::csi;
use proto::host::publish::{Existing, publish};
use serde_json::Value;
use tonic::Code;

use super::routing::create_at;
use things::{DIRECT, FIRST, Ids, OPEN, POD, REMOVED, SHARED, claimed, make, restored};
use wire::{RawCloud, RawLink};

mod things;
mod wire;
mod write;

/// The versions whose formats are committed: the release before this one, and older ones.
const VERSIONS: [&str; 1] = ["0.1.0"];

fn committed(version: &str, file: &str) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats");
    formats.join(version).join(file)
}

fn unpack(version: &str, stand: &Stand) -> anyhow::Result<()> {
    for (file, name) in [("store.tar.gz", "."), ("state.tar.gz", "n1-state")] {
        std::fs::create_dir_all(stand.at(name))?;
        let mut tar = Command::new("tar");
        tar.args(["-C", &stand.at(name), "-xzf"]).arg(committed(version, file));
        let output = tar.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// This version's programs, started with what an older version kept of a cloud and its node n1.
struct Successor {
    stand: Stand,
    cloud: Cloud,
    edge: Process,
    driver: TestDriver,
    serving: Running,
    /// The things at n1, which the driver has again.
    ids: Ids,
}

impl Successor {
    async fn of(version: &str) -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        unpack(version, &stand)?;
        let store = format!("file:{}", stand.at("cloud.redb"));
        let checked = stand.run("csi-cloud", &["store", "check", "--store", &store]).await?;
        ensure!(checked.contains("in format 1, and nothing is wrong"), "{checked}");
        let driver = TestDriver::new(DRIVER, NODE);
        let socket = stand.at("n1.sock");
        let serving = driver.serve(socket.as_ref())?;
        let ids = make(&RawClient::connect(&socket).await?).await?;
        driver.forget_calls();
        let config = stand.at("cloud.toml");
        let text = format!("{}{}", section(DRIVER, "node"), section(SHARED, "shared"));
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
        let more = ["--config", &config];
        let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER, SHARED], &more).await?;
        let [state, entries, away] =
            ["n1-state", "entries", "away.sock"].map(|name| stand.at(name));
        let url = cloud.urls.first().context("no listener")?.clone();
        let more = ["--cloud", &url, "--state", &state, "--direct-volumes", &entries];
        let at_n1 = [(DRIVER, socket.as_str()), (SHARED, away.as_str())];
        let mut edge = stand.edge_with(NODE, &at_n1, &more).await?;
        edge.line_starting("linked ", START).await?;
        Ok(Self { stand, cloud, edge, driver, serving, ids })
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

    async fn stop(self) -> anyhow::Result<()> {
        self.edge.stop(STOP).await?;
        self.serving.stop().await;
        self.cloud.process.stop(STOP).await
    }

    /// All that the store has is shown.
    async fn shows_it(&self) -> anyhow::Result<()> {
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
        let states: Vec<_> = nodes.iter().map(|node| (&node["name"], &node["state"])).collect();
        ensure!(states == [(&"n1".into(), &"linked".into()), (&"n2".into(), &"removed".into())]);
        let intents = self.json(&["intents"]).await?;
        ensure!(intents.len() == 1 && intents[0]["name"] == OPEN, "{intents:?}");
        ensure!(intents[0]["node"] == NODE, "{intents:?}");
        Ok(())
    }

    /// Calls about it go where they went.
    async fn serves_it(&self) -> anyhow::Result<()> {
        let path = controller("CreateVolume");
        // As a provisioner that was restarted asks again.
        let again = self.call(&path, &claimed(FIRST, "n1")?.encode_to_vec()).await?;
        ensure!(created(&again)?.volume_id == self.ids.volume, "it was made twice");
        let again = self.call(&path, &restored(&self.ids.snapshot)?).await?;
        ensure!(created(&again)?.volume_id == self.ids.clone, "it was made twice");
        let lost = self.call(&path, &claimed(REMOVED, "n1")?.encode_to_vec()).await?;
        ensure!(lost.code() != Code::Ok, "what is at a removed node was made again");
        let open = self.call(&path, &create_at(OPEN, &["n1"])?.encode_to_vec()).await?;
        ensure!(open.code() == Code::Ok, "{}", open.status());
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

    /// The node still has what it handed over, and the cloud knows.
    async fn keeps_the_lease(&self) -> anyhow::Result<()> {
        let [state, entries] = ["n1-state", "entries"].map(|name| self.stand.at(name));
        let at = ["--state", &state, "--entries", &entries];
        let listed = [&["direct", "list", "-o", "json"], at.as_slice()].concat();
        let listed = self.stand.run("csi-edge", &listed).await?;
        let listed: Vec<Value> = serde_json::from_str(&listed)?;
        ensure!(listed.len() == 1 && listed[0]["driver"] == SHARED, "{listed:?}");
        // Its device went with the machine that it was made on.
        ensure!(listed[0]["lease"]["state"] == "held", "{listed:?}");
        ensure!(listed[0]["podUid"] == POD, "{listed:?}");
        let owners = self.json(&["owners"]).await?;
        ensure!(owners.len() == 1 && owners[0]["holder_node"] == NODE, "{owners:?}");
        ensure!(owners[0]["claimed_by"] == Value::Array(Vec::new()), "{owners:?}");
        Ok(())
    }
}

#[tokio::test]
async fn the_store_and_the_state_of_an_older_version_are_read_and_served() -> anyhow::Result<()> {
    for version in VERSIONS {
        let successor = Successor::of(version).await?;
        until("all is shown", || successor.shows_it()).await.context(version)?;
        until("the lease is held", || successor.keeps_the_lease()).await.context(version)?;
        successor.serves_it().await.context(version)?;
        successor.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_edge_of_an_older_version_is_welcome() -> anyhow::Result<()> {
    for version in VERSIONS {
        let stand = Stand::new().await?;
        stand.run("csi-cloud", &["ca", "issue", NODE, "--dir", &stand.pki()]).await?;
        let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &[]).await?;
        let mut link = RawLink::dial(&stand, cloud.urls.first().context("no listener")?).await?;
        link.send(&std::fs::read_to_string(committed(version, "hello.json"))?).await?;
        let welcome: Value = serde_json::from_str(&link.next().await?)?;
        ensure!(welcome["welcome"]["protocol"] == hello::PROTOCOL, "{welcome}");
        ensure!(welcome["welcome"]["owners"] == true, "{welcome}");
        let admin = stand.at("cloud/_admin.sock");
        let nodes = stand.run("csi-cloud", &["nodes", "-o", "json", "--admin", &admin]).await?;
        let nodes: Value = serde_json::from_str(&nodes)?;
        ensure!(nodes[0]["state"] == "linked" && nodes[0]["version"] == version, "{nodes}");
        ensure!(nodes[0]["drivers"][0] == DRIVER, "{nodes}");
        drop(link);
        cloud.process.stop(STOP).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_edge_links_to_a_cloud_of_an_older_version() -> anyhow::Result<()> {
    for version in VERSIONS {
        let mut stand = Stand::new().await?;
        let (cloud, url) = RawCloud::listen(&stand).await?;
        let socket = stand.at("driver.sock");
        let driver = TestDriver::new(DRIVER, NODE);
        let serving = driver.serve(socket.as_ref())?;
        let state = stand.at("n1-state");
        let more = ["--cloud", url.as_str(), "--state", &state];
        let mut edge = stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
        let mut link = cloud.accept().await?;
        let hello: Value = serde_json::from_str(&link.next().await?)?;
        ensure!(hello["hello"]["protocol"] == hello::PROTOCOL, "{hello}");
        link.send(&std::fs::read_to_string(committed(version, "welcome.json"))?).await?;
        edge.line_starting("linked ", START).await?;
        // The scopes that it told are kept.
        until("the scopes are kept", || async {
            let scopes = std::fs::read_to_string(Path::new(&state).join("scopes.json"))?;
            ensure!(scopes.contains(DRIVER), "{scopes}");
            Ok(())
        })
        .await?;
        drop(link);
        edge.stop(STOP).await?;
        serving.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_hello_of_the_next_protocol_is_refused_with_the_one_that_is_spoken() -> anyhow::Result<()>
{
    let stand = Stand::new().await?;
    stand.run("csi-cloud", &["ca", "issue", NODE, "--dir", &stand.pki()]).await?;
    let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &[]).await?;
    let mut link = RawLink::dial(&stand, cloud.urls.first().context("no listener")?).await?;
    link.send(r#"{"hello":{"protocol":2,"names":["n1"]}}"#).await?;
    let refused: Value = serde_json::from_str(&link.next().await?)?;
    ensure!(refused["refused"]["protocol"] == 1, "{refused}");
    let reason = refused["refused"]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("upgrade csi-cloud first"), "{refused}");
    cloud.process.stop(STOP).await
}

#[tokio::test]
async fn a_state_directory_of_a_newer_version_is_refused_and_left_alone() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let state = stand.at("n1-state");
    std::fs::create_dir(&state)?;
    let newer = br#"{"format":2}"#;
    let file = Path::new(&state).join("format.json");
    publish(&file, newer, 0o600, Existing::Keep)?;
    let more = ["--cloud", "wss://127.0.0.1:1", "--state", &state];
    let mut edge = stand.edge_with(NODE, &[(DRIVER, "/nowhere.sock")], &more).await?;
    ensure!(!edge.ended(START).await?.success(), "it served");
    let log = edge.log_tail();
    for word in [state.as_str(), "in format 2", "start the newer csi-edge again"] {
        ensure!(log.contains(word), "{log}");
    }
    let listed = stand.run("csi-edge", &["direct", "list", "--state", &state]).await;
    let refused = format!("{:#}", listed.err().context("it was listed")?);
    ensure!(refused.contains("in format 2"), "{refused}");
    let left: Vec<_> = std::fs::read_dir(&state)?.collect::<Result<_, _>>()?;
    ensure!(left.len() == 1 && std::fs::read(&file)? == newer, "{left:?}");
    Ok(())
}
