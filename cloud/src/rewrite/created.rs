//! Compares the size of a new volume with the requested range.

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::wire;
use proto::csi::wire::Malformed;

// A field number of a CSI message; the test encodes the message with the generated code.
const CAPACITY_RANGE: u32 = 2;

/// The requested capacity of a CreateVolume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// The least capacity.
    pub(crate) required: i64,
    /// The largest capacity; 0 is no limit.
    pub(crate) limit: i64,
}

/// The capacity range of a CreateVolume, if it has one.
///
/// # Errors
/// The request is malformed.
pub(crate) fn range(create_volume: &[u8]) -> Result<Option<Range>, Malformed> {
    let mut range = None;
    for field in wire::fields(create_volume) {
        let field = field?;
        let Some(content) = field.content.filter(|_| field.number == CAPACITY_RANGE) else {
            continue;
        };
        let asked = csi::CapacityRange::decode(content)?;
        range = Some(Range { required: asked.required_bytes, limit: asked.limit_bytes });
    }
    Ok(range)
}

/// A new volume's size, if it is outside the range. The answer is passed on all the same:
/// external-provisioner deletes such a volume and reports it.
pub(crate) fn other_size(range: Range, answer: &Bytes) -> Option<i64> {
    // CSI: "If this field is 0, the capacity is unknown".
    let size = csi::CreateVolumeResponse::decode(answer.clone()).ok()?.volume?.capacity_bytes;
    let fits = size >= range.required && (range.limit == 0 || size <= range.limit);
    (size != 0 && !fits).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_fits_its_range_or_is_told() {
        let capacity_range = Some(csi::CapacityRange { required_bytes: 10, limit_bytes: 20 });
        let request = csi::CreateVolumeRequest { capacity_range, ..Default::default() };
        let range = range(&request.encode_to_vec()).unwrap().unwrap();
        assert_eq!(range, Range { required: 10, limit: 20 });
        let wrong = |capacity_bytes| {
            let volume = Some(csi::Volume { capacity_bytes, ..Default::default() });
            other_size(range, &csi::CreateVolumeResponse { volume }.encode_to_vec().into())
        };
        assert_eq!(
            [wrong(0), wrong(9), wrong(10), wrong(20), wrong(21)],
            [None, Some(9), None, None, Some(21)]
        );
    }

    #[test]
    fn without_a_range_nothing_is_read() {
        assert_eq!(range(&[]).unwrap(), None);
    }
}
