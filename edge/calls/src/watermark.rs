//! The newest watermark that csi-cloud told this node, which the next hello tells again.
//!
//! It shows a csi-cloud with an older store that it is older. The file has it at most a minute
//! later, so a start after a power cut may tell one that is a minute older.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::control::watermark::Watermark;
use proto::host::files;
use proto::host::files::Unread;
use proto::host::publish::publish_record;
use proto::host::tasks::Tasks;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

/// The file's name in the state directory.
pub const FILE: &str = "watermark.json";
/// The shortest time between two writes of the file.
const EVERY: Duration = Duration::from_secs(60);

/// The newest watermark. Clones share it.
#[derive(Clone)]
pub struct NewestWatermark(Arc<WatermarkFile>);

struct WatermarkFile {
    known: Mutex<KnownWatermark>,
    file: Option<PathBuf>,
    tasks: Tasks,
}

#[derive(Default)]
struct KnownWatermark {
    newest: Option<Watermark>,
    /// True while a task waits to write it.
    is_due: bool,
    /// The time of the last write.
    written: Option<Instant>,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct WatermarkRecord {
    watermark: Watermark,
}

impl NewestWatermark {
    /// Reads the one in this state directory; without a directory it is in memory alone. A file
    /// that cannot be read counts as none: csi-cloud tells a watermark with its next welcome.
    pub fn open(state: Option<&Path>, tasks: Tasks) -> Self {
        let file = state.map(|directory| directory.join(FILE));
        let newest = file.as_deref().map_or(Ok(None), read).unwrap_or_else(|error| {
            warn!(%error, "{FILE} in --state cannot be read; csi-cloud will tell it again");
            None
        });
        let known = Mutex::new(KnownWatermark { newest, ..KnownWatermark::default() });
        Self(Arc::new(WatermarkFile { known, file, tasks }))
    }

    /// The newest one.
    pub fn get(&self) -> Option<Watermark> {
        self.0.known.lock().newest.clone()
    }

    /// Takes one of the csi-cloud that leads, if it is later.
    pub fn take(&self, told: Watermark) {
        let mut known = self.0.known.lock();
        if known.newest.as_ref().is_some_and(|newest| !told.follows(newest)) {
            return;
        }
        known.newest = Some(told);
        if self.0.file.is_none() || std::mem::replace(&mut known.is_due, true) {
            return;
        }
        let due = known.written.map_or_else(Instant::now, |written| written + EVERY);
        drop(known);
        let this = self.clone();
        self.0.tasks.spawn_until_stop("watermark", async move {
            sleep_until(due).await;
            this.write().await;
        });
    }

    async fn write(&self) {
        let newest = {
            let mut known = self.0.known.lock();
            known.is_due = false;
            known.written = Some(Instant::now());
            known.newest.clone()
        };
        let Some((file, watermark)) = self.0.file.clone().zip(newest) else { return };
        let write = move || publish_record(&file, &WatermarkRecord { watermark });
        let written = tokio::task::spawn_blocking(write).await;
        if let Err(error) = written.map_err(io::Error::from).flatten() {
            debug!(%error, "the watermark is not in csi-edge's state yet");
        }
    }
}

fn read(file: &Path) -> io::Result<Option<Watermark>> {
    let text = match files::read(file) {
        Err(Unread::Missing) => return Ok(None),
        text => text?,
    };
    let WatermarkRecord { watermark } = serde_json::from_slice(&text)?;
    Ok(Some(watermark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::host::publish::{Existing, publish};

    fn watermark(number: u64) -> Watermark {
        format!("00000000-0000-0000-0000-000000000001.{number}.m").parse().unwrap()
    }

    async fn until_written(state: &Path, number: u64) {
        while read(&state.join(FILE)).unwrap() != Some(watermark(number)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_is_told_after_a_restart_and_written_once_a_minute() {
        let state = tempfile::tempdir().unwrap();
        let tasks = Tasks::default();
        let known = NewestWatermark::open(Some(state.path()), tasks.clone());
        assert_eq!(known.get(), None);
        known.take(watermark(1));
        until_written(state.path(), 1).await;
        let began = Instant::now();
        known.take(watermark(3));
        known.take(watermark(2));
        assert_eq!(known.get(), Some(watermark(3)), "a call may overtake another one");
        until_written(state.path(), 3).await;
        assert!(began.elapsed() > EVERY / 2, "an SD card: {:?}", began.elapsed());
        let after = NewestWatermark::open(Some(state.path()), tasks.clone());
        assert_eq!(after.get(), Some(watermark(3)));
        for damaged in ["", "{}", r#"{"watermark":"x"}"#] {
            let file = state.path().join(FILE);
            publish(&file, damaged.as_bytes(), 0o600, Existing::Replace).unwrap();
            assert_eq!(NewestWatermark::open(Some(state.path()), tasks.clone()).get(), None);
        }
        tasks.stop();
    }
}
