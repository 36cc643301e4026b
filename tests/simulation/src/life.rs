//! The users: they make claims, use the volumes, enlarge and snapshot them, and delete them, at any
//! time.

use std::time::Duration;

use cloud::state::policy::Scope;
use proto::host::tasks::Tasks;

use super::dice::Dice;
use super::keys::{NODES, name};
use super::model::World;
use super::model::api::{ApiVolume, Attachment, Claim, Snapshot};
use super::operator;

const GIB: i64 = 1 << 30;
/// How the names begin of volumes that were there before csi-cloud was.
pub const BEFORE: &str = "before-";

/// Starts the lives of this many claims.
pub fn begin(world: &World, claims: usize, tasks: &Tasks) {
    for n in 0..claims {
        let dice = Dice::new(world.seed, &format!("life {n}"));
        let world = world.clone();
        tasks.spawn_until_stop("life", live(world, n, dice));
    }
}

/// Starts the lives of this many claims that want an honest node and no other.
pub(super) fn begin_late(world: &World, claims: usize, tasks: &Tasks) {
    for n in 0..claims {
        let mut dice = Dice::new(world.seed, &format!("late {n}"));
        let node = dice.below(world.fleet.drivers.len());
        let name = format!("late-{n}");
        let claim = Claim { name, node: Some(node), size: GIB, strict: true, ..Claim::default() };
        let world = world.clone();
        tasks.spawn_until_stop("life", async move {
            tokio::time::sleep(dice.time(0, 30_000)).await;
            live_with(&world, claim, &mut dice).await;
        });
    }
}

/// Makes volumes that were there before csi-cloud was, and starts their lives.
pub fn inherit(world: &World, dice: &mut Dice, tasks: &Tasks) {
    let nodes = world.fleet.drivers.len();
    for n in 0..dice.between(1, 4) {
        let node = dice.below(nodes);
        let name = format!("{BEFORE}{n}");
        let Some(driver) = world.fleet.drivers.get(node) else { continue };
        let made = driver.hold(name.clone(), GIB);
        world.trace.say(format_args!("{name} was at n{} before, as {}", node + 1, made.volume_id));
        let id = made.volume_id.clone();
        let volume = ApiVolume { id: made.volume_id, node, size: GIB, ..ApiVolume::default() };
        let claim =
            Claim { name, node: Some(node), size: GIB, volume: Some(volume), ..Claim::default() };
        let at = world.api.change(|objects| {
            objects.claims.push(claim);
            objects.claims.len() - 1
        });
        let mut dice = Dice::new(world.seed, &format!("before {n}"));
        let world = world.clone();
        tasks.spawn_until_stop("life", async move {
            // A delete of an unknown id is OK only after the answers of all nodes ever seen, so
            // they must link.
            while world.fleet.known() < nodes {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            if dice.chance(40) {
                tokio::time::sleep(dice.time(0, 60_000)).await;
                return delete(&world, at);
            }
            // Sidecars send secrets with all that they do with it.
            let name = NODES.get(node).copied().unwrap_or_default();
            let is_shared = world.fleet.shape().scope == Scope::Shared;
            while !is_shared && !operator::adopt(&world.fleet, &id, name).await {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            world.trace.say(format_args!("the operator says that {id} is at {name}"));
            live_on(&world, at, &mut dice).await;
        });
    }
}

async fn live(world: World, n: usize, mut dice: Dice) {
    tokio::time::sleep(dice.time(0, 60_000)).await;
    let places = world.places();
    let node = places.get(dice.below(places.len())).copied();
    let size = GIB * i64::from(dice.pick(&[1_u8, 2, 3]));
    let claim = Claim { name: format!("pvc-{n}"), node, size, ..Claim::default() };
    live_with(&world, claim, &mut dice).await;
}

/// The life of a new claim.
async fn live_with(world: &World, claim: Claim, dice: &mut Dice) {
    let node = claim.node.map_or("?", name);
    world.trace.say(format_args!("user: {} for {node}", claim.name));
    let at = world.api.change(|objects| {
        objects.claims.push(claim);
        objects.claims.len() - 1
    });
    if dice.chance(20) {
        tokio::time::sleep(dice.time(0, 20_000)).await;
        return delete(world, at);
    }
    let mut changes = world.api.watch();
    while world.api.claim(at).volume.is_none() {
        if changes.changed().await.is_err() {
            return;
        }
    }
    live_on(world, at, dice).await;
}

/// The life of a claim that has its volume.
async fn live_on(world: &World, at: usize, dice: &mut Dice) {
    for _ in 0..dice.between(2, 12) {
        tokio::time::sleep(dice.time(0, 20_000)).await;
        act(world, at, dice);
    }
    if dice.chance(50) {
        tokio::time::sleep(dice.time(0, 20_000)).await;
        delete(world, at);
    }
}

/// Does one thing with a volume.
fn act(world: &World, at: usize, dice: &mut Dice) {
    let attached =
        world.api.read(|objects| objects.attachments.iter().any(|of| of.claim == at && !of.gone));
    match dice.below(8) {
        0..4 if attached => detach(world, at),
        0..4 => {
            world.trace.say(format_args!("user: a pod uses claim {at}"));
            let attachment = Attachment { claim: at, ..Attachment::default() };
            world.api.change(|objects| objects.attachments.push(attachment));
        }
        4 => {
            world.trace.say(format_args!("user: claim {at} shall be larger"));
            world.api.change_claim(at, |claim| claim.size += GIB);
        }
        5 | 6 => {
            let name = world.api.read(|objects| format!("snapshot-{}", objects.snapshots.len()));
            world.trace.say(format_args!("user: {name} of claim {at}"));
            let snapshot = Snapshot { name, claim: at, ..Snapshot::default() };
            world.api.change(|objects| objects.snapshots.push(snapshot));
        }
        _ => unsnapshot(world, at),
    }
}

fn detach(world: &World, at: usize) {
    world.trace.say(format_args!("user: no pod uses claim {at} any more"));
    let live = world.api.read(|objects| {
        objects.attachments.iter().position(|of| of.claim == at && !of.gone && !of.deleting)
    });
    if let Some(live) = live {
        world.api.change_attachment(live, |of| of.deleting = true);
    }
}

fn unsnapshot(world: &World, at: usize) {
    let found = world
        .api
        .read(|objects| objects.snapshots.iter().position(|of| of.claim == at && !of.deleting));
    if let Some(found) = found {
        world.trace.say(format_args!("user: snapshot {found} shall go"));
        world.api.change_snapshot(found, |of| of.deleting = true);
    }
}

fn delete(world: &World, at: usize) {
    world.trace.say(format_args!("user: claim {at} is deleted"));
    world.api.change(|objects| objects.delete_claim(at));
}

/// The users give up what the liar made for them: no node has it.
pub(super) fn give_up(world: &World) {
    world.api.change(|objects| {
        let lost: Vec<_> = objects.claims.iter().map(|claim| claim.at_liar).collect();
        let is_lost = |claim: usize| lost.get(claim).is_some_and(|lost| *lost);
        for claim in objects.claims.iter_mut().filter(|claim| claim.at_liar) {
            (claim.deleted, claim.settled) = (true, true);
            claim.volume.iter_mut().for_each(|volume| volume.gone = true);
            claim.version += 1;
        }
        for attachment in objects.attachments.iter_mut().filter(|of| is_lost(of.claim)) {
            (attachment.gone, attachment.attached) = (true, false);
            attachment.version += 1;
        }
        for snapshot in objects.snapshots.iter_mut().filter(|of| is_lost(of.claim)) {
            (snapshot.gone, snapshot.deleting) = (true, true);
            snapshot.version += 1;
        }
    });
}

/// The end of a run: deletes or keeps what there is.
pub fn end(world: &World, dice: &mut Dice) {
    let (claims, snapshots) =
        world.api.read(|objects| (objects.claims.len(), objects.snapshots.len()));
    for at in 0..snapshots {
        if dice.chance(50) && !world.api.snapshot(at).deleting {
            world.api.change_snapshot(at, |of| of.deleting = true);
        }
    }
    for at in 0..claims {
        if dice.chance(50) && !world.api.claim(at).deleted {
            delete(world, at);
        } else if dice.chance(50) {
            detach(world, at);
        }
    }
}

/// How long the lives of claims take at most, before the end.
pub const SPAN: Duration = Duration::from_secs(240);
