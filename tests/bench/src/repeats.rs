//! How often and how long something is measured, and where its rows go.

use std::path::PathBuf;
use std::time::Duration;

/// The options of all cases.
#[derive(clap::Args)]
pub(crate) struct Repeats {
    /// How often each measurement is repeated; figures are medians
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// How long one measurement takes, in ms
    #[arg(long, default_value_t = 1500)]
    time_ms: u64,
    /// The directory where the rows go, and while it runs the stores: on a disk
    #[arg(long, default_value = "target/bench")]
    pub(crate) out: PathBuf,
}

impl Repeats {
    /// How long one measurement takes.
    pub(crate) const fn time(&self) -> Duration {
        Duration::from_millis(self.time_ms)
    }
}
