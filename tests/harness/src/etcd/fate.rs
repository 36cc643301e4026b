//! What becomes of a request on its way.

use std::time::Duration;

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It reads.
    Read,
    /// It changes keys.
    Write,
    /// It is about a lease.
    Lease,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is done and answered.
    Done,
    /// It is done after a while, whether or not anybody waits for that.
    Late(Duration),
    /// It is done at once, and answered after a while.
    Slow(Duration),
    /// It is not done, and nobody hears of that.
    Lost,
    /// It is done, and nobody hears of that.
    Unheard,
    /// It is not done, and answered as after an election that lost it.
    Failed,
    /// It is done, and answered in the same way.
    DoneAndFailed,
}

impl Fate {
    /// How long it takes until it is done; none if it never is.
    pub(super) fn done_after(self) -> Option<Duration> {
        match self {
            Self::Late(time) => Some(time),
            Self::Done | Self::Slow(_) | Self::Unheard | Self::DoneAndFailed => {
                Some(Duration::ZERO)
            }
            Self::Lost | Self::Failed => None,
        }
    }
}
