//! Updates a cached list entry after a call.
//!
//! Entries are edited as bytes: fields of other versions stay.

use bytes::Bytes;
use proto::control::lease::MAX_ID;
use proto::csi;
use proto::csi::Made;
use proto::csi::wire;
use proto::csi::wire::{Edit, Malformed};

use prost::Message;

// Field numbers of ListVolumesResponse.Entry and VolumeStatus; the tests decode with the generated
// code.
const VOLUME: u32 = 1;
const STATUS: u32 = 2;
const PUBLISHED: u32 = 1;
/// The most bytes of an entry. A page holds it, our topology and a token within the 4 MiB of a gRPC
/// message. etcd takes 1.5 MiB at once. CSI has at most 4 KiB for each map.
const MAX_ENTRY: usize = 1 << 20;

/// The reason why something that a node names cannot be kept: it is too large.
pub(crate) fn why_too_large(made: &Made) -> Option<&'static str> {
    // CSI: a string has at most 128 bytes unless it says otherwise. Drivers exceed that.
    if made.id.text().len() > MAX_ID {
        return Some("with an id of more than 4 KiB");
    }
    (made.entry.len() > MAX_ENTRY).then_some("with an entry of more than 1 MiB")
}

/// Adds a node to the published nodes, by its id at the driver.
///
/// # Errors
/// The entry is malformed.
pub(crate) fn attach(entry: &[u8], node: &str) -> Result<Vec<u8>, Malformed> {
    // Removed first, so that the node is listed once.
    let mut entry = detached(entry, |id| id == node.as_bytes())?;
    wire::append(&mut entry, &[STATUS, PUBLISHED], node.as_bytes());
    Ok(entry)
}

/// Removes a node from the published nodes. CSI: an empty node id means all nodes.
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

/// Adds a status without published nodes to an entry that has none.
pub(crate) fn with_status(entry: Bytes) -> Bytes {
    let has_status = wire::fields(&entry).map_while(Result::ok).any(|field| field.number == STATUS);
    if has_status {
        return entry;
    }
    let mut entry = entry.to_vec();
    wire::append(&mut entry, &[STATUS], &[]);
    entry.into()
}

/// Sets the size in bytes.
///
/// # Errors
/// The entry is malformed.
pub(crate) fn resize(entry: &[u8], size: i64) -> Result<Vec<u8>, Malformed> {
    let before =
        csi::list_volumes_response::Entry::decode(entry)?.volume.unwrap_or_default().capacity_bytes;
    let mut entry = entry.to_vec();
    if before != size {
        // Protobuf merges a repeated message, and the last value of a number counts.
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

    /// An entry with an unknown field in its status.
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
    fn an_id_or_an_entry_that_fits_in_no_page_is_too_large() {
        let made = |id: usize, entry: usize| {
            let id = csi::Id::Volume("x".repeat(id));
            why_too_large(&Made { id, entry: vec![0; entry].into(), source: None })
        };
        assert_eq!(made(MAX_ID, MAX_ENTRY), None);
        assert_eq!(made(MAX_ID + 1, 0), Some("with an id of more than 4 KiB"));
        assert_eq!(made(1, MAX_ENTRY + 1), Some("with an entry of more than 1 MiB"));
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
    fn a_status_is_added_only_where_there_is_none() {
        let volume = csi::Volume { volume_id: "v".into(), ..Default::default() };
        let mut bare = Vec::new();
        wire::append(&mut bare, &[VOLUME], &volume.encode_to_vec());
        let shown = with_status(bare.into());
        let shown = csi::list_volumes_response::Entry::decode(shown).unwrap();
        assert!(shown.volume == Some(volume) && shown.status == Some(Default::default()));
        let attached = Bytes::from(attach(&entry(), "n1").unwrap());
        assert_eq!(with_status(attached.clone()), attached);
    }

    #[test]
    fn the_size_is_the_last_one() {
        let larger = resize(&entry(), 7).unwrap();
        assert_eq!((read(&larger).0, has_odd(&larger)), (7, true));
        assert_eq!(resize(&larger, 7).unwrap(), larger);
    }
}
