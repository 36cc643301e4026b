//! The drivers of the stand, and the arguments that each gets.

/// The driver that every node has.
pub const DRIVER: &str = "hostdir.edge-csi.io";
/// The driver that only some nodes have.
pub const SECOND: &str = "second.edge-csi.io";
/// The driver of one node that only mounts shares of a site: it has no controller, and no front in
/// the cloud.
pub const SHARES: &str = "shares.edge-csi.io";
/// Further arguments of single drivers: the second has little capacity and takes few volumes.
pub(super) const OPTIONS: [(&str, &[&str]); 2] =
    [(SECOND, &["--attach-limit=2", "--capacity=268435456"]), (SHARES, &["--shares"])];
