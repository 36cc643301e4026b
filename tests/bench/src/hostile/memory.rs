//! Holds csi-cloud to a bound of memory by a control group, as a container's limit does.
//!
//! Those that run at the same time share the bound. Over it the kernel kills csi-cloud, so that the
//! case fails. Without root nothing is held, and it says so.

use std::sync::{Arc, Weak};

use anyhow::Context;
use harness::stand::Cloud;
use parking_lot::Mutex;

use crate::control_group::ControlGroup;

/// The bound, in bytes.
const BOUND: u64 = 2 << 30;

static GROUP: Mutex<Weak<ControlGroup>> = Mutex::new(Weak::new());

/// The group, for as long as this lives.
pub(super) struct Bound(#[expect(dead_code, reason = "it is dropped")] Option<Arc<ControlGroup>>);

impl Bound {
    /// Makes the group, and says whether there is one.
    pub(super) fn new() -> Self {
        let group = ControlGroup::new("memory", ("memory.limit_in_bytes", BOUND)).map(Arc::new);
        match &group {
            Ok(group) => {
                *GROUP.lock() = Arc::downgrade(group);
                eprintln!("csi-cloud is held to {} MiB", BOUND >> 20);
            }
            Err(error) => eprintln!("csi-cloud is not held to a bound of memory: {error}"),
        }
        Self(group.ok())
    }
}

/// Puts a csi-cloud into the group, if there is one.
///
/// # Errors
/// It has ended, or the kernel refuses.
pub(super) fn hold(cloud: Cloud) -> anyhow::Result<Cloud> {
    if let Some(group) = GROUP.lock().upgrade() {
        group.hold(cloud.process.pid().context("csi-cloud has ended")?)?;
    }
    Ok(cloud)
}
