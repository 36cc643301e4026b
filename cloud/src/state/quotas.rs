//! The quotas of one node: the most that csi-cloud keeps of it, and reads from it.
//!
//! A node that is over a quota is set apart, and nothing more is kept of it. Nothing that was
//! created for a caller is dropped: a create beyond a quota is refused before it is sent.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::state::usage::Usage;

/// The bytes of a MiB.
pub const MIB: u64 = 1024 * 1024;

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
    /// Volumes, snapshots and groups of all drivers.
    pub volumes: u64,
    /// The bytes of all records, in memory and in the store alike.
    pub durable_bytes: u64,
    /// The bytes of one list, all its pages together.
    pub list_bytes: u64,
    /// The bytes of all nodes' records. The last quarter is for nodes that linked before.
    pub store_bytes: u64,
    /// Control messages of each second, over all links of the node.
    pub control_messages_per_s: u64,
    /// Control messages at once.
    pub control_messages_at_once: u64,
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
    /// See [`Quotas::volumes`].
    Volumes,
    /// See [`Quotas::durable_bytes`].
    DurableBytes,
    /// See [`Quotas::list_bytes`].
    ListBytes,
    /// See [`Quotas::store_bytes`].
    StoreBytes,
    /// See [`Quotas::control_messages_at_once`].
    ControlMessages,
}

/// How a node is over a quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found} {what}, and {most} is the quota of {} ({setting} in [quotas])",
    quota.whose()
)]
pub struct OverQuota {
    /// The quota.
    pub quota: Quota,
    /// The amount that was counted.
    pub found: u64,
    /// The name of what was counted; text of a peer is escaped.
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
        Self {
            drivers: 64,
            segments: 32,
            string_bytes: 128,
            node_id_bytes: 256,
            volumes: 20_000,
            durable_bytes: 32 * MIB,
            list_bytes: 32 * MIB,
            store_bytes: 1024 * MIB,
            control_messages_per_s: 20,
            control_messages_at_once: 200,
        }
    }
}

impl Quota {
    /// All quotas.
    pub const ALL: [Self; 9] = [
        Self::Drivers,
        Self::Segments,
        Self::StringBytes,
        Self::NodeIdBytes,
        Self::Volumes,
        Self::DurableBytes,
        Self::ListBytes,
        Self::StoreBytes,
        Self::ControlMessages,
    ];

    /// The quota's key in the configuration, and its name in metrics.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Drivers => "drivers",
            Self::Segments => "segments_per_driver",
            Self::StringBytes => "string_bytes",
            Self::NodeIdBytes => "node_id_bytes",
            Self::Volumes => "volumes",
            Self::DurableBytes => "durable_mib",
            Self::ListBytes => "list_mib",
            Self::StoreBytes => "store_mib",
            Self::ControlMessages => "control_messages_at_once",
        }
    }

    /// The owner of the records that it bounds.
    fn whose(self) -> &'static str {
        if self == Self::StoreBytes { "all nodes together" } else { "a node" }
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
            Quota::Volumes => self.volumes,
            Quota::DurableBytes => self.durable_bytes,
            Quota::ListBytes => self.list_bytes,
            Quota::StoreBytes => self.store_bytes,
            Quota::ControlMessages => self.control_messages_at_once,
        }
    }

    /// Compares a number with a quota. `what` names what was counted.
    ///
    /// # Errors
    /// The number is larger.
    pub fn check(
        &self,
        quota: Quota,
        found: impl TryInto<u64>,
        what: impl FnOnce() -> String,
    ) -> Result<(), OverQuota> {
        let found = found.try_into().unwrap_or(u64::MAX);
        let most = self.most(quota);
        if found <= most {
            return Ok(());
        }
        Err(OverQuota { quota, found, what: what(), most, setting: quota.setting() })
    }
}

impl Quotas {
    /// Checks a node's usage before and after a change, and the usage of all nodes. A change
    /// without growth always fits, so a node over a lowered quota can go on.
    ///
    /// # Errors
    /// There would be more than a quota.
    pub fn check_growth(&self, all: Usage, before: Usage, after: Usage) -> Result<(), OverQuota> {
        if after.things > before.things {
            self.check(Quota::Volumes, after.things.max(0), || "volumes and snapshots".into())?;
        }
        if after.bytes > before.bytes {
            self.check(Quota::DurableBytes, after.bytes.max(0), || "bytes of records".into())?;
            let all = (all + after - before).bytes.max(0);
            self.check(Quota::StoreBytes, all, || "bytes of all records".into())?;
        }
        Ok(())
    }

    /// Checks whether there is room for a node that never linked. Nodes that did keep the last
    /// quarter of the store, so that newcomers cannot take it from them.
    ///
    /// # Errors
    /// There is none.
    pub fn check_newcomer(&self, all: Usage) -> Result<(), OverQuota> {
        let found = u64::try_from(all.bytes).unwrap_or(0);
        let most = self.store_bytes / 4 * 3;
        if found <= most {
            return Ok(());
        }
        let quota = Quota::StoreBytes;
        let what = "bytes of all records leave no room for a new node".to_owned();
        Err(OverQuota { quota, found, what, most, setting: quota.setting() })
    }
}

impl Refusals {
    /// Counts a refusal.
    pub(crate) fn count(&self, quota: Quota) {
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
            let most = quotas.most(quota);
            assert!(quotas.check(quota, most, String::new).is_ok());
            let over = quotas.check(quota, most + 1, String::new).unwrap_err();
            assert_eq!((over.quota, over.setting), (quota, quota.setting()));
        }
    }

    #[test]
    fn what_makes_nothing_more_fits_always() {
        let quotas = Quotas { volumes: 2, durable_bytes: 100, ..Quotas::default() };
        let usage = |things, bytes| Usage { things, bytes };
        let none = Usage::default();
        let check =
            |before, after| quotas.check_growth(none, before, after).map_err(|over| over.quota);
        assert_eq!(check(usage(1, 50), usage(2, 100)), Ok(()));
        assert_eq!(check(usage(2, 50), usage(3, 60)), Err(Quota::Volumes));
        assert_eq!(check(usage(1, 50), usage(2, 101)), Err(Quota::DurableBytes));
        assert_eq!(check(usage(9, 900), usage(9, 900)), Ok(()), "a quota was lowered");
        assert_eq!(check(usage(9, 900), usage(9, 800)), Ok(()));
    }

    #[test]
    fn newcomers_leave_room_for_those_who_were_there() {
        let quotas = Quotas { store_bytes: 400, ..Quotas::default() };
        let all = |bytes| Usage { things: 1, bytes };
        assert_eq!(quotas.check_newcomer(all(300)), Ok(()));
        let over = quotas.check_newcomer(all(301)).unwrap_err();
        assert_eq!((over.quota, over.setting), (Quota::StoreBytes, "store_mib"));
        assert!(over.to_string().contains("quota of all nodes together"), "{over}");
        let grow = |bytes| quotas.check_growth(all(301), all(0), all(bytes)).map_err(|o| o.quota);
        assert_eq!(grow(99), Ok(()));
        assert_eq!(grow(100), Err(Quota::StoreBytes));
    }

    #[test]
    fn refusals_are_counted_by_quota() {
        let refusals = Refusals::default();
        refusals.count(Quota::Segments);
        refusals.count(Quota::Segments);
        for (setting, count) in refusals.counts() {
            assert_eq!(count, if setting == "segments_per_driver" { 2 } else { 0 }, "{setting}");
        }
    }
}
