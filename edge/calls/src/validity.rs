//! The conditions under which a call may still go to its driver, and the time at which it ends.
//!
//! A call may wait at this node: for its locks, for its driver, or for a volume that was missing.
//! The conditions are asked after each wait, right before the driver gets the call. It may use
//! `error` and `fence`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proto::control::leader::LeaderEpoch;
use proto::csi::Method;
use tokio::time::Instant;

use crate::error::Error;
use crate::fence::Fence;

/// The time for a call whose caller set none.
const WITHOUT_DEADLINE: Duration = Duration::from_secs(120);
/// The driver's own deadline is later by this, so that our reset of the stream comes first: an
/// answer of the driver that the time is over would be taken for its word about the call.
const GRACE: Duration = Duration::from_secs(1);

/// Set when a newer link replaces a link. Not a token: cloning a token takes a lock for each call.
pub type Replaced = Arc<AtomicBool>;

/// What must still hold when a call is sent, and when it ends.
#[derive(Clone, Default)]
pub(crate) struct Validity {
    deadline: Option<Instant>,
    ends: Option<Instant>,
    is_create: bool,
    begins_by: Option<Instant>,
    link: Option<ByLink>,
}

/// The link that a call came on.
#[derive(Clone)]
struct ByLink {
    fence: Arc<Fence>,
    epoch: Option<LeaderEpoch>,
    replaced: Replaced,
}

impl Validity {
    /// Valid until the deadline; without one, always.
    pub(crate) fn until(deadline: Option<Instant>) -> Self {
        Self { deadline, ends: deadline, ..Self::default() }
    }

    /// Also requires that the driver gets the call by then. Afterwards csi-cloud may send it to
    /// another node.
    #[must_use]
    pub(crate) fn beginning_by(self, begins_by: Option<Instant>) -> Self {
        Self { begins_by, ..self }
    }

    /// Also requires that the csi-cloud of this epoch leads, and that no newer link has replaced
    /// the one that the call came on.
    #[must_use]
    pub(crate) fn on_link(
        self,
        fence: Arc<Fence>,
        epoch: Option<LeaderEpoch>,
        replaced: Replaced,
    ) -> Self {
        Self { link: Some(ByLink { fence, epoch, replaced }), ..self }
    }

    /// The same for a run of this method. It ends at the deadline of the call that began it, and
    /// after two minutes without one.
    ///
    /// A create never ends: begun anew, it could be refused because its first attempt holds the
    /// space, and another node would make the volume too.
    #[must_use]
    pub(crate) fn of_run(self, method: Method) -> Self {
        let ends = self.deadline.unwrap_or_else(|| Instant::now() + WITHOUT_DEADLINE);
        let is_create = method.creates().is_some();
        Self { ends: (!is_create).then_some(ends), is_create, ..self }
    }

    /// The end of the caller's wait.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The time at which the call is ended at its driver; none if it never is.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.ends
    }

    /// True for a run that makes something of a name.
    pub(crate) fn is_create(&self) -> bool {
        self.is_create
    }

    /// The deadline that the driver gets.
    pub(crate) fn drivers_deadline(&self) -> Option<Instant> {
        self.ends.and_then(|ends| ends.checked_add(GRACE))
    }

    /// # Errors
    /// [`Error::TooLate`], [`Error::BeginsTooLate`], [`Error::LinkReplaced`], or [`Error::Fenced`]
    /// if another csi-cloud leads by now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Error::too_late());
        }
        if self.begins_by.is_some_and(|by| by <= Instant::now()) {
            return Err(Error::BeginsTooLate);
        }
        self.check_link()?;
        match &self.link {
            Some(ByLink { fence, epoch, .. }) => Ok(fence.check(*epoch)?),
            None => Ok(()),
        }
    }

    /// # Errors
    /// [`Error::LinkReplaced`]: the cloud has sent this call again by now, and maybe a later one
    /// too.
    pub(crate) fn check_link(&self) -> Result<(), Error> {
        match &self.link {
            Some(link) if link.replaced.load(Ordering::Relaxed) => Err(Error::LinkReplaced),
            Some(_) | None => Ok(()),
        }
    }
}
