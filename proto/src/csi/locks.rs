//! The locks that a call holds at its node while its driver carries it out.
//!
//! CSI asks the orchestrator for one call in flight per volume. A kubelet and the sidecars take
//! that for one call per volume and target, or per volume and node, and drivers are built for them;
//! so these locks keep apart only what must not be at a driver together.

use super::column::Locks;
use super::key::{Id, Key};
use super::method::Method;
use super::wire;

/// A part of what an id stands for, which is locked apart from the other parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LockPart {
    /// The thing itself, or a name.
    Whole,
    /// The volume at this node.
    AtNode,
    /// The volume at this path of the node.
    Target(String),
    /// The volume's attachment to the node with this id.
    Attachment(String),
    /// The volume's size.
    Size,
    /// The volume's attributes.
    Attributes,
}

/// One lock of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// What is locked.
    pub id: Id,
    /// Which part of it.
    pub part: LockPart,
    /// True if no other call may hold it meanwhile, not even shared.
    pub is_exclusive: bool,
}

impl Lock {
    /// Keeps all others out.
    pub fn exclusive(id: &Id, part: LockPart) -> Self {
        Self { id: id.clone(), part, is_exclusive: true }
    }

    /// Keeps only those out that want it exclusively.
    pub fn shared(id: &Id, part: LockPart) -> Self {
        Self { id: id.clone(), part, is_exclusive: false }
    }
}

impl Method {
    /// The locks of a call, from its key and its (unframed) request. An empty id locks nothing.
    pub fn locks(self, key: &Key, message: &[u8]) -> Vec<Lock> {
        let about = self.about(key);
        let Some(id) = about.first() else { return Vec::new() };
        let mut locks = match self.locks_column() {
            Locks::Nothing => Vec::new(),
            Locks::Made => made(id, key),
            Locks::Gone { members } => gone(id, members, message),
            Locks::Size => part_of(id, LockPart::Size),
            Locks::Attributes => part_of(id, LockPart::Attributes),
            Locks::Attachment(field) => match texts(message, field).pop() {
                Some(node) if !node.is_empty() => part_of(id, LockPart::Attachment(node)),
                Some(_) | None => vec![Lock::exclusive(id, LockPart::Whole)],
            },
            Locks::AtNode => vec![Lock::exclusive(id, LockPart::AtNode)],
            Locks::Target(field) => {
                let target = texts(message, field).pop().unwrap_or_default();
                vec![
                    Lock::exclusive(id, LockPart::Target(target)),
                    Lock::shared(id, LockPart::AtNode),
                ]
            }
        };
        locks.retain(|lock| !lock.id.text().is_empty());
        locks
    }
}

/// A part of a volume, which is shared meanwhile.
fn part_of(id: &Id, part: LockPart) -> Vec<Lock> {
    vec![Lock::exclusive(id, part), Lock::shared(id, LockPart::Whole)]
}

/// The name of what is made, and the sources of its content.
fn made(name: &Id, key: &Key) -> Vec<Lock> {
    let sources = match key {
        Key::Create { source, .. } => source.as_slice(),
        Key::Snapshot { volumes, .. } => volumes.as_slice(),
        Key::Local | Key::Home(_) | Key::Delete(_) | Key::All | Key::Capacity(_) | Key::Node(_) => {
            &[]
        }
    };
    let mut locks = vec![Lock::exclusive(name, LockPart::Whole)];
    for source in sources {
        let lock = Lock::shared(source, LockPart::Whole);
        if !locks.contains(&lock) {
            locks.push(lock);
        }
    }
    locks
}

/// What is deleted.
fn gone(id: &Id, members: Option<u32>, message: &[u8]) -> Vec<Lock> {
    let mut locks = vec![Lock::exclusive(id, LockPart::Whole)];
    if matches!(id, Id::Volume(_)) {
        locks.push(Lock::exclusive(id, LockPart::AtNode));
    }
    let members = members.map(|field| texts(message, field)).unwrap_or_default();
    for member in members {
        let lock = Lock::exclusive(&Id::Snapshot(member), LockPart::Whole);
        if !locks.contains(&lock) {
            locks.push(lock);
        }
    }
    locks
}

/// The texts in a field of a request whose key was read, in their order.
fn texts(message: &[u8], number: u32) -> Vec<String> {
    let fields = wire::fields(message).map_while(Result::ok);
    let contents = fields.filter(|field| field.number == number).filter_map(|field| field.content);
    contents.map(|content| String::from_utf8_lossy(content).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;

    use super::*;
    use crate::csi;

    fn locks(method: Method, request: impl Message) -> Vec<Lock> {
        let message = request.encode_to_vec();
        method.locks(&method.key(&message).unwrap(), &message)
    }

    /// Whether two calls may be at a driver together.
    fn are_apart(one: &[Lock], other: &[Lock]) -> bool {
        let meets = |a: &Lock, b: &Lock| {
            (&a.id, &a.part) == (&b.id, &b.part) && (a.is_exclusive || b.is_exclusive)
        };
        !one.iter().any(|a| other.iter().any(|b| meets(a, b)))
    }

    fn publish(target: &str) -> Vec<Lock> {
        let target_path = target.into();
        let volume_id = "v".into();
        let request =
            csi::NodePublishVolumeRequest { volume_id, target_path, ..Default::default() };
        locks(Method::NodePublishVolume, request)
    }

    fn unpublish(target: &str) -> Vec<Lock> {
        let request =
            csi::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path: target.into() };
        locks(Method::NodeUnpublishVolume, request)
    }

    fn attach(node: &str) -> Vec<Lock> {
        let volume_id = "v".into();
        let request = csi::ControllerPublishVolumeRequest {
            volume_id,
            node_id: node.into(),
            ..Default::default()
        };
        locks(Method::ControllerPublishVolume, request)
    }

    fn detach(node: &str) -> Vec<Lock> {
        let volume_id = "v".into();
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id,
            node_id: node.into(),
            ..Default::default()
        };
        locks(Method::ControllerUnpublishVolume, request)
    }

    fn of_volume(method: Method) -> Vec<Lock> {
        // Field 1 is the volume's id in all of these.
        let request = csi::DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
        locks(method, request)
    }

    fn snapshot(name: &str, volume: &str) -> Vec<Lock> {
        let request = csi::CreateSnapshotRequest {
            name: name.into(),
            source_volume_id: volume.into(),
            ..Default::default()
        };
        locks(Method::CreateSnapshot, request)
    }

    #[test]
    fn pods_of_one_volume_come_and_go_beside_each_other() {
        assert!(are_apart(&publish("/a"), &publish("/b")));
        assert!(are_apart(&unpublish("/a"), &unpublish("/b")));
        assert!(!are_apart(&publish("/a"), &unpublish("/a")));
        for method in [Method::NodeStageVolume, Method::NodeUnstageVolume, Method::NodeExpandVolume]
        {
            assert!(!are_apart(&of_volume(method), &publish("/a")), "{method}");
            assert!(!are_apart(&of_volume(method), &of_volume(Method::NodeStageVolume)));
        }
    }

    #[test]
    fn nodes_of_one_volume_attach_beside_each_other() {
        assert!(are_apart(&attach("1"), &attach("2")));
        assert!(!are_apart(&attach("1"), &detach("1")));
        assert!(!are_apart(&attach("1"), &detach("")), "without a node id it is all of them");
        assert!(are_apart(&attach("1"), &snapshot("s", "v")));
        let grow = of_volume(Method::ControllerExpandVolume);
        let modify = of_volume(Method::ControllerModifyVolume);
        assert!(are_apart(&grow, &modify) && !are_apart(&grow, &grow));
        assert!(are_apart(&grow, &of_volume(Method::NodeExpandVolume)), "another half");
    }

    #[test]
    fn what_is_deleted_is_used_by_nobody() {
        let delete = of_volume(Method::DeleteVolume);
        for other in [
            &attach("1"),
            &detach("1"),
            &publish("/a"),
            &unpublish("/a"),
            &of_volume(Method::NodeUnstageVolume),
            &of_volume(Method::ControllerExpandVolume),
            &snapshot("s", "v"),
            &delete,
        ] {
            assert!(!are_apart(&delete, other), "{other:?}");
        }
        assert!(are_apart(&delete, &snapshot("s", "w")));
        let group = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: "g".into(),
            snapshot_ids: vec!["a".into(), "b".into(), "a".into()],
            ..Default::default()
        };
        let group = locks(Method::DeleteVolumeGroupSnapshot, group);
        assert_eq!(group.len(), 3, "{group:?}");
        let request = csi::DeleteSnapshotRequest { snapshot_id: "b".into(), ..Default::default() };
        assert!(!are_apart(&group, &locks(Method::DeleteSnapshot, request)));
    }

    #[test]
    fn a_name_is_made_once_and_its_source_stays() {
        let create = |name: &str, source: Option<&str>| {
            let source = source.map(|id| csi::VolumeContentSource {
                r#type: Some(csi::volume_content_source::Type::Volume(
                    csi::volume_content_source::VolumeSource { volume_id: id.into() },
                )),
            });
            let request = csi::CreateVolumeRequest {
                name: name.into(),
                volume_content_source: source,
                ..Default::default()
            };
            locks(Method::CreateVolume, request)
        };
        assert!(!are_apart(&create("a", None), &create("a", None)));
        assert!(are_apart(&create("a", Some("v")), &create("b", Some("v"))));
        assert!(!are_apart(&create("a", Some("v")), &of_volume(Method::DeleteVolume)));
        assert!(are_apart(&create("a", None), &snapshot("a", "v")), "names of two kinds");
        assert!(create("", None).is_empty());
    }

    #[test]
    fn what_only_reads_locks_nothing() {
        let locking: BTreeSet<_> = Method::ALL
            .iter()
            .copied()
            .filter(|method| method.locks_column() != Locks::Nothing)
            .collect();
        assert_eq!(locking.len(), 15, "{locking:?}");
        let changes = ["Create", "Delete", "Publish", "Unpublish", "Stage", "Unstage", "Expand"];
        for method in Method::ALL.iter().copied() {
            let name = method.name();
            let may_change =
                changes.iter().any(|verb| name.contains(verb)) || name.contains("Modify");
            assert_eq!(locking.contains(&method), may_change, "{method}");
        }
    }
}
