//! The drivers of the stand, and the arguments that each gets.

use super::files::Files;
use super::ground::older;

/// The driver that every node has.
pub const DRIVER: &str = "hostdir.edge-csi.io";
/// The driver that only some nodes have.
pub const SECOND: &str = "second.edge-csi.io";
/// The driver of one node that only mounts shares of a site: it has no controller, and no front in
/// the cloud.
pub const SHARES: &str = "shares.edge-csi.io";
/// The driver that every node has for the volumes of one file server, where sshfs is installed.
pub const SHARED: &str = "shared.edge-csi.io";
/// hostdir at one node, for the storage suite.
pub const ONE: &str = "one.edge-csi.io";
/// [`DRIVER`], [`SHARED`] and [`ONE`] without us, for the storage suite.
pub const STRAIGHT: [&str; 3] =
    ["straight.edge-csi.io", "shared-straight.edge-csi.io", "one-straight.edge-csi.io"];

/// Whether a driver has its volumes on the file server.
pub(super) fn is_shared(driver: &str) -> bool {
    driver == SHARED || driver == STRAIGHT[1]
}

/// Those of these drivers that this machine can have. An older version's shared driver has another
/// configuration.
pub fn here(drivers: &[&'static str]) -> Vec<&'static str> {
    let has_files = Files::missing().is_empty() && older().is_none();
    drivers.iter().copied().filter(|driver| !is_shared(driver) || has_files).collect()
}

/// Further arguments of a driver: the second has little capacity and takes few volumes.
pub(super) fn options(
    driver: &str,
    files: Option<&Files>,
    attach_limit: Option<u32>,
) -> Vec<String> {
    match driver {
        SECOND => vec!["--attach-limit=2".to_owned(), "--capacity=268435456".to_owned()],
        SHARES => vec!["--shares".to_owned()],
        SHARED => files.map(|files| format!("--server={}", files.url())).into_iter().collect(),
        _ if driver == STRAIGHT[1] => {
            let url = files.map(|files| format!("--server={}/{driver}", files.url()));
            url.into_iter().collect()
        }
        _ => attach_limit.map(|limit| format!("--attach-limit={limit}")).into_iter().collect(),
    }
}

/// The section of csi-cloud's configuration about a driver.
pub(super) fn section(driver: &str) -> String {
    let common = "fs_group_policy = \"File\"\nvolume_lifecycle_modes = [\"Persistent\"]\n";
    let own = match driver {
        // The usual 30 s are long for tests.
        SHARED => "scope = \"shared\"\ncontrollers = [\"n1\", \"n2\", \"n3\"]\nfailover_s = 5\n",
        _ => "pod_info_on_mount = true\nstorage_capacity = true\n",
    };
    format!("[driver.\"{driver}\"]\n{own}{common}")
}
