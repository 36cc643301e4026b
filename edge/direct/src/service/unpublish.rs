//! Takes a volume back from its runtime and its driver.
//!
//! The order: the runtime finds it no more, nobody uses it any more, the driver unpublishes it, its
//! record goes. The next call continues an interrupted attempt.

use proto::csi::frame;
use proto::http2::forward::Answer;
use tracing::error;

use super::driver_call::{CallResult, DriverCall};
use crate::error::{TAKEN_BACK, not_yet};
use crate::records::published::Published;
use crate::volume::node::Node;
use crate::volume::release;
use crate::volume::release::Absent;
use crate::volume::target;

pub(super) async fn unpublish(
    node: &Node,
    call: &DriverCall<'_>,
    record: &Published,
) -> CallResult {
    let volume = &record.volume_id;
    // A volume in use is refused, as the unmount of a busy mount fails.
    release::withdraw(node, record, Absent::TakenBack).await?;
    let answer = call.unpublish(record).await?;
    if answer.failure().is_some() {
        return Ok(answer);
    }
    let not_yet = not_yet::<std::io::Error>(volume, TAKEN_BACK);
    // CSI: "The SP MUST delete the file or directory it created at this path." Never its content.
    target::remove_empty(&record.private_path).map_err(&not_yet)?;
    if let Some(kept) = target::remove(&record.target, &record.private_path).map_err(&not_yet)? {
        let target = record.target.display();
        let kept = kept.display();
        error!(
            volume, %target, %kept,
            "a pod wrote to the node's disk instead of its volume; what it wrote is kept"
        );
    }
    record.forget(node.state(volume)?).map_err(&not_yet)?;
    Ok(done())
}

/// An answer of OK without content, as most of a node's answers are.
pub(super) fn done() -> Answer {
    Answer::of(frame::frame(&[]))
}
