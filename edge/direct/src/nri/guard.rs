//! Decides about a container before it is created, by its mounts, its runtime handler and the
//! records. It is pure.
//!
//! A container without a VM, or with a subPath, would get the host's directory instead of a direct
//! volume. Its pod cannot work with that, so both are refused, and so is what cannot be known.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proto::csi::direct::DeviceKind;

use super::api::{Container, Mount, PodSandbox};
use crate::records::published::Published;

/// The container runtime's handlers that run VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handlers {
    /// Handlers that read the contract of direct volumes.
    pub vm: BTreeSet<String>,
    /// Those of them that take the kind from a mount's type: runtime-rs.
    pub typed: BTreeSet<String>,
}

/// The changes to a container that may be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Mounts in place of those with the same destination.
    pub mounts: Vec<Mount>,
    /// The targets of the sandbox's direct volumes.
    pub targets: BTreeSet<PathBuf>,
}

/// The reason why a container is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// Its runtime would give it the host's directory.
    #[error(
        "volume {volume} is handed to VMs directly, and handler {handler:?} is not one of those \
         that take it ({vm}); give the pod a RuntimeClass of a VM runtime, or name the handler \
         with --vm-handler"
    )]
    NotVm {
        /// The volume's id.
        volume: String,
        /// The handler; empty for the default one.
        handler: String,
        /// The handlers that run VMs.
        vm: String,
    },
    /// A part of a volume cannot be handed over.
    #[error(
        "volume {volume} is handed to the VM whole, so subPath cannot be used with it; mount it \
         without"
    )]
    SubPath {
        /// The volume's id.
        volume: String,
    },
    /// The handler does not know this kind.
    #[error(
        "volume {volume} is handed over as {kind}, which takes a typed mount, and handler \
         {handler:?} is not known to take one; name it with --typed-handler if it is of runtime-rs"
    )]
    NotTyped {
        /// The volume's id.
        volume: String,
        /// The mount's type.
        kind: &'static str,
        /// The handler.
        handler: String,
    },
    /// runtime-rs forgets the device of a container that ends, while another one has it.
    #[error(
        "volume {volume} is used by container {other:?} of the pod, and Kata's runtime-rs attaches \
         its device a second time when one of the two is started again, which destroys the file \
         system. Give it to one container at a time, or use Kata's Go runtime"
    )]
    Shared {
        /// The volume's id.
        volume: String,
        /// The other container.
        other: String,
    },
    /// The same with two mounts in one container.
    #[error(
        "volume {volume} is mounted twice in this container, and Kata's runtime-rs would attach \
         its device twice, which destroys the file system. Mount it once, or use Kata's Go runtime"
    )]
    Twice {
        /// The volume's id.
        volume: String,
    },
}

/// Decides on a container.
///
/// # Errors
/// It would not get its volume.
pub fn decide(
    pod: &PodSandbox,
    container: &Container,
    published: &[Published],
    handlers: &Handlers,
) -> Result<Admitted, NotAdmitted> {
    let mut verdict = Admitted::default();
    for mount in &container.mounts {
        let source = Path::new(&mount.source);
        if let Some(volume) = published.iter().find(|volume| has_part(volume, source)) {
            return Err(NotAdmitted::SubPath { volume: volume.volume_id.clone() });
        }
        let named =
            |volume: &&Published| volume.target == source || volume.target_as_given == source;
        let Some(volume) = published.iter().find(named) else { continue };
        verdict.mounts.extend(typed(volume, mount, &pod.runtime_handler, handlers)?);
        verdict.targets.insert(volume.target.clone());
    }
    Ok(verdict)
}

/// The mount that this volume needs in place of its bind mount, if any.
fn typed(
    volume: &Published,
    mount: &Mount,
    handler: &str,
    handlers: &Handlers,
) -> Result<Option<Mount>, NotAdmitted> {
    let id = volume.volume_id.clone();
    let handler = handler.to_owned();
    if !handlers.vm.contains(&handler) {
        let vm = handlers.vm.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(NotAdmitted::NotVm { volume: id, handler, vm });
    }
    let kind = match volume.kind {
        // Both of Kata's runtimes find it by its source.
        DeviceKind::Block => return Ok(None),
        DeviceKind::Vfio => "vfiovol",
        DeviceKind::Spdk => "spdkvol",
    };
    if handlers.typed.contains(&handler) {
        Ok(Some(Mount { r#type: kind.to_owned(), ..mount.clone() }))
    } else {
        Err(NotAdmitted::NotTyped { volume: id, kind, handler })
    }
}

/// True if the source is where the kubelet binds a part of the volume:
/// `PODS/UID/volume-subpaths/NAME/…` of `PODS/UID/volumes/kubernetes.io~csi/NAME/mount`.
fn has_part(volume: &Published, source: &Path) -> bool {
    let parts = |target: &Path| {
        let of_volume = target.parent()?;
        let pod = of_volume.ancestors().nth(3)?;
        Some(pod.join("volume-subpaths").join(of_volume.file_name()?))
    };
    let within = |target: &Path| parts(target).is_some_and(|parts| source.starts_with(parts));
    // Anything inside the target is a part too, however it was bound.
    let inside = |target: &Path| source != target && source.starts_with(target);
    [&volume.target, &volume.target_as_given]
        .into_iter()
        .any(|target| within(target) || inside(target))
}

/// The targets of which this mount source could be the whole, a part, or a `subPath`.
pub fn possible_targets(source: &Path) -> Vec<PathBuf> {
    let mut targets: Vec<_> = source.ancestors().map(Path::to_owned).collect();
    for part in source.ancestors() {
        let Some(parts) = part.parent() else { continue };
        if parts.file_name().is_some_and(|name| name == "volume-subpaths")
            && let (Some(pod), Some(name)) = (parts.parent(), part.file_name())
        {
            targets.push(pod.join("volumes/kubernetes.io~csi").join(name).join("mount"));
        }
    }
    targets
}

/// True if this could be a direct volume, by its path: a CSI volume of a pod, or a part of one.
pub fn may_be_direct(mount: &Mount) -> bool {
    mount.source.contains("/volumes/kubernetes.io~csi/")
        || mount.source.contains("/volume-subpaths/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::published::tests::record;

    const POD: &str = "/var/lib/kubelet/pods/u-1";

    fn volume(kind: DeviceKind) -> Published {
        let target = format!("{POD}/volumes/kubernetes.io~csi/pv-1/mount");
        Published {
            kind,
            target_as_given: target.clone().into(),
            target: target.into(),
            ..record("v-1")
        }
    }

    fn decided(kind: DeviceKind, handler: &str, source: &str) -> Result<Admitted, NotAdmitted> {
        let mount = Mount {
            destination: "/data".into(),
            r#type: "bind".into(),
            source: source.into(),
            options: vec!["rbind".into(), "rw".into()],
        };
        let container = Container { id: "c".into(), mounts: vec![mount], ..Container::default() };
        let pod =
            PodSandbox { id: "s".into(), runtime_handler: handler.into(), ..PodSandbox::default() };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let handlers = Handlers { vm: set(&["kata", "kata-rs"]), typed: set(&["kata-rs"]) };
        decide(&pod, &container, &[record("other"), volume(kind)], &handlers)
    }

    #[test]
    fn a_block_volume_needs_no_other_mount_and_its_sandbox_is_recorded() {
        let target = volume(DeviceKind::Block).target;
        let verdict = decided(DeviceKind::Block, "kata", target.to_str().unwrap()).unwrap();
        assert_eq!(verdict, Admitted { mounts: vec![], targets: [target].into() });
    }

    #[test]
    fn a_typed_volume_has_its_type_and_else_the_same_mount() {
        for (kind, name) in [(DeviceKind::Vfio, "vfiovol"), (DeviceKind::Spdk, "spdkvol")] {
            let target = volume(kind).target;
            let verdict = decided(kind, "kata-rs", target.to_str().unwrap()).unwrap();
            let [mount] = verdict.mounts.try_into().unwrap();
            assert_eq!((mount.r#type.as_str(), mount.destination.as_str()), (name, "/data"));
            assert_eq!((mount.source.as_str(), mount.options.len()), (target.to_str().unwrap(), 2));
            let refused = decided(kind, "kata", target.to_str().unwrap()).unwrap_err();
            assert!(matches!(refused, NotAdmitted::NotTyped { .. }), "{refused}");
        }
    }

    #[test]
    fn a_container_that_would_get_the_hosts_directory_is_not_made() {
        let target = volume(DeviceKind::Block).target;
        for handler in ["", "runc", "kata2"] {
            let refused =
                decided(DeviceKind::Block, handler, target.to_str().unwrap()).unwrap_err();
            assert!(matches!(refused, NotAdmitted::NotVm { .. }), "{refused}");
        }
        for part in ["volume-subpaths/pv-1/c/0", "volumes/kubernetes.io~csi/pv-1/mount/sub"] {
            let refused = decided(DeviceKind::Block, "kata", &format!("{POD}/{part}")).unwrap_err();
            assert!(matches!(refused, NotAdmitted::SubPath { .. }), "{refused}");
        }
    }

    #[test]
    fn other_containers_are_left_as_they_are() {
        for source in
            ["volume-subpaths/pv-2/c/0", "volumes/kubernetes.io~csi/pv-2/mount", "etc-hosts"]
        {
            assert_eq!(
                decided(DeviceKind::Block, "runc", &format!("{POD}/{source}")),
                Ok(Admitted::default())
            );
        }
    }
}
