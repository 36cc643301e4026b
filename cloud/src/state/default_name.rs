//! The names that sidecars and populators give by default: a prefix, and the uid of the object in
//! Kubernetes.
//!
//! They can be told another prefix, so a name without this one says nothing.

/// The prefix of external-provisioner, before a claim's uid.
const VOLUME: &str = "pvc-";
/// The prefix of external-snapshotter, before the uid of a VolumeSnapshot.
const SNAPSHOT: &str = "snapshot-";
/// The prefix of a populator's claim, before the uid of the claim that it fills. KubeVirt's CDI and
/// the library of volume populators use it.
const PRIME: &str = "prime-";

/// The name of the volume for the claim with this uid.
pub fn volume_for(claim_uid: &str) -> String {
    format!("{VOLUME}{claim_uid}")
}

/// The uid of the claim for which a volume with this name is made.
pub fn claim_uid(volume_name: &str) -> Option<&str> {
    volume_name.strip_prefix(VOLUME)
}

/// The name of the claim by which a populator fills the claim with this uid.
pub fn prime_claim_for(claim_uid: &str) -> String {
    format!("{PRIME}{claim_uid}")
}

/// The uid of the claim that a populator fills by a claim with this name.
pub fn populated_uid(claim_name: &str) -> Option<&str> {
    claim_name.strip_prefix(PRIME)
}

/// The name of the snapshot for the VolumeSnapshot with this uid.
pub fn snapshot_for(uid: &str) -> String {
    format!("{SNAPSHOT}{uid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_prefix_and_a_uid() {
        assert_eq!(volume_for("u1"), "pvc-u1");
        assert_eq!(snapshot_for("u1"), "snapshot-u1");
        assert_eq!(prime_claim_for("u1"), "prime-u1");
        assert_eq!([populated_uid("prime-u1"), populated_uid("u1")], [Some("u1"), None]);
        assert_eq!([claim_uid("pvc-u1"), claim_uid("vol-u1")], [Some("u1"), None]);
    }
}
