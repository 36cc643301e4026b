//! Secrets are passed on, and appear nowhere else. Marked secrets go through every RPC at both
//! fronts. The tests then search everything that the programs write, keep and show.

use anyhow::{Context, ensure};
use bytes::Bytes;
use drivers::testdriver::{Fault, Times};
use harness::filled::{Spec, Texts};
use harness::raw::RawClient;
use harness::requests::{controller, create, created};
use harness::stand::Stand;
use harness::wait::START;
use harness::world::{DRIVER, NODE, TRANSPORTS, World};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;

/// The fields that CSI marks as secret (option 1059).
const SECRET_FIELDS: usize = 22;

/// The text of a field of a request about a volume.
fn text(name: &str, volume: &str) -> Option<String> {
    match name {
        "starting_token" => None,
        "volume_id" | "source_volume_id" | "source_volume_ids" => Some(volume.to_owned()),
        name => Some(format!("some-{name}")),
    }
}

/// Sends a request to a front: whole, truncated, and while the driver misbehaves. All of that may
/// be logged.
async fn send(world: &World, front: &RawClient, path: &str, request: &[u8]) -> anyhow::Result<()> {
    let method = path.rsplit('/').next().unwrap_or_default();
    front.call(path, request).await?;
    for fault in [Fault::error(Code::Internal, "no luck"), Fault::Die] {
        world.driver.inject(method, fault, Times::Next(1));
        front.call(path, request).await?;
    }
    world.driver.clear_faults();
    // A message that ends in the middle of its last field, and a frame that ends in the middle of
    // its message.
    front.call(path, request.get(..request.len().saturating_sub(1)).unwrap_or_default()).await?;
    let frame = proto::csi::frame::frame(request);
    front.send(path, frame.slice(..frame.len() - 1), &[]).await?;
    Ok(())
}

/// Where a text was found.
fn search(places: &[(String, Vec<u8>)], text: &str) -> Vec<String> {
    let found = places
        .iter()
        .filter(|(_, bytes)| bytes.windows(text.len()).any(|part| part == text.as_bytes()));
    found.map(|(place, _)| place.clone()).collect()
}

/// The page of metrics of a csi-cloud that serves HTTP.
pub(super) async fn metrics(world: &World) -> anyhow::Result<Vec<u8>> {
    let address = world.cloud.http.as_deref().context("no HTTP")?;
    let mut tcp = tokio::net::TcpStream::connect(address).await?;
    tcp.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    let mut text = Vec::new();
    tcp.read_to_end(&mut text).await?;
    ensure!(text.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&text));
    Ok(text)
}

/// All that the programs show while they run.
async fn shown(world: &World) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let admin = world.stand.at("cloud/_admin.sock");
    let mut places = vec![("/metrics".to_owned(), metrics(world).await?)];
    for command in [
        &["nodes"][..],
        &["drivers"],
        &["volumes", "--all"],
        &["intents", "--all"],
        &["calls"],
        &["calls", "--ended"],
        &["leases"],
    ] {
        for output in ["table", "json"] {
            let command = [command, &["-o", output, "--admin", &admin]].concat();
            let text = world.stand.run("csi-cloud", &command).await?;
            places.push((command.join(" "), text.into_bytes()));
        }
    }
    let admin = world.stand.at(&format!("{NODE}/_admin.sock"));
    for output in ["table", "json"] {
        let command = ["calls", "--ended", "-o", output, "--admin", &admin];
        let text = world.stand.run("csi-edge", &command).await?;
        ensure!(text.contains("NodePublishVolume"), "csi-edge shows {text}");
        places.push((format!("csi-edge {}", command.join(" ")), text.into_bytes()));
    }
    Ok(places)
}

/// All that they wrote, once they have ended.
async fn written(world: World) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let World { stand, mut cloud, mut edge, .. } = world;
    let mut places = Vec::new();
    for (name, process) in [("edge", &mut edge), ("cloud", &mut cloud.process)] {
        process.signal(rustix::process::Signal::TERM)?;
        process.ended(START).await?;
        places
            .push((format!("{name}'s stdout"), process.rest(START).await?.join("\n").into_bytes()));
        places.push((format!("{name}'s log"), process.log()));
    }
    places.push(("the store".into(), std::fs::read(stand.at("cloud.redb"))?));
    Ok(places)
}

#[tokio::test]
async fn a_secret_is_found_nowhere_but_at_the_driver() -> anyhow::Result<()> {
    let spec = Spec::read()?;
    assert_eq!(spec.secrets().len(), SECRET_FIELDS, "{:?}", spec.secrets());
    for transport in TRANSPORTS {
        let mut stand = Stand::new().await?;
        stand.log("debug,cloud=trace,edge=trace,proto=trace,csi_cloud=trace,csi_edge=trace");
        let world = World::on(stand, transport, &["--http", "127.0.0.1:0"]).await?;
        let marker = format!("secret-{}", uuid::Uuid::new_v4().simple());
        let cloud = world.front().await?;
        let node = world.node_front().await?;
        let made = cloud.call(&controller("CreateVolume"), &create("of-before")).await?;
        let volume = created(&made)?.volume_id;
        for volume in [volume.as_str(), "never-seen"] {
            let field = |name: &str| text(name, volume);
            let texts = Texts { secret: &marker, field: &field, map: None };
            for rpc in spec.rpcs() {
                let request = spec.fill(&rpc.request, &texts);
                send(&world, &cloud, &rpc.path, &request).await?;
                send(&world, &node, &rpc.path, &request).await?;
            }
        }
        let received: Vec<Bytes> =
            world.driver.calls().into_iter().map(|call| call.message).collect();
        let with_secrets = received
            .iter()
            .filter(|message| !search(&[(String::new(), message.to_vec())], &marker).is_empty());
        ensure!(with_secrets.count() > SECRET_FIELDS * 2, "the secrets do not reach the driver");

        // A new volume gives the store an entry, because the earlier ones were deleted.
        let made = cloud.call(&controller("CreateVolume"), &create("of-after")).await?;
        created(&made)?;
        let mut places = shown(&world).await?;
        places.extend(written(world).await?);
        for (place, text) in
            [("the store", "of-after"), ("cloud's log", "CreateVolume"), ("edge's log", NODE)]
        {
            assert!(
                search(&places, text).contains(&place.to_owned()),
                "{place} is not what it should be"
            );
        }
        assert_eq!(search(&places, &marker), Vec::<String>::new(), "a secret was found here");
        assert!(search(&places, DRIVER).len() > 5);
    }
    Ok(())
}
