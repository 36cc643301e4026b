//! Mount tables: the mount namespaces of this machine in which a volume's file system is mounted.
//! The device number decides, because any path may lead there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::stand::Cluster;

/// The number of reads of tables in which it must never be.
const LOOKED: Duration = Duration::from_millis(20);

/// A mount namespace in which a volume's file system is mounted.
#[derive(Debug)]
pub(super) struct Seen {
    /// A process in it.
    pub(super) process: u32,
    /// Where.
    pub(super) at: String,
}

/// The numbers of the loop devices that serve a volume of hostdir's, as mount tables have them.
///
/// # Errors
/// The kernel does not say.
pub(super) fn devices(handle: &str) -> anyhow::Result<Vec<String>> {
    let needle = format!("/volumes/{handle}/");
    let mut found = Vec::new();
    for device in std::fs::read_dir("/sys/block")?.filter_map(Result::ok) {
        // Devices appear and disappear meanwhile.
        let read =
            |name: &str| std::fs::read_to_string(device.path().join(name)).unwrap_or_default();
        if read("loop/backing_file").contains(&needle) {
            found.push(read("dev").trim().to_owned());
        }
    }
    Ok(found)
}

/// Where a mount table has one of these devices.
fn mounted(table: &str, devices: &[String]) -> Option<String> {
    let has = |line: &&str| {
        line.split(' ').nth(2).is_some_and(|number| devices.iter().any(|one| one == number))
    };
    table.lines().find(has).and_then(|line| line.split(' ').nth(4)).map(str::to_owned)
}

/// All mount namespaces of the machine in which a volume's file system is mounted.
///
/// # Errors
/// The kernel does not say.
pub(super) fn namespaces(handle: &str) -> anyhow::Result<Vec<Seen>> {
    let devices = devices(handle)?;
    let mut known = BTreeSet::new();
    let mut seen = Vec::new();
    for entry in std::fs::read_dir("/proc")?.filter_map(Result::ok) {
        let Ok(process) = entry.file_name().to_string_lossy().parse() else { continue };
        // A process may end meanwhile; then it has no namespace.
        let Ok(namespace) = std::fs::read_link(entry.path().join("ns/mnt")) else { continue };
        let table = std::fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        let at = mounted(&table, &devices);
        if let Some(at) = at.filter(|_| known.insert(namespace)) {
            seen.push(Seen { process, at });
        }
    }
    Ok(seen)
}

/// Fails if a volume's file system is mounted anywhere. Only a volume with a device can show that.
///
/// # Errors
/// It is mounted, it has no device, or the kernel does not say.
pub(super) fn mounted_nowhere(handle: &str) -> anyhow::Result<()> {
    ensure!(!devices(handle)?.is_empty(), "no device serves the volume {handle}");
    let seen = namespaces(handle)?;
    ensure!(seen.is_empty(), "somebody has mounted the volume: {seen:?}");
    Ok(())
}

/// Reads the mount tables of the host and of all nodes until a volume's file system is in one.
/// Returns the namespace and the path. It does not end before that, so callers set a deadline.
///
/// # Errors
/// The kernel does not say.
pub(super) async fn until_hosts(
    cluster: &Cluster,
    handle: &str,
) -> anyhow::Result<(PathBuf, String)> {
    let hosts = ["/proc/1/mountinfo", "/proc/self/mountinfo"].map(PathBuf::from).into_iter();
    let of_node = |pid| Path::new("/proc").join(format!("{pid}/mountinfo"));
    let tables: Vec<_> =
        hosts.chain(cluster.nodes.iter().map(|node| of_node(node.worker.space.pid()))).collect();
    loop {
        let devices = devices(handle)?;
        for path in &tables {
            let table = std::fs::read_to_string(path);
            let table = table.with_context(|| format!("cannot read {}", path.display()))?;
            if let Some(at) = mounted(&table, &devices) {
                return Ok((path.clone(), at));
            }
        }
        tokio::time::sleep(LOOKED).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_known_by_its_device_and_not_by_a_name() {
        let table = "36 25 7:3 / /data rw,noatime - xfs /dev/loop3 rw\n37 25 0:5 /loop4 \
                     /dev/disk rw - devtmpfs udev rw\n";
        let of = |number: &str| mounted(table, &[number.to_owned()]);
        assert_eq!(of("7:3").as_deref(), Some("/data"));
        // A node of a device is no mount of its file system.
        assert_eq!(of("7:4"), None);
        assert_eq!(mounted(table, &[]), None);
    }
}
