//! Locks that outlive a panic.

use parking_lot::{Mutex, MutexGuard};

/// Locks, also when a test panicked with the lock held: its message then is the one to see.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
