//! Several csi-clouds with one store in etcd: whichever of them ends, claims are bound and no
//! sidecar notices. Each row moves the running csi-cloud to etcd first; after it all is moved back.

use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use proto::csi::GetCapacityRequest;
use rustix::process::{Pid, Signal};
use tokio::time::Instant;
use tonic::{Code, Request};

use super::faults::{at_node, told_of};
use super::outages::{lost_calls, sidecars};
use super::scene::{Scene, claim};
use super::truth;
use crate::stand::ask::get;
use crate::stand::moving::Leads;
use crate::stand::objects::{list, within};
use crate::stand::program::Program;
use crate::stand::several::REPLICAS;
use crate::stand::{Cluster, DRIVER};
use harness::stand::channel;

/// How many claims are made while something is moved or restarted.
const CLAIMS: usize = 6;
/// How many are made while the leader is killed.
const MANY: usize = 100;
/// How many of them are bound by then.
const BEGUN: usize = 10;
/// The time for all edges to be at the next leader, on a machine that does other work too: alone it
/// takes 13 s. A leader that is slow for lack of a processor may be followed by another one.
const NEXT: Duration = Duration::from_secs(60);
/// How long a caller waits that asks for the reason.
const ASK: Duration = Duration::from_secs(5);
/// How long etcd is without a quorum.
const AWAY: Duration = Duration::from_secs(60);
/// How long a condition may take.
const SOON: Duration = Duration::from_secs(60);

/// What must be as before at the end: the sidecars, their front, and what they logged.
pub(super) struct Untouched {
    sidecars: Vec<(Pid, u32)>,
    logged: Vec<usize>,
}

impl Untouched {
    pub(super) async fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        let logged = cluster.cloud.sidecars.iter().map(|one| one.log().len()).collect();
        Ok(Self { sidecars: sidecars(cluster).await?, logged })
    }

    /// Fails if a sidecar has ended or has lost a call.
    pub(super) async fn still(&self, cluster: &Cluster) -> anyhow::Result<()> {
        self.run(cluster).await?;
        lost_calls(cluster, &self.logged)
    }

    /// Fails if a sidecar has ended.
    async fn run(&self, cluster: &Cluster) -> anyhow::Result<()> {
        ensure!(sidecars(cluster).await? == self.sidecars, "a sidecar has ended meanwhile");
        Ok(())
    }
}

/// Makes claims, and does not wait for them.
pub(super) async fn load(
    scene: &Scene<'_>,
    name: &str,
    count: usize,
) -> anyhow::Result<Vec<String>> {
    let names: Vec<_> = (0..count).map(|number| format!("{name}-{number}")).collect();
    let texts: String = names.iter().map(|name| claim(name, "now")).collect();
    scene.apply(&texts).await?;
    Ok(names)
}

pub(super) async fn bound(scene: &Scene<'_>, names: &[String]) -> anyhow::Result<()> {
    for name in names {
        scene.bound(name).await?;
    }
    Ok(())
}

/// Moves the running csi-cloud to etcd while claims are made. Returns the leader.
pub(super) async fn moved(scene: &Scene<'_>) -> anyhow::Result<Leads> {
    let cluster = scene.cluster;
    let before = Untouched::of(cluster).await?;
    let names = load(scene, "moved", CLAIMS).await?;
    let leader = cluster.several().await?;
    bound(scene, &names).await?;
    before.still(cluster).await?;
    Ok(leader)
}

/// The names of all replicas but one.
fn others(place: usize) -> Vec<&'static str> {
    let is_other = |one: &(usize, &&'static str)| one.0 != place;
    REPLICAS.iter().enumerate().filter(is_other).map(|(_, name)| *name).collect()
}

pub(super) fn replica(cluster: &Cluster, place: usize) -> anyhow::Result<&Program> {
    cluster.cloud.replicas().get(place).copied().context("there are three replicas")
}

/// The leader is killed while 100 claims are made, and started again. All are bound, to one volume
/// each.
pub(super) async fn leader_killed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let leader = moved(scene).await?;
    let before = Untouched::of(cluster).await?;
    let names = load(scene, "many", MANY).await?;
    within("some of the claims", SOON, || async {
        let bound = count_bound(scene).await?;
        ensure!(bound >= CLAIMS + BEGUN, "{bound} are bound");
        Ok(())
    })
    .await?;
    let killed = replica(cluster, leader.place)?;
    killed.signal(Signal::KILL).await?;
    let begun = Instant::now();
    let at_kill = count_bound(scene).await?;
    ensure!(at_kill < CLAIMS + MANY, "the leader was killed after the last claim");
    // The same one may lead again, as of a later epoch.
    cluster.leading_after(leader.epoch, &REPLICAS).await?;
    succeeded(begun)?;
    // How long these take depends on what else the machine does; each has its own bound.
    bound(scene, &names).await?;
    told(begun, "s from the leader's end until all claims were bound");
    ensure!(killed.restarts().await? > 0, "nobody has started it again");
    before.still(cluster).await?;
    truth::agreed(cluster).await
}

async fn count_bound(scene: &Scene<'_>) -> anyhow::Result<usize> {
    let claims = list(&scene.api::<PersistentVolumeClaim>()).await?;
    let phases = claims.iter().filter_map(|claim| claim.status.as_ref()?.phase.as_deref());
    Ok(phases.filter(|phase| *phase == "Bound").count())
}

/// Fails if edges were late at the next leader.
fn succeeded(begun: Instant) -> anyhow::Result<()> {
    let what = "s from the leader's end to all edges at the next one";
    told(begun, what);
    let took = begun.elapsed();
    ensure!(took < NEXT, "{:.1} {what}; {} are allowed", took.as_secs_f64(), NEXT.as_secs());
    Ok(())
}

pub(super) fn told(begun: Instant, what: &str) {
    println!("{:24} {:8.1}  {what}", "", begun.elapsed().as_secs_f64());
}

/// The leader's machine is gone for good. Operators see it; edges and sidecars go on with those
/// that are left.
pub(super) async fn leader_gone(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let leader = moved(scene).await?;
    let [first, second, _] = cluster.nodes.as_slice() else { anyhow::bail!("there are few nodes") };
    scene.apply(&at_node("before", first)).await?;
    scene.ready(&["before"]).await?;
    let before = Untouched::of(cluster).await?;
    replica(cluster, leader.place)?.kill().await?;
    let begun = Instant::now();
    scene.apply(&at_node("during", second)).await?;
    let left = others(leader.place);
    cluster.leading(&left).await?;
    succeeded(begun)?;
    scene.ready(&["during"]).await?;
    let names = load(scene, "after", CLAIMS).await?;
    bound(scene, &names).await?;
    scene.ready(&["before", "during"]).await?;
    ensure!(scene.restarts("before").await? == 0, "the container was started again");
    before.still(cluster).await?;
    // Another leader's end leaves one, which has all of it.
    let next = cluster.leading(&left).await?;
    replica(cluster, next.place)?.stop().await?;
    let last: Vec<_> = left.into_iter().filter(|name| *name != REPLICAS[next.place]).collect();
    cluster.leading(&last).await?;
    let names = load(scene, "last", CLAIMS).await?;
    bound(scene, &names).await?;
    before.still(cluster).await
}

/// The replicas are restarted one after the other while claims are made, and then all is moved back
/// to a file. No sidecar sees a call that failed.
pub(super) async fn rolling_upgrade(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let before = Untouched::of(cluster).await?;
    moved(scene).await?;
    let mut names = Vec::new();
    // As a StatefulSet does it.
    for (place, name) in REPLICAS.iter().enumerate().rev() {
        names.extend(load(scene, name, CLAIMS).await?);
        replica(cluster, place)?.restart().await?;
        cluster.leading(&REPLICAS).await?;
    }
    names.extend(load(scene, "back", CLAIMS).await?);
    cluster.single().await?;
    bound(scene, &names).await?;
    before.still(cluster).await
}

/// Two of etcd's three members are away. Nothing new is made and callers hear why; what there is
/// goes on. All is made when one of the two is back.
pub(super) async fn without_quorum(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    moved(scene).await?;
    let [first, ..] = cluster.nodes.as_slice() else { anyhow::bail!("there are no nodes") };
    scene.apply(&at_node("before", first)).await?;
    scene.ready(&["before"]).await?;
    let before = Untouched::of(cluster).await?;
    let [_, second, third] = &cluster.cloud.several.members;
    second.kill().await?;
    third.kill().await?;
    let away = Instant::now() + AWAY;
    let names = load(scene, "during", CLAIMS).await?;
    within("the reason for callers", SOON, || reason(cluster)).await?;
    within("replicas that say why they are not ready", SOON, || unready(cluster)).await?;
    tokio::time::sleep_until(away).await;
    told_of(scene, "during-0", "cannot use etcd").await?;
    let bound_meanwhile = count_bound(scene).await?;
    ensure!(bound_meanwhile == CLAIMS + 1, "{bound_meanwhile} claims are bound without a quorum");
    second.run().await?;
    let begun = Instant::now();
    bound(scene, &names).await?;
    told(begun, "s from the quorum's return to all claims bound");
    cluster.leading(&REPLICAS).await?;
    ensure!(scene.restarts("before").await? == 0, "the container was started again");
    before.run(cluster).await?;
    truth::agreed(cluster).await
}

/// Fails if a caller of the sidecars' socket hears anything but that etcd is why nobody answers.
async fn reason(cluster: &Cluster) -> anyhow::Result<()> {
    let socket = cluster.ground.at(&format!("fronts/{DRIVER}.sock"));
    let mut request = Request::new(GetCapacityRequest::default());
    request.set_timeout(ASK);
    let answer = ControllerClient::new(channel(&socket).await?).get_capacity(request).await;
    let status = answer.err().context("there is an answer")?;
    let has_reason = status.message().contains("cannot use etcd");
    ensure!(status.code() == Code::Unavailable && has_reason, "a caller hears {status}");
    Ok(())
}

/// Fails if a replica is ready, or if etcd is not why. The one that led starts again, and has not
/// opened its store.
async fn unready(cluster: &Cluster) -> anyhow::Result<()> {
    let mut opening = 0;
    for replica in cluster.cloud.replicas() {
        let log = replica.log();
        let address = log.lines().rev().find_map(|line| line.strip_prefix("http "));
        let said = get(address.context("it serves no HTTP")?, "/readyz").await?;
        let is_opening = said.contains("the store is being opened");
        ensure!(
            said.contains(" 503 ") && (is_opening || said.contains("etcd")),
            "{} says {said}",
            replica.name()
        );
        opening += usize::from(is_opening);
    }
    ensure!(opening <= 1, "{opening} replicas started again");
    Ok(())
}
