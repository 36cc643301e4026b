//! A node that invents drivers, topology segments and pods, to fill csi-cloud's store.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use harness::stand::Stand;
use prost::Message as _;
use proto::control::hello::{Driver, Message, Protobuf};
use proto::control::lease::{LeaseAction, Request};
use proto::csi;
use proto::link::{Event, Link, ws};
use tokio::time::timeout;

use super::report::Row;
use super::world::{DRIVER, HOSTILE, PATIENCE, TRANSPORTS, World, hello};

/// Drivers in all, and in one hello: as many as fit into one.
const DRIVERS: usize = 1_000_000;
const SHORT: usize = 20_000;
const EACH: usize = 4_000;
/// Drivers of a hello that is within the quota.
const WITHIN: usize = 64;
/// Segments in all, and in one hello: as many as fit into one.
const SEGMENTS: usize = 10_000;
const SEGMENTS_EACH: usize = 2_500;
/// The bytes of a pod's UID. A control message has at most 256 KiB.
const POD: usize = 250_000;
/// Leases that are asked for.
const PODS: u64 = 100;
/// The words that are invented.
const INVENTED: &str = "invented";
const ASKED: &str = "<= 1 MiB durable, nothing after a restart";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let drivers = if short { SHORT } else { DRIVERS };
    for transport in TRANSPORTS {
        rows.push(invented(transport, drivers).await?);
    }
    Ok(())
}

async fn invented(transport: &'static str, drivers: usize) -> anyhow::Result<Row> {
    let world = World::on(World::stand().await?, transport, &[]).await?;
    world.link(HOSTILE).await?.close("known").await;
    let stand = world.killed().await?;
    let before = durable(&stand).await?.len();
    let world = World::on(stand, transport, &[]).await?;
    let mut refused = 0;
    for first in (0..drivers).step_by(EACH) {
        refused += usize::from(!is_welcome(&world, named(first, EACH)?).await?);
        // The same within the quota: each link names others.
        ensure!(is_welcome(&world, named(first, WITHIN)?).await?, "{WITHIN} drivers are refused");
    }
    for first in (0..SEGMENTS).step_by(SEGMENTS_EACH) {
        // They cost the driver its answers, and the node nothing.
        ensure!(is_welcome(&world, segments(first)?).await?, "a driver's segments cost the link");
    }
    let hellos = drivers.div_ceil(EACH);
    ask_for_leases(&world).await?;
    let stand = world.killed().await?;
    let after = durable(&stand).await?;
    let grown = after.len().saturating_sub(before);
    let world = World::on(stand, transport, &[]).await?;
    let nodes = world.admin(&["nodes", "-o", "json"]).await?;
    let kept = [after, nodes].concat().matches(INVENTED).count();
    world.stop().await?;
    Ok(Row {
        case: format!("{drivers} invented drivers, {SEGMENTS} segments, {PODS} pods of 250 kB"),
        transport,
        asked: ASKED,
        measured: format!(
            "{refused} of {hellos} hellos refused, +{grown} bytes, {kept} names after a restart"
        ),
        ok: grown <= 1024 * 1024 && kept == 0 && refused == hellos,
    })
}

/// All that is durable, as `csi-cloud store export` writes it.
async fn durable(stand: &Stand) -> anyhow::Result<String> {
    let store = format!("--store=file:{}", stand.at("cloud.redb"));
    stand.run("csi-cloud", &["store", "export", &store]).await
}

/// Says hello with these drivers; whether it is welcome.
async fn is_welcome(world: &World, drivers: Vec<Driver>) -> anyhow::Result<bool> {
    let mut link = world.dial(HOSTILE, &ws::tcp()).await?;
    link.send(&Message::Hello(hello(HOSTILE, drivers)?)).await?;
    let answer = timeout(PATIENCE, link.next()).await?;
    link.close("done").await;
    Ok(matches!(answer, Event::Message(Message::Welcome(_))))
}

/// So many drivers from this number on.
fn named(first: usize, count: usize) -> anyhow::Result<Vec<Driver>> {
    let driver = |number| {
        let name = format!("{INVENTED}-{number}.example").parse()?;
        Ok(Driver { name, answers: BTreeMap::new(), health: None })
    };
    (first..first + count).map(driver).collect()
}

/// The driver with a front, and segments from this number on.
fn segments(first: usize) -> anyhow::Result<Vec<Driver>> {
    let segment =
        |number| (format!("{INVENTED}.example/k{number}"), format!("{INVENTED}-{number}"));
    let segments = (first..first + SEGMENTS_EACH).map(segment).collect();
    let info = csi::NodeGetInfoResponse {
        node_id: HOSTILE.into(),
        accessible_topology: Some(csi::Topology { segments }),
        ..Default::default()
    };
    let info = Protobuf(info.encode_to_vec().into());
    let answers = BTreeMap::from([("NodeGetInfo".to_owned(), info)]);
    Ok(vec![Driver { name: DRIVER.parse()?, answers, health: None }])
}

/// Asks for leases for pods with very long UIDs. csi-cloud may close the link.
async fn ask_for_leases(world: &World) -> anyhow::Result<()> {
    let mut link = world.link(HOSTILE).await?;
    for id in 0..PODS {
        let request = Request {
            id,
            driver: DRIVER.parse()?,
            volume: format!("{INVENTED}-{id}"),
            step: LeaseAction::Ask { pod: INVENTED.repeat(POD / INVENTED.len()) },
        };
        if link.send(&Message::Lease(request)).await.is_err() {
            return Ok(());
        }
        if replied(&mut link).await.is_none() {
            return Ok(());
        }
    }
    link.close("done").await;
    Ok(())
}

/// Waits for the reply to a request; none if the link is closed, or there is none soon.
async fn replied(link: &mut Link) -> Option<()> {
    let reply = async {
        loop {
            match link.next().await {
                Event::Message(Message::LeaseReply(_)) => return Some(()),
                Event::Closed(_) => return None,
                Event::Message(_) | Event::Opened(..) => {}
            }
        }
    };
    timeout(Duration::from_secs(5), reply).await.ok().flatten()
}
