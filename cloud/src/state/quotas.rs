//! The quotas of one node: the most that csi-cloud keeps of it, and reads from it.
//!
//! A node that is over a quota is set apart, and nothing more is kept of it. Nothing that was
//! created for a caller is dropped: a create beyond a quota is refused before it is sent.

use std::sync::atomic::{AtomicU64, Ordering};

/// The quotas of each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Drivers, with those that the node no longer names.
    pub drivers: u64,
    /// Topology segments of one driver.
    pub segments: u64,
    /// The bytes of a name, key or value; CSI's limit is 128.
    pub string_bytes: u64,
    /// The bytes of a driver's node id; CSI's limit is 256.
    pub node_id_bytes: u64,
}

/// One of the quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// See [`Quotas::drivers`].
    Drivers,
    /// See [`Quotas::segments`].
    Segments,
    /// See [`Quotas::string_bytes`].
    StringBytes,
    /// See [`Quotas::node_id_bytes`].
    NodeIdBytes,
}

/// How a node is over a quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} {what}, and {most} is the quota of a node ({setting} in [quotas])")]
pub struct OverQuota {
    /// The quota.
    pub quota: Quota,
    /// How much there is.
    pub found: u64,
    /// What there is too much of; text of a peer is escaped.
    pub what: String,
    /// The quota's value.
    pub most: u64,
    /// The quota's key in the configuration.
    pub setting: &'static str,
}

/// The number of refusals by quota since csi-cloud started.
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; Quota::ALL.len()]);

impl Default for Quotas {
    fn default() -> Self {
        Self { drivers: 64, segments: 32, string_bytes: 128, node_id_bytes: 256 }
    }
}

impl Quota {
    /// All quotas.
    pub const ALL: [Self; 4] =
        [Self::Drivers, Self::Segments, Self::StringBytes, Self::NodeIdBytes];

    /// The quota's key in the configuration, and its name in metrics.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Drivers => "drivers",
            Self::Segments => "segments_per_driver",
            Self::StringBytes => "string_bytes",
            Self::NodeIdBytes => "node_id_bytes",
        }
    }
}

impl Quotas {
    /// The value of a quota.
    pub fn most(&self, quota: Quota) -> u64 {
        match quota {
            Quota::Drivers => self.drivers,
            Quota::Segments => self.segments,
            Quota::StringBytes => self.string_bytes,
            Quota::NodeIdBytes => self.node_id_bytes,
        }
    }

    /// Compares a number with a quota. `what` names what was counted.
    ///
    /// # Errors
    /// The number is larger.
    pub fn check(
        &self,
        quota: Quota,
        found: usize,
        what: impl FnOnce() -> String,
    ) -> Result<(), OverQuota> {
        let found = u64::try_from(found).unwrap_or(u64::MAX);
        let most = self.most(quota);
        if found <= most {
            return Ok(());
        }
        Err(OverQuota { quota, found, what: what(), most, setting: quota.setting() })
    }
}

impl Refusals {
    /// Counts a refusal.
    pub(super) fn count(&self, quota: Quota) {
        for (refusals, of) in self.0.iter().zip(Quota::ALL) {
            if of == quota {
                refusals.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The number of refusals by quota.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|refusals| refusals.load(Ordering::Relaxed));
        Quota::ALL.iter().map(|quota| quota.setting()).zip(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_the_most_that_there_may_be() {
        let quotas = Quotas::default();
        assert_eq!(quotas.check(Quota::Drivers, 64, || "drivers".into()), Ok(()));
        let over = quotas.check(Quota::Drivers, 65, || "drivers".into()).unwrap_err();
        let text = "65 drivers, and 64 is the quota of a node (drivers in [quotas])";
        assert_eq!(over.to_string(), text);
        for quota in Quota::ALL {
            let most = usize::try_from(quotas.most(quota)).unwrap();
            assert!(quotas.check(quota, most, String::new).is_ok());
            let over = quotas.check(quota, most + 1, String::new).unwrap_err();
            assert_eq!((over.quota, over.setting), (quota, quota.setting()));
        }
    }

    #[test]
    fn refusals_are_counted_by_quota() {
        let refusals = Refusals::default();
        refusals.count(Quota::Segments);
        refusals.count(Quota::Segments);
        let others = [("drivers", 0), ("string_bytes", 0), ("node_id_bytes", 0)];
        for (setting, count) in refusals.counts() {
            let expected = others.iter().find(|(other, _)| *other == setting);
            assert_eq!(count, expected.map_or(2, |(_, count)| *count), "{setting}");
        }
    }
}
