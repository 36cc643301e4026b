//! The log, memory and CPU time of a program while something is done to it.

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use harness::process::Process;
use tokio::time::Instant;

use crate::usage;

/// What an attack may have a program log in a minute, in KiB.
const LOG_KIB: usize = 100;

/// A program during an attack.
pub(super) struct Meter<'a> {
    process: &'a Process,
    pid: u32,
    begun: Instant,
    logged: usize,
    used: Duration,
}

/// What a program used.
pub(super) struct Usage {
    /// The bytes of its log.
    log: usize,
    /// The part of a core.
    pub(super) cores: f64,
    /// The most memory that it ever had, in MiB.
    pub(super) peak: u64,
    time: Duration,
}

impl<'a> Meter<'a> {
    /// Begins to measure.
    ///
    /// # Errors
    /// The program has ended.
    pub(super) fn begin(process: &'a Process) -> anyhow::Result<Self> {
        let pid = process.pid().context("the program has ended")?;
        let (logged, used) = (process.log().len(), usage::cpu(pid)?);
        Ok(Self { process, pid, begun: Instant::now(), logged, used })
    }

    /// Returns what the program has used since [`Meter::begin`].
    ///
    /// # Errors
    /// The program has ended.
    pub(super) fn end(self) -> anyhow::Result<Usage> {
        let time = self.begun.elapsed();
        let used = usage::cpu(self.pid)?.saturating_sub(self.used);
        Ok(Usage {
            log: self.process.log().len().saturating_sub(self.logged),
            cores: used.as_secs_f64() / time.as_secs_f64(),
            peak: usage::peak_kib(self.pid)? / 1024,
            time,
        })
    }
}

impl Usage {
    /// Returns `true` if the log is within the bound.
    pub(super) fn is_quiet(&self) -> bool {
        self.log <= LOG_KIB * 1024
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { log, cores, peak, time } = self;
        let (kib, seconds, percent) = (*log as f64 / 1024.0, time.as_secs_f64(), cores * 100.0);
        write!(f, "log {kib:.1} KiB in {seconds:.0} s, {peak} MiB, {percent:.0} % of a core")
    }
}
