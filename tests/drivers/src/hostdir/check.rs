//! Validates requests. A refusal names the field.

use std::collections::{BTreeMap, HashMap};

use proto::csi::volume_capability::AccessType;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::{CapacityRange, TopologyRequirement, VolumeCapability};
use tonic::Status;

use super::keys::{MUTABLE_KEY, TOPOLOGY_KEY};
use super::record::{Capability, Record};

/// The longest id and name, in bytes.
const LONGEST: usize = 128;
/// The mount flags that are understood.
const MOUNT_FLAGS: [&str; 7] = ["ro", "rw", "noexec", "nosuid", "nodev", "noatime", "nodiratime"];
/// The size of a volume whose request has none.
const DEFAULT_SIZE: i64 = 1 << 30;
/// Image files have whole pages of this size, so that a loop device serves all of them.
pub(super) const BLOCK: i64 = 4096;

/// An id: there, short, and with nothing in it that leads out of a directory.
pub(super) fn id(field: &str, id: &str) -> Result<(), Status> {
    present(field, id)?;
    if id.len() > LONGEST || id.starts_with('.') || id.contains("..") || id.contains(['/', '\0']) {
        return Err(Status::invalid_argument(format!(
            "{field} is no id of this driver: it has a `/`, a `..`, a `.` in front or more \
             than {LONGEST} bytes"
        )));
    }
    Ok(())
}

/// A name: there and short. It is never used as a path.
pub(super) fn name(name: &str) -> Result<(), Status> {
    present("name", name)?;
    if name.len() > LONGEST {
        return Err(Status::invalid_argument(format!("name has more than {LONGEST} bytes")));
    }
    Ok(())
}

/// A string that must not be empty.
pub(super) fn present(field: &str, value: &str) -> Result<(), Status> {
    if value.is_empty() {
        Err(Status::invalid_argument(format!("{field} is missing")))
    } else {
        Ok(())
    }
}

/// A path: absolute.
pub(super) fn path(field: &str, value: &str) -> Result<(), Status> {
    present(field, value)?;
    if value.starts_with('/') {
        return Ok(());
    }
    Err(Status::invalid_argument(format!("{field} is no absolute path")))
}

/// One capability that must be there.
pub(super) fn capability(capability: Option<VolumeCapability>) -> Result<Capability, Status> {
    let invalid = |what: String| Status::invalid_argument(format!("volume_capability: {what}"));
    let capability =
        capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    let mode = capability.access_mode.map_or(0, |mode| mode.mode);
    if mode == Mode::Unknown as i32 || Mode::try_from(mode).is_err() {
        return Err(invalid("access_mode is missing or unknown".to_owned()));
    }
    let mount = match capability.access_type {
        None => return Err(invalid("access_type is missing".to_owned())),
        Some(AccessType::Block(_)) => {
            return Ok(Capability {
                block: true,
                mode,
                fs_type: String::new(),
                flags: vec![],
                group: None,
            });
        }
        Some(AccessType::Mount(mount)) => mount,
    };
    if let Some(flag) = mount.mount_flags.iter().find(|flag| !MOUNT_FLAGS.contains(&flag.as_str()))
    {
        return Err(invalid(format!("mount flag {flag} is not one of {}", MOUNT_FLAGS.join(", "))));
    }
    let group = match mount.volume_mount_group.as_str() {
        "" => None,
        group => Some(
            group.parse().map_err(|_| invalid("volume_mount_group is no group id".to_owned()))?,
        ),
    };
    Ok(Capability { block: false, mode, fs_type: mount.fs_type, flags: mount.mount_flags, group })
}

/// The capabilities of a volume, which must agree on what it is.
pub(super) fn capabilities(all: Vec<VolumeCapability>) -> Result<Vec<Capability>, Status> {
    let all: Vec<_> = all.into_iter().map(|one| capability(Some(one))).collect::<Result<_, _>>()?;
    match all.first() {
        None => Err(Status::invalid_argument("volume_capabilities is missing")),
        Some(first) if all.iter().any(|one| one.block != first.block) => Err(
            Status::invalid_argument("volume_capabilities: a volume is block or mount, not both"),
        ),
        Some(_) => Ok(all),
    }
}

/// The mutable parameters: only [`MUTABLE_KEY`].
pub(super) fn mutable(given: HashMap<String, String>) -> Result<BTreeMap<String, String>, Status> {
    match given.keys().find(|key| *key != MUTABLE_KEY) {
        Some(key) => Err(Status::invalid_argument(format!(
            "mutable_parameters: {key} is unknown; the only one is {MUTABLE_KEY}"
        ))),
        None => Ok(given.into_iter().collect()),
    }
}

/// Whether a topology has this node in it.
pub(super) fn here(segments: &HashMap<String, String>, node: &str) -> bool {
    segments.iter().all(|(key, value)| key == TOPOLOGY_KEY && value == node)
}

/// Refuses what must be elsewhere.
pub(super) fn topology(wanted: Option<&TopologyRequirement>, node: &str) -> Result<(), Status> {
    let requisite = wanted.map_or(&[][..], |wanted| &wanted.requisite);
    if requisite.is_empty() || requisite.iter().any(|topology| here(&topology.segments, node)) {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "accessibility_requirements leave out {TOPOLOGY_KEY}={node}, and there is nothing elsewhere"
    )))
}

/// Refuses a range that makes no sense.
pub(super) fn range(range: CapacityRange) -> Result<CapacityRange, Status> {
    if range.required_bytes < 0 || range.limit_bytes < 0 {
        return Err(Status::invalid_argument("capacity_range is negative"));
    }
    if range.limit_bytes > 0 && range.limit_bytes < range.required_bytes {
        return Err(Status::out_of_range(
            "capacity_range: limit_bytes is less than required_bytes",
        ));
    }
    Ok(range)
}

/// Whether a size lies in a range.
pub(super) fn fits(size: i64, range: CapacityRange) -> bool {
    size >= range.required_bytes && (range.limit_bytes == 0 || size <= range.limit_bytes)
}

/// The size of a new volume that has to hold `least` bytes.
pub(super) fn size(wanted: CapacityRange, block: bool, least: i64) -> Result<i64, Status> {
    let wanted = range(wanted)?;
    let mut size = wanted.required_bytes.max(least);
    if size == 0 {
        size = if wanted.limit_bytes > 0 {
            wanted.limit_bytes.min(DEFAULT_SIZE)
        } else {
            DEFAULT_SIZE
        };
        size = if block { size / BLOCK * BLOCK } else { size };
    }
    if block {
        size = size.checked_add(BLOCK - 1).map_or(i64::MAX, |size| size / BLOCK * BLOCK).max(BLOCK);
    }
    if fits(size, wanted) {
        return Ok(size);
    }
    Err(Status::out_of_range(format!(
        "capacity_range: at least {size} bytes are needed, and limit_bytes is {}",
        wanted.limit_bytes
    )))
}

/// One page of a list, and the token for the next. The token names the last entry of the page,
/// which may be deleted meanwhile: later entries come after it.
pub(super) fn page<R: Record>(
    all: Vec<R>,
    max: i32,
    token: &str,
) -> Result<(Vec<R>, String), Status> {
    let max =
        usize::try_from(max).map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    let after = match token {
        "" => None,
        token => Some(
            token
                .split_once('.')
                .and_then(|(created, id)| Some((created.parse::<u64>().ok()?, id)))
                .ok_or_else(|| Status::aborted("starting_token is none that this driver gave"))?,
        ),
    };
    let mut rest = all
        .into_iter()
        .filter(|record| after.is_none_or(|after| (record.created(), record.id()) > after));
    let page: Vec<R> = rest.by_ref().take(if max == 0 { usize::MAX } else { max }).collect();
    let more = rest.next().and_then(|_| page.last());
    let token = more.map(|last| format!("{}.{}", last.created(), last.id())).unwrap_or_default();
    Ok((page, token))
}

#[cfg(test)]
mod tests {
    use super::super::record::Group;
    use super::*;
    use proptest::prelude::*;
    use tonic::Code;

    #[test]
    fn ids_cannot_lead_out_of_a_directory() {
        for bad in ["", ".", "a/b", "..", "a..b", "a\0b", &"x".repeat(129)] {
            assert_eq!(id("volume_id", bad).unwrap_err().code(), Code::InvalidArgument, "{bad}");
        }
        assert!(id("volume_id", "").unwrap_err().message().contains("volume_id"));
        assert!(id("volume_id", &"x".repeat(128)).is_ok());
    }

    proptest! {
        #[test]
        fn an_accepted_id_is_one_plain_path_component(text in ".{0,140}") {
            if id("volume_id", &text).is_ok() {
                let components: Vec<_> = std::path::Path::new(&text).components().collect();
                prop_assert!(matches!(components[..], [std::path::Component::Normal(_)]));
            }
        }

        #[test]
        fn a_size_is_in_its_range(
            required in 0..1_i64 << 40,
            limit in 0..1_i64 << 40,
            least in 0..1_i64 << 30,
            block: bool,
        ) {
            let wanted = CapacityRange { required_bytes: required, limit_bytes: limit };
            match size(wanted, block, least) {
                Ok(size) => {
                    prop_assert!(fits(size, wanted) && size >= least);
                    prop_assert!(!block || size % BLOCK == 0);
                }
                Err(status) => prop_assert_eq!(status.code(), Code::OutOfRange),
            }
        }
    }

    #[test]
    fn pages_go_on_after_an_entry_that_was_deleted() {
        let group = |n: u64| Group {
            id: format!("g{n}"),
            name: String::new(),
            created: n,
            snapshots: vec![],
            volumes: vec![],
        };
        let (first, token) = page((0..4).map(group).collect(), 2, "").unwrap();
        assert_eq!(first.len(), 2);
        let (second, end) = page([0, 2, 3].map(group).to_vec(), 2, &token).unwrap();
        assert_eq!(second.iter().map(|group| group.created).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(end, "");
        assert_eq!(page(vec![group(1)], 0, "nonsense").err().unwrap().code(), Code::Aborted);
        assert_eq!(page(vec![group(1)], -1, "").err().unwrap().code(), Code::InvalidArgument);
    }
}
