//! Calls that a volume's runtime answers: statistics and growth.
//!
//! The driver sees a block volume at our path. The target is a covered directory, whose numbers are
//! not the volume's. So no such call reaches the driver as it came.

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::status::BadRequest;
use proto::csi::{Method, direct, frame, wire};
use proto::http2::forward::Answer;
use tonic::Code;

use super::driver_call::{CallResult, DriverCall};
use crate::error::{Error, Fault};
use crate::records::published::Published;
use crate::runtimes::Runtimes;
use crate::volume::cover;
use crate::volume::node::Node;

/// Answers with the statistics of a volume that is handed over.
///
/// # Errors
/// The runtime does not tell them, or did not take the volume.
pub(super) async fn stats(
    node: &Node,
    runtimes: &Runtimes,
    call: &DriverCall<'_>,
    record: &Published,
) -> CallResult {
    let stats = runtimes.stats(record).await;
    if stats.is_err()
        && let Ok(Some(at)) = cover::shared_at(&node.host.proc, &record.target)
    {
        let at = at.display();
        let why = format!(
            "the runtime did not take volume {}: it shared the node's directory at {at}; see \
             `csi-edge direct check`, and delete the pod",
            record.volume_id
        );
        let method = call.method.name();
        return Err(Error::Direct { method, fault: Fault::Away, source: why.into() });
    }
    let stats = stats.map_err(|error| error.of_call(call.method.name()))?;
    Ok(encoded(&stats.response()))
}

/// Grows the device first, if the driver has anything to do for that on a node, and then the file
/// system.
///
/// # Errors
/// The request is malformed, the call to the driver fails, or the runtime does not grow the file
/// system.
pub(super) async fn grow(
    runtimes: &Runtimes,
    call: &DriverCall<'_>,
    record: &Published,
    message: &Bytes,
) -> CallResult {
    let private = record.private_path.as_os_str().as_encoded_bytes();
    let (required, grown) = grow_device(call, message, Some(private)).await?;
    if grown.failure().is_some_and(|status| status.code() != Code::Unimplemented) {
        return Ok(grown);
    }
    let bytes = runtimes.expand(record, required).await;
    Ok(sized(bytes.map_err(|error| error.of_call(call.method.name()))?))
}

/// Grows the device of a volume that is staged and not published. Its file system grows when it is
/// published: until then there is no device to look at.
///
/// # Errors
/// The request is malformed, or the call to the driver fails.
pub(super) async fn grow_staged(call: &DriverCall<'_>, message: &Bytes) -> CallResult {
    let (required, grown) = grow_device(call, message, None).await?;
    match grown.failure() {
        Some(status) if status.code() == Code::Unimplemented => Ok(sized(required)),
        _ => Ok(grown),
    }
}

/// The requested bytes, and the driver's answer. UNIMPLEMENTED means that the driver has nothing to
/// do on a node.
async fn grow_device(
    call: &DriverCall<'_>,
    message: &Bytes,
    path: Option<&[u8]>,
) -> Result<(u64, Answer), Error> {
    let method = call.method.name();
    let bad = |source: BadRequest| Error::BadRequest { method, source };
    let request = csi::NodeExpandVolumeRequest::decode(message.clone());
    let request = request.map_err(|error| bad(error.into()))?;
    let required = request.capacity_range.unwrap_or_default().required_bytes;
    let message = for_driver(call.method, message, path).map_err(|error| bad(error.into()))?;
    let answer = call.send(&message).await?;
    Ok((u64::try_from(required).unwrap_or(0), answer))
}

fn sized(bytes: u64) -> Answer {
    let capacity_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    encoded(&csi::NodeExpandVolumeResponse { capacity_bytes })
}

fn encoded(message: &impl Message) -> Answer {
    Answer::of(frame::frame(&message.encode_to_vec()))
}

/// The request for the driver: for a block volume, and at another path if one is given.
fn for_driver(
    method: Method,
    message: &Bytes,
    path: Option<&[u8]>,
) -> Result<Vec<u8>, wire::Malformed> {
    const PATH: u32 = 2;
    let replaced = |was: &[u8]| Ok(wire::Edit::Replace(path.unwrap_or(was).to_vec()));
    let edited = wire::edit(message, &[PATH], replaced)?.unwrap_or_else(|| message.to_vec());
    match method.places() {
        Some(places) => direct::for_driver(&edited, places),
        None => Ok(edited),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi::volume_capability::{AccessType, BlockVolume, MountVolume};

    #[test]
    fn the_driver_is_asked_for_a_block_volume_at_our_path() {
        let capability = |access| {
            let access_mode = csi::volume_capability::AccessMode { mode: 6 };
            Some(csi::VolumeCapability {
                access_mode: Some(access_mode),
                access_type: Some(access),
            })
        };
        let mut request = csi::NodeExpandVolumeRequest {
            volume_id: "v".into(),
            volume_path: "/pods/p/mount".into(),
            capacity_range: Some(csi::CapacityRange { required_bytes: 9, limit_bytes: 0 }),
            staging_target_path: "/staging".into(),
            volume_capability: capability(AccessType::Mount(MountVolume::default())),
            secrets: [("k".into(), "s".into())].into(),
        };
        let mut message = request.encode_to_vec();
        // A field newer than csi-edge.
        wire::append(&mut message, &[99], b"new");
        let edited =
            for_driver(Method::NodeExpandVolume, &message.clone().into(), Some(b"/private/x"))
                .unwrap();
        assert!(edited.windows(3).any(|part| part == b"new"));
        request.volume_path = "/private/x".into();
        request.volume_capability = capability(AccessType::Block(BlockVolume::default()));
        let seen = csi::NodeExpandVolumeRequest::decode(&edited[..]).unwrap();
        assert!(seen == request);
    }
}
