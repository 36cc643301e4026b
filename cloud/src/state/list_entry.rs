//! A volume's entry in a list, as what calls did to the volume changes it. Edited as bytes: what is newer than we
//! are, or older, stays.

use proto::csi;
use proto::csi::wire;
use proto::csi::wire::{Edit, Malformed};

use prost::Message;

// Numbers of fields in ListVolumesResponse.Entry and VolumeStatus; the tests read with the generated code.
const VOLUME: u32 = 1;
const STATUS: u32 = 2;
const PUBLISHED: u32 = 1;

/// The volume is attached to a node, by the id that the driver gave that.
///
/// # Errors
/// The entry is malformed.
pub(crate) fn attach(entry: &[u8], node: &str) -> Result<Vec<u8>, Malformed> {
    // Once, however often it is said.
    let mut entry = detached(entry, |id| id == node.as_bytes())?;
    wire::append(&mut entry, &[STATUS, PUBLISHED], node.as_bytes());
    Ok(entry)
}

/// The volume is detached from a node. CSI: without a node's id, from all of them.
///
/// # Errors
/// The entry is malformed.
pub(crate) fn detach(entry: &[u8], node: &str) -> Result<Vec<u8>, Malformed> {
    detached(entry, |id| node.is_empty() || id == node.as_bytes())
}

fn detached(entry: &[u8], from: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, Malformed> {
    let edited = wire::edit(entry, &[STATUS], |status| {
        let each = |id: &[u8]| Ok(if from(id) { Edit::Drop } else { Edit::Keep });
        wire::edit(status, &[PUBLISHED], each).map(Edit::from)
    })?;
    Ok(edited.unwrap_or_else(|| entry.to_vec()))
}

/// The volume has this size, in bytes.
///
/// # Errors
/// The entry is malformed.
pub(crate) fn resize(entry: &[u8], size: i64) -> Result<Vec<u8>, Malformed> {
    let before =
        csi::list_volumes_response::Entry::decode(entry)?.volume.unwrap_or_default().capacity_bytes;
    let mut entry = entry.to_vec();
    if before != size {
        // Protobuf merges what stands there twice, and of a number the last one counts.
        let volume = csi::Volume { capacity_bytes: size, ..Default::default() };
        wire::append(&mut entry, &[VOLUME], &volume.encode_to_vec());
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entry: &[u8]) -> (i64, Vec<String>) {
        let entry = csi::list_volumes_response::Entry::decode(entry).unwrap();
        (entry.volume.unwrap().capacity_bytes, entry.status.unwrap_or_default().published_node_ids)
    }

    /// An entry with a field in its status that is not ours to know.
    fn entry() -> Vec<u8> {
        let volume = csi::Volume { volume_id: "v".into(), capacity_bytes: 5, ..Default::default() };
        let mut entry = Vec::new();
        wire::append(&mut entry, &[VOLUME], &volume.encode_to_vec());
        wire::append(&mut entry, &[STATUS, 99], b"odd");
        entry
    }

    fn has_odd(entry: &[u8]) -> bool {
        entry.windows(3).any(|bytes| bytes == b"odd")
    }

    #[test]
    fn who_is_attached_is_there_once_and_the_rest_stays() {
        let once = attach(&attach(&entry(), "n1").unwrap(), "n1").unwrap();
        assert_eq!(read(&once), (5, vec!["n1".into()]));
        let two = attach(&once, "n2").unwrap();
        assert_eq!(read(&detach(&two, "n1").unwrap()).1, ["n2"]);
        assert_eq!(read(&detach(&two, "other").unwrap()).1, ["n1", "n2"]);
        let none = detach(&two, "").unwrap();
        assert_eq!(read(&none).1, [""; 0]);
        assert!(has_odd(&two) && has_odd(&none));
    }

    #[test]
    fn the_size_is_the_last_one() {
        let larger = resize(&entry(), 7).unwrap();
        assert_eq!((read(&larger).0, has_odd(&larger)), (7, true));
        assert_eq!(resize(&larger, 7).unwrap(), larger);
    }
}
