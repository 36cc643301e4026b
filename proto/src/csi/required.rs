//! Required fields of requests, beside the id. CSI: "This field is REQUIRED."
//!
//! The driver checks them when it is asked. Where no driver is asked, because none has the volume,
//! the caller must hear of a missing field first. A request that cannot be read lacks nothing here.

use bytes::Bytes;
use prost::Message;

use super::types;

/// The column's value for the RPCs that have no such field.
pub(super) fn nothing(_: &Bytes) -> Option<&'static str> {
    None
}

/// The missing required field of a ControllerPublishVolume.
pub(super) fn of_publish(request: &Bytes) -> Option<&'static str> {
    let request = types::ControllerPublishVolumeRequest::decode(request.clone()).ok()?;
    if request.node_id.is_empty() {
        return Some("a node's id");
    }
    request.volume_capability.is_none().then_some("a volume capability")
}

/// The missing required field of a ValidateVolumeCapabilities.
pub(super) fn of_validate(request: &Bytes) -> Option<&'static str> {
    let request = types::ValidateVolumeCapabilitiesRequest::decode(request.clone()).ok()?;
    request.volume_capabilities.is_empty().then_some("a volume capability")
}

/// The missing required field of a ControllerExpandVolume.
pub(super) fn of_expand(request: &Bytes) -> Option<&'static str> {
    let request = types::ControllerExpandVolumeRequest::decode(request.clone()).ok()?;
    request.capacity_range.is_none().then_some("a capacity range")
}
