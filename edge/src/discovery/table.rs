//! What was found in the directories of registrations, for an operator.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

/// With more announcements than this, those of registrars that have gone are not kept.
const MOST: usize = 1024;

/// How an announcement stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnnouncementState {
    /// Its driver is used.
    Used,
    /// Its registrar has gone. The driver stays known: it may have volumes.
    Gone,
    /// It is none of csi-edge's business: another kind of plugin, or a front of csi-edge itself.
    Ignored,
    /// The node's operator does not allow the driver.
    NotAllowed,
    /// It cannot be used.
    Refused,
    /// It cannot be used yet, and is tried again.
    Waiting,
}

/// An announcement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The registrar's socket.
    pub socket: PathBuf,
    /// The name that it announces; empty if it was not heard yet.
    pub driver: String,
    /// The driver's socket that it announces.
    pub endpoint: String,
    /// How it stands.
    pub standing: AnnouncementState,
    /// Why it is not used; empty if it is.
    pub why: String,
}

/// All announcements.
#[derive(Default)]
pub struct Registrations(Mutex<BTreeMap<PathBuf, Registration>>);

impl Registrations {
    /// All of them, by the registrar's socket.
    pub fn all(&self) -> Vec<Registration> {
        self.lock().values().cloned().collect()
    }

    /// Whether the registrar at this socket is there, and its driver used.
    pub(super) fn is_used(&self, socket: &Path) -> bool {
        self.lock().get(socket).is_some_and(|known| known.standing == AnnouncementState::Used)
    }

    /// Notes how one stands; whether that is new.
    pub(super) fn note(&self, registration: Registration) -> bool {
        let socket = registration.socket.clone();
        let before = self.lock().insert(socket, registration.clone());
        before.is_none_or(|before| before != registration)
    }

    /// Marks an announcement as gone. Keeps it only for a used driver, and while at most [`MOST`]
    /// are known.
    pub(super) fn gone(&self, socket: &Path) {
        let mut all = self.lock();
        let has_room = all.len() <= MOST;
        match all.get_mut(socket) {
            Some(used)
                if has_room
                    && matches!(
                        used.standing,
                        AnnouncementState::Used | AnnouncementState::Gone
                    ) =>
            {
                used.standing = AnnouncementState::Gone;
                used.why = "its registrar has gone; the driver stays known".into();
            }
            Some(_) => drop(all.remove(socket)),
            None => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Registration>> {
        self.0.lock()
    }
}
