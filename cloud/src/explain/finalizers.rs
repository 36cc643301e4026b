//! What keeps an object that is being deleted: its finalizers, and who removes each.

use super::answer::{Cause, Verdict};

/// A finalizer of Kubernetes or of a sidecar.
struct KnownFinalizer {
    /// Its name, or how it begins if that ends with a slash.
    name: &'static str,
    /// Who removes it, and when.
    removed: &'static str,
    /// Where to look.
    next: &'static str,
}

const KNOWN: [KnownFinalizer; 9] = [
    KnownFinalizer {
        name: "kubernetes.io/pvc-protection",
        removed: "Kubernetes removes it when no pod uses the claim any more",
        next: "`kubectl describe pvc` there names the pods under \"Used By\"; end them",
    },
    KnownFinalizer {
        name: "kubernetes.io/pv-protection",
        removed: "Kubernetes removes it when the volume is bound to no claim",
        next: "delete its claim first",
    },
    KnownFinalizer {
        name: "external-provisioner.volume.kubernetes.io/finalizer",
        removed: "external-provisioner removes it after the driver has deleted the volume",
        next: "`csi-cloud calls --ended` shows its last DeleteVolume; without one look at the log \
               of external-provisioner",
    },
    KnownFinalizer {
        name: "external-attacher/",
        removed: "external-attacher removes it after the volume is detached from all nodes",
        next: "`kubectl get volumeattachments` shows where it is attached; end its pods there",
    },
    KnownFinalizer {
        name: "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection",
        removed: "snapshot-controller removes it when no claim is being made of the snapshot",
        next: "look at the claims that have it as their source",
    },
    KnownFinalizer {
        name: "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection",
        removed: "snapshot-controller removes it after the content is deleted",
        next: "look at the VolumeSnapshotContent, and at the log of snapshot-controller",
    },
    KnownFinalizer {
        name: "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
        removed: "external-snapshotter removes it after the driver has deleted the snapshot",
        next: "`csi-cloud calls --ended` shows its last DeleteSnapshot; without one look at the \
               log of external-snapshotter",
    },
    KnownFinalizer {
        name: "snapshot.storage.kubernetes.io/pvc-as-source-protection",
        removed: "snapshot-controller removes it after the snapshots of the claim are made",
        next: "look at the claim's VolumeSnapshots that are not ready",
    },
    KnownFinalizer {
        name: "provisioner.storage.kubernetes.io/cloning-protection",
        removed: "external-provisioner removes it after the clones of the claim are made",
        next: "look at the claims that have it as their source",
    },
];

/// How an object that is being deleted shows in the chain.
pub(super) fn kept_by(finalizers: &[String]) -> String {
    match finalizers {
        [] => "being deleted".to_owned(),
        _ => format!("being deleted, kept by {}", finalizers.join(", ")),
    }
}

/// What keeps this object, which has these finalizers if it is being deleted.
pub(super) fn kept(object: &str, finalizers: Option<&Vec<String>>) -> Option<Verdict> {
    let finalizers = finalizers?;
    let first = finalizers.first()?;
    let known = finalizers.iter().find_map(|finalizer| {
        KNOWN.iter().find(|known| {
            finalizer == known.name
                || known.name.ends_with('/') && finalizer.starts_with(known.name)
        })
    });
    let (removed, next) = match known {
        Some(known) => (known.removed.to_owned(), known.next.to_owned()),
        None => (
            format!("whoever added {first} removes it"),
            "look at that controller: without it the object stays".to_owned(),
        ),
    };
    let text = format!("{object} is {}; {removed}", kept_by(finalizers));
    Some(Verdict::of(Cause::Terminating, text, next))
}

#[cfg(test)]
mod tests {
    use super::super::commands::check_commands;
    use super::*;

    #[test]
    fn each_finalizer_has_an_owner_and_a_next_step() {
        for known in &KNOWN {
            let name = known.name.to_owned();
            let kept =
                kept("claim shop/data", Some(&vec!["unknown/one".to_owned(), name])).unwrap();
            check_commands(&kept);
            assert!(kept.text.contains(known.removed) && kept.text.contains(known.name));
        }
        let driver = "external-attacher/d-example".to_owned();
        assert!(kept("pv", Some(&vec![driver])).unwrap().text.contains("detached"));
        let other = kept("pv", Some(&vec!["velero.io/x".to_owned()])).unwrap();
        assert!(other.text.contains("whoever added velero.io/x"), "{}", other.text);
        assert_eq!(kept("pv", Some(&Vec::new())), None);
    }
}
