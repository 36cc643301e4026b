//! Two machines of one image: both have the node's identity, and each has a disk of its own. The
//! node is one of them.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use drivers::testdriver::{Fault, Gate, Running, TestDriver, Times};
use futures_util::future::join_all;
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create, created};
use harness::stand::{Cloud, Stand};
use harness::wait::{STOP, until};
use harness::world::{DRIVER, NODE, TRANSPORTS};
use proto::csi::frame::frame;
use proto::host::publish::{Existing, publish};
use serde_json::Value;
use tonic::Code;

/// How long the copy dials while the node's own csi-edge is away.
const ATTEMPTS: Duration = Duration::from_secs(5);
/// Creates that are in flight meanwhile.
const SLOW: usize = 10;

/// The shell's command that gives csi-edge this firmware, which is in a directory of its own.
pub(super) fn firmware(stand: &Stand, directory: &str, id: &str) -> anyhow::Result<String> {
    let sys = stand.at(directory);
    let firmware = Path::new(&sys).join("class/dmi/id");
    std::fs::create_dir_all(&firmware)?;
    publish(&firmware.join("product_uuid"), id.as_bytes(), 0o600, Existing::Replace)?;
    Ok(format!("mount --bind {sys} /sys"))
}

/// A machine with a driver of its own.
struct Machine {
    driver: TestDriver,
    socket: String,
    /// Gives csi-edge the machine's firmware, and its own directory of fronts.
    script: String,
    state: String,
    admin: String,
}

impl Machine {
    /// `id` is what its firmware says.
    fn new(stand: &Stand, name: &str, id: &str, first_id: u64) -> anyhow::Result<Self> {
        let sys = firmware(stand, &format!("{name}-sys"), id)?;
        let fronts = stand.at(NODE);
        std::fs::create_dir_all(&fronts)?;
        let driver = TestDriver::new(DRIVER, NODE);
        driver.count_from(first_id);
        Ok(Self {
            driver,
            socket: stand.at(&format!("{name}.sock")),
            script: format!("{sys} && mount -t tmpfs none {fronts}"),
            state: stand.at(&format!("{name}-state")),
            admin: stand.at(&format!("{name}-admin.sock")),
        })
    }

    async fn edge(&self, stand: &mut Stand, url: &str) -> anyhow::Result<Process> {
        let more = ["--cloud", url, "--state", &self.state, "--admin", &self.admin];
        stand.edge_in(&self.script, NODE, &[(DRIVER, &self.socket)], &more).await
    }

    fn creates(&self) -> usize {
        self.driver.calls_of("CreateVolume").len()
    }
}

/// The two machines with their drivers, and csi-cloud.
struct TwoMachines {
    cloud: Cloud,
    front: RawClient,
    board: Machine,
    copy: Machine,
    serving: Vec<Running>,
}

impl TwoMachines {
    async fn new(stand: &Stand, ids: [&str; 2]) -> anyhow::Result<Self> {
        let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        let board = Machine::new(stand, "board", ids[0], 1000)?;
        let copy = Machine::new(stand, "copy", ids[1], 2000)?;
        let serve = |machine: &Machine| machine.driver.serve(Path::new(&machine.socket));
        let serving = vec![serve(&board)?, serve(&copy)?];
        Ok(Self { cloud, front, board, copy, serving })
    }

    fn url(&self) -> &str {
        &self.cloud.urls[0]
    }

    async fn create(&self, name: &str) -> anyhow::Result<RawAnswer> {
        let timeout = [("grpc-timeout", "60S")];
        self.front.send(&controller("CreateVolume"), frame(&create(name)), &timeout).await
    }

    async fn stop(self) -> anyhow::Result<()> {
        for driver in self.serving {
            driver.stop().await;
        }
        self.cloud.process.stop(STOP).await
    }
}

async fn say(stand: &Stand, command: &[&str]) -> anyhow::Result<String> {
    let admin = stand.at("cloud/_admin.sock");
    stand.run("csi-cloud", &[command, &["--admin", &admin]].concat()).await
}

async fn shown(stand: &Stand) -> anyhow::Result<Value> {
    let nodes: Value = serde_json::from_str(&say(stand, &["nodes", "-o", "json"]).await?)?;
    nodes.get(0).cloned().context("the node is not known")
}

#[tokio::test]
async fn of_two_machines_of_one_image_one_is_the_node() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a mount namespace needs root");
        return Ok(());
    }
    let mut stand = Stand::new().await?;
    let two = TwoMachines::new(&stand, ["uuid of board", "uuid of copy"]).await?;
    let edge = two.board.edge(&mut stand, two.url()).await?;
    two.cloud.process.logged("linked node=").await?;
    let edges = slow_creates_are_made_once(&mut stand, &two, edge).await?;
    let machine = the_command_is_named(&stand, &edges[1]).await?;
    a_call_in_doubt_does_not_move(&stand, &two, &machine).await?;
    for edge in edges {
        edge.stop(STOP).await?;
    }
    two.stop().await
}

/// The copy starts during slow creates, and dials while the node's csi-edge is away.
async fn slow_creates_are_made_once(
    stand: &mut Stand,
    two: &TwoMachines,
    edge: Process,
) -> anyhow::Result<[Process; 2]> {
    let gate = Gate::new();
    two.board.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::All);
    let names: Vec<_> = (0..SLOW).map(|number| format!("slow-{number}")).collect();
    let slow = join_all(names.iter().map(|name| two.create(name)));
    let meanwhile = async {
        gate.wait_for(SLOW).await?;
        let copy = two.copy.edge(stand, two.url()).await?;
        two.cloud.process.logged("is another machine").await?;
        edge.kill().await?;
        tokio::time::sleep(ATTEMPTS).await;
        assert_eq!(two.copy.creates(), 0, "nothing is sent again to another machine");
        let edge = two.board.edge(stand, two.url()).await?;
        gate.open();
        anyhow::Ok([edge, copy])
    };
    let (answers, edges) = tokio::join!(slow, meanwhile);
    let edges = edges?;
    for answer in answers {
        created(&answer?)?;
    }
    assert_eq!((two.board.driver.volumes().len(), two.copy.creates()), (SLOW, 0));
    Ok(edges)
}

/// Returns the machine that is refused.
async fn the_command_is_named(stand: &Stand, copy: &Process) -> anyhow::Result<String> {
    let node = shown(stand).await?;
    let machine = node["refused_machine"].as_str().context("no machine is refused")?.to_owned();
    assert_ne!(node["machine"].as_str(), Some(machine.as_str()), "{node}");
    let accept = format!("csi-cloud node accept {NODE} --machine {machine}");
    let explained = say(stand, &["explain", "node", NODE]).await?;
    assert!(explained.contains(&accept), "{explained}");
    copy.logged(&accept).await?;
    Ok(machine)
}

/// The node moves while a create is on its way.
async fn a_call_in_doubt_does_not_move(
    stand: &Stand,
    two: &TwoMachines,
    machine: &str,
) -> anyhow::Result<()> {
    let gate = Gate::new();
    two.board.driver.clear_faults();
    two.board.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::All);
    let moving = async {
        gate.wait_for(1).await?;
        say(stand, &["node", "accept", NODE, "--machine", machine]).await?;
        until("the copy is the node", || async {
            let node = shown(stand).await?;
            anyhow::ensure!(node["machine"] == machine && node["state"] == "linked", "{node}");
            Ok(())
        })
        .await
    };
    let (answer, moved) = tokio::join!(two.create("moving"), moving);
    moved?;
    assert_eq!(answer?.code(), Code::Unavailable, "its outcome is unknown");
    let again = two.create("moving").await?.status();
    assert_eq!(again.code(), Code::Unavailable, "nor does the next attempt");
    assert!(again.message().contains("csi-cloud intent resolve"), "{again}");
    assert_eq!(two.copy.creates(), 0);
    created(&two.create("later").await?)?;
    assert_eq!((two.copy.creates(), gate.arrived()), (1, 1), "the board is not the node any more");
    gate.open();
    say(stand, &["intent", "resolve", DRIVER, "moving", "--not-made"]).await?;
    created(&two.create("moving").await?)?;
    Ok(())
}

/// A vendor gave all its boards one id, so csi-cloud cannot tell the copy from a restart, until the
/// node's own csi-edge comes back.
#[tokio::test]
async fn of_two_copies_that_have_one_id_neither_links_until_one_is_accepted() -> anyhow::Result<()>
{
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a mount namespace needs root");
        return Ok(());
    }
    let mut stand = Stand::new().await?;
    let two = TwoMachines::new(&stand, ["one id"; 2]).await?;
    let board = two.board.edge(&mut stand, two.url()).await?;
    two.cloud.process.logged("linked node=").await?;
    created(&two.create("before").await?)?;
    let copy = two.copy.edge(&mut stand, two.url()).await?;
    two.cloud.process.logged("two csi-edges are alive").await?;
    let node = shown(&stand).await?;
    assert_eq!(node["certificate_fault"], "cordoned", "{node}");
    assert_eq!(two.create("between").await?.code(), Code::Unavailable);

    let run = run_of(&stand, &two.board).await?;
    let explained = say(&stand, &["explain", "node", NODE]).await?;
    assert!(explained.contains(&run) && explained.contains("node accept"), "{explained}");
    board.logged(&format!("csi-cloud node accept {NODE} --run {run}")).await?;
    say(&stand, &["node", "accept", NODE, "--run", &run]).await?;
    is_linked(&stand).await?;
    created(&two.create("after").await?)?;
    two.cloud.process.logged("an operator accepted another csi-edge").await?;

    board.stop(STOP).await?;
    let board = two.board.edge(&mut stand, two.url()).await?;
    is_linked(&stand).await?;
    created(&two.create("later").await?)?;
    assert_eq!((two.board.creates(), two.copy.creates()), (3, 0));
    for edge in [board, copy] {
        edge.stop(STOP).await?;
    }
    two.stop().await
}

/// The run of the csi-edge on a machine.
async fn run_of(stand: &Stand, machine: &Machine) -> anyhow::Result<String> {
    let args = ["status", "-o", "json", "--admin", &machine.admin];
    let status: Value = serde_json::from_str(&stand.run("csi-edge", &args).await?)?;
    Ok(status["run"].as_str().context("it shows no run")?.to_owned())
}

async fn is_linked(stand: &Stand) -> anyhow::Result<()> {
    until("the node is linked", || async {
        let node = shown(stand).await?;
        anyhow::ensure!(node["state"] == "linked", "{node}");
        Ok(())
    })
    .await
}
