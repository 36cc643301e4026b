//! The calls of the node's front that a volume's runtime answers: its statistics, and its growth.
//!
//! Nothing of this is passed on to the driver as it came: the driver sees a block volume at our path, and the target
//! is an empty directory of the host, whose numbers would be the host's.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::{direct, frame, wire};
use proto::error::{BadRequest, Error};
use proto::http2::forward::Answer;
use tonic::Code;

use crate::direct::published::Published;
use crate::direct::{Asking, Direct};
use crate::share::Outcome;

impl Direct {
    /// Carries out a call about a volume that is handed over.
    pub(in crate::direct) async fn of_runtime(
        &self,
        asking: &Asking<'_>,
        record: &Published,
        message: &Bytes,
    ) -> Outcome {
        let method = asking.rpc.method;
        if method == "NodeExpandVolume" {
            return self.grow(asking, record, message).await;
        }
        let stats = self.runtimes.stats(record).await.map_err(|error| error.of_call(method))?;
        Ok(answer(&stats.response()))
    }

    /// First the driver grows the device, if it has anything to do for that on a node, and then whoever has the file
    /// system grows it.
    async fn grow(&self, asking: &Asking<'_>, record: &Published, message: &Bytes) -> Outcome {
        let private = record.private_path.as_os_str().as_encoded_bytes();
        let (required, grown) = self.grow_device(asking, message, Some(private)).await?;
        if grown.failure().is_some_and(|status| status.code() != Code::Unimplemented) {
            return Ok(grown);
        }
        let bytes = self.runtimes.expand(record, required).await;
        Ok(has(bytes.map_err(|error| error.of_call(asking.rpc.method))?))
    }

    /// Grows the device of a volume that is staged and that nobody has. Its file system is grown when it is published:
    /// until then we have no device to look at.
    pub(in crate::direct) async fn grow_staged(&self, asking: &Asking<'_>, message: &Bytes) -> Outcome {
        let (required, grown) = self.grow_device(asking, message, None).await?;
        match grown.failure() {
            Some(status) if status.code() == Code::Unimplemented => Ok(has(required)),
            _ => Ok(grown),
        }
    }

    /// What is asked for in bytes, and the driver's answer; a driver without the capability has nothing to do on a node,
    /// and says that it does not implement it.
    async fn grow_device(
        &self,
        asking: &Asking<'_>,
        message: &Bytes,
        path: Option<&[u8]>,
    ) -> Result<(u64, Answer), Arc<Error>> {
        let method = asking.rpc.method;
        let bad = |source: BadRequest| Arc::new(Error::BadRequest { method, source });
        let request =
            csi::NodeExpandVolumeRequest::decode(message.clone()).map_err(|error| bad(error.into()))?;
        let required = request.capacity_range.unwrap_or_default().required_bytes;
        let message = for_driver(message, path).map_err(|error| bad(error.into()))?;
        let answer = self.ask(asking, asking.rpc, &message).await?;
        Ok((u64::try_from(required).unwrap_or(0), answer))
    }
}

fn has(bytes: u64) -> Answer {
    answer(&csi::NodeExpandVolumeResponse { capacity_bytes: i64::try_from(bytes).unwrap_or(i64::MAX) })
}

fn answer(message: &impl Message) -> Answer {
    Answer::of(frame::frame(&message.encode_to_vec()))
}

/// The request as the driver gets it: for a block volume, and at another path if one is given.
fn for_driver(message: &Bytes, path: Option<&[u8]>) -> Result<Vec<u8>, wire::Malformed> {
    const PATH: u32 = 2;
    let replaced = |was: &[u8]| Ok(wire::Edit::Replace(path.unwrap_or(was).to_vec()));
    let edited = wire::edit(message, &[PATH], replaced)?.unwrap_or_else(|| message.to_vec());
    match direct::places("NodeExpandVolume") {
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
            Some(csi::VolumeCapability { access_mode: Some(access_mode), access_type: Some(access) })
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
        // A field that is newer than we are.
        wire::append(&mut message, &[99], b"new");
        let edited = for_driver(&message.clone().into(), Some(b"/private/x")).unwrap();
        assert!(edited.windows(3).any(|part| part == b"new"));
        request.volume_path = "/private/x".into();
        request.volume_capability = capability(AccessType::Block(BlockVolume::default()));
        let seen = csi::NodeExpandVolumeRequest::decode(&edited[..]).unwrap();
        assert!(seen == request);
    }
}
