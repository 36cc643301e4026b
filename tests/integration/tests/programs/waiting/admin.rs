//! The operators' commands against a running csi-cloud, as tables and as JSON.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, Times};
use harness::process::Process;
use harness::requests::{controller, create, created, delete};
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, World};
use prost::Message;
use proto::csi;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;

/// A world with an admin socket.
struct Desk {
    world: World,
    admin: String,
}

impl Desk {
    async fn new(transport: &str) -> anyhow::Result<Self> {
        let world = World::with(transport, &["--http", "127.0.0.1:0"], &[]).await?;
        let admin = world.stand.at("cloud/_admin.sock");
        Ok(Self { world, admin })
    }

    /// The output of a command.
    async fn say(&self, command: &[&str]) -> anyhow::Result<String> {
        self.world.stand.run("csi-cloud", &[command, &["--admin", &self.admin]].concat()).await
    }

    /// The JSON output of a command.
    async fn json(&self, command: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.say(&[command, &["-o", "json"]].concat()).await?)?)
    }

    /// Why a command fails.
    async fn refused(&self, command: &[&str]) -> anyhow::Result<String> {
        let error = self.say(command).await.err().context("it was not refused")?;
        Ok(format!("{error:#}"))
    }

    async fn call(&self, method: &str, request: &[u8]) -> anyhow::Result<Code> {
        Ok(self.world.front().await?.call(&controller(method), request).await?.code())
    }

    async fn volume(&self, name: &str) -> anyhow::Result<String> {
        let answer =
            self.world.front().await?.call(&controller("CreateVolume"), &create(name)).await?;
        Ok(created(&answer)?.volume_id)
    }

    /// A page of HTTP: its status line and all that follows.
    async fn get(&self, path: &str) -> anyhow::Result<String> {
        let address = self.world.cloud.http.as_deref().context("no HTTP")?;
        let mut tcp = tokio::net::TcpStream::connect(address).await?;
        tcp.write_all(
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .await?;
        let mut text = String::new();
        tcp.read_to_string(&mut text).await?;
        Ok(text)
    }
}

/// The cells of a table's row, by its first one.
fn row<'a>(table: &'a str, first: &str) -> Vec<&'a str> {
    let cells =
        |line: &'a str| line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    table
        .lines()
        .map(cells)
        .find(|cells: &Vec<_>| cells.first() == Some(&first))
        .unwrap_or_default()
}

#[tokio::test]
async fn all_that_there_is_is_shown_as_a_table_and_as_json() -> anyhow::Result<()> {
    for (transport, name) in TRANSPORTS.into_iter().zip(["wss", "quic"]) {
        let desk = Desk::new(transport).await?;
        let id = desk.volume("pvc-1").await?;

        let nodes = desk.json(&["nodes"]).await?;
        let node = &nodes[0];
        for (key, expected) in [("name", NODE), ("state", "linked"), ("transport", name)] {
            assert_eq!(node[key], expected, "{nodes}");
        }
        assert_eq!(
            (&node["volumes"], &node["drivers"][0]),
            (&Value::from(1), &Value::from(DRIVER))
        );
        assert!(node["address"].as_str().is_some_and(|at| at.starts_with("127.0.0.1:")), "{node}");
        let table = desk.say(&["nodes"]).await?;
        assert_eq!(row(&table, "NAME")[..3], ["NAME", "STATE", "FOR"], "{table}");
        assert_eq!(row(&table, NODE)[1], "linked", "{table}");

        let drivers = desk.json(&["drivers"]).await?;
        for (key, expected) in
            [("nodes", 1), ("nodes_linked", 1), ("homes", 1), ("intents_open", 0)]
        {
            assert_eq!(drivers[0][key], expected, "{drivers}");
        }
        let can = drivers[0]["capabilities"]["ControllerGetCapabilities"]
            .as_array()
            .context("no words")?;
        assert!(can.contains(&"CREATE_DELETE_VOLUME".into()), "{drivers}");
        assert_eq!(row(&desk.say(&["drivers"]).await?, DRIVER)[1], "yes");

        let volumes = desk.json(&["volumes", "--driver", DRIVER, "--node", NODE]).await?;
        assert_eq!(
            (&volumes[0]["id"], &volumes[0]["state"]),
            (&Value::from(id.as_str()), &Value::from("ok"))
        );
        assert_eq!(volumes[0]["name"], "pvc-1");
        assert_eq!(desk.json(&["volumes", "--node", "n9"]).await?, Value::Array(Vec::new()));
        let table = desk.say(&["volumes"]).await?;
        assert_eq!(row(&table, &id)[1..4], ["volume", DRIVER, NODE], "{table}");

        assert_eq!(desk.json(&["intents"]).await?, Value::Array(Vec::new()));
        assert_eq!(desk.json(&["intents", "--all"]).await?[0]["made"], id.as_str());
        let drivers = desk.json(&["drivers"]).await?;
        assert_eq!(
            (&drivers[0]["nodes_linked"], &drivers[0]["homes"]),
            (&Value::from(1), &Value::from(1))
        );
        desk.world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_hangs_is_seen_with_its_node_and_what_it_is_about() -> anyhow::Result<()> {
    let desk = Desk::new(TRANSPORTS[0]).await?;
    let volume_id = desk.volume("v").await?;
    desk.world.driver.inject("ControllerGetVolume", Fault::Hang, Times::Next(1));
    let front = desk.world.front().await?;
    let request = csi::ControllerGetVolumeRequest { volume_id: volume_id.clone() }.encode_to_vec();
    let path = controller("ControllerGetVolume");
    let (answer, seen) = tokio::join!(front.call(&path, &request), async {
        desk.world.driver.wait_for("ControllerGetVolume", 1).await?;
        let seen = (
            desk.json(&["calls"]).await?,
            desk.say(&["calls"]).await?,
            desk.get("/metrics").await?,
        );
        desk.world.driver.release();
        anyhow::Ok(seen)
    });
    let (calls, table, metrics) = seen?;
    assert_eq!(answer?.code(), Code::Ok);
    let expected = [
        ("rpc", "ControllerGetVolume"),
        ("node", NODE),
        ("stage", "sent"),
        ("subject", &volume_id),
    ];
    for (key, expected) in expected {
        assert_eq!(calls[0][key], expected, "{calls}");
    }
    assert!(calls[0]["age_ms"].is_u64(), "{calls}");
    assert_eq!(row(&table, "ControllerGetVolume")[1..4], [DRIVER, NODE, &volume_id], "{table}");
    let in_flight = format!("edge_csi_calls_in_flight{{driver=\"{DRIVER}\",stage=\"sent\"}} 1");
    assert!(metrics.contains(&in_flight), "{metrics}");
    assert_eq!(desk.json(&["calls"]).await?, Value::Array(Vec::new()));

    let metrics = desk.get("/metrics").await?;
    for line in [
        format!("edge_csi_calls_total{{rpc=\"CreateVolume\",driver=\"{DRIVER}\",code=\"OK\"}} 1"),
        format!(
            "edge_csi_call_seconds_count{{hop=\"link\",rpc=\"CreateVolume\",driver=\"{DRIVER}\"}} 1"
        ),
        "edge_csi_links{transport=\"wss\"} 1".into(),
        "edge_csi_link_ups_total 1".into(),
        format!("edge_csi_homes{{driver=\"{DRIVER}\"}} 1"),
    ] {
        assert!(metrics.lines().any(|written| written == line), "{line} is not in {metrics}");
    }
    assert!(
        !metrics.contains(&volume_id) && !metrics.contains("node="),
        "labels are bounded: {metrics}"
    );
    assert!(desk.get("/livez").await?.starts_with("HTTP/1.1 200"));
    assert!(desk.get("/readyz").await?.starts_with("HTTP/1.1 200"));
    assert!(desk.get("/x").await?.starts_with("HTTP/1.1 404"));
    desk.world.stop().await
}

#[tokio::test]
async fn a_node_that_was_removed_is_kept_out_until_it_is_admitted() -> anyhow::Result<()> {
    let desk = Desk::new(TRANSPORTS[0]).await?;
    let volume_id = desk.volume("v").await?;
    let text = desk.refused(&["node", "remove", NODE]).await?;
    assert!(text.contains("nothing was changed") && text.contains("--yes"), "{text}");
    assert_eq!(desk.json(&["nodes"]).await?[0]["state"], "linked");
    let text = desk.refused(&["node", "remove", "n9", "--yes"]).await?;
    assert!(text.contains("n9 never linked"), "{text}");

    let said = desk.say(&["node", "remove", NODE, "--yes"]).await?;
    assert!(said.contains("n1 is removed; 1 volumes"), "{said}");
    wait_for_log(&desk.world.edge, "our node was removed there").await?;
    let nodes = desk.json(&["nodes"]).await?;
    assert_eq!(
        (&nodes[0]["state"], &nodes[0]["linked_s"]),
        (&Value::from("removed"), &Value::Null),
        "{nodes}"
    );
    assert_eq!(desk.json(&["volumes"]).await?[0]["state"], "lost");
    let unpublish = csi::ControllerUnpublishVolumeRequest {
        volume_id: volume_id.clone(),
        ..Default::default()
    };
    assert_eq!(desk.call("ControllerUnpublishVolume", &unpublish.encode_to_vec()).await?, Code::Ok);
    assert_ne!(desk.call("DeleteVolume", &delete(&volume_id)).await?, Code::Ok);

    desk.say(&["node", "admit", NODE]).await?;
    until("the node is linked again", || async {
        let nodes = desk.json(&["nodes"]).await?;
        ensure!(nodes[0]["state"] == "linked", "{nodes}");
        Ok(())
    })
    .await?;
    assert_eq!(desk.json(&["volumes"]).await?[0]["state"], "ok");
    assert_eq!(desk.call("DeleteVolume", &delete(&volume_id)).await?, Code::Ok);
    desk.world.stop().await
}

async fn wait_for_log(process: &Process, text: &str) -> anyhow::Result<()> {
    until(text, || async {
        ensure!(
            String::from_utf8_lossy(&process.log()).contains(text),
            "its log ends: {}",
            process.log_tail()
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_create_whose_outcome_nobody_knows_is_shown_and_resolved() -> anyhow::Result<()> {
    let desk = Desk::new(TRANSPORTS[0]).await?;
    for name in ["made", "not-made"] {
        desk.world.driver.inject(
            "CreateVolume",
            Fault::error(Code::Internal, "who knows"),
            Times::Next(1),
        );
        assert_eq!(desk.call("CreateVolume", &create(name)).await?, Code::Internal);
    }
    let open = desk.json(&["intent", "list"]).await?;
    assert_eq!(
        (&open[0]["name"], &open[1]["name"]),
        (&Value::from("made"), &Value::from("not-made"))
    );
    assert_eq!((&open[0]["node"], &open[0]["made"]), (&Value::from(NODE), &Value::Null), "{open}");
    assert_eq!(row(&desk.say(&["intents"]).await?, "made").last(), Some(&"open"));

    let text = desk.refused(&["intent", "resolve", DRIVER, "made"]).await?;
    assert!(text.contains("--not-made") && text.contains("--made"), "{text}");
    let text = desk.refused(&["intent", "resolve", DRIVER, "never", "--not-made"]).await?;
    assert!(text.contains("no create of the name never"), "{text}");
    desk.say(&["intent", "resolve", DRIVER, "made", "--made", "vol-by-hand"]).await?;
    let said = desk.say(&["intent", "resolve", DRIVER, "not-made", "--not-made"]).await?;
    assert!(said.contains("may go to another node"), "{said}");
    assert_eq!(desk.json(&["intents"]).await?, Value::Array(Vec::new()));
    assert_eq!(desk.json(&["volumes"]).await?[0]["id"], "vol-by-hand");
    desk.world.stop().await
}

#[tokio::test]
async fn homes_are_forgotten_and_learned_again() -> anyhow::Result<()> {
    let desk = Desk::new(TRANSPORTS[0]).await?;
    let id = desk.volume("v").await?;
    let text = desk.refused(&["volume", "forget", DRIVER, &id]).await?;
    assert!(text.contains("neither lost nor absent") && text.contains("--force"), "{text}");
    desk.say(&["volume", "forget", DRIVER, &id, "--force"]).await?;
    assert_eq!(desk.json(&["volumes"]).await?, Value::Array(Vec::new()));
    let said = desk.say(&["homes", "rebuild"]).await?;
    assert!(said.contains("1 nodes have 1 volumes"), "{said}");
    assert_eq!(desk.json(&["volumes"]).await?[0]["id"], id.as_str());

    let file = desk.world.stand.at("homes.txt");
    let text = format!("# by hand\n\n{DRIVER} n7 an id with spaces\n{DRIVER} n7 {id}\n");
    proto::host::publish::publish(
        file.as_ref(),
        text.as_bytes(),
        0o600,
        proto::host::publish::Existing::Replace,
    )?;
    let said = desk.say(&["homes", "rebuild", "--from", &file]).await?;
    assert!(said.contains("2 homes") && said.contains("never linked so far: n7"), "{said}");
    let volumes = desk.json(&["volumes"]).await?;
    assert_eq!(
        (&volumes[0]["id"], &volumes[0]["node"]),
        (&"an id with spaces".into(), &Value::from("n7"))
    );
    assert_eq!(
        (&volumes[1]["node"], &volumes[1]["state"]),
        (&NODE.into(), &Value::from("claimed"))
    );
    assert_eq!(volumes[1]["claimed_by"][0], "n7", "{volumes}");
    desk.world.stop().await
}

#[tokio::test]
async fn only_the_owner_may_ask_and_whoever_asks_in_vain_is_told_why() -> anyhow::Result<()> {
    let desk = Desk::new(TRANSPORTS[0]).await?;
    let mode = std::fs::metadata(&desk.admin)?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let Desk { world, admin } = desk;
    world.cloud.process.signal(rustix::process::Signal::TERM)?;
    let World { stand, mut cloud, .. } = world;
    cloud.process.ended(START).await?;
    assert!(!std::path::Path::new(&admin).exists());
    let error = stand
        .run("csi-cloud", &["nodes", "--admin", &admin])
        .await
        .err()
        .context("it was not refused")?;
    let text = format!("{error:#}");
    assert!(text.contains("is `csi-cloud serve` running") && text.contains("--admin"), "{text}");
    Ok(())
}
