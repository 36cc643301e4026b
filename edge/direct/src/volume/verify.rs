//! Verifies that a device still is the volume that was handed over with it.
//!
//! Device numbers and names are reused; the UUID of the file system is the volume's own.

use std::error::Error as StdError;

use proto::csi::direct::DeviceKind;

use super::node::Node;
use crate::device::host;
use crate::format::probe::probe;
use crate::records::published::Published;

/// The present state of a published volume's device.
pub(crate) enum DeviceMatch {
    /// The volume's.
    Same,
    /// Another volume's, or gone with its boot.
    Another,
    /// Not known; nothing may be taken away or given to anybody else for that.
    Unknown(Box<dyn StdError + Send + Sync>),
}

/// Looks at the device of a published volume.
pub(crate) async fn verify(node: &Node, record: &Published) -> DeviceMatch {
    if node.host.boot().is_empty() {
        return DeviceMatch::Unknown("the kernel does not say which boot this is".into());
    }
    if !node.host.is_boot(&record.boot) {
        return DeviceMatch::Another;
    }
    if record.kind != DeviceKind::Block {
        return match record.device.try_exists() {
            Ok(true) => DeviceMatch::Same,
            Ok(false) => DeviceMatch::Another,
            Err(error) => DeviceMatch::Unknown(error.into()),
        };
    }
    let numbers = [host::number(&record.private_path), host::number(&record.device)];
    if numbers.iter().flatten().any(|number| *number != record.number) {
        return DeviceMatch::Another;
    }
    let found = match probe(&record.device).await {
        Ok(seen) => seen.signature,
        Err(error) => return DeviceMatch::Unknown(error.into()),
    };
    match (found, numbers) {
        (Some(found), _) if !found.uuid.eq_ignore_ascii_case(&record.uuid) => DeviceMatch::Another,
        (Some(_), [Ok(_), Ok(_)]) => DeviceMatch::Same,
        (Some(_), [Err(error), _] | [_, Err(error)]) => DeviceMatch::Unknown(error.into()),
        (None, _) => DeviceMatch::Unknown("its device reads as if it had no file system".into()),
    }
}
