//! Locks of the objects in use.
//!
//! CSI allows ABORTED for a second call while another is pending for a volume. A second
//! operation is refused so and never queued: the CO retries.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

/// The names and ids in use; `EXCLUSIVE`, or how many share one.
#[derive(Clone, Default)]
pub(super) struct Locks(Arc<Mutex<HashMap<String, u32>>>);

const EXCLUSIVE: u32 = u32::MAX;

/// Releases on drop.
pub(super) struct Held {
    locks: Locks,
    key: String,
}

impl Locks {
    /// Takes an object to change it.
    pub(super) fn take(&self, kind: &str, id: &str) -> Result<Held, Status> {
        self.hold(format!("{kind} {id}"), true)
    }

    /// Locks an object for reading: others may read it too, and nobody changes or deletes it.
    pub(super) fn share(&self, kind: &str, id: &str) -> Result<Held, Status> {
        self.hold(format!("{kind} {id}"), false)
    }

    fn hold(&self, key: String, alone: bool) -> Result<Held, Status> {
        let mut held = self.0.lock();
        let next = match held.get(&key) {
            None if alone => EXCLUSIVE,
            None => 1,
            Some(&count) if !alone && count < EXCLUSIVE - 1 => count + 1,
            Some(_) => {
                return Err(Status::aborted(format!("another operation on {key} is in progress")));
            }
        };
        held.insert(key.clone(), next);
        Ok(Held { locks: self.clone(), key })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.locks.0.lock();
        match held.get_mut(&self.key) {
            Some(count) if *count > 1 && *count != EXCLUSIVE => *count -= 1,
            _ => {
                held.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_changed_by_one_or_read_by_many() {
        let locks = Locks::default();
        let one = locks.share("volume", "a").unwrap();
        let two = locks.share("volume", "a").unwrap();
        let code = |taken: Result<Held, Status>| taken.err().map(|status| status.code());
        assert_eq!(code(locks.take("volume", "a")), Some(tonic::Code::Aborted));
        drop(one);
        assert_eq!(
            code(locks.take("volume", "a")),
            Some(tonic::Code::Aborted),
            "one still reads it"
        );
        drop(two);
        let alone = locks.take("volume", "a").unwrap();
        assert_eq!(code(locks.share("volume", "a")), Some(tonic::Code::Aborted));
        assert!(locks.take("volume", "b").is_ok());
        drop(alone);
        assert!(locks.take("volume", "a").is_ok());
    }
}
