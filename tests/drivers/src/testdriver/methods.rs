//! The RPCs of CSI 1.13.
//!
//! Written by hand, not taken from the table of the code under test, so that a test can compare the
//! two.

/// Service and method of all 36 RPCs.
pub const METHODS: [(&str, &str); 36] = [
    ("Identity", "GetPluginInfo"),
    ("Identity", "GetPluginCapabilities"),
    ("Identity", "Probe"),
    ("Controller", "CreateVolume"),
    ("Controller", "DeleteVolume"),
    ("Controller", "ControllerPublishVolume"),
    ("Controller", "ControllerUnpublishVolume"),
    ("Controller", "ValidateVolumeCapabilities"),
    ("Controller", "ListVolumes"),
    ("Controller", "ControllerListVolumeHealth"),
    ("Controller", "ControllerGetVolumeHealth"),
    ("Controller", "GetCapacity"),
    ("Controller", "ControllerGetCapabilities"),
    ("Controller", "CreateSnapshot"),
    ("Controller", "DeleteSnapshot"),
    ("Controller", "ListSnapshots"),
    ("Controller", "GetSnapshot"),
    ("Controller", "ControllerExpandVolume"),
    ("Controller", "ControllerGetVolume"),
    ("Controller", "ControllerModifyVolume"),
    ("GroupController", "GroupControllerGetCapabilities"),
    ("GroupController", "CreateVolumeGroupSnapshot"),
    ("GroupController", "DeleteVolumeGroupSnapshot"),
    ("GroupController", "GetVolumeGroupSnapshot"),
    ("SnapshotMetadata", "GetMetadataAllocated"),
    ("SnapshotMetadata", "GetMetadataDelta"),
    ("Node", "NodeStageVolume"),
    ("Node", "NodeUnstageVolume"),
    ("Node", "NodePublishVolume"),
    ("Node", "NodeUnpublishVolume"),
    ("Node", "NodeGetVolumeStats"),
    ("Node", "NodeGetVolumeHealth"),
    ("Node", "NodeGetStorageHealth"),
    ("Node", "NodeExpandVolume"),
    ("Node", "NodeGetCapabilities"),
    ("Node", "NodeGetInfo"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proto::csi::Method;

    use super::METHODS;

    #[test]
    fn they_are_the_methods_of_the_table() {
        let paths = METHODS.iter().map(|(service, method)| format!("/csi.v1.{service}/{method}"));
        let listed: BTreeSet<String> = paths.collect();
        let table = Method::ALL.iter().map(|method| method.path().to_owned());
        assert_eq!(listed, table.collect::<BTreeSet<String>>());
    }
}
