//! What a stand with several csi-clouds has besides: two more of them, and an etcd of three
//! members. They run only while a row has them.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;

use super::ask::get;
use super::ground::Ground;
use super::program::{Launch, Program};

/// The names of the replicas. The first is the csi-cloud that is alone at other times.
pub const REPLICAS: [&str; 3] = ["a", "b", "c"];
/// How long a member may take to have a quorum.
const SOON: Duration = Duration::from_secs(60);

/// See the module.
pub struct Several {
    /// The members of etcd.
    pub members: [Program; 3],
    /// The replicas after the first.
    pub others: [Program; 2],
    /// They are in use, or were when something failed.
    pub(super) used: AtomicBool,
    /// The store is in etcd now.
    pub(super) in_etcd: AtomicBool,
}

impl Several {
    /// Those that do not run yet.
    pub(super) fn new(ground: &Ground) -> Self {
        let later = |name, program| Program::later(name, &ground.logs(), program);
        let etcd = |name| later(name, Launch::new("/usr/bin/etcd", [""; 0]));
        let cloud = |name| later(name, Launch::new(ground.program("csi-cloud"), [""; 0]));
        Self {
            members: ["etcd-a", "etcd-b", "etcd-c"].map(etcd),
            others: ["csi-cloud-b", "csi-cloud-c"].map(cloud),
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
            let address = member.args().await?.iter().find_map(|arg| {
                arg.strip_prefix("--advertise-client-urls=http://").map(str::to_owned)
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
