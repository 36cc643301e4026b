//! Whether mounts in a directory reach the host and its containers.

use std::path::Path;

use proto::admin::doctor::Finding;
use proto::host::mountinfo::{Propagation, mount};

/// The propagation of a directory, by the text of `/proc/self/mountinfo` (proc(5)); none if it has
/// no mount for the directory.
pub(super) fn propagation(mountinfo: &str, directory: &Path) -> Option<Propagation> {
    let mounts = mountinfo.lines().filter_map(mount);
    let above = mounts.filter(|(point, _)| directory.starts_with(point));
    // Of two at the same place, the later one covers the other.
    let nearest = above.max_by_key(|(point, _)| point.components().count());
    nearest.map(|(_, propagation)| propagation)
}

/// What is said of it.
pub(super) fn judged(directory: &Path, propagation: Option<Propagation>) -> Finding {
    const CHECK: &str = "mount-propagation";
    let about = directory.display().to_string();
    let advice = "volumes that csi-edge or a driver mounts from such a place are not seen by pods; \
                  in a pod set mountPropagation: Bidirectional (component direct, and each \
                  driver), on a host `mount --make-rshared` its mount";
    match propagation {
        Some(Propagation::Shared) => Finding::ok(CHECK, about, "mounts are shared"),
        Some(Propagation::FromHost) => {
            Finding::warning(CHECK, about, "mounts made here do not reach the host", advice)
        }
        Some(Propagation::Private) => {
            Finding::warning(CHECK, about, "mounts stay where they are made", advice)
        }
        None => {
            let found = "/proc/self/mountinfo does not say";
            Finding::unknown(CHECK, about, found, "look with `findmnt -o TARGET,PROPAGATION`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;

    const TABLE: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:5 / /var/lib/kubelet rw shared:7 master:2 - ext4 /dev/a rw
24 22 0:6 / /mnt/a\\040b rw master:3 - ext4 /dev/b rw
25 22 0:7 / /private rw - tmpfs tmpfs rw,seclabel
26 25 0:8 / /private rw shared:9 - tmpfs tmpfs rw
short line
";

    #[test]
    fn the_nearest_mount_says_how_mounts_are_passed_on() {
        for (directory, expected) in [
            ("/srv", Some(Propagation::Shared)),
            ("/var/lib/kubelet/pods", Some(Propagation::Shared)),
            ("/mnt/a b/c", Some(Propagation::FromHost)),
            ("/private/x", Some(Propagation::Shared)),
            ("/privateer", Some(Propagation::Shared)),
            ("relative", None),
        ] {
            assert_eq!(propagation(TABLE, Path::new(directory)), expected, "{directory}");
        }
        let below: Vec<_> = TABLE.lines().filter(|line| !line.starts_with("26 ")).collect();
        let found = propagation(&below.join("\n"), Path::new("/private/x"));
        assert_eq!(found, Some(Propagation::Private));
        assert_eq!(propagation("", Path::new("/")), None);
    }

    #[test]
    fn only_a_shared_place_is_right() {
        let verdict = |propagation| judged(Path::new("/k"), propagation).verdict;
        assert_eq!(verdict(Some(Propagation::Shared)), Verdict::Ok);
        assert_eq!(verdict(Some(Propagation::FromHost)), Verdict::Warning);
        assert_eq!(verdict(Some(Propagation::Private)), Verdict::Warning);
        assert_eq!(verdict(None), Verdict::Unknown);
    }
}
