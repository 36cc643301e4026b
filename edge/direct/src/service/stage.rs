//! Stages and unstages a direct volume at its driver.

use super::driver_call::{CallResult, DriverCall};
use super::unpublish;
use crate::error::{Error, not_yet};
use crate::records::published::{PublicationState, Published};
use crate::records::staged;
use crate::volume::node::Node;

/// Has the driver stage a volume; the note that it is staged comes first.
///
/// # Errors
/// There is no state directory, the note cannot be kept, or the call to the driver fails.
pub(super) async fn stage(
    node: &Node,
    call: &DriverCall<'_>,
    volume: &str,
    message: &[u8],
) -> CallResult {
    let noted = staged::note(node.state(volume)?, call.driver.as_str(), volume);
    noted.map_err(not_yet(volume, "staged"))?;
    call.send(message).await
}

/// Has the driver unstage a volume that is not published; an unfinished publication is taken back
/// first.
///
/// # Errors
/// The volume is handed over, an unfinished publication cannot be taken back, or the call to the
/// driver fails. It also fails if the note cannot be removed.
pub(super) async fn unstage(
    node: &Node,
    call: &DriverCall<'_>,
    volume: &str,
    records: Vec<Published>,
    message: &[u8],
) -> CallResult {
    if let Some(there) = records.iter().find(|record| record.state == PublicationState::Published) {
        let why = format!("it is handed over at {}; unpublish it first", there.target.display());
        return Err(Error::DirectRefused { volume: there.volume_id.clone(), why });
    }
    for record in &records {
        let answer = unpublish::unpublish(node, call, record).await?;
        if answer.failure().is_some() {
            return Ok(answer);
        }
    }
    let answer = call.send(message).await?;
    if answer.failure().is_none() {
        let forgotten = staged::forget(node.state(volume)?, call.driver.as_str(), volume);
        forgotten.map_err(not_yet(volume, "unstaged"))?;
    }
    Ok(answer)
}
