//! Finds volumes whose pod is gone without a NodeUnpublishVolume.

use std::io;
use std::path::Path;

use proto::csi::direct::DeviceKind;

use crate::records::published::Published;

/// True if a volume was handed over to a kubelet's pod that is gone. A kubelet that was away may
/// see no mount at the target and skip unpublishing; it removes the pod's directory in the end. The
/// volume's directory is no evidence, because a kubelet removes it after a refusal too.
pub(crate) fn is_orphan(record: &Published) -> bool {
    let missing = |path: &Path| {
        std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let Some(pod) = pod_directory(&record.target) else { return false };
    // While a kubelet's whole directory is not mounted, as at boot, nothing is known of its pods.
    // Our directory is in it too. For SPDK, nobody knows who is connected to the socket.
    let kubelets = [pod.parent(), record.private_path.parent()];
    record.kind != DeviceKind::Spdk && missing(pod) && !kubelets.into_iter().flatten().any(missing)
}

/// The directory of the pod whose volume is at a target: `…/pods/UID` of
/// `…/pods/UID/volumes/kubernetes.io~csi/PV/mount`.
fn pod_directory(target: &Path) -> Option<&Path> {
    let [_, volume, plugin, volumes, pod, pods] = *target.ancestors().take(6).collect::<Vec<_>>()
    else {
        return None;
    };
    let named = |path: &Path, name: &str| path.file_name().is_some_and(|is| is == name);
    let kubelets =
        named(plugin, "kubernetes.io~csi") && named(volumes, "volumes") && named(pods, "pods");
    (kubelets && volume.file_name().is_some()).then_some(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::published::tests::record;

    #[test]
    fn a_pod_is_gone_when_its_directory_is_and_others_may_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let pods = dir.path().join("pods");
        let ours = dir.path().join("plugins/ours");
        let volume = pods.join("uid/volumes/kubernetes.io~csi/pv");
        let record =
            Published { target: volume.join("mount"), private_path: ours.join("v"), ..record("v") };
        std::fs::create_dir_all(&ours).unwrap();
        assert!(!is_orphan(&record), "the kubelet's pods are not there at all");
        std::fs::create_dir_all(&volume).unwrap();
        assert!(!is_orphan(&record), "the target itself may be missing");
        std::fs::remove_dir(&volume).unwrap();
        assert!(!is_orphan(&record), "so it is after a refusal");
        std::fs::remove_dir_all(pods.join("uid")).unwrap();
        assert!(is_orphan(&record));
        assert!(!is_orphan(&Published { kind: DeviceKind::Spdk, ..record.clone() }));
        std::fs::remove_dir(&ours).unwrap();
        assert!(!is_orphan(&record), "an older directory is below one that is not mounted");
        std::fs::create_dir(&ours).unwrap();
        for target in ["x/mount", "pods/uid/mount", "pods/uid/volumes/other/pv/mount"] {
            let elsewhere = Published { target: dir.path().join(target), ..record.clone() };
            assert!(!is_orphan(&elsewhere), "{target} is no kubelet's");
        }
    }
}
