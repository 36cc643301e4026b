//! Lines of `/proc/self/mountinfo` (proc(5)).

use std::path::{Path, PathBuf};

/// How mounts below a directory are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Both ways.
    Shared,
    /// From the host to here only.
    FromHost,
    /// Not at all.
    Private,
}

/// The mount point of a line, and its propagation; none if the line is no mount.
pub fn mount(line: &str) -> Option<(PathBuf, Propagation)> {
    let mut fields = line.split(' ');
    let point = unescaped(fields.nth(4)?);
    // A hyphen ends the optional fields.
    let optional: Vec<_> = fields.skip(1).take_while(|field| *field != "-").collect();
    let has = |tag: &str| optional.iter().any(|field| field.starts_with(tag));
    let propagation = match (has("shared:"), has("master:")) {
        (true, _) => Propagation::Shared,
        (false, true) => Propagation::FromHost,
        (false, false) => Propagation::Private,
    };
    Some((point, propagation))
}

/// File systems behind a server, which may never answer. Those in user space (`fuse…`) are too.
const SERVED: [&str; 18] = [
    "9p",
    "afs",
    "autofs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "smb3",
    "virtiofs",
];

/// True if a look at this path asks no server, by the text of the table. The nearest mount above
/// the path decides; the path has no symlinks.
pub fn may_ask(table: &str, path: &Path) -> bool {
    let above = table.lines().filter_map(file_system).filter(|(point, _)| path.starts_with(point));
    // Of two at the same place, the later one covers the other.
    let nearest = above.max_by_key(|(point, _)| point.components().count());
    nearest.is_none_or(|(_, kind)| !SERVED.contains(&kind) && !kind.starts_with("fuse"))
}

/// The mount point of a line, and the type of its file system.
fn file_system(line: &str) -> Option<(PathBuf, &str)> {
    let mut fields = line.split(' ');
    let point = unescaped(fields.nth(4)?);
    // A hyphen ends the optional fields.
    let kind = fields.skip_while(|field| *field != "-").nth(1)?;
    Some((point, kind))
}

/// The kernel writes a space, a tab, a newline and a backslash as octal numbers.
fn unescaped(text: &str) -> PathBuf {
    let plain = text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    plain.replace("\\134", "\\").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_point_and_its_propagation() {
        let of = |optional: &str| {
            mount(&format!(r"36 35 98:0 /mnt1 /a\040b\134040 rw {optional}- ext3 /dev/root rw"))
        };
        let at = |propagation| Some((PathBuf::from(r"/a b\040"), propagation));
        assert_eq!(of("shared:1 master:2 "), at(Propagation::Shared));
        assert_eq!(of("master:1 "), at(Propagation::FromHost));
        assert_eq!(of(""), at(Propagation::Private));
        assert_eq!(mount("36 35 98:0"), None);
    }

    #[test]
    fn no_server_is_asked_by_whatever_name_it_is_mounted() {
        let of = |point: &str, kind: &str| format!("2 1 8:1 / {point} rw shared:1 - {kind} - rw\n");
        let asks = |table: &str, path: &str| may_ask(table, Path::new(path));
        for kind in SERVED.into_iter().chain(["fuse", "fuseblk", "fuse.sshfs"]) {
            let table = of("/", "ext4") + &of("/mnt", kind) + &of("/mnt/disk", "xfs");
            assert!(!asks(&table, "/mnt/image") && !asks(&table, "/mnt"), "{kind}");
            // Only what is below the mount, and not what is mounted there again.
            assert!(asks(&table, "/mnt2/image") && asks(&table, "/mnt/disk/image"), "{kind}");
        }
        let over = |first: &str, then: &str| {
            asks(&(of("/", "ext4") + &of("/a", first) + &of("/a", then)), "/a/image")
        };
        assert!(over("nfs4", "tmpfs") && !over("tmpfs", "nfs4"));
        assert!(!asks(&(of("/", "nfs") + &of("/dev", "devtmpfs")), "/srv/image"));
        assert!(asks(&(of("/", "nfs") + &of("/dev", "devtmpfs")), "/dev/sda"));
        assert!(!asks(&of(r"/a\040b", "cifs"), "/a b/image"));
        assert!(asks("2 1 8:1 / /mnt rw\n", "/mnt/image"), "a line that is no mount");
    }
}
