//! Control groups of the kernel's first version, which hold a program to a bound. They need root.

use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::path::PathBuf;

/// A group of this process; it is removed when this is dropped.
pub(crate) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes the group of this controller, with the bound in this file.
    ///
    /// # Errors
    /// The kernel's, as without root.
    pub(crate) fn new(controller: &str, bound: (&str, u64)) -> io::Result<Self> {
        let name = format!("edge-csi-bench-{}", std::process::id());
        let group = Self(["/sys/fs/cgroup", controller, &name].iter().collect());
        std::fs::create_dir(&group.0)?;
        let (file, bound) = bound;
        group.tell(file, &bound.to_string())?;
        Ok(group)
    }

    /// Puts a process into the group.
    ///
    /// # Errors
    /// It has ended, or the kernel refuses.
    pub(crate) fn hold(&self, pid: u32) -> io::Result<()> {
        self.tell("cgroup.procs", &pid.to_string())
    }

    fn tell(&self, file: &str, text: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.0.join(file))?.write_all(text.as_bytes())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A program that has not ended yet keeps it, which does no harm.
        let _ = std::fs::remove_dir(&self.0);
    }
}
