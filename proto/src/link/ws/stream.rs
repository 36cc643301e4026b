//! The WebSocket below a link: its settings, and its failures in words.

use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::unfragmented::Unfragmented;
use crate::control::hello::MAX_BYTES;
use crate::host::plain;
use crate::link::error::LinkError;
use crate::link::tls;

/// A WebSocket of a link.
pub(super) type Ws = WebSocketStream<Unfragmented>;

/// Small buffers and messages, for every idle link has them.
pub(super) fn config() -> WebSocketConfig {
    // The read buffer is allocated at once. It reads from TLS's buffer, so a small one costs no
    // system calls. Messages are at most a control message.
    WebSocketConfig::default()
        .read_buffer_size(1024)
        .write_buffer_size(4096)
        .max_message_size(Some(MAX_BYTES))
        .max_frame_size(Some(MAX_BYTES))
}

/// A failure of TLS's handshake.
pub(super) fn tls_failed(error: &std::io::Error) -> LinkError {
    LinkError::Tls(tls::explain_io(error))
}

/// A failure of WebSocket's handshake.
pub(super) fn failed(error: &WsError) -> LinkError {
    match error {
        WsError::Io(io) if tls::is_tls(io) => LinkError::Tls(tls::explain_io(io)),
        error => LinkError::Transport(explain(error)),
    }
}

/// A failure of a WebSocket in words.
pub(super) fn explain(error: &WsError) -> String {
    match error {
        WsError::Io(io) => tls::explain_io(io),
        WsError::Http(answer) => {
            let body = answer.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            format!("it answered HTTP {}: {}", answer.status(), plain(body.trim()))
        }
        error => plain(&error.to_string()),
    }
}
