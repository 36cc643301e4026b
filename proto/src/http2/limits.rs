//! The HTTP/2 settings that both ends of every hop use.
//!
//! Windows: 100 Mbit/s at 100 ms are 1.25 MB in flight, so a stream has 1.5 MiB. A larger window
//! would let a stream send more at once than the queue of such a path holds. An idle connection
//! allocates none of it.

/// Calls in flight on one connection; more wait at the caller.
pub const MAX_STREAMS: u32 = 4096;
/// Answers that are passed on as their readers read, on one connection: each may hold a full
/// window.
pub const MAX_PASSING: usize = 16;
/// The largest header list taken, in bytes; far above what gRPC callers send.
pub(super) const MAX_HEADERS: u32 = 64 * 1024;
/// The window of a stream, in bytes.
pub(super) const STREAM_WINDOW: u32 = 1536 * 1024;
/// The window of a connection that we serve, in bytes.
pub(super) const SERVER_WINDOW: u32 = 5 * 1024 * 1024;
/// The window of a connection on which we call, in bytes.
///
/// All passing answers together leave room for answers that are read at once. A window is a limit:
/// nothing is allocated.
pub(super) const CLIENT_WINDOW: u32 = (MAX_PASSING as u32 + 4) * STREAM_WINDOW;
