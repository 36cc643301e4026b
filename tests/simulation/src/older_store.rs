//! A store that goes back: at the end of some runs the cloud starts with a backup of its store,
//! from the middle of the run. A node that knows of a later create shows it, though the older store
//! may have had as many creates since. From then on nothing is created until an operator accepts
//! the store, and after that each object has its home again.

use std::sync::Arc;
use std::time::Duration;

use cloud::state::older_store;
use cloud::state::policy::Scope;
use harness::requests::capability;
use proto::csi::{CapacityRange, CreateVolumeRequest, Topology, TopologyRequirement};
use proto::host::clock;
use proto::host::tasks::Tasks;
use tonic::Code;

use super::dice::Dice;
use super::durable::LINK;
use super::fleet::Fleet;
use super::keys::name;
use super::life::SPAN;
use super::model::World;
use super::model::client::{Client, Reply, Unusual};
use super::net::Away;
use super::process::Process;
use drivers::testdriver::TOPOLOGY_KEY;

/// What a refusal tells the operator to do.
const ACCEPT: &str = "csi-cloud store accept";
/// How long nodes with a later watermark cannot dial, in some runs.
const CUT_OFF: Duration = Duration::from_secs(90);
/// How often a create is sent.
const TIMES: u32 = 30;

/// Makes a backup at some time of the run, in some runs.
pub(super) fn begin(world: &World, tasks: &Tasks) {
    let shape = world.fleet.shape();
    let mut dice = Dice::new(world.seed, "is there a backup");
    // Only the later driver profile of the operator makes an honest node of a liar's victim, and a
    // store in etcd is put back by etcd's own tools.
    let is_other = shape.scope == Scope::Shared || shape.liar.is_some() || shape.replicas > 1;
    if is_other || !dice.chance(40) {
        return;
    }
    // By then the store has the secrets of its watermarks.
    let after = dice.time(30_000, clock::millis(SPAN));
    let fleet = world.fleet.clone();
    tasks.spawn_until_stop("backup", async move {
        tokio::time::sleep(after).await;
        fleet.back_up();
    });
}

/// Puts the backup back, if there is one, and returns what is wrong then.
pub(super) async fn put_back(world: &World) -> Vec<String> {
    if !world.fleet.has_backup() {
        return Vec::new();
    }
    let wrong = go_back(world, &mut Dice::new(world.seed, "older store")).await.err();
    wrong.into_iter().map(|wrong| format!("with an older store: {wrong}")).collect()
}

async fn go_back(world: &World, dice: &mut Dice) -> Result<(), String> {
    let fleet = &world.fleet;
    let nodes = fleet.drivers.len();
    let later = dice.below(nodes);
    created(world, "later", later, false).await?;
    fleet.put_back();
    let first = (later + 1 + dice.below(nodes.saturating_sub(1))) % nodes;
    if first != later && dice.chance(60) {
        for node in (0..nodes).filter(|node| *node != first) {
            let how = dice.pick(&[Away::Refused, Away::Silent]);
            fleet.net.cut_off(node, fleet.shape().endpoints, how, CUT_OFF);
        }
        start(fleet)?;
        for number in 0..dice.between(0, 6) {
            created(world, &format!("overtaking-{number}"), first, true).await?;
        }
        tokio::time::sleep(CUT_OFF).await;
    } else {
        start(fleet)?;
    }
    fleet.all_linked(LINK).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    refused(world, "later", first).await?;
    refused(world, "new", later).await?;
    let store = fleet.store().ok_or("the cloud does not run")?;
    older_store::accept(&store).await.map_err(|error| error.to_string())?;
    created(world, "new", later, false).await
}

fn start(fleet: &Arc<Fleet>) -> Result<(), String> {
    fleet.start_cloud().map_err(|error| format!("the cloud does not start: {error:#}"))
}

/// Creates a volume. Its node may show meanwhile that the store is older.
async fn created(world: &World, name: &str, node: usize, or_older: bool) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..TIMES {
        let reply = create(world, name, node).await?;
        if reply.code == Code::Ok || or_older && reply.text.contains(ACCEPT) {
            return Ok(());
        }
        last = format!("{:?} {}", reply.code, reply.text);
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    Err(format!("the create of {name} ended with {last}"))
}

/// A create is refused, and comes to no driver.
async fn refused(world: &World, name: &str, node: usize) -> Result<(), String> {
    let before = creates(world);
    let reply = create(world, name, node).await?;
    let is_refused = reply.code == Code::Unavailable && reply.text.contains(ACCEPT);
    if !is_refused || creates(world) > before {
        return Err(format!("the create of {name} got {:?} {}", reply.code, reply.text));
    }
    Ok(())
}

fn creates(world: &World) -> usize {
    world.fleet.drivers.iter().map(|driver| driver.calls_of("CreateVolume").len()).sum()
}

async fn create(world: &World, name_of: &str, node: usize) -> Result<Reply, String> {
    let process = Process::default();
    let dice = Dice::new(world.seed, "creates beside a backup");
    let notes = (world.record.clone(), world.trace.clone());
    let minute = Duration::from_secs(60);
    let client = Client::connect("operator", &world.fleet, &process, minute, dice, notes).await;
    let client = client.map_err(|error| format!("the cloud does not run: {error:#}"))?;
    let segments = [(TOPOLOGY_KEY.to_owned(), name(node).to_owned())].into();
    let place = vec![Topology { segments }];
    let request = CreateVolumeRequest {
        name: name_of.into(),
        capacity_range: Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        accessibility_requirements: Some(TopologyRequirement {
            requisite: place.clone(),
            preferred: place,
        }),
        ..CreateVolumeRequest::default()
    };
    let reply = client.call("CreateVolume", name_of, &request, &Unusual::default()).await;
    process.kill();
    Ok(reply)
}
