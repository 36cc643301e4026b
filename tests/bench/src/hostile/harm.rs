//! What an attack takes: of csi-cloud and its other callers, or of csi-edge.

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use harness::process::Process;
use tokio::time::Instant;

use super::served::{Load, Served, slack};
use super::world::World;
use crate::usage;

/// What an attack may have a program log in a minute, in KiB.
pub(super) const LOG_KIB: usize = 100;
/// The memory that csi-cloud may have, in MiB.
const CLOUD_MIB: u64 = 128;
/// The memory that csi-edge may have, in MiB.
pub(super) const EDGE_MIB: u64 = 64;
/// The bounds of [`Harm`].
pub(super) const ASKED: &str = "log <= 100 KiB, honest p99 <= 2 x, <= 128 MiB, nothing got";
pub(super) const SHORT_ASKED: &str =
    "log <= 100 KiB, honest p99 <= 2 x or + 100 ms, <= 128 MiB, nothing got";

/// A program during an attack.
pub(super) struct Meter<'a> {
    process: &'a Process,
    pid: u32,
    begun: Instant,
    logged: usize,
    used: Duration,
}

/// What a program took.
pub(super) struct Taken {
    /// The bytes of its log.
    pub(super) log: usize,
    /// The part of a core.
    pub(super) cores: f64,
    /// The most memory that it ever had, in MiB.
    pub(super) peak: u64,
    time: Duration,
}

impl<'a> Meter<'a> {
    /// # Errors
    /// The program has ended.
    pub(super) fn begin(process: &'a Process) -> anyhow::Result<Self> {
        let pid = process.pid().context("the program has ended")?;
        let (logged, used) = (process.log().len(), usage::cpu(pid)?);
        Ok(Self { process, pid, begun: Instant::now(), logged, used })
    }

    /// # Errors
    /// The program has ended.
    pub(super) fn end(self) -> anyhow::Result<Taken> {
        let time = self.begun.elapsed();
        let used = usage::cpu(self.pid)?.saturating_sub(self.used);
        Ok(Taken {
            log: self.process.log().len().saturating_sub(self.logged),
            cores: used.as_secs_f64() / time.as_secs_f64(),
            peak: usage::peak_kib(self.pid)? / 1024,
            time,
        })
    }
}

impl Taken {
    /// Whether an attack may have it log so much.
    pub(super) fn is_quiet(&self) -> bool {
        self.log <= LOG_KIB * 1024
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { log, cores, peak, time } = self;
        let (log, time) = (*log as f64 / 1024.0, time.as_secs_f64());
        let cores = cores * 100.0;
        write!(f, "log {log:.1} KiB in {time:.0} s, {peak} MiB, {cores:.0} % of a core")
    }
}

/// What an attack did to csi-cloud and to callers of another node.
pub(super) struct Harm {
    quiet: Load,
    load: Load,
    taken: Taken,
}

/// csi-cloud and callers of another node, who have been measured without an attack.
pub(super) struct Watch<'a> {
    world: &'a World,
    served: &'a Served,
    time: Duration,
    quiet: Load,
    meter: Meter<'a>,
}

impl<'a> Watch<'a> {
    /// Measures without an attack, half as long as with one.
    ///
    /// # Errors
    /// A call fails, or csi-cloud has ended.
    pub(super) async fn begin(
        world: &'a World,
        served: &'a Served,
        time: Duration,
    ) -> anyhow::Result<Self> {
        let quiet = served.load(world, time / 2).await?;
        Ok(Self { world, served, time, quiet, meter: Meter::begin(&world.cloud.process)? })
    }

    /// Measures during an attack.
    ///
    /// # Errors
    /// A call fails, or csi-cloud has ended.
    pub(super) async fn end(self) -> anyhow::Result<Harm> {
        let Self { world, served, time, quiet, meter } = self;
        let load = served.load(world, time).await?;
        Ok(Harm { quiet, load, taken: meter.end()? })
    }
}

impl Harm {
    /// Whether it is within the bounds.
    pub(super) fn is_small(&self, short: bool) -> bool {
        let Self { quiet, load, taken } = self;
        taken.is_quiet() && load.is_near(quiet, slack(short)) && taken.peak <= CLOUD_MIB
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quiet, load, taken } = self;
        let (before, during, rest) = (quiet.p99, load.p99, quiet.cores * 100.0);
        write!(f, "{taken} after {rest:.0}, p99 {before:.1} -> {during:.1} ms")
    }
}
