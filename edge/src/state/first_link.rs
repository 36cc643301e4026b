//! Records that this csi-edge has had a link: this version, with these endpoints.
//!
//! A node without a link is served from kept state. An update that cannot link must not count as
//! ready by that, or a rollout would go on to all nodes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::host::files;
use proto::host::files::Unread;
use proto::host::publish::{Existing, publish};
use proto::link::endpoint::Endpoint;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tracing::warn;

use crate::link::dial::Linked;

/// The file that names the version and endpoints of the last link.
const FILE: &str = "linked";

/// The memory of a first link, which a file keeps over restarts.
#[derive(Debug, Default)]
pub struct FirstLink {
    file: Option<PathBuf>,
    /// This version, and its endpoints.
    own: String,
    was_made: AtomicBool,
}

impl FirstLink {
    /// Reads the file. One that cannot be read counts as no link.
    pub fn open(directory: Option<&Path>, endpoints: &[Endpoint]) -> Self {
        let endpoints: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
        let own = format!("{} {}\n", env!("CARGO_PKG_VERSION"), endpoints.join(" "));
        let file = directory.map(|directory| directory.join(FILE));
        let was_made = file.as_deref().is_some_and(|file| has(file, &own));
        Self { file, own, was_made: was_made.into() }
    }

    /// True if there has been a link.
    pub fn was_made(&self) -> bool {
        self.was_made.load(Ordering::Relaxed)
    }

    /// Waits for the first link, and records it.
    pub async fn follow(self: Arc<Self>, mut linked: watch::Receiver<Option<Linked>>) {
        if self.was_made() || linked.wait_for(Option::is_some).await.is_err() {
            return;
        }
        self.was_made.store(true, Ordering::Relaxed);
        // It can only fail by a panic, which is logged.
        let _ = spawn_blocking(move || self.keep()).await;
    }

    fn keep(&self) {
        let Some(file) = &self.file else { return };
        if let Err(error) = publish(file, self.own.as_bytes(), 0o600, Existing::Replace) {
            let file = file.display();
            warn!(%file, %error, "a restart without a link is not ready until the next link");
        }
    }
}

/// Whether the file has this text.
fn has(file: &Path, own: &str) -> bool {
    match files::read(file) {
        Ok(kept) => kept == own.as_bytes(),
        Err(Unread::Missing) => false,
        Err(error) => {
            let file = file.display();
            warn!(%file, %error, "cannot be read; csi-edge is not ready until the next link");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_link_counts_for_its_version_and_its_endpoints() {
        let dir = tempfile::tempdir().unwrap();
        let endpoints: [Endpoint; 2] =
            ["wss://a:1".parse().unwrap(), "quic://b:2".parse().unwrap()];
        let open = |endpoints: &[Endpoint]| FirstLink::open(Some(dir.path()), endpoints);
        let first = Arc::new(open(&endpoints));
        let linked = watch::Sender::new(None);
        assert!(!first.was_made() && !open(&endpoints).was_made());
        let link = Linked { cloud: "wss://a:1".into(), since: Instant::now() };
        let linking = async { linked.send_replace(Some(link)) };
        tokio::join!(first.clone().follow(linked.subscribe()), linking);
        assert!(first.was_made() && open(&endpoints).was_made());
        assert!(!open(&endpoints[..1]).was_made(), "other endpoints");
        let file = dir.path().join(FILE);
        let kept = std::fs::read_to_string(&file).unwrap();
        let older = format!("0.0.9 {}", kept.split_once(' ').unwrap().1);
        publish(&file, older.as_bytes(), 0o600, Existing::Replace).unwrap();
        assert!(!open(&endpoints).was_made(), "another version");
        assert!(!FirstLink::open(None, &endpoints).was_made());
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(!open(&endpoints).was_made(), "something else has its name");
    }
}
