//! Turns Edge CSI's own failures into gRPC statuses.
//!
//! The codes are promises to the sidecars (`docs/reference/errors.md`). If an operation may still
//! run, or the cause may pass by itself, the code is UNAVAILABLE, DEADLINE_EXCEEDED or ABORTED,
//! never a final one. A driver's own status never passes through here; it is copied.

use std::error::Error;

use tonic::{Code, Status};

use super::frame::FrameError;
use super::wire::Malformed;
use crate::host::chain::chain;

/// A failure that becomes a gRPC status.
pub trait ToStatus: Error + Sized + 'static {
    /// The gRPC code for this failure; `docs/reference/errors.md` explains each.
    fn code(&self) -> Code;

    /// The failure and all its causes, in one line.
    fn chain(&self) -> String {
        chain(self)
    }

    /// The failure as a gRPC status.
    fn status(&self) -> Status {
        Status::new(self.code(), self.chain())
    }
}

/// True if the code proves that the driver did nothing. With any other code the operation may have
/// begun, or may still run.
pub fn is_nothing_done(code: Code) -> bool {
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => true,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => false,
    }
}

/// The name of a code as gRPC documents it.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Implements [`ToStatus`] and the list `CASES` for an error enum, each from the same lines.
///
/// A line is a pattern of the enum without `Self::`, and its code. After a semicolon follow the
/// variants that hold another [`ToStatus`], whose code they have. A variant without a line does not
/// compile; the test that compares `docs/reference/errors.md` with the code reads `CASES`.
#[macro_export]
macro_rules! codes {
    ($error:ident:
        $($variant:ident $(($($tuple:tt)*))? $({ $($fields:tt)* })? => $code:ident,)*
        $(; $($holder:ident($inner:ident),)*)?
    ) => {
        impl $error {
            #[allow(unreachable_pub, reason = "the enum may be a private one")]
            /// The variants' names and codes. A variant may have several codes, by its cause.
            pub const CASES: &[(&str, ::tonic::Code)] =
                &[$((stringify!($variant), ::tonic::Code::$code)),*];
        }

        impl $crate::csi::status::ToStatus for $error {
            fn code(&self) -> ::tonic::Code {
                match self {
                    $(Self::$variant $(($($tuple)*))? $({ $($fields)* })? => ::tonic::Code::$code,)*
                    $($(Self::$holder($inner) => $crate::csi::status::ToStatus::code($inner),)*)?
                }
            }
        }
    };
}

/// The reason why a request cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadRequest {
    /// It is not one gRPC message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The message is not the protobuf that the method takes.
    #[error("it is not the message that the method takes")]
    Protobuf(#[from] prost::DecodeError),
    /// The message cannot be edited, because it is malformed.
    #[error("it is not the message that the method takes")]
    Malformed(#[from] Malformed),
    /// The header is not gRPC's.
    #[error("its grpc-timeout {0:?} is not a number of at most 8 digits and a unit (H M S m u n)")]
    Timeout(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("it did not work")]
        Outer(#[source] std::num::ParseIntError),
        #[error("nobody is there ({who}, {why})")]
        Away { who: &'static str, why: u8 },
        #[error(transparent)]
        Bad(#[from] BadRequest),
        #[error(transparent)]
        Inner(#[from] Inner),
    }

    #[derive(Debug, thiserror::Error)]
    #[error("it is full")]
    struct Inner;

    impl ToStatus for Inner {
        fn code(&self) -> Code {
            Code::ResourceExhausted
        }
    }

    codes! { Failed:
        Outer(_) => Internal,
        Away { why: 0, .. } => Unavailable,
        Away { .. } => NotFound,
        Bad(BadRequest::Frame(FrameError::Compressed)) => Unimplemented,
        Bad(_) => InvalidArgument,
        ;
        Inner(inner),
    }

    #[test]
    fn a_status_has_the_causes_in_its_text_and_the_code_of_the_first_line_that_matches() {
        let outer = Failed::Outer("x".parse::<u8>().unwrap_err()).status();
        assert_eq!(outer.code(), Code::Internal);
        assert_eq!(outer.message(), "it did not work: invalid digit found in string");
        assert_eq!(Failed::Away { who: "a", why: 0 }.code(), Code::Unavailable);
        assert_eq!(Failed::Away { who: "a", why: 1 }.code(), Code::NotFound);
        let compressed = Failed::from(BadRequest::from(FrameError::Compressed));
        assert_eq!(compressed.code(), Code::Unimplemented);
        assert_eq!(Failed::Bad(BadRequest::Timeout("x".into())).code(), Code::InvalidArgument);
        assert_eq!(Failed::from(Inner).status().code(), Code::ResourceExhausted);
        assert_eq!(Failed::from(Inner).status().message(), "it is full");
    }

    #[test]
    fn the_cases_are_the_lines() {
        let names: Vec<_> = Failed::CASES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["Outer", "Away", "Away", "Bad", "Bad"]);
        assert_eq!(Failed::CASES[2], ("Away", Code::NotFound));
    }
}
