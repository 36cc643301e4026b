//! The cases: idle edges, some minutes later, a call to each, edges that leave and come back. In
//! two more csi-cloud is killed, and edges renew their certificates under load.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use drivers::grpc::controller_client::ControllerClient;
use proto::csi;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;

use super::edges::{CAPACITY, Fleet, node_name};
use super::kind::{DRIVER, Kind, SEGMENT};
use super::machine::{Half, pin};
use super::report::{Case, Row};
use crate::control_group::ControlGroup;
use crate::load::{Seen, percentile, together};
use crate::usage;
use harness::http::metric;
use harness::stand::{Cloud, Stand, channel};
use harness::wait::STOP;

/// How long all edges of a fleet may take to link, and each of them in a large one.
const LINKING: Duration = Duration::from_secs(180);
const LINKING_EACH: Duration = Duration::from_millis(9);
/// In a larger fleet all edges leave and come back once.
const SMALL: usize = 20_000;
/// csi-provisioner's `--timeout`, and the first and the longest pause before it calls again.
const PROVISIONER: Duration = Duration::from_secs(10);
const RETRIES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(300)];
/// New connections still probe their path for so long.
const SETTLED: Duration = Duration::from_secs(3);
/// How long idle links are watched: two rounds of keep-alive.
const WATCHED: Duration = Duration::from_secs(10);
/// The time after which a link's memory no longer grows. quinn doubles the channel of a
/// connection's packets after the first 32, and one packet comes every 5 s.
const LATER: Duration = Duration::from_secs(180);
/// An idle HTTP/2 connection has ended after this time.
const ENDED: Duration = Duration::from_secs(13);
/// The time after which memory is measured again in a larger fleet.
const LONG_ENDED: Duration = Duration::from_secs(600);
/// Under overload: the scheduler's period, the interval of an edge's signs of life, and how many
/// rows without more links end it.
const PERIOD_US: u64 = 100_000;
const SIGNS: Duration = Duration::from_secs(5);
const SETTLED_AFTER: u32 = 8;
/// How long a delete is repeated, and the pause of who calls one node meanwhile.
const DELETING: Duration = Duration::from_secs(300);
const BETWEEN: Duration = Duration::from_millis(5);
/// How many calls are made while the others idle.
const CALLS: usize = 2000;
/// How often all edges leave and come back.
const ROUNDS: usize = 3;
/// The time in which all edges renew.
const RENEWING: Duration = Duration::from_secs(60);
/// How many callers call meanwhile, each one call after another.
const CALLERS: usize = 16;

/// More edges than csi-cloud has CPU for.
pub struct Overload {
    /// The edges that dial.
    pub links: usize,
    /// The share of a core that csi-cloud has, in percent.
    pub share: u64,
    /// The time that each row covers.
    pub part: Duration,
    /// When it ends at the latest.
    pub longest: Duration,
}

/// A running csi-cloud, kept on its core.
struct Measured {
    stand: Stand,
    cloud: Cloud,
    path: &'static str,
    links: usize,
    /// The resident memory of csi-cloud without a link, in KiB.
    rest_kib: u64,
}

/// Links idle; then each is called; then all leave and come back, some rounds.
///
/// # Errors
/// A program fails, or the edges do not link. Missed targets are no errors.
pub async fn idle(
    path: &'static str,
    links: usize,
    deep: bool,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let measured = Measured::start(path, links).await?;
    let mut fleet = measured.fleet()?;
    rows.extend(measured.link_from_zero(&fleet).await?);
    let mut caller = measured.caller().await?;
    let mut row = measured.watch(Case::Idle, &fleet).await?;
    row.p99_us = Some(p99(&mut caller).await?);
    rows.push(row);
    if deep {
        tokio::time::sleep(LATER).await;
        rows.push(measured.watch(Case::Later, &fleet).await?);
        call_each(&mut caller, links).await?;
        rows.push(measured.watch(Case::Called, &fleet).await?);
        tokio::time::sleep(if links > SMALL { LONG_ENDED } else { ENDED }).await;
        rows.push(measured.watch(Case::Ended, &fleet).await?);
        rows.push(measured.delete_unknown().await?);
        let rounds = if links > SMALL { 1 } else { ROUNDS };
        for round in 1..=rounds {
            fleet.leave().await;
            measured.none_linked().await?;
            let gone = measured.kib_per_link()?;
            fleet.dial();
            fleet.all_linked(measured.linking()).await?;
            call_each(&mut caller, links).await?;
            let row = measured.watch(Case::Round, &fleet).await?;
            rows.push(Row { round: Some(round), gone_kib_per_link: Some(gone), ..row });
        }
    }
    fleet.leave().await;
    measured.cloud.process.stop(STOP).await
}

/// csi-cloud is killed and started again: how long until all edges are back.
///
/// # Errors
/// As for [`idle`].
pub async fn storm(
    path: &'static str,
    links: usize,
    down: Duration,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let mut measured = Measured::start(path, links).await?;
    let mut fleet = measured.fleet()?;
    rows.extend(measured.link_from_zero(&fleet).await?);
    tokio::time::sleep(SETTLED).await;
    fleet.take_welcomed();
    let url = measured.cloud.urls.first().context("no listener")?.clone();
    let Measured { stand, cloud, .. } = measured;
    cloud.process.kill().await?;
    tokio::time::sleep(down).await;
    let cloud = stand.cloud(&[&url], &[DRIVER], &[]).await?;
    let back = Instant::now();
    measured = Measured { stand, cloud, path, links, rest_kib: measured.rest_kib };
    pin(Some(measured.pid()?), Half::Cloud)?;
    // Over QUIC an edge finds out only now; one by one they unlink and link again.
    let (welcomed, dials) = measured.all_back(&fleet, back).await?;
    let at = |part: f64| percentile(&welcomed, part);
    let mut row = measured.row(Case::Storm)?;
    (row.relinked_50_s, row.relinked_90_s) = (at(0.5), at(0.9));
    (row.relinked_99_s, row.relinked_s) = (at(0.99), at(1.0));
    row.peak_kib = Some(usage::peak_kib(measured.pid()?)?);
    row.cloud_us_per_link = Some(usage::cpu(measured.pid()?)?.as_secs_f64() * 1e6 / links as f64);
    row.dials = Some(dials);
    row.silent = Some(fleet.ended_by_silence());
    rows.push(row);
    fleet.leave().await;
    measured.cloud.process.stop(STOP).await
}

/// All edges renew their certificates within a minute while callers call them.
///
/// # Errors
/// As for [`idle`]; also if a call fails.
pub async fn renewals(path: &'static str, links: usize, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let config = stand.issuing("")?;
    let measured = Measured::on(stand, path, links, &["--config", &config]).await?;
    let mut fleet = measured.fleet()?;
    rows.extend(measured.link_from_zero(&fleet).await?);
    tokio::time::sleep(SETTLED).await;
    let caller = measured.caller().await?;
    // The first call on each link begins its HTTP/2.
    call_each(&mut caller.clone(), links).await?;
    let quiet = load(&caller, links).await?;
    let before = usage::cpu(measured.pid()?)?;
    fleet.renew(RENEWING);
    let seen = load(&caller, links).await?;
    let cpu = usage::cpu(measured.pid()?)?.saturating_sub(before);
    fleet.all_renewed(measured.linking()).await?;
    let mut row = measured.row(Case::Renewals)?;
    row.cpu_percent = Some(cpu.as_secs_f64() / seen.took.as_secs_f64() * 100.0);
    row.p99_us = Some(seen.percentile(0.99));
    row.quiet_p99_us = Some(quiet.percentile(0.99));
    rows.push(row);
    fleet.leave().await;
    measured.cloud.process.stop(STOP).await
}

/// More edges dial than csi-cloud has CPU for, with a sign of life of each in 5 s. A row for each
/// part of the time.
///
/// # Errors
/// As for [`idle`]; also without control groups, or when links do not settle.
pub async fn overload(
    path: &'static str,
    Overload { links, share, part, longest }: Overload,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let measured = Measured::start(path, links).await?;
    let bound = ("cpu.cfs_quota_us", PERIOD_US * share / 100);
    let group = ControlGroup::new("cpu", bound).context("cannot bound csi-cloud's CPU")?;
    group.hold(measured.pid()?)?;
    let kind = Kind { numbers: 0..links, days: 1, signs: Some(SIGNS), ..Kind::default() };
    let mut fleet = Fleet::of(Path::new(&measured.stand.pki()), &measured.cloud.urls, kind)?;
    fleet.dial();
    let (begun, mut most, mut since_more) = (Instant::now(), 0, 0);
    while since_more < SETTLED_AFTER && begun.elapsed() < longest {
        let before = usage::cpu(measured.pid()?)?;
        tokio::time::sleep(part).await;
        let cpu = usage::cpu(measured.pid()?)?.saturating_sub(before);
        let mut row = measured.row(Case::Overload)?;
        row.cpu_percent = Some(cpu.as_secs_f64() / part.as_secs_f64() * 100.0);
        row.took_s = Some(begun.elapsed().as_secs_f64());
        row.linked = Some(fleet.linked());
        row.silent = Some(fleet.old_ended_by_silence());
        row.dials = Some(fleet.take_welcomed().1);
        eprintln!(
            "after {:3.0} s: {} of {links} linked",
            begun.elapsed().as_secs_f64(),
            fleet.linked()
        );
        since_more = if fleet.linked() > most + most / 100 { 0 } else { since_more + 1 };
        most = most.max(fleet.linked());
        rows.push(row);
    }
    let left = fleet.linked();
    ensure!(left * 10 >= most * 9, "of {most} links {left} are left: they do not settle");
    fleet.leave().await;
    measured.cloud.process.stop(STOP).await
}

impl Measured {
    async fn start(path: &'static str, links: usize) -> anyhow::Result<Self> {
        Self::on(Stand::new().await?, path, links, &[]).await
    }

    /// On this stand, with further arguments of csi-cloud.
    async fn on(
        stand: Stand,
        path: &'static str,
        links: usize,
        more: &[&str],
    ) -> anyhow::Result<Self> {
        let listen = if path == "quic" { "quic://127.0.0.1:0" } else { "wss://127.0.0.1:0" };
        let more = [&["--http", "127.0.0.1:0"], more].concat();
        let cloud = stand.cloud(&[listen], &[DRIVER], &more).await?;
        let mut measured = Self { stand, cloud, path, links, rest_kib: 0 };
        pin(Some(measured.pid()?), Half::Cloud)?;
        measured.rest_kib = usage::resident_kib(measured.pid()?)?;
        Ok(measured)
    }

    fn pid(&self) -> anyhow::Result<u32> {
        self.cloud.process.pid().context("csi-cloud has ended; see its log")
    }

    fn fleet(&self) -> anyhow::Result<Fleet> {
        Fleet::new(Path::new(&self.stand.pki()), &self.cloud.urls, self.links)
    }

    async fn caller(&self) -> anyhow::Result<ControllerClient<Channel>> {
        Ok(ControllerClient::new(channel(&self.stand.cloud_front(DRIVER)).await?))
    }

    /// How long all edges may take to link.
    fn linking(&self) -> Duration {
        LINKING.max(LINKING_EACH * u32::try_from(self.links).unwrap_or(u32::MAX))
    }

    fn row(&self, case: Case) -> anyhow::Result<Row> {
        Ok(Row::new(case, self.path, self.links, self.rest_kib))
    }

    fn kib_per_link(&self) -> anyhow::Result<f64> {
        let kib = usage::resident_kib(self.pid()?)?.saturating_sub(self.rest_kib);
        Ok(kib as f64 / self.links as f64)
    }

    /// Waits until csi-cloud knows that all edges are gone.
    async fn none_linked(&self) -> anyhow::Result<()> {
        let address = self.cloud.http.as_deref().context("csi-cloud serves no HTTP")?;
        let scheme = if self.path == "ws" { "wss" } else { self.path };
        let links = format!("edge_csi_links{{transport=\"{scheme}\"}}");
        let deadline = Instant::now() + self.linking();
        loop {
            let linked = metric(address, &links).await?;
            if linked == 0.0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "csi-cloud has {linked} links of edges that left");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// All edges dial a csi-cloud that has no links.
    async fn link_from_zero(&self, fleet: &Fleet) -> anyhow::Result<Option<Row>> {
        let begun = Instant::now();
        let cpu = usage::cpu(self.pid()?)?;
        fleet.dial();
        fleet.all_linked(self.linking()).await?;
        let took = begun.elapsed().as_secs_f64();
        let cpu = usage::cpu(self.pid()?)?.saturating_sub(cpu).as_secs_f64();
        let mut row = self.row(Case::Zero)?;
        row.links_per_s = Some(self.links as f64 / took);
        row.cloud_us_per_link = Some(cpu * 1e6 / self.links as f64);
        row.peak_kib = Some(usage::peak_kib(self.pid()?)?);
        eprintln!("linked {} edges over {} in {took:.2} s", self.links, self.path);
        Ok(Some(row))
    }

    /// Looks at csi-cloud while nothing happens but keep-alive.
    async fn watch(&self, case: Case, fleet: &Fleet) -> anyhow::Result<Row> {
        tokio::time::sleep(SETTLED).await;
        let begun = Instant::now();
        let before = usage::cpu(self.pid()?)?;
        tokio::time::sleep(WATCHED).await;
        let cpu = usage::cpu(self.pid()?)?.saturating_sub(before);
        let mut row = self.row(case)?;
        let percent = cpu.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        let (kib, silent) = (self.kib_per_link()?, fleet.ended_by_silence());
        eprintln!(
            "{case:?}: {} links, {kib:.1} KiB each, {percent:.1} % of a core, {silent} ended by \
             silence",
            fleet.linked()
        );
        row.cpu_percent = Some(percent);
        row.kib_per_link = Some(kib);
        row.silent = Some(silent);
        Ok(row)
    }

    /// Deletes a volume that no edge has, as csi-provisioner does it, while one node is called.
    async fn delete_unknown(&self) -> anyhow::Result<Row> {
        let (pid, mut caller) = (self.pid()?, self.caller().await?);
        let quiet = p99(&mut caller).await?;
        let before = usage::resident_kib(pid)?;
        let mut deleting = JoinSet::from_iter([delete(self.caller().await?)]);
        let (begun, mut seen, mut most) = (Instant::now(), Seen::default(), before);
        let deleted = loop {
            if let Some(deleted) = deleting.try_join_next() {
                break deleted;
            }
            let called = Instant::now();
            call(&mut caller, 0).await?;
            seen.answered(called);
            most = most.max(usage::resident_kib(pid)?);
            tokio::time::sleep(BETWEEN).await;
        };
        deleted??;
        let mut row = self.row(Case::Unknown)?;
        let (took, grown) = (begun.elapsed().as_secs_f64(), (most - before) as f64 / 1024.0);
        eprintln!("an unknown volume was deleted in {took:.1} s, with {grown:.0} MiB more");
        (row.took_s, row.grown_mib) = (Some(took), Some(grown));
        (row.p99_us, row.quiet_p99_us) = (Some(seen.finished(begun).percentile(0.99)), Some(quiet));
        Ok(row)
    }

    /// Waits until each edge has linked since `back`. Returns the sorted times in s after that, and
    /// the number of attempts.
    async fn all_back(&self, fleet: &Fleet, back: Instant) -> anyhow::Result<(Vec<f64>, u64)> {
        fleet.all_welcomed(self.links, self.linking()).await.context("edges do not come back")?;
        let (welcomed, dials) = fleet.take_welcomed();
        let mut seconds: Vec<_> =
            welcomed.iter().map(|at| at.saturating_duration_since(back).as_secs_f64()).collect();
        seconds.sort_by(f64::total_cmp);
        Ok((seconds, dials))
    }
}

/// Deletes a volume that no edge has, again and again until that succeeds.
async fn delete(mut caller: ControllerClient<Channel>) -> anyhow::Result<()> {
    let [mut pause, longest] = RETRIES;
    let begun = Instant::now();
    while begun.elapsed() < DELETING {
        let volume_id = "nobody-has-it".to_owned();
        let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
        match timeout(PROVISIONER, caller.delete_volume(request)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(status)) => eprintln!("DeleteVolume after {:?}: {status}", begun.elapsed()),
            Err(_) => eprintln!("DeleteVolume after {:?}: no answer", begun.elapsed()),
        }
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
    bail!("an unknown volume is not deleted after {DELETING:?}")
}

/// A call to one node's driver, and whether its answer is right.
async fn call(caller: &mut ControllerClient<Channel>, number: usize) -> anyhow::Result<()> {
    let segments = [(SEGMENT.to_owned(), node_name(number))].into();
    let accessible_topology = Some(csi::Topology { segments });
    let request = csi::GetCapacityRequest { accessible_topology, ..Default::default() };
    let answer = caller.get_capacity(request).await?.into_inner();
    let said = answer.available_capacity;
    let its = CAPACITY + i64::try_from(number)?;
    ensure!(said == its, "GetCapacity was answered with {said}, and not by the edge with {its}");
    Ok(())
}

async fn call_each(caller: &mut ControllerClient<Channel>, links: usize) -> anyhow::Result<()> {
    for number in 0..links {
        call(caller, number).await.with_context(|| format!("calling edge {number}"))?;
    }
    Ok(())
}

/// Calls all edges for as long as they may renew.
async fn load(caller: &ControllerClient<Channel>, links: usize) -> anyhow::Result<Seen> {
    let end = Instant::now() + RENEWING;
    let callers = (0..CALLERS).map(|first| {
        let mut caller = caller.clone();
        async move {
            let mut seen = Seen::default();
            let mut number = first;
            while Instant::now() < end {
                let begun = Instant::now();
                match call(&mut caller, number % links).await {
                    Ok(()) => seen.answered(begun),
                    Err(error) => {
                        tracing::error!("a call failed: {error:#}");
                        seen.errors += 1;
                    }
                }
                number += CALLERS;
            }
            seen
        }
    });
    let seen = together(callers).await?;
    ensure!(seen.errors == 0, "{} calls failed", seen.errors);
    Ok(seen)
}

/// The latency of the slowest in a hundred calls to one edge, in µs.
async fn p99(caller: &mut ControllerClient<Channel>) -> anyhow::Result<f64> {
    let all = Instant::now();
    let mut seen = Seen::default();
    for _ in 0..CALLS {
        let begun = Instant::now();
        call(caller, 0).await?;
        seen.answered(begun);
    }
    Ok(seen.finished(all).percentile(0.99))
}
