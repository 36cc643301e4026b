//! The disk of a csi-cloud: what it holds outlives the process, and a killed process writes nothing
//! any more. A process can be killed right before or right after one of its commits. All that
//! became durable is noted with its time, so that the checks know what was durable when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cloud::state::record::Change;
use cloud::state::store::backend::{Backend, StoreError};
use cloud::state::store::memory::Memory;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::dice::Dice;
use super::process::Process;

/// A change, and when it became durable.
pub type Noted = (Instant, Change);

/// The disk. A clone is the same one.
#[derive(Clone, Default)]
pub(super) struct Disk {
    memory: Memory,
    noted: Arc<Mutex<Vec<Noted>>>,
    /// A backup, in some runs.
    copy: Option<Memory>,
    /// No process dies of a commit any more.
    calm: Arc<AtomicBool>,
}

impl Disk {
    /// Nothing goes wrong any more.
    pub(super) fn calm(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// Loses everything. Its process must be killed before.
    pub(super) fn lose(&mut self) {
        self.memory = Memory::default();
    }

    /// Makes a backup.
    pub(super) fn back_up(&mut self) {
        self.copy = Some(self.memory.copied());
    }

    /// Whether there is a backup.
    pub(super) fn has_backup(&self) -> bool {
        self.copy.is_some()
    }

    /// Puts the backup back. Its process must be killed before.
    pub(super) fn put_back(&mut self) {
        if let Some(copy) = self.copy.take() {
            self.memory = copy;
        }
    }

    /// All durable changes, including those that were lost since.
    pub(super) fn noted(&self) -> MutexGuard<'_, Vec<Noted>> {
        self.noted.lock()
    }

    /// One process's view of the disk.
    pub(super) fn of(&self, process: Process, crash: Option<Crash>) -> View {
        View { disk: self.clone(), process, crash }
    }
}

/// The death of a process at a commit.
pub(super) struct Crash {
    /// Commits until then.
    left: u64,
    /// Whether the last one becomes durable.
    after: bool,
    /// Told when it happens, with what to say.
    told: oneshot::Sender<String>,
}

impl Crash {
    /// Draws one.
    pub(super) fn draw(dice: &mut Dice, told: oneshot::Sender<String>) -> Self {
        let most = dice.pick(&[3, 10, 40]);
        Self { left: dice.between(0, most), after: dice.chance(50), told }
    }
}

/// One csi-cloud's view of the disk.
pub(super) struct View {
    disk: Disk,
    process: Process,
    crash: Option<Crash>,
}

impl View {
    /// The crash, if this commit is its turn.
    fn crash(&mut self) -> Option<Crash> {
        let crash = self.crash.as_mut().filter(|_| !self.disk.calm.load(Ordering::Relaxed))?;
        if crash.left > 0 {
            crash.left -= 1;
            return None;
        }
        self.crash.take()
    }
}

impl Backend for View {
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        self.disk.memory.load(each)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if self.process.end.is_cancelled() {
            return Err(StoreError::Closed);
        }
        let crash = self.crash();
        if crash.as_ref().is_none_or(|crash| crash.after) {
            self.disk.memory.commit(changes)?;
            let now = Instant::now();
            self.disk.noted().extend(changes.iter().map(|change| (now, change.clone())));
        }
        let Some(crash) = crash else { return Ok(()) };
        // At once, so that no answer goes out.
        self.process.kill();
        let when = if crash.after { "after" } else { "before" };
        // A missing receiver means that the run is over.
        let _ = crash.told.send(format!("{when} a commit of {} changes", changes.len()));
        Err(StoreError::Closed)
    }
}
