//! Admits calls of one csi-cloud only: of several, the one with the greatest epoch.
//!
//! An epoch is durable before a call of it goes to a driver. After that, calls of a lower epoch are
//! refused. So a leader that was paused cannot undo the work of its successor. It uses no other
//! room.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use proto::control::leader::LeaderEpoch;
use proto::host::clock;
use proto::host::files;
use proto::host::files::Unread;
use proto::host::publish::publish_record;
use proto::names::NodeName;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::{info, warn};

/// The file's name in the state directory.
pub const FILE: &str = "leader-epoch.json";
/// The latest epoch that counts is so much after the clock, in seconds: no csi-cloud that leads
/// honestly is so far ahead.
const AHEAD: u64 = 30 * 24 * 3600;
/// So much more than the greatest epoch counts once a minute, if that one is already too late.
const STEP: u64 = 1024;
const STEP_EVERY: Duration = Duration::from_secs(60);
/// No epoch: a csi-cloud has none if its store was never shared.
const NONE: u64 = 0;

/// The epochs that this node has received.
pub struct Fence {
    node: NodeName,
    /// The greatest one.
    newest: AtomicU64,
    /// The greatest one in the file.
    durable: Arc<AtomicU64>,
    file: Option<PathBuf>,
    /// The clock is not before this, in seconds since 1970, whatever it shows.
    earliest: u64,
    /// When an epoch was taken that is too late by the clock.
    stepped: Mutex<Option<Instant>>,
    /// Held until a write has ended, even if its caller has gone.
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct FenceRecord {
    epoch: LeaderEpoch,
}

/// The reason why a csi-cloud may not call here.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// It led before another one.
    #[error(
        "node {node}: csi-edge was told that the csi-cloud of leader epoch {newest} leads, and \
         this is one {}, so it is not heard and nothing was done; call the one that leads \
         (`csi-cloud replicas`). If its store is gone for good, or was an older copy: `csi-cloud \
         replicas raise --to {newest}` at the one that is to lead", of(*.epoch)
    )]
    OldLeader {
        /// The node.
        node: NodeName,
        /// Its epoch, if it has one.
        epoch: Option<LeaderEpoch>,
        /// The greatest epoch that the node has received.
        newest: LeaderEpoch,
    },
    /// It says an epoch with which it would refuse all others for good.
    #[error(
        "node {node}: a csi-cloud says that its leader epoch is {epoch}, which is more than 30 \
         days after this node's clock, so it is not heard and nothing was done; epochs are \
         seconds since 1970. If this node's clock is right, that csi-cloud's was wrong, or it \
         cannot be trusted"
    )]
    FarLeader {
        /// The node.
        node: NodeName,
        /// Its epoch.
        epoch: LeaderEpoch,
    },
    /// Its epoch cannot be kept, and a restart would let an earlier leader in.
    #[error(
        "node {node}: the leader epoch {epoch} cannot be noted in csi-edge's --state, so nothing \
         was done: {why}; make that directory writable and send the call again"
    )]
    NotNoted {
        /// The node.
        node: NodeName,
        /// Its epoch.
        epoch: LeaderEpoch,
        /// The reason.
        why: String,
    },
}

/// True if an epoch is too late at this time, in seconds since 1970.
fn is_far(number: u64, now: u64) -> bool {
    number > now.saturating_add(AHEAD)
}

fn of(epoch: Option<LeaderEpoch>) -> String {
    epoch.map_or_else(|| "without an epoch".into(), |epoch| format!("of epoch {epoch}"))
}

fn number(epoch: Option<LeaderEpoch>) -> u64 {
    epoch.map_or(NONE, |LeaderEpoch(number)| number)
}

impl Fence {
    /// Reads the epoch in this state directory; without one it is kept in memory alone. A file that
    /// is damaged or cannot be read counts as none, because the cloud tells its epoch again.
    pub fn open(state: Option<&Path>, node: NodeName) -> Self {
        let file = state.map(|directory| directory.join(FILE));
        let kept = file.as_deref().map_or(Ok(NONE), read).unwrap_or_else(|error| {
            let file = file.as_ref().map(|file| file.display().to_string());
            warn!(
                file, %error,
                "the epoch of the csi-cloud that leads cannot be read; it will tell it again"
            );
            NONE
        });
        let durable = Arc::new(kept.into());
        Self {
            node,
            newest: kept.into(),
            durable,
            file,
            earliest: 0,
            stepped: Mutex::default(),
            writing: Arc::default(),
        }
    }

    /// The same on a node whose clock is not before this: its certificate began then.
    #[must_use]
    pub fn not_before(self, earliest: SystemTime) -> Self {
        let since = earliest.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { earliest: since.as_secs(), ..self }
    }

    /// Takes the epoch of a csi-cloud. From now on those before it are refused.
    ///
    /// # Errors
    /// [`FenceError::OldLeader`] and [`FenceError::FarLeader`].
    pub fn observe(&self, epoch: Option<LeaderEpoch>) -> Result<(), FenceError> {
        let number = number(epoch);
        self.check_clock(number)?;
        let newest = self.newest.fetch_max(number, Ordering::SeqCst);
        if number < newest {
            return Err(self.old_leader(epoch, newest));
        }
        if number > newest {
            info!(epoch = number, before = newest, "another csi-cloud leads");
            self.warn_of_memory(newest);
        }
        Ok(())
    }

    /// Refuses an epoch that is too late by the clock. One that is greater than another such one is
    /// taken in small steps, so that a node gets out of what it once took.
    fn check_clock(&self, number: u64) -> Result<(), FenceError> {
        let newest = self.newest.load(Ordering::SeqCst);
        let now = (clock::now() / 1000).max(self.earliest);
        if number <= newest || !is_far(number, now) {
            return Ok(());
        }
        let mut stepped = self.stepped.lock();
        let is_rested = stepped.is_none_or(|stepped| stepped.elapsed() >= STEP_EVERY);
        if is_far(newest, now) && number - newest <= STEP && is_rested {
            *stepped = Some(Instant::now());
            return Ok(());
        }
        Err(FenceError::FarLeader { node: self.node.clone(), epoch: LeaderEpoch(number) })
    }

    /// Warns, once, that a restart forgets the epochs.
    fn warn_of_memory(&self, before: u64) {
        if before == NONE && self.file.is_none() {
            warn!(
                "csi-cloud has a leader epoch, and csi-edge has no --state to keep it in; after a \
                 restart of csi-edge a csi-cloud that was deposed could call this node until the \
                 leader does. Give csi-edge a state directory (--state, or `state` in edge.toml)"
            );
        }
    }

    /// Whether a csi-cloud may still call. This is asked for each call.
    ///
    /// # Errors
    /// [`FenceError::OldLeader`].
    pub fn check(&self, epoch: Option<LeaderEpoch>) -> Result<(), FenceError> {
        let newest = self.newest.load(Ordering::SeqCst);
        if number(epoch) < newest { Err(self.old_leader(epoch, newest)) } else { Ok(()) }
    }

    /// True if this is the newest epoch, and it is durable.
    pub(crate) fn is_settled(&self, epoch: Option<LeaderEpoch>) -> bool {
        let number = number(epoch);
        let [newest, durable] = [&self.newest, &self.durable].map(|at| at.load(Ordering::SeqCst));
        number == newest && number == durable
    }

    /// Takes the epoch of a csi-cloud and makes it durable, before a call of it.
    ///
    /// # Errors
    /// See [`FenceError`].
    pub async fn settle(&self, epoch: Option<LeaderEpoch>) -> Result<(), FenceError> {
        self.observe(epoch)?;
        if let Some(epoch) = epoch {
            self.keep(epoch).await?;
        }
        // A greater one may have come meanwhile.
        self.check(epoch)
    }

    async fn keep(&self, epoch: LeaderEpoch) -> Result<(), FenceError> {
        let one_at_a_time = self.writing.clone().lock_owned().await;
        if self.durable.load(Ordering::SeqCst) >= epoch.0 {
            return Ok(());
        }
        let Some(file) = self.file.clone() else {
            self.durable.fetch_max(epoch.0, Ordering::SeqCst);
            return Ok(());
        };
        let durable = self.durable.clone();
        let write = move || {
            // A caller that goes leaves the write running, and a later one must not overtake it.
            let _until_written = one_at_a_time;
            publish_record(&file, &FenceRecord { epoch })?;
            durable.fetch_max(epoch.0, Ordering::SeqCst);
            Ok(())
        };
        let written = tokio::task::spawn_blocking(write).await;
        written.map_err(io::Error::from).flatten().map_err(|error| FenceError::NotNoted {
            node: self.node.clone(),
            epoch,
            why: error.to_string(),
        })
    }

    fn old_leader(&self, epoch: Option<LeaderEpoch>, newest: u64) -> FenceError {
        FenceError::OldLeader { node: self.node.clone(), epoch, newest: LeaderEpoch(newest) }
    }
}

fn read(file: &Path) -> io::Result<u64> {
    let text = match files::read(file) {
        Err(Unread::Missing) => return Ok(NONE),
        text => text?,
    };
    let FenceRecord { epoch } = serde_json::from_slice(&text)?;
    Ok(epoch.0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use proptest::prelude::*;
    use proto::host::publish::{Existing, publish};
    use tracing::{Event, Level, Metadata, Subscriber, span};

    use super::*;

    const OLD: Option<LeaderEpoch> = Some(LeaderEpoch(5));
    const NEW: Option<LeaderEpoch> = Some(LeaderEpoch(9));

    fn open(state: Option<&Path>) -> Fence {
        Fence::open(state, "n1".parse().unwrap())
    }

    /// Whether a csi-cloud of this epoch is refused because a later one leads.
    fn is_old(fence: &Fence, asked: Option<LeaderEpoch>) -> bool {
        matches!(fence.check(asked), Err(FenceError::OldLeader { epoch, .. }) if epoch == asked)
    }

    #[tokio::test]
    async fn an_epoch_that_was_told_refuses_those_before_and_none() {
        let fence = open(None);
        assert!(fence.is_settled(None), "there are not several csi-clouds");
        fence.settle(None).await.unwrap();
        fence.settle(OLD).await.unwrap();
        fence.observe(NEW).unwrap();
        assert!(!fence.is_settled(NEW) && !fence.is_settled(OLD));
        for (epoch, word) in [(OLD, "of epoch 5"), (None, "without an epoch")] {
            let text = fence.observe(epoch).unwrap_err().to_string();
            assert_eq!(fence.settle(epoch).await.unwrap_err().to_string(), text);
            for word in ["node n1", "leader epoch 9", word, "csi-cloud replicas raise --to 9"] {
                assert!(text.contains(word), "{text}");
            }
            assert_eq!(fence.check(epoch).unwrap_err().to_string(), text);
            assert!(!fence.is_settled(epoch));
        }
        fence.settle(NEW).await.unwrap();
        assert!(fence.is_settled(NEW));
    }

    #[tokio::test(start_paused = true)]
    async fn an_epoch_far_after_the_clock_is_not_heard_and_one_that_was_is_left_in_steps() {
        let far = |more: u64| Some(LeaderEpoch(clock::now() / 1000 + AHEAD + 3600 + more));
        let fence = open(None);
        for epoch in [Some(LeaderEpoch(u64::MAX)), far(0)] {
            let error = fence.settle(epoch).await.unwrap_err();
            assert!(matches!(error, FenceError::FarLeader { .. }), "{error}");
        }
        fence.settle(NEW).await.unwrap();
        // It took one before it had this rule, or while its clock was ahead.
        fence.newest.store(far(0).unwrap().0, Ordering::SeqCst);
        let newest = fence.newest.load(Ordering::SeqCst);
        fence.observe(Some(LeaderEpoch(newest))).unwrap();
        assert!(fence.observe(Some(LeaderEpoch(newest + STEP + 1))).is_err());
        fence.observe(Some(LeaderEpoch(newest + 1))).unwrap();
        assert!(fence.observe(Some(LeaderEpoch(newest + 2))).is_err(), "within a minute");
        tokio::time::advance(STEP_EVERY).await;
        fence.observe(Some(LeaderEpoch(newest + 2))).unwrap();
    }

    #[test]
    fn a_clock_in_1970_is_not_believed_against_the_certificate() {
        let begun = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(u32::MAX));
        let fence = open(None).not_before(begun);
        fence.observe(Some(LeaderEpoch(u64::from(u32::MAX) + AHEAD))).unwrap();
        assert!(fence.observe(Some(LeaderEpoch(u64::from(u32::MAX) + AHEAD + 1))).is_err());
    }

    proptest! {
        /// Leaders take max(last + 1, seconds since 1970), and all clocks may be a day off.
        #[test]
        fn no_honest_leader_is_far(
            leaders in proptest::collection::vec((0_u64..5 * 365, 0_u64..3, 0_u64..3), 1..200),
        ) {
            const DAY: u64 = 24 * 3600;
            let mut now = 1_700_000_000;
            let mut last = 0;
            for (days, ahead, behind) in leaders {
                now += days * DAY;
                last = (last + 1).max(now + ahead.min(1) * DAY);
                prop_assert!(!is_far(last, now - behind.min(1) * DAY));
            }
        }
    }

    /// Counts warnings.
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn epochs_that_a_restart_forgets_are_warned_of_once() {
        let dir = tempfile::tempdir().unwrap();
        for (state, expected) in [(Some(dir.path()), 0), (None, 1)] {
            let warnings = Arc::<AtomicUsize>::default();
            tracing::subscriber::with_default(Warnings(warnings.clone()), || {
                let fence = open(state);
                fence.observe(None).unwrap();
                assert_eq!(warnings.load(Ordering::SeqCst), 0, "one csi-cloud has no epoch");
                fence.observe(OLD).unwrap();
                fence.observe(OLD).unwrap();
                fence.observe(NEW).unwrap();
            });
            assert_eq!(warnings.load(Ordering::SeqCst), expected);
        }
    }

    #[tokio::test]
    async fn an_epoch_whose_calls_may_run_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/here");
        let fence = open(Some(&state));
        fence.observe(OLD).unwrap();
        assert!(open(Some(&state)).check(None).is_ok(), "no call of it has run");
        fence.settle(OLD).await.unwrap();
        let again = open(Some(&state));
        assert!(again.is_settled(OLD) && is_old(&again, None));
        again.settle(NEW).await.unwrap();
        assert!(is_old(&open(Some(&state)), OLD));
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 1, "something was left behind");
    }

    #[tokio::test]
    async fn a_write_whose_caller_has_gone_counts_when_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let fence = open(Some(dir.path()));
        let mut settling = Box::pin(fence.settle(OLD));
        let _begun = futures_util::poll!(settling.as_mut());
        drop(settling);
        let is_written = async {
            while !fence.is_settled(OLD) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), is_written).await.unwrap();
        fence.settle(NEW).await.unwrap();
        assert!(open(Some(dir.path())).is_settled(NEW));
    }

    #[tokio::test]
    async fn a_file_that_is_damaged_counts_as_none_and_one_that_cannot_be_written_ends_calls() {
        let dir = tempfile::tempdir().unwrap();
        publish(&dir.path().join(FILE), b"{\"epoch\":", 0o600, Existing::Keep).unwrap();
        let fence = open(Some(dir.path()));
        assert!(fence.is_settled(None));
        fence.settle(OLD).await.unwrap();
        assert!(open(Some(dir.path())).is_settled(OLD), "it is written anew");
        let path = dir.path().to_owned();
        dir.close().unwrap();
        publish(&path, b"", 0o600, Existing::Keep).unwrap();
        let error = fence.settle(NEW).await.unwrap_err().to_string();
        assert!(error.contains("epoch 9 cannot be noted"), "{error}");
        assert!(is_old(&fence, OLD), "what was told counts");
        // The disk is back.
        std::fs::remove_file(&path).unwrap();
        fence.settle(NEW).await.unwrap();
        assert!(open(Some(&path)).is_settled(NEW));
        std::fs::remove_dir_all(&path).unwrap();
    }
}
