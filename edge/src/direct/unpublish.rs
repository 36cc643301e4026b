//! Takes a volume back: first the runtime can find it no more, and nobody has it any more; then the driver unpublishes
//! it, and last it is forgotten. Whatever is cut short in between is taken up again by the next call.

use std::path::Path;

use proto::error::Error;
use proto::http2::forward::Answer;

use super::published::{Published, State};
use super::standing::Absent;
use super::{Asking, Direct, done, not_yet, place, staged};
use crate::share::Outcome;

const TAKEN_BACK: &str = "taken back";

impl Direct {
    pub(super) async fn unpublish(&self, asking: &Asking<'_>, record: &Published) -> Outcome {
        let Published { volume_id, target, .. } = record;
        // As a mount that is in use could not be taken away either.
        self.withdraw(record, Absent::TakenBack).await?;
        let answer = self.ask_to_unpublish(asking, record).await?;
        if answer.failure().is_some() {
            return Ok(answer);
        }
        let not_yet = not_yet::<std::io::Error>(volume_id, TAKEN_BACK);
        // CSI: "The SP MUST delete the file or directory it created at this path." Never what is in it.
        place::remove_empty(&record.private_path).map_err(&not_yet)?;
        place::remove_empty(target).map_err(&not_yet)?;
        let state = self.state.as_deref().unwrap_or_else(|| Path::new("/"));
        record.forget(state).map_err(&not_yet)?;
        Ok(done())
    }

    /// Has the driver unstage a volume of which nothing is handed over; what was only begun is taken back first.
    pub(super) async fn unstage(
        &self,
        asking: &Asking<'_>,
        volume: &str,
        records: Vec<Published>,
        message: &[u8],
    ) -> Outcome {
        if let Some(there) = records.iter().find(|record| record.state == State::Published) {
            let why = format!("it is handed over at {}; unpublish it first", there.target.display());
            return Err(Error::DirectRefused { volume: there.volume_id.clone(), why }.into());
        }
        for record in &records {
            let answer: Answer = self.unpublish(asking, record).await?;
            if answer.failure().is_some() {
                return Ok(answer);
            }
        }
        let answer = self.ask(asking, asking.rpc, message).await?;
        if answer.failure().is_none() {
            let state = self.state.as_deref().unwrap_or_else(|| Path::new("/"));
            let forgotten = staged::forget(state, asking.driver.as_str(), volume);
            forgotten.map_err(not_yet(volume, "unstaged"))?;
        }
        Ok(answer)
    }
}
