//! Two sets of sidecars of a driver with `--leader-election`, each at a socket relay of its own, as
//! the component `ha` has them. Whichever set works, and whichever csi-cloud leads, a claim gets
//! one volume.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::replicas::{bound, load, moved, replica, told};
use super::scene::Scene;
use super::truth;
use crate::stand::cloud::NAMESPACE;
use crate::stand::objects::within;
use crate::stand::program::{Launch, Program};
use crate::stand::several::REPLICAS;
use crate::stand::{Cluster, DRIVER};

/// How many claims are made at a time.
const CLAIMS: usize = 6;
/// The sidecars' lease is 15 s, and they try each 5 s.
const NEXT: Duration = Duration::from_secs(60);
/// The sidecars' flags. Outside a pod they do not know their namespace.
const FLAGS: [&str; 2] = ["--leader-election", "--leader-election-namespace"];

/// The second set, with its relay. It has a host name of its own, which is its name in leases.
struct Second {
    relay: Program,
    sidecars: Vec<Program>,
}

impl Second {
    async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let ground = &cluster.ground;
        let fronts = ground.at("fronts-second");
        let mut args = cluster.cloud.front.args().await?;
        args.retain(|arg| !arg.starts_with("--fronts="));
        args.push(format!("--fronts={fronts}"));
        let launch = Launch::new(cluster.cloud.front.file().await?, args);
        let relay = Program::start("csi-cloud-front-second", &ground.logs(), launch).await?;
        let socket = ground.dir().join(format!("fronts-second/{DRIVER}.sock"));
        let mut sidecars = Vec::new();
        for (name, launch) in cluster.cloud.central(ground, DRIVER, &socket) {
            let launch = named("second", elected(launch));
            sidecars.push(Program::start(&format!("{name}-second"), &ground.logs(), launch).await?);
        }
        Ok(Self { relay, sidecars })
    }

    /// The processes of the sidecars.
    async fn pids(&self) -> anyhow::Result<Vec<rustix::process::Pid>> {
        try_join_all(self.sidecars.iter().map(Program::pid)).await
    }

    async fn stop(&self) -> anyhow::Result<()> {
        for program in self.sidecars.iter().chain([&self.relay]) {
            program.ended().await?;
        }
        Ok(())
    }
}

fn elected(mut launch: Launch) -> Launch {
    let [flag, namespace] = FLAGS;
    launch.args.extend([flag.to_owned(), format!("{namespace}={NAMESPACE}")]);
    launch
}

/// The same with this host name.
fn named(host: &str, launch: Launch) -> Launch {
    let Launch { program, args, env } = launch;
    let script = format!("hostname {host} && exec \"$@\"");
    let before = ["--uts", "--", "sh", "-c", &script, "sh"].map(str::to_owned);
    let program = program.to_string_lossy().into_owned();
    let args = before.into_iter().chain([program]).chain(args);
    Launch { env, ..Launch::new("unshare", args) }
}

/// The first set of the driver's sidecars, which the stand has.
fn first(cluster: &Cluster) -> impl Iterator<Item = &Program> {
    cluster.cloud.sidecars.iter().filter(|one| one.name().ends_with(&format!("-{DRIVER}")))
}

/// The first set is elected, then killed, and started again; a leading csi-cloud is killed under
/// each set.
pub(super) async fn sidecars_elected(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    moved(scene).await?;
    for sidecar in first(cluster) {
        sidecar.reargue(|args| *args = elected(Launch::new("", std::mem::take(args))).args).await?;
        sidecar.restart().await?;
    }
    let names = load(scene, "first", CLAIMS).await?;
    bound(scene, &names).await?;
    let second = Second::start(cluster).await?;
    let outcome = handed_over(scene, &second).await;
    second.stop().await?;
    for sidecar in first(cluster) {
        let is_ours = |arg: &String| FLAGS.iter().any(|flag| arg.starts_with(flag));
        sidecar.reargue(|args| args.retain(|arg| !is_ours(arg))).await?;
        sidecar.ended().await?;
        sidecar.run().await?;
    }
    outcome
}

async fn handed_over(scene: &Scene<'_>, second: &Second) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let pids = second.pids().await?;
    within("a second set that waits for its lease", NEXT, || async {
        ensure!(logged(&second.sidecars, "attempting to acquire"), "one does not wait");
        Ok(())
    })
    .await?;
    ensure!(!works(&second.sidecars), "both sets work");
    let mut names = load(scene, "killed", CLAIMS).await?;
    for sidecar in first(cluster) {
        sidecar.kill().await?;
    }
    let begun = Instant::now();
    bound(scene, &names).await?;
    told(begun, "s from the end of a set of sidecars until all claims were bound");
    within("the second set", NEXT, || async {
        ensure!(works(&second.sidecars), "it does not work");
        Ok(())
    })
    .await?;
    names = load(scene, "cloud", CLAIMS).await?;
    let leader = cluster.leading(&REPLICAS).await?;
    replica(cluster, leader.place)?.kill().await?;
    bound(scene, &names).await?;
    replica(cluster, leader.place)?.run().await?;
    cluster.leading(&REPLICAS).await?;
    let now = second.pids().await.context("a sidecar has ended with its csi-cloud")?;
    ensure!(now == pids, "a sidecar was started again");
    truth::agreed(cluster).await
}

/// True if all of these sidecars have their lease.
fn works(sidecars: &[Program]) -> bool {
    logged(sidecars, "successfully acquired lease")
}

/// True if each has logged these words.
fn logged(sidecars: &[Program], words: &str) -> bool {
    sidecars.iter().all(|one| one.log().to_lowercase().contains(words))
}
