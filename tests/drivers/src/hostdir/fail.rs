//! Turns system errors into gRPC statuses that say what was being done, to what, and what went
//! wrong.

use std::io;

use tonic::Status;

/// Adds to an error what was being done.
pub(super) trait Doing<T> {
    /// The value, or a status that begins with `what`. A full disk is RESOURCE_EXHAUSTED, the rest
    /// INTERNAL.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Status>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Status> {
        self.map_err(|error| {
            let error: io::Error = error.into();
            let message = format!("cannot {}: {error}", what());
            match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    Status::resource_exhausted(message)
                }
                _ => Status::internal(message),
            }
        })
    }
}

/// A volume that is not here.
pub(super) fn no_volume(id: &str) -> Status {
    Status::not_found(format!("volume {id} does not exist"))
}

/// A snapshot that is not here.
pub(super) fn no_snapshot(id: &str) -> Status {
    Status::not_found(format!("snapshot {id} does not exist"))
}
