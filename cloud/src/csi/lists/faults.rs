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

/// Whether the driver refused the token. CSI: that is ABORTED.
pub(super) fn is_bad_token(error: &QueryError) -> bool {
    matches!(error, QueryError::Driver { status, .. } if status.code() == Code::Aborted)
}
