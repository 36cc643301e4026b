//! The SnapshotMetadata service: streams from the real extents of snapshots' images, in batches.
//!
//! The images are opened before the stream begins, so that a snapshot may be deleted under it.

use std::fs::File;
use std::ops::ControlFlow;

use crate::grpc::snapshot_metadata_server::SnapshotMetadata;
use proto::csi::*;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};

use super::check;
use super::core::Core;
use super::driver::HostDir;
use super::extents::{Extent, allocated, changed};
use super::fail::Doing as _;
use super::record::Snapshot;

/// The blocks in one message if the caller does not say.
const BATCH: usize = 1024;

/// From where, and how many blocks at once.
#[derive(Clone, Copy)]
struct Wanted {
    from: u64,
    batch: usize,
}

/// Sends blocks in batches. `finish` sends the last one, even if it is empty, because it has the
/// capacity.
struct Batches<R> {
    to: mpsc::Sender<Result<R, Status>>,
    batch: usize,
    blocks: Vec<BlockMetadata>,
    sent: bool,
    message: fn(i64, Vec<BlockMetadata>) -> R,
    capacity: i64,
}

impl<R> Batches<R> {
    fn add(&mut self, (start, end): Extent) -> ControlFlow<()> {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.blocks
            .push(BlockMetadata { byte_offset: signed(start), size_bytes: signed(end - start) });
        if self.blocks.len() < self.batch { ControlFlow::Continue(()) } else { self.send() }
    }

    fn send(&mut self) -> ControlFlow<()> {
        let message = (self.message)(self.capacity, std::mem::take(&mut self.blocks));
        self.sent = true;
        match self.to.blocking_send(Ok(message)) {
            Ok(()) => ControlFlow::Continue(()),
            // The caller left.
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn finish(mut self, result: Result<(), Status>) {
        // In all cases, a caller that left misses nothing.
        if let Err(status) = result {
            let _ = self.to.blocking_send(Err(status));
        } else if !self.sent || !self.blocks.is_empty() {
            let _ = self.send();
        }
    }
}

impl Core {
    /// Opens the image of a snapshot.
    fn image(&self, field: &str, id: &str) -> Result<(Snapshot, File), Status> {
        check::id(field, id)?;
        let snapshot = self.snapshot(id)?;
        if !snapshot.block {
            return Err(Status::invalid_argument(format!(
                "{field}: snapshot {id} is of a mount volume, which has no blocks"
            )));
        }
        let path = self.copy_of(&snapshot);
        let file = File::open(&path).doing(|| format!("open {}", path.display()))?;
        Ok((snapshot, file))
    }
}

fn wanted(snapshot: &Snapshot, offset: i64, max: i32) -> Result<Wanted, Status> {
    let batch =
        usize::try_from(max).map_err(|_| Status::invalid_argument("max_results is negative"))?;
    let from = u64::try_from(offset).ok().filter(|_| offset <= snapshot.size).ok_or_else(|| {
        let size = snapshot.size;
        Status::out_of_range(format!(
            "starting_offset {offset} is outside of the snapshot's {size} bytes"
        ))
    })?;
    Ok(Wanted { from, batch: if batch == 0 { BATCH } else { batch } })
}

fn batches<R: Send + 'static>(
    wanted: Wanted,
    capacity: i64,
    message: fn(i64, Vec<BlockMetadata>) -> R,
    work: impl FnOnce(&mut Batches<R>) -> Result<(), Status> + Send + 'static,
) -> Response<ReceiverStream<Result<R, Status>>> {
    let (to, stream) = mpsc::channel(4);
    let mut batches =
        Batches { to, batch: wanted.batch, blocks: vec![], sent: false, message, capacity };
    // Not awaited: it ends when all is sent or the caller leaves.
    drop(tokio::task::spawn_blocking(move || {
        let result = work(&mut batches);
        batches.finish(result);
    }));
    Response::new(ReceiverStream::new(stream))
}

#[async_trait]
impl SnapshotMetadata for HostDir {
    type GetMetadataAllocatedStream = ReceiverStream<Result<GetMetadataAllocatedResponse, Status>>;
    type GetMetadataDeltaStream = ReceiverStream<Result<GetMetadataDeltaResponse, Status>>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let request = request.into_inner();
        let (wanted, snapshot, image) = self
            .blocking(move |core| {
                let (snapshot, image) = core.image("snapshot_id", &request.snapshot_id)?;
                Ok((
                    wanted(&snapshot, request.starting_offset, request.max_results)?,
                    snapshot,
                    image,
                ))
            })
            .await?;
        let message = |volume_capacity_bytes, block_metadata| GetMetadataAllocatedResponse {
            block_metadata_type: BlockMetadataType::VariableLength as i32,
            volume_capacity_bytes,
            block_metadata,
        };
        Ok(batches(wanted, snapshot.size, message, move |batches| {
            let found = allocated(&image, wanted.from, snapshot.size.unsigned_abs())
                .doing(|| format!("find the data of snapshot {}", snapshot.id))?;
            // Stopped early only by a caller that left.
            let _ = found.into_iter().try_for_each(|extent| batches.add(extent));
            Ok(())
        }))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let request = request.into_inner();
        let (wanted, snapshot, base, target) = self
            .blocking(move |core| {
                let (old, base) = core.image("base_snapshot_id", &request.base_snapshot_id)?;
                let (new, target) =
                    core.image("target_snapshot_id", &request.target_snapshot_id)?;
                if old.volume != new.volume {
                    return Err(Status::invalid_argument(format!(
                        "base_snapshot_id and target_snapshot_id are of two volumes: {} and {}",
                        old.volume, new.volume
                    )));
                }
                Ok((wanted(&new, request.starting_offset, request.max_results)?, new, base, target))
            })
            .await?;
        let message = |volume_capacity_bytes, block_metadata| GetMetadataDeltaResponse {
            block_metadata_type: BlockMetadataType::VariableLength as i32,
            volume_capacity_bytes,
            block_metadata,
        };
        Ok(batches(wanted, snapshot.size, message, move |batches| {
            changed(&base, &target, wanted.from, |extent| batches.add(extent))
                .doing(|| format!("compare snapshot {} with its base", snapshot.id))
        }))
    }
}
