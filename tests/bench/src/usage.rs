//! What a process uses, by the kernel's counters.

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
    number(&status(pid)?, "VmHWM:")
}

/// The memory that a process has resident, in KiB.
///
/// # Errors
/// There is no such process.
pub fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    number(&status(pid)?, "VmRSS:")
}

/// How often the threads of a process have slept so far, and so been woken up.
///
/// # Errors
/// There is no such process.
pub fn wakeups(pid: u32) -> anyhow::Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(thread?.path().join("status"))?;
        sum += number(&status, "voluntary_ctxt_switches:")?;
    }
    Ok(sum)
}

/// The bytes that a process has had written to disks so far: whole pages.
///
/// # Errors
/// There is no such process, or it is another user's.
pub fn written(pid: u32) -> anyhow::Result<u64> {
    number(&std::fs::read_to_string(format!("/proc/{pid}/io"))?, "write_bytes:")
}

fn status(pid: u32) -> std::io::Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
}

/// The number of a field, which may be one of KiB.
fn number(text: &str, field: &'static str) -> anyhow::Result<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field)).context(field)?;
    value.trim().trim_end_matches("kB").trim().parse().context(field)
}
