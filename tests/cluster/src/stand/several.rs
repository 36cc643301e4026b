//! What a stand with several csi-clouds has besides: two more of them, and an etcd of three
//! members. As processes they run only while a row has them.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;

use super::ask::get;
use super::ground::Ground;
use super::layout::PODS;
use super::program::{Launch, Program};

/// The names of the replicas. The first is the csi-cloud that is alone at other times.
pub const REPLICAS: [&str; 3] = ["a", "b", "c"];
/// How long a member may take to have a quorum.
const SOON: Duration = Duration::from_secs(60);
/// What precedes an address of a member that asks for no certificate. The first there is counts.
const PLAIN: [&str; 2] = ["--listen-metrics-urls=http://", "--advertise-client-urls=http://"];

/// What a stand has only with several csi-clouds.
pub struct Several {
    /// The members of etcd.
    pub members: [Program; 3],
    /// The replicas after the first.
    pub others: [Program; 2],
    /// The names of all replicas.
    pub names: [&'static str; 3],
    /// They are in use, or were when something failed.
    pub(super) used: AtomicBool,
    /// The store is in etcd now.
    pub(super) in_etcd: AtomicBool,
}

impl Several {
    /// Those that do not run yet.
    pub(super) fn new(ground: &Ground) -> Self {
        let cloud = |name| {
            let launch = Launch::new(ground.program("csi-cloud"), [""; 0]);
            Program::later(name, &ground.logs(), launch)
        };
        Self::of(ground, ["csi-cloud-b", "csi-cloud-c"].map(cloud), REPLICAS)
    }

    /// Those that are pods. etcd does not run yet.
    pub(super) fn deployed(ground: &Ground, others: [Program; 2]) -> Self {
        Self::of(ground, others, PODS)
    }

    fn of(ground: &Ground, others: [Program; 2], names: [&'static str; 3]) -> Self {
        let etcd =
            |name| Program::later(name, &ground.logs(), Launch::new("/usr/bin/etcd", [""; 0]));
        Self {
            members: ["etcd-a", "etcd-b", "etcd-c"].map(etcd),
            others,
            names,
            used: AtomicBool::new(false),
            in_etcd: AtomicBool::new(false),
        }
    }

    /// All of them, the first to stop first.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.others.iter().chain(&self.members)
    }

    /// Starts etcd's members, if they do not run, and waits until each has a quorum.
    ///
    /// # Errors
    /// One is not healthy in time.
    pub async fn quorum(&self) -> anyhow::Result<()> {
        for member in &self.members {
            member.run().await?;
            member.signal(Signal::CONT).await?;
        }
        for member in &self.members {
            let args = member.args().await?;
            let address = PLAIN.iter().find_map(|flag| {
                args.iter().find_map(|arg| arg.strip_prefix(flag).map(str::to_owned))
            });
            let address = address.context("a member without an address")?;
            let healthy = || async {
                let said = get(&address, "/health").await?;
                ensure!(said.contains("\"health\":\"true\""), "it says {said}");
                Ok(())
            };
            member.until("health", SOON, healthy).await?;
        }
        Ok(())
    }
}

/// A file of a replica; the first has that of the stand.
pub(super) fn own_file(ground: &Ground, name: &str, place: usize) -> String {
    match place {
        0 => ground.at(name),
        _ => ground.at(&format!("{}-{name}", REPLICAS[place.min(2)])),
    }
}
