//! The CPU time and memory of a process, by the kernel's counters.

use std::time::Duration;

use anyhow::Context;

/// The CPU time that a process has used so far, in user and kernel mode, to 10 ms.
///
/// # Errors
/// There is no such process.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses, which may hold anything.
    let (_, fields) = stat.rsplit_once(')').context("an unknown /proc/PID/stat")?;
    let ticks = |at| fields.split_whitespace().nth(at).and_then(|field| field.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("an unknown /proc/PID/stat")?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis((user + system) * 1000 / per_second))
}

/// The most memory that a process has had resident, in KiB.
///
/// # Errors
/// There is no such process.
pub fn peak_kib(pid: u32) -> anyhow::Result<u64> {
    status_kib(pid, "VmHWM:")
}

/// The memory that a process has resident, in KiB.
///
/// # Errors
/// There is no such process.
pub fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    status_kib(pid, "VmRSS:")
}

fn status_kib(pid: u32, field: &'static str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(field)).context(field)?;
    value.trim().trim_end_matches("kB").trim().parse().context(field)
}
