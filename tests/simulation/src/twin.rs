//! A second machine with the identity of n1 and a disk of its own, as a copy of its image has. n1
//! has linked before it, so no call is for it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use proto::host::tasks::Tasks;
use proto::names::NodeName;
use tokio_util::sync::CancellationToken;

use super::chaos::METHODS;
use super::dice::Dice;
use super::fleet::{Board, Fleet};
use super::keys::{NODES, TWIN_AT};
use super::model::World;
use super::process::Process;
use super::shape::DRIVER;
use super::wire::{Plan, boxed, wire};
use drivers::testdriver::TestDriver;

/// The questions of csi-cloud's own to a node.
const QUESTIONS: [&str; 3] = ["ListVolumes", "ListSnapshots", "GetCapacity"];

/// The machine.
pub(super) struct Twin {
    driver: TestDriver,
    process: Process,
}

impl Twin {
    /// Starts it, in some runs, when the cloud knows which machine n1 is.
    pub(super) fn begin(world: &World) -> Option<Self> {
        let mut dice = Dice::new(world.seed, "is there a twin");
        if !dice.chance(40) {
            return None;
        }
        let twin = Self { driver: TestDriver::new(DRIVER, NODES[0]), process: Process::default() };
        // No driver of the fleet has such an id.
        twin.driver.count_from(1_000_000);
        world.trace.say("n1 has a twin");
        let (fleet, driver, process) =
            (world.fleet.clone(), twin.driver.clone(), twin.process.clone());
        // Not a task of the process, as it ends the edge with that.
        Tasks::default().spawn("twin", async move {
            drop(live(&fleet, &driver, process, dice).await);
        });
        Some(twin)
    }

    /// Ends it. Returns the calls that it had.
    pub(super) fn end(&self) -> Vec<String> {
        self.process.kill();
        let methods = METHODS.iter().chain(&QUESTIONS);
        let counts = methods.map(|method| (method, self.driver.calls_of(method).len()));
        let some = counts.filter(|(_, count)| *count > 0);
        some.map(|(method, count)| format!("the twin of n1 had {method}, {count} times")).collect()
    }
}

async fn live(
    fleet: &Arc<Fleet>,
    driver: &TestDriver,
    process: Process,
    mut dice: Dice,
) -> anyhow::Result<()> {
    let node: NodeName = NODES[0].parse()?;
    let is_known = || {
        let (store, _) = fleet.cloud()?;
        store.read(|state| state.node(&node)?.machine)
    };
    while is_known().is_none() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if process.end.is_cancelled() {
            return Ok(());
        }
    }
    let running = Arc::new(driver.start());
    let wires = process.tasks.clone();
    let end = process.end.clone();
    let to_driver: proto::link::Connect = Arc::new(move |_| {
        let (running, wires, end) = (running.clone(), wires.clone(), end.clone());
        Box::pin(async move {
            if end.is_cancelled() {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far, _) = wire(&Plan::default(), [end, CancellationToken::new()], &wires);
            running.take(far);
            Ok(boxed(near))
        })
    });
    let own = "the twin".into();
    let board = Board { node, number: TWIN_AT, own, to_driver, process };
    let doors: Tasks = fleet.run_edge(&board, dice.fork())?;
    board.process.end.cancelled().await;
    doors.give_up();
    Ok(())
}
