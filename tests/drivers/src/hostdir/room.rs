//! The capacity for volumes: the size of the file system, or the operator's lower limit.
//!
//! Two creates at the same moment may both get the last of the operator's room; the file system's
//! own is enforced by it.

use tonic::Status;

use super::core::Core;
use super::data;

impl Core {
    /// How many bytes new volumes may have.
    pub(super) fn available(&self) -> Result<i64, Status> {
        let available = data::room(&self.state)?.available;
        let promised = self
            .volumes
            .all()
            .iter()
            .fold(0, |sum: i64, volume| sum.saturating_add(volume.capacity));
        Ok(match self.settings.capacity {
            0 => available,
            capacity => capacity.saturating_sub(promised).clamp(0, available),
        })
    }

    /// Refuses a volume of `size` bytes, `more` of them new, that exceeds the capacity.
    pub(super) fn check_room(&self, size: i64, more: i64) -> Result<(), Status> {
        let room = data::room(&self.state)?.total;
        let total = Some(self.settings.capacity)
            .filter(|most| *most > 0)
            .map_or(room, |most| most.min(room));
        if size > total {
            return Err(Status::out_of_range(format!(
                "{size} bytes are more than the storage has: {total}"
            )));
        }
        let available = self.available()?;
        if more > available {
            return Err(Status::resource_exhausted(format!(
                "{more} more bytes, and only {available} are available"
            )));
        }
        Ok(())
    }
}
