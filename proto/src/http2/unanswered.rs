//! Why a request has no answer, and whether it may be sent again.

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// The other side certainly did nothing with it: it may be sent again on another connection.
    #[error(transparent)]
    Unprocessed(h2::Error),
    /// It may have been received.
    #[error(transparent)]
    InDoubt(BoxError),
}

impl Unanswered {
    /// The error of the connection or the stream.
    pub(super) fn into_source(self) -> BoxError {
        match self {
            Self::Unprocessed(error) => error.into(),
            Self::InDoubt(error) => error,
        }
    }

    /// RFC 9113, 6.8 and 8.7: streams above the last one of a GOAWAY, and those that are reset with
    /// REFUSED_STREAM, were not processed. h2 reports its own protocol errors as GOAWAY too, also
    /// for streams that were processed, so only the peer's word counts.
    pub(super) fn of(error: h2::Error) -> Self {
        let is_refused = error.is_go_away()
            || (error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM));
        match error.is_remote() && is_refused {
            true => Self::Unprocessed(error),
            false => Self::InDoubt(error.into()),
        }
    }
}
