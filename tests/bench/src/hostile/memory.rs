//! Holds csi-cloud to a bound of memory by a control group, as a container's limit does.
//!
//! Those that run at the same time share the bound. Over it the kernel kills csi-cloud, so that the
//! case fails. It needs root and the kernel's first version of control groups; without them it says
//! that nothing is held.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use harness::stand::Cloud;

/// The bound, in bytes.
const BOUND: u64 = 2 << 30;
/// The kernel's groups by memory.
const GROUPS: &str = "/sys/fs/cgroup/memory";

/// The group, for as long as this lives.
pub(super) struct Bound;

impl Bound {
    /// Makes the group, and says whether there is one.
    pub(super) fn new() -> Self {
        match make(&group()) {
            Ok(()) => eprintln!("csi-cloud is held to {} MiB", BOUND >> 20),
            Err(error) => eprintln!("csi-cloud is not held to a bound of memory: {error}"),
        }
        Self
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A program that has not ended yet keeps it, which does no harm.
        let _ = std::fs::remove_dir(group());
    }
}

/// Puts a csi-cloud into the group, if there is one.
///
/// # Errors
/// It has ended, or the kernel refuses.
pub(super) fn hold(cloud: Cloud) -> anyhow::Result<Cloud> {
    let group = group();
    if group.exists() {
        let pid = cloud.process.pid().context("csi-cloud has ended")?;
        tell(&group.join("cgroup.procs"), &pid.to_string())?;
    }
    Ok(cloud)
}

fn group() -> PathBuf {
    Path::new(GROUPS).join(format!("edge-csi-hostile-{}", std::process::id()))
}

fn make(group: &Path) -> std::io::Result<()> {
    std::fs::create_dir(group)?;
    tell(&group.join("memory.limit_in_bytes"), &BOUND.to_string())
}

/// Tells the kernel something by one of its files.
fn tell(file: &Path, text: &str) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}
