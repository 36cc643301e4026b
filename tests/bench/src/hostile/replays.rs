//! An edge that states leases of direct volumes which are another node's. It shows invented epochs,
//! the other node's epoch and MAC, and MACs of its own older leases. It does so also after an older
//! store was put back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use futures_util::future::try_join_all;
use proto::control::hello::Message;
use proto::control::lease::{LeaseAction, Outcome, Request};
use proto::link::{Event, Link, ws};
use serde_json::Value;
use tokio::time::timeout;

use super::report::Row;
use super::world::{DRIVER, HONEST, HOSTILE, PATIENCE, TRANSPORTS, World, driver, hello, welcomed};

/// Volumes.
const VOLUMES: usize = 100;
const SHORT: usize = 10;
const ASKED: &str = "no volume changes its owner";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let volumes = if short { SHORT } else { VOLUMES };
    let stated = TRANSPORTS.map(|transport| stated(transport, volumes));
    rows.extend(try_join_all(stated).await?);
    for is_first in [false, true] {
        let restored = TRANSPORTS.map(|transport| restored(transport, volumes, is_first));
        rows.extend(try_join_all(restored).await?);
    }
    Ok(())
}

/// A lease that csi-cloud granted.
#[derive(Clone)]
struct Grant {
    epoch: u64,
    mac: String,
}

impl Grant {
    fn hold(&self) -> LeaseAction {
        hold(self.epoch, Some(&self.mac))
    }
}

fn hold(epoch: u64, mac: Option<&str>) -> LeaseAction {
    LeaseAction::Hold { epoch, pod: "pod".into(), mac: mac.map(str::to_owned) }
}

fn ask() -> LeaseAction {
    LeaseAction::Ask { pod: "pod".into() }
}

/// A node's link, and the number of its last request.
struct Node {
    link: Link,
    last: u64,
}

impl Node {
    async fn link(world: &World, name: &str) -> anyhow::Result<Self> {
        let mut link = world.dial(name, &ws::tcp()).await?;
        let hello = hello(name, vec![driver(DRIVER, false)?])?;
        link.send(&Message::Hello(hello)).await?;
        welcomed(&mut link).await?;
        Ok(Self { link, last: 0 })
    }

    /// Sends a request, and returns the outcome.
    async fn say(&mut self, volume: &str, step: LeaseAction) -> anyhow::Result<Outcome> {
        self.last += 1;
        let driver = DRIVER.parse()?;
        let request = Request { id: self.last, driver, volume: volume.into(), step };
        self.link.send(&Message::Lease(request)).await?;
        let reply = async {
            loop {
                match self.link.next().await {
                    Event::Message(Message::LeaseReply(reply)) if reply.id == self.last => {
                        return Ok(reply.outcome);
                    }
                    Event::Closed(error) => bail!("the link was closed: {error}"),
                    Event::Message(_) | Event::Opened(..) => {}
                }
            }
        };
        timeout(PATIENCE, reply).await.context("no reply")?
    }

    /// Asks for a volume that nobody has.
    async fn granted(&mut self, volume: &str) -> anyhow::Result<Grant> {
        match self.say(volume, ask()).await? {
            Outcome::Held { epoch, mac: Some(mac) } => Ok(Grant { epoch, mac }),
            other => bail!("{volume} was not granted: {other:?}"),
        }
    }

    /// Whether it is told that it has the volume.
    async fn has(&mut self, volume: &str, step: LeaseAction) -> anyhow::Result<bool> {
        Ok(matches!(self.say(volume, step).await?, Outcome::Held { .. }))
    }
}

/// What an edge says of a volume that it had once, and that another node has now.
fn lies(old: &Grant, now: &Grant, other: &Grant) -> [LeaseAction; 9] {
    [
        // The other node's epoch, with and without what proves it for that node.
        now.hold(),
        hold(now.epoch, None),
        // Invented epochs.
        hold(now.epoch + 1, None),
        hold(u64::MAX, None),
        hold(0, None),
        // A MAC of its own, for this and for another volume.
        old.hold(),
        hold(now.epoch + 1, Some(&old.mac)),
        hold(other.epoch, Some(&other.mac)),
        ask(),
    ]
}

/// All lies about volumes of the honest node, while it has a link.
async fn stated(transport: &'static str, volumes: usize) -> anyhow::Result<Row> {
    let world = World::new(transport).await?;
    let mut honest = Node::link(&world, HONEST).await?;
    let mut hostile = Node::link(&world, HOSTILE).await?;
    let other = hostile.granted("its-own").await?;
    let mut said = 0;
    let mut moved = 0;
    for number in 0..volumes {
        let volume = format!("volume-{number}");
        let old = hostile.granted(&volume).await?;
        hostile.say(&volume, LeaseAction::Release).await?;
        let now = honest.granted(&volume).await?;
        for lie in lies(&old, &now, &other) {
            said += 1;
            moved += usize::from(hostile.has(&volume, lie).await?);
        }
        hostile.say(&volume, LeaseAction::Release).await?;
        moved += usize::from(!honest.has(&volume, now.hold()).await?);
    }
    let owners = owners(&world, HONEST).await?;
    world.stop().await?;
    Ok(Row {
        case: format!("{said} statements about another's {volumes} volumes"),
        transport,
        asked: ASKED,
        measured: format!("{moved} moved, {owners} are the owner's"),
        ok: moved == 0 && owners == volumes,
    })
}

/// The same after a store was put back in which the hostile node has all volumes. It replays its
/// leases of that time before or after the honest node links.
async fn restored(transport: &'static str, volumes: usize, is_first: bool) -> anyhow::Result<Row> {
    let name = |number: usize| format!("volume-{number}");
    let world = World::on(World::stand().await?, transport, &[]).await?;
    drop(Node::link(&world, HONEST).await?);
    let mut hostile = Node::link(&world, HOSTILE).await?;
    let mut old = Vec::new();
    for number in 0..volumes {
        old.push(hostile.granted(&name(number)).await?);
    }
    let stand = world.killed().await?;
    let store = stand.at("cloud.redb");
    let copy = stand.at("older.redb");
    std::fs::copy(&store, &copy)?;
    let world = World::on(stand, transport, &[]).await?;
    let mut hostile = Node::link(&world, HOSTILE).await?;
    let mut honest = Node::link(&world, HONEST).await?;
    let mut now = Vec::new();
    for number in 0..volumes {
        hostile.say(&name(number), LeaseAction::Release).await?;
        now.push(honest.granted(&name(number)).await?);
    }
    let stand = world.killed().await?;
    std::fs::copy(&copy, &store)?;
    let world = World::on(stand, transport, &[]).await?;
    let mut hostile = Node::link(&world, HOSTILE).await?;
    if is_first {
        for (number, old) in old.iter().enumerate() {
            hostile.say(&name(number), old.hold()).await?;
        }
    }
    let mut honest = Node::link(&world, HONEST).await?;
    let mut lost = 0;
    for (number, now) in now.iter().enumerate() {
        lost += usize::from(!honest.has(&name(number), now.hold()).await?);
    }
    // Its link was ended if it was thought to have them.
    let mut hostile = Node::link(&world, HOSTILE).await?;
    let mut moved = 0;
    for (number, old) in old.iter().enumerate() {
        moved += usize::from(hostile.has(&name(number), old.hold()).await?);
    }
    let owners = owners(&world, HONEST).await?;
    world.stop().await?;
    let when = if is_first { "before" } else { "after" };
    Ok(Row {
        case: format!("older store, {volumes} leases replayed {when} the owner links"),
        transport,
        asked: ASKED,
        measured: format!("{lost} refused to it, {moved} moved, {owners} are the owner's"),
        ok: lost == 0 && moved == 0 && owners == volumes,
    })
}

/// States leases until csi-cloud closes the link; `sent` counts those that had a reply.
pub(super) async fn attack(
    world: &World,
    sent: Arc<AtomicU64>,
) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let mut node = Node::link(world, HOSTILE).await?;
    Ok(async move {
        // Each waits for its reply, which paces them.
        for epoch in 0.. {
            if node.say("not-its-own", hold(epoch, None)).await.is_err() {
                return;
            }
            sent.fetch_add(1, Ordering::Relaxed);
        }
    })
}

/// How many volumes this node has, by what csi-cloud shows.
async fn owners(world: &World, node: &str) -> anyhow::Result<usize> {
    let leases: Value = serde_json::from_str(&world.admin(&["leases", "-o", "json"]).await?)?;
    let leases = leases.as_array().context("no list")?;
    Ok(leases.iter().filter(|lease| lease["holder_node"] == node).count())
}
