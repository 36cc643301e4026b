//! One connection to a container runtime's NRI socket: the plugin registers, and then answers.
//!
//! A runtime waits for each answer before it creates a container, two seconds by default. Then it
//! goes on without the plugin, so each answer comes sooner, and may be a refusal.

use std::convert::Infallible;

use bytes::BytesMut;
use futures_util::{SinkExt, StreamExt};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::Framed;

use super::api;
use super::mux::{BadFrame, Frame, Mux, PLUGIN, RUNTIME};
use super::plugin::{NAME, Plugin};
use super::ttrpc::{BadMessage, Message, Request, Response};

/// The number of our first call.
const FIRST: u32 = 1;

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The socket failed, or a message is malformed.
    #[error("the connection to the container runtime broke")]
    Frame(#[from] BadFrame),
    /// A malformed message.
    #[error("the container runtime speaks something else than NRI's ttrpc")]
    Message(#[from] BadMessage),
    /// It does not take this plugin.
    #[error("the container runtime refused the plugin: {0}")]
    Refused(String),
    /// It went away.
    #[error("the container runtime closed the connection")]
    Closed,
}

/// Serves a connection until it ends.
///
/// # Errors
/// Why it ended; it always does.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    plugin: &Plugin,
) -> Result<Infallible, Ended> {
    let mut frames = Framed::new(stream, Mux);
    let register =
        api::RegisterPluginRequest { plugin_name: NAME.into(), plugin_idx: plugin.index.clone() };
    let register = Request {
        service: api::RUNTIME_SERVICE.into(),
        method: "RegisterPlugin".into(),
        payload: register.encode_to_vec().into(),
        timeout_nano: 0,
    };
    let payload = Message::Request(FIRST, register).bytes();
    frames.send(Frame { connection: RUNTIME, payload }).await?;
    let mut requests = BytesMut::new();
    let mut responses = BytesMut::new();
    while let Some(frame) = frames.next().await {
        let Frame { connection, payload } = frame?;
        match connection {
            PLUGIN => requests.extend_from_slice(&payload),
            RUNTIME => responses.extend_from_slice(&payload),
            // A connection of a later NRI.
            _ => {}
        }
        while let Some(message) = Message::take(&mut responses)? {
            registered(message)?;
        }
        while let Some(message) = Message::take(&mut requests)? {
            // An answer without a request is ignored.
            let Message::Request(stream, request) = message else { continue };
            let payload = Message::Response(stream, plugin.answer(request).await).bytes();
            frames.send(Frame { connection: PLUGIN, payload }).await?;
        }
    }
    Err(Ended::Closed)
}

fn registered(message: Message) -> Result<(), Ended> {
    match message {
        Message::Response(FIRST, Response { status: Some(status), .. }) if status.code != 0 => {
            Err(Ended::Refused(status.message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
