//! Asks a driver at an open connection about itself. It uses no other room.

use std::sync::LazyLock;

use bytes::Bytes;
use http::HeaderMap;
use http::uri::{Authority, PathAndQuery};
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::{Local, Method};
use proto::host::chain;
use proto::http2::forward;
use proto::http2::forward::Upstream;
use proto::http2::forward::{Answer, Call};
use proto::names::DriverName;
use tonic::{Code, Status};

/// The authority of requests; every driver's gRPC library accepts it.
pub(super) static LOCALHOST: LazyLock<Authority> =
    LazyLock::new(|| Authority::from_static("localhost"));

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Asks whether the driver is ready. A driver without that method is.
///
/// # Errors
/// Its answer is unreadable, or an error other than UNIMPLEMENTED; or the call breaks off.
pub(crate) async fn probe(sender: &Upstream) -> Result<bool, String> {
    let method = Method::answering(Local::Probe);
    let broke = |error: BoxError| format!("Probe failed: {}", chain(error.as_ref()));
    let answer = ask(sender, method).await.map_err(broke)?;
    if let Some(message) = answer.message() {
        // CSI: if `ready` is absent, the caller takes the plugin for ready.
        let probe = csi::ProbeResponse::decode(message).map_err(|e| broke(e.into()))?;
        return Ok(probe.ready.unwrap_or(true));
    }
    match answer.failure() {
        Some(status) if status.code() != Code::Unimplemented => Err(answers_with(method, &status)),
        _ => Ok(true),
    }
}

/// Asks the driver for its name, and refuses one that calls itself otherwise than it is configured.
/// Returns its GetPluginInfoResponse.
///
/// # Errors
/// It does not say its name, or says another one.
pub(crate) async fn check_name(sender: &Upstream, driver: &DriverName) -> Result<Bytes, BoxError> {
    let answer = ask(sender, Method::answering(Local::Info)).await?;
    if let Some(status) = answer.failure() {
        let (code, message) = (status.code(), status.message());
        return Err(format!("it does not say its name: {code:?} {message:?}").into());
    }
    let info = frame::message(answer.ok().unwrap_or(&Bytes::new()))
        .map_err(|error| format!("it does not say its name: {error}"))?;
    let says = csi::GetPluginInfoResponse::decode(info.clone())?.name;
    if says == driver.as_str() {
        return Ok(info);
    }
    Err(format!("it calls itself {says:?}; correct the name or the socket").into())
}

/// Asks a driver something about itself.
///
/// # Errors
/// The connection broke, or the answer is not gRPC or not whole.
pub(crate) async fn ask(sender: &Upstream, method: Method) -> Result<Answer, BoxError> {
    let path = PathAndQuery::from_static(method.path());
    let call = Call { headers: headers(), path, body: frame::frame(&[]) };
    let answered = forward::forward(sender, &call, &LOCALHOST, None).await;
    let no_grpc = |error: BoxError| format!("it does not speak gRPC: {}", chain(error.as_ref()));
    Answer::collect(answered.map_err(no_grpc)?).await
}

pub(super) fn answers_with(method: Method, status: &Status) -> String {
    let code = status.code();
    let message = status.message();
    format!("it answers {method} with {code:?} ({message:?})")
}

/// The headers of a call that csi-edge makes by itself.
pub(crate) fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
    headers.insert(http::header::TE, http::HeaderValue::from_static("trailers"));
    headers
}
