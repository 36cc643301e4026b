//! The quiet time of a run with a liar: everything works, but the liar goes on lying. Users want
//! more of honest nodes, and nobody waits for the liar.

use std::time::Duration;

use proto::csi::{GetCapacityRequest, GetCapacityResponse, Topology};
use tokio::time::{Instant, sleep};

use super::dice::Dice;
use super::keys::name;
use super::life;
use super::model::World;
use super::model::client::{Client, Unusual};
use super::process::Process;
use super::waits;
use drivers::testdriver::TOPOLOGY_KEY;

/// By then all links are back, and a node that says nothing is set apart.
const SETTLE: Duration = Duration::from_secs(180);
/// How long users are served.
const SPAN: Duration = Duration::from_secs(240);
/// The room of one driver.
const ROOM: i64 = 1 << 40;

/// Lets users be served, and checks how long they waited.
pub(super) async fn serve(world: &World, dice: &mut Dice) {
    sleep(SETTLE).await;
    let from = Instant::now();
    world.trace.say("quiet: only the liar goes on");
    let process = Process::default();
    life::begin_late(world, 1 + dice.below(4), &process.tasks);
    let asking = ask_for_room(world.clone(), process.clone());
    process.tasks.spawn_until_stop("room", asking);
    sleep(SPAN).await;
    process.kill();
    world.found.add(waits::while_calm(world, from, Instant::now()));
}

/// Asks for the room of each honest node, as external-provisioner does for the scheduler.
async fn ask_for_room(world: World, process: Process) {
    let dice = Dice::new(world.seed, "room");
    let notes = (world.record.clone(), world.trace.clone());
    let client =
        Client::connect("room", &world.fleet, &process, Duration::from_secs(60), dice, notes);
    let Ok(client) = client.await else { return };
    loop {
        for node in 0..world.fleet.drivers.len() {
            let segments = [(TOPOLOGY_KEY.to_owned(), name(node).to_owned())].into();
            let request = GetCapacityRequest {
                accessible_topology: Some(Topology { segments }),
                ..Default::default()
            };
            let reply = client.call("GetCapacity", name(node), &request, &Unusual::default()).await;
            let room = reply.decode::<GetCapacityResponse>().map(|room| room.available_capacity);
            if room.is_none_or(|room| room <= 0 || room > ROOM) {
                let node = name(node);
                world.found.add([format!("{node} has {room:?} room, with a liar about")]);
            }
        }
        sleep(Duration::from_secs(10)).await;
    }
}
