//! The states of the exam, and what is said of each. `docs/troubleshoot/causes.md` has an
//! entry for each cause.
//!
//! A row makes each of them on the stand, and the table says which one.

/// A broken state.
pub(super) struct Broken {
    /// Its name.
    pub(super) name: &'static str,
    /// The row that makes it.
    #[cfg_attr(not(test), expect(dead_code, reason = "the catalogue itself is tested by it"))]
    pub(super) row: &'static str,
    /// The cause that `csi-cloud explain` names.
    pub(super) cause: &'static str,
    /// The reason of the Event.
    pub(super) event: &'static str,
    /// The kind of the object that the Event is about.
    pub(super) on: &'static str,
}

const CLAIM: &str = "PersistentVolumeClaim";

/// All of them: name, row, cause, reason and object of the Event.
const STATES: [[&str; 5]; 28] = [
    ["driver-dead", "exam", "driver-down", "DriverDown", "Node"],
    ["driver-silent", "exam", "driver-down", "DriverDown", CLAIM],
    ["class-missing", "exam", "no-class", "ProvisioningFailed", CLAIM],
    ["class-misspelt", "exam", "call-failed", "ProvisioningFailed", CLAIM],
    ["pod-missing", "exam", "no-pod", "WaitForFirstConsumer", CLAIM],
    ["no-capacity", "exam", "unschedulable", "FailedScheduling", "Pod"],
    ["node-away", "exam", "node-away", "EdgeAway", CLAIM],
    ["snapshot-away", "exam-links", "node-away", "EdgeAway", CLAIM],
    ["proxy-refuses", "exam-links", "node-away", "EdgeAway", CLAIM],
    ["certificate-ended", "exam-links", "certificate-ended", "CertificateEnded", CLAIM],
    ["certificate-shared", "exam-links", "certificate-shared", "CertificateShared", "Node"],
    ["cloud-restarted", "exam-links", "cloud-began", "EdgeAway", CLAIM],
    ["disk-full", "exam-volumes", "call-failed", "ProvisioningFailed", CLAIM],
    ["two-claimants", "exam-volumes", "volume-claimed-twice", "VolumeClaimedTwice", CLAIM],
    ["volume-absent", "exam-volumes", "volume-absent", "VolumeAbsent", CLAIM],
    ["attach-hangs", "exam-volumes", "call-hangs", "CallHangs", CLAIM],
    ["call-denied", "exam-volumes", "call-failed", "ProvisioningFailed", CLAIM],
    ["driver-misnamed", "exam-volumes", "driver-down", "DriverDown", "Node"],
    ["quota-reached", "exam-volumes", "call-failed", "ProvisioningFailed", CLAIM],
    ["owned-elsewhere", "exam-nodes", "owned-elsewhere", "FailedAttachVolume", "Pod"],
    ["edge-missing", "exam-nodes", "node-unknown", "FailedAttachVolume", "Pod"],
    ["not-registered", "exam-nodes", "not-registered", "FailedAttachVolume", "Pod"],
    ["not-attached", "exam-nodes", "not-attached", "FailedAttachVolume", "Pod"],
    ["not-mounted", "exam-nodes", "not-mounted", "FailedMount", "Pod"],
    ["set-apart", "exam-nodes", "node-set-apart", "NodeSetApart", "Node"],
    ["node-removed", "edge-removed", "volume-lost", "VolumeLost", CLAIM],
    ["node-revoked", "revoked", "node-revoked", "EdgeRevoked", CLAIM],
    ["not-taken", "direct-stock", "not-taken", "DirectVolumeNotTaken", "Pod"],
];

/// All states.
pub(super) fn states() -> impl Iterator<Item = Broken> {
    STATES.into_iter().map(|[name, row, cause, event, on]| Broken { name, row, cause, event, on })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::e2e::ROWS;

    #[test]
    fn the_manual_names_the_event_of_each_state_under_its_cause() {
        let manual = include_str!("../../../../../docs/troubleshoot/causes.md");
        for Broken { name, cause, event, on, .. } in states() {
            let entry = manual.split(&format!("\n## {cause}\n\n")).nth(1);
            let events = entry.and_then(|entry| entry.lines().next()).unwrap_or_default();
            assert!(events.starts_with("Event: "), "{cause}: {events}");
            assert!(
                events.contains(&format!("`{event}`")) && events.contains(on),
                "{name}: {events}"
            );
        }
    }

    #[test]
    fn the_row_of_each_state_makes_it() {
        let names: BTreeSet<_> = states().map(|of| of.name).collect();
        assert_eq!(names.len(), STATES.len());
        for Broken { name, row, .. } in states() {
            assert!(ROWS.iter().any(|known| known.name == row), "there is no row {row}");
            let text = match row {
                "exam" => include_str!("../exam.rs"),
                "exam-links" => include_str!("links.rs"),
                "exam-nodes" => include_str!("nodes.rs"),
                "exam-volumes" => include_str!("volumes.rs"),
                "edge-removed" => include_str!("../outages.rs"),
                "revoked" => include_str!("../joins.rs"),
                _ => include_str!("../stock.rs"),
            };
            assert!(text.contains(&format!("\"{name}\"")), "row {row} does not ask about {name}");
        }
    }
}
