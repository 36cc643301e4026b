//! Power cuts: a node is switched off at a random step of its volumes' lives, and is whole again
//! without csi-cloud.
//!
//! csi-edge, csi-cloud and `hostdir` run as programs. A boot has its own id, mounts and loop
//! devices; only disks survive it. csi-edge does the node's half of expansions, and csi-cloud is
//! back only after all volumes are.

pub mod command;
pub mod machine;
pub mod steps;
pub mod volume;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::node_client::NodeClient;
use futures_util::future::{join_all, try_join_all};
use harness::wait::{START, until};
use proto::csi;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use self::machine::Machine;
use self::steps::{Step, Tally};
use self::volume::Volume;

/// How long a volume may take after it is asked for.
const BACK: Duration = Duration::from_secs(10);
/// The growth of one expansion, in bytes.
const MORE: i64 = 1 << 20;

/// What a round was like.
pub struct Seen {
    /// When the power was cut.
    pub cut: String,
    /// How long it took until all volumes were back.
    pub back: Duration,
    /// The expansions that the node owed after the cut.
    pub owed: usize,
    /// The expansions whose outcome the cloud did not know.
    pub open: usize,
    /// The steps that the cut interrupted.
    pub tally: Tally,
}

/// When the power is cut.
enum Moment {
    /// After this time.
    Time(Duration),
    /// As soon as csi-edge has changed its records so often.
    Commits(u32),
}

impl Moment {
    fn random(random: &mut StdRng) -> Self {
        match random.random_range(0..3) {
            0 => Self::Commits(random.random_range(1..20)),
            _ => Self::Time(Duration::from_millis(random.random_range(20..2_000))),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Time(time) => format!("after {time:?}"),
            Self::Commits(number) => format!("at commit {number}"),
        }
    }

    /// Waits for it. Returns true if csi-edge has just changed its records.
    async fn comes(&self, machine: &Machine) -> bool {
        match self {
            Self::Time(time) => {
                sleep(*time).await;
                false
            }
            Self::Commits(number) => commits(machine, *number).await,
        }
    }
}

/// Waits until csi-edge has changed its records so often. Returns false if it does not in time.
async fn commits(machine: &Machine, number: u32) -> bool {
    let end = Instant::now() + BACK;
    let mut last: Option<SystemTime> = machine.changed();
    let mut seen = 0;
    while seen < number {
        if Instant::now() >= end {
            return false;
        }
        sleep(Duration::from_millis(1)).await;
        let now = machine.changed();
        seen += u32::from(now != last);
        last = now;
    }
    true
}

/// One power cut with this seed.
///
/// # Errors
/// Something is there that must not be, or a program does not start.
pub async fn run(seed: u64, volumes: usize) -> anyhow::Result<Seen> {
    let mut machine = Machine::new().await?;
    let mut random = StdRng::seed_from_u64(seed);
    let seen = round(&mut machine, &mut random, volumes).await;
    if seen.is_err() {
        let log = machine.log();
        // What is left over goes all the same.
        let _ = machine.cut().await;
        return seen.with_context(|| format!("csi-edge logged:\n{log}"));
    }
    machine.stop().await?;
    seen
}

async fn round(machine: &mut Machine, random: &mut StdRng, number: usize) -> anyhow::Result<Seen> {
    let mut volumes = begin(machine, random, number).await?;
    let moment = Moment::random(random);
    let at_commit = live_until(machine, &mut volumes, random, &moment).await?;
    machine.cut().await?;
    let tally = Tally::of(at_commit, volumes.iter().map(|volume| volume.step));
    let owed = owed(machine)?;
    let open = volumes.iter().filter(|volume| volume.open).count();
    let (gone, mut kept): (Vec<_>, Vec<_>) =
        volumes.into_iter().partition(|_| random.random_ratio(1, 5));
    let late = Duration::from_millis(random.random_range(0..2_000));
    let back = come_back(machine, &kept, &gone, late).await?;
    check(machine, &kept)?;
    ensure!(owed_of(machine, &kept)? == 0, "a volume is used and has not grown: {}", machine.log());
    machine.cloud_again().await?;
    settle(machine, &mut kept, &gone).await?;
    check(machine, &kept)?;
    end(machine, &kept).await?;
    Ok(Seen { cut: moment.text(), back, owed, open, tally })
}

/// Makes the volumes, and uses each with its own data.
async fn begin(
    machine: &Machine,
    random: &mut StdRng,
    number: usize,
) -> anyhow::Result<Vec<Volume>> {
    let controller = machine.controller().await?;
    let node = machine.node().await?;
    let kubelet = machine.kubelet();
    let kinds: Vec<bool> = (0..number).map(|_| random.random_ratio(1, 3)).collect();
    let making = kinds
        .into_iter()
        .enumerate()
        .map(|(number, block)| Volume::create(&controller, &kubelet, number, block));
    let volumes = try_join_all(making).await?;
    let end = Instant::now() + START;
    try_join_all(volumes.iter().map(|volume| use_it(volume, &node, end))).await?;
    let root = machine.root()?;
    volumes.iter().try_for_each(|volume| volume.write(&root))?;
    Ok(volumes)
}

async fn use_it(volume: &Volume, node: &NodeClient<Channel>, end: Instant) -> anyhow::Result<()> {
    volume.stage(node, end).await?;
    volume.publish(node, end).await
}

async fn leave_it(volume: &Volume, node: &NodeClient<Channel>, end: Instant) -> anyhow::Result<()> {
    volume.unpublish(node, end).await?;
    volume.unstage(node, end).await
}

/// Leads all volumes through their lives until all programs are killed. Returns true if that came
/// at a commit of csi-edge. Each volume keeps the step that it was in.
async fn live_until(
    machine: &Machine,
    volumes: &mut [Volume],
    random: &mut StdRng,
    moment: &Moment,
) -> anyhow::Result<bool> {
    let controller = machine.controller().await?;
    let node = machine.node().await?;
    let lives = volumes.iter_mut().map(|volume| {
        let random = StdRng::seed_from_u64(random.random());
        lead(volume, node.clone(), controller.clone(), random)
    });
    let lives = try_join_all(lives);
    let killing = async {
        let at_commit = moment.comes(machine).await;
        machine.kill()?;
        anyhow::Ok(at_commit)
    };
    tokio::select! {
        biased;
        killed = killing => killed,
        ended = lives => {
            ended?;
            bail!("no life of a volume ends by itself")
        }
    }
}

/// One volume's life, which only a power cut ends.
async fn lead(
    volume: &mut Volume,
    node: NodeClient<Channel>,
    controller: ControllerClient<Channel>,
    mut random: StdRng,
) -> anyhow::Result<()> {
    let end = Instant::now() + 2 * START;
    loop {
        // A pod goes, another one comes, and the volume grows somewhere in between.
        let mut life = vec![Step::Unpublish, Step::Unstage, Step::Stage, Step::Publish];
        let growth = random.random_range(0..5);
        life.insert(growth, Step::Expand);
        for step in life {
            volume.step = step;
            take(volume, &node, &controller, end).await?;
            volume.step = Step::Idle;
        }
    }
}

/// Takes a volume's step.
async fn take(
    volume: &mut Volume,
    node: &NodeClient<Channel>,
    controller: &ControllerClient<Channel>,
    end: Instant,
) -> anyhow::Result<()> {
    match volume.step {
        Step::Idle => Ok(()),
        Step::Stage => volume.stage(node, end).await,
        Step::Publish => volume.publish(node, end).await,
        Step::Unpublish => volume.unpublish(node, end).await,
        Step::Unstage => volume.unstage(node, end).await,
        Step::Expand => {
            volume.size += MORE;
            volume.open = true;
            volume.grow(controller, end).await?;
            volume.open = false;
            Ok(())
        }
    }
}

/// Switches the node on, and asks as a kubelet does that starts. It wants the volumes of pods that
/// come back, and the end of the others.
async fn come_back(
    machine: &mut Machine,
    kept: &[Volume],
    gone: &[Volume],
    late: Duration,
) -> anyhow::Result<Duration> {
    machine.switch_on().await?;
    let mut node = machine.node().await?;
    let begun = Instant::now();
    let end = begun + BACK;
    let asking = async {
        let used = join_all(kept.iter().map(|volume| use_it(volume, &node, end)));
        let left = join_all(gone.iter().map(|volume| leave_it(volume, &node, end)));
        let (used, left) = tokio::join!(used, left);
        used.into_iter().chain(left).collect::<anyhow::Result<Vec<()>>>()
    };
    let (driver, asked) = tokio::join!(machine.driver_comes(late), asking);
    driver?;
    asked?;
    let back = begun.elapsed();
    let info = node.node_get_info(csi::NodeGetInfoRequest::default()).await?.into_inner();
    ensure!(info.node_id == machine::NODE, "the node calls itself {:?}", info.node_id);
    Ok(back)
}

/// The expansions that csi-edge owes.
fn owed(machine: &Machine) -> anyhow::Result<usize> {
    let records = machine.records()?;
    Ok(records.iter().filter(|record| record["growth"]["state"] == "due").count())
}

/// The same of these volumes.
fn owed_of(machine: &Machine, volumes: &[Volume]) -> anyhow::Result<usize> {
    let records = machine.records()?;
    let due = records.iter().filter(|record| record["growth"]["state"] == "due");
    Ok(due.filter(|record| volumes.iter().any(|of| record["volume_id"] == of.id)).count())
}

/// Every volume is there once, with its data, and nothing else is.
fn check(machine: &Machine, volumes: &[Volume]) -> anyhow::Result<()> {
    let root = machine.root()?;
    let mounts = machine.mounts()?;
    volumes.iter().try_for_each(|volume| volume.check(&root, &mounts))?;
    let kubelet = machine.kubelet().display().to_string();
    let mut ours = mounts.iter().filter(|mount| mount.starts_with(&kubelet));
    let other = ours.find(|mount| !volumes.iter().any(|volume| volume.is_at(mount)));
    ensure!(other.is_none(), "left over: a mount at {other:?}");
    let blocks = volumes.iter().filter(|volume| volume.block).count();
    let devices = machine.devices()?;
    ensure!(devices.len() == blocks, "{blocks} block volumes have the devices {devices:?}");
    Ok(())
}

/// What was open at the cut ends, now that csi-cloud is back.
async fn settle(machine: &Machine, kept: &mut [Volume], gone: &[Volume]) -> anyhow::Result<()> {
    let controller = machine.controller().await?;
    let end = Instant::now() + START;
    for volume in kept.iter_mut().filter(|volume| volume.open) {
        volume.grow(&controller, end).await?;
        volume.open = false;
    }
    for volume in gone {
        volume.delete(&controller, end).await?;
    }
    let request = csi::ListVolumesRequest::default();
    let listed = until("the list of all volumes", || async {
        Ok(controller.clone().list_volumes(request.clone()).await?.into_inner())
    })
    .await?;
    let listed: Vec<_> = listed
        .entries
        .into_iter()
        .filter_map(|entry| entry.volume)
        .map(|it| it.volume_id)
        .collect();
    let ids: BTreeSet<_> = kept.iter().map(|volume| volume.id.as_str()).collect();
    let found: BTreeSet<_> = listed.iter().map(String::as_str).collect();
    ensure!(found == ids && listed.len() == ids.len(), "listed {listed:?}, made {ids:?}");
    Ok(())
}

/// All pods go, and nothing is left over.
async fn end(machine: &Machine, volumes: &[Volume]) -> anyhow::Result<()> {
    let node = machine.node().await?;
    let end = Instant::now() + START;
    try_join_all(volumes.iter().map(|volume| leave_it(volume, &node, end))).await?;
    check(machine, &[])?;
    let records = machine.records()?;
    ensure!(records.is_empty(), "left over: {records:?}");
    Ok(())
}
