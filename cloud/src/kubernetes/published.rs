//! The state of the CSIDriver objects, for operators.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use proto::names::DriverName;

/// The state of the CSIDriver object of each driver that has a front.
#[derive(Default)]
pub struct Published {
    csidrivers: Mutex<BTreeMap<DriverName, String>>,
}

impl Published {
    /// The state of a driver's CSIDriver object: `ours`, `not yet`, or why it is left as it is.
    ///
    /// None if the driver has no front.
    pub fn csidriver(&self, driver: &DriverName) -> Option<String> {
        self.csidrivers.lock().get(driver).cloned()
    }

    /// Keeps the state; returns whether it is news.
    pub(super) fn set(&self, driver: &DriverName, state: &str) -> bool {
        let mut csidrivers = self.csidrivers.lock();
        csidrivers.insert(driver.clone(), state.to_owned()).as_deref() != Some(state)
    }
}
