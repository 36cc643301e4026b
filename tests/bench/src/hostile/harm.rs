//! The harm of an attack: to csi-cloud, and to callers of another node.

use std::fmt;
use std::time::Duration;

use super::meter::{Meter, Usage};
use super::served::{Load, Served, slack};
use super::world::World;

/// The memory that csi-cloud may have, in MiB.
const CLOUD_MIB: u64 = 128;

/// What an attack did to csi-cloud and to callers of another node.
pub(super) struct Harm {
    quiet: Load,
    load: Load,
    usage: Usage,
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
        Ok(Harm { quiet, load, usage: meter.end()? })
    }
}

impl Harm {
    /// Whether it is within the bounds.
    pub(super) fn is_small(&self, short: bool) -> bool {
        let Self { quiet, load, usage } = self;
        usage.is_quiet() && load.is_near(quiet, slack(short)) && usage.peak <= CLOUD_MIB
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quiet, load, usage } = self;
        let (before, during, rest) = (quiet.p99, load.p99, quiet.cores * 100.0);
        write!(f, "{usage} after {rest:.0}, p99 {before:.1} -> {during:.1} ms")
    }
}
