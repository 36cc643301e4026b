//! The conditions under which a call may still go to its driver.
//!
//! A call may wait at this node: for its driver, or for a growth of its volume. The conditions are
//! asked after each wait, right before the driver gets the call. It may use `error` and `fence`.

use std::sync::Arc;

use proto::control::leader::LeaderEpoch;
use tokio::time::Instant;

use crate::error::Error;
use crate::fence::Fence;

/// What must still hold when a call is sent.
#[derive(Clone, Default)]
pub(crate) struct Validity {
    deadline: Option<Instant>,
    leader: Option<(Arc<Fence>, Option<LeaderEpoch>)>,
}

impl Validity {
    /// Valid until the deadline; without one, always.
    pub(crate) fn until(deadline: Option<Instant>) -> Self {
        Self { deadline, leader: None }
    }

    /// Also requires that the csi-cloud of this epoch leads.
    #[must_use]
    pub(crate) fn while_leads(self, fence: Arc<Fence>, epoch: Option<LeaderEpoch>) -> Self {
        Self { leader: Some((fence, epoch)), ..self }
    }

    /// The end of the caller's wait.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// # Errors
    /// [`Error::TooLate`], or [`Error::Fenced`] if another csi-cloud leads by now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Error::too_late());
        }
        match &self.leader {
            Some((fence, epoch)) => Ok(fence.check(*epoch)?),
            None => Ok(()),
        }
    }
}
