//! Asks a registrar at its socket, as a kubelet does.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, anyhow};
use http::HeaderMap;
use http::HeaderValue;
use http::header::{CONTENT_TYPE, TE};
use http::uri::{Authority, PathAndQuery};
use prost::Message;
use proto::csi::frame;
use proto::http2::forward;
use proto::http2::forward::{Answer, Call};
use proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long a registrar may take to say what it announces.
const GET_INFO: Duration = Duration::from_secs(1);
/// How long it may take to hear what became of it.
const NOTIFY: Duration = Duration::from_secs(5);

/// Asks what is announced at this socket.
///
/// # Errors
/// Nobody says it in time.
pub(super) async fn get_info(socket: &Path) -> anyhow::Result<PluginInfo> {
    ask(socket, "/pluginregistration.Registration/GetInfo", &InfoRequest {}, GET_INFO).await
}

/// Tells the registrar at this socket that its driver is used, or why it is not.
///
/// # Errors
/// It does not take that in time.
pub(super) async fn notify(socket: &Path, outcome: Result<(), String>) -> anyhow::Result<()> {
    let plugin_registered = outcome.is_ok();
    let status = RegistrationStatus { plugin_registered, error: outcome.err().unwrap_or_default() };
    let path = "/pluginregistration.Registration/NotifyRegistrationStatus";
    let RegistrationStatusResponse {} = ask(socket, path, &status, NOTIFY).await?;
    Ok(())
}

async fn ask<A: Message + Default>(
    socket: &Path,
    path: &'static str,
    request: &impl Message,
    patience: Duration,
) -> anyhow::Result<A> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    let path = PathAndQuery::from_static(path);
    let body = frame::frame(&request.encode_to_vec());
    let call = Call { headers, path, body };
    let answered = timeout(patience, exchange(socket, &call)).await;
    let answer = answered.map_err(|_| anyhow!("it does not answer within {patience:?}"))??;
    if let Some(status) = answer.failure() {
        return Err(anyhow!("it answers {:?} ({:?})", status.code(), status.message()));
    }
    let message = answer.message().context("its answer cannot be read")?;
    A::decode(message).context("its answer cannot be read")
}

async fn exchange(socket: &Path, call: &Call) -> anyhow::Result<Answer> {
    let stream = UnixStream::connect(socket).await.context("nobody serves the socket")?;
    let (upstream, connection) = forward::connect(stream).await?;
    let exchange = async {
        let authority = Authority::from_static("localhost");
        let response = forward::forward(&upstream, call, &authority, None).await;
        let answer = Answer::collect(response.map_err(anyhow::Error::from_boxed)?).await;
        answer.map_err(anyhow::Error::from_boxed)
    };
    tokio::select! {
        biased;
        answer = exchange => answer,
        _ = pin!(connection) => Err(anyhow!("it closed the connection")),
    }
}
