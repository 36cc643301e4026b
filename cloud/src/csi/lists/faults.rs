//! Errors in the request for a list, or in a node's answer.

use prost::DecodeError;
use proto::csi::Method;
use proto::csi::status::BadRequest;
use tonic::Code;

use crate::error::Error;
use crate::nodes::query::QueryError;

pub(super) fn unreadable(method: Method, source: DecodeError) -> Error {
    Error::BadRequest { method: method.name(), source: BadRequest::Protobuf(source) }
}

/// CSI: "The value of this field MUST NOT be negative."
pub(super) fn negative(method: Method) -> Error {
    Error::Missing(method.name(), "a max_entries that is not negative")
}

/// The fault of a node's answer to a question that went to many nodes. None if the node could not
/// be asked, or the driver refused with a code of its own.
pub(super) fn no_use(error: &QueryError) -> Option<&'static str> {
    match error {
        QueryError::Driver { status, .. } if status.code() == Code::Unimplemented => {
            Some("UNIMPLEMENTED, though its driver says that it can")
        }
        QueryError::Unreadable { .. } => Some("it is not the message that it should be"),
        QueryError::Call(Error::BadAnswer { why, .. }) => Some(*why),
        QueryError::Call(Error::DeadlinePassed(_)) => Some("it does not come"),
        QueryError::Driver { .. } | QueryError::Call(_) => None,
    }
}

/// True if the driver refused the token. CSI: that is ABORTED.
pub(super) fn is_bad_token(error: &QueryError) -> bool {
    matches!(error, QueryError::Driver { status, .. } if status.code() == Code::Aborted)
}
