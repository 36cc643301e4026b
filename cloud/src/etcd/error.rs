//! Failures of requests to etcd: each says if the request may have been carried out.
//!
//! Only an answer of etcd itself proves that nothing was changed. All else leaves that open.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};

/// The prefix of etcd's own error messages.
const OWN: &str = "etcdserver: ";

/// The reason why a request has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EtcdError {
    /// etcd refused the request, and did nothing of it.
    #[error("etcd refused it: {0}")]
    Refused(String),
    /// Its database has reached its largest size. It may have been done: etcd looks at the size
    /// before it carries out a transaction, and answers so after it.
    #[error(
        "etcd has no space left, and takes no more changes ({0}); compact and defragment it, give \
         it a larger --quota-backend-bytes, then end the alarm NOSPACE"
    )]
    NoSpace(String),
    /// The revision was compacted away.
    #[error("etcd does not have this revision any more: {0}")]
    Compacted(String),
    /// The member has not got to the revision that is wanted, or etcd was put back.
    #[error("the member of etcd is at revision {at}, before {wanted}")]
    Behind {
        /// Its revision.
        at: i64,
        /// The one that is wanted.
        wanted: i64,
    },
    /// It refused the user, the password or what the user may do; nothing was done.
    #[error(
        "etcd refuses this user: {0}; look at user and password_file in [etcd], and at the role \
         of the user"
    )]
    Auth(String),
    /// The token is not valid any more; nothing was done.
    #[error("etcd refuses the token of this user: {0}")]
    Token(String),
    /// The answer is larger than this client takes.
    #[error("the answer of etcd is too large: {0}")]
    TooLarge(String),
    /// There was no answer in time. The request may have been carried out, or may still be.
    #[error("etcd gave no answer within {0:?}; has it a quorum, and can it be reached?")]
    Timeout(Duration),
    /// The request ended without an answer. It may have been carried out.
    #[error("etcd gave no answer; has it a quorum, and can it be reached?")]
    Lost(#[source] Arc<Status>),
}

impl EtcdError {
    /// True if nothing was changed, now or later.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(_)
            | Self::Compacted(_)
            | Self::Behind { .. }
            | Self::Auth(_)
            | Self::Token(_) => true,
            Self::NoSpace(_) | Self::TooLarge(_) | Self::Timeout(_) | Self::Lost(_) => false,
        }
    }

    /// True if a read shows what was changed: nothing more will be.
    pub fn is_settled(&self) -> bool {
        self.is_refusal() || matches!(self, Self::NoSpace(_))
    }
}

impl From<Status> for EtcdError {
    fn from(status: Status) -> Self {
        let message = status.message();
        let Some(why) = message.strip_prefix(OWN) else {
            return match status.code() {
                // A decoder's limit; etcd's own word would have the prefix.
                Code::OutOfRange => Self::TooLarge(message.to_owned()),
                _ => Self::Lost(Arc::new(status)),
            };
        };
        let why = why.to_owned();
        match status.code() {
            Code::Unauthenticated => Self::Token(why),
            Code::InvalidArgument if is_about_token(&why) => Self::Token(why),
            Code::InvalidArgument if why.starts_with("authentication failed") => Self::Auth(why),
            Code::PermissionDenied => Self::Auth(why),
            Code::OutOfRange if why.contains("compacted") => Self::Compacted(why),
            Code::ResourceExhausted if why.contains("space exceeded") => Self::NoSpace(why),
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::ResourceExhausted
            | Code::NotFound
            | Code::AlreadyExists
            | Code::Unimplemented => Self::Refused(why),
            _ => Self::Lost(Arc::new(status)),
        }
    }
}

/// True if a new token helps: there was none, or users were changed since it was made.
fn is_about_token(why: &str) -> bool {
    why == "user name is empty" || why == "revision of auth store is old"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code, message: &str) -> EtcdError {
        Status::new(code, message).into()
    }

    #[test]
    fn only_etcd_itself_can_say_that_nothing_was_done() {
        for (code, message) in [
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (Code::InvalidArgument, "etcdserver: request is too large"),
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::NotFound, "etcdserver: requested lease not found"),
        ] {
            assert!(of(code, message).is_refusal(), "{message}");
        }
        for (code, message) in [
            (Code::ResourceExhausted, "a proxy is full"),
            (Code::OutOfRange, "the message is too large"),
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unknown, "connection reset"),
            (Code::Cancelled, "etcdserver: request canceled"),
        ] {
            assert!(!of(code, message).is_refusal(), "{message}");
        }
        assert!(!EtcdError::Timeout(Duration::from_secs(1)).is_settled());
        let full = of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(full.is_settled() && !full.is_refusal(), "etcd may have done it");
    }

    #[test]
    fn what_calls_for_a_remedy_is_told_apart() {
        let of = |code, message: &str| of(code, &format!("{OWN}{message}"));
        let full = of(Code::ResourceExhausted, "mvcc: database space exceeded");
        assert!(matches!(full, EtcdError::NoSpace(_)));
        let compacted = of(Code::OutOfRange, "mvcc: required revision has been compacted");
        assert!(matches!(compacted, EtcdError::Compacted(_)));
        for (code, why) in [
            (Code::Unauthenticated, "invalid auth token"),
            (Code::InvalidArgument, "user name is empty"),
            (Code::InvalidArgument, "revision of auth store is old"),
        ] {
            assert!(matches!(of(code, why), EtcdError::Token(_)), "{why}");
        }
        let wrong = of(Code::InvalidArgument, "authentication failed, invalid user ID or password");
        assert!(matches!(wrong, EtcdError::Auth(_)));
    }
}
