//! A program whose clock is not the machine's, by Debian's package `libfaketime`.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use proto::host::publish::{Existing, publish};

/// What is loaded into the program.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
/// Long before any certificate begins.
pub const IN_1970: &str = "@1970-01-02 00:00:00";
/// The machine's own time.
pub const RIGHT: &str = "+0";

/// True if there can be no such clock here, which is printed.
///
/// # Errors
/// The same in continuous integration, where nothing is skipped.
pub fn is_missing() -> anyhow::Result<bool> {
    let is_missing = !Path::new(LIBRARY).exists();
    if is_missing {
        ensure!(std::env::var_os("CI").is_none(), "{LIBRARY} is not installed");
        eprintln!("skipped: {LIBRARY} is needed");
    }
    Ok(is_missing)
}

/// A clock that its programs read from a file.
pub struct Clock(PathBuf);

impl Clock {
    /// A clock in this file, with this time, as faketime(1) takes it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(file: &Path, time: &str) -> io::Result<Self> {
        let clock = Self(file.to_owned());
        clock.set(time)?;
        Ok(clock)
    }

    /// Sets it, also of programs that run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set(&self, time: &str) -> io::Result<()> {
        publish(&self.0, time.as_bytes(), 0o600, Existing::Replace)
    }

    /// The shell's command after which programs have this clock. Their monotonic clock is right.
    pub fn exported(&self) -> String {
        format!(
            "export LD_PRELOAD={LIBRARY} FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1 \
             FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1",
            self.0.display()
        )
    }
}
