//! A call whose answer is looked at as it came.

use anyhow::{Context, bail, ensure};
use prost::Message;
use proto::csi::frame;
use proto::csi::method::Method;
use proto::http2::forward::{Answer, connect};
use tokio::net::UnixStream;
use tonic::codegen::http::{Request, header};

/// How an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Plain,
    Gzip,
}

/// Sends a call of a client that takes gzip, as sidecars and kubelets do.
///
/// # Errors
/// The call failed, or such a client cannot read its answer.
pub(super) async fn encoding_of(
    socket: &str,
    method: Method,
    request: &impl Message,
) -> anyhow::Result<Encoding> {
    let (upstream, driving) = connect(UnixStream::connect(socket).await?).await?;
    let call = Request::post(format!("http://localhost{}", method.path()))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header("grpc-accept-encoding", "gzip")
        .body(())?;
    let exchange = async {
        let response = upstream.send(call, frame::frame(&request.encode_to_vec())).await?;
        let encoding = response.headers().get("grpc-encoding").cloned();
        anyhow::Ok((encoding, Answer::collect(response).await.map_err(anyhow::Error::from_boxed)?))
    };
    let (encoding, answer) = tokio::select! {
        biased;
        answered = exchange => answered?,
        ended = driving => bail!("the connection ended: {ended:?}"),
    };
    if let Some(status) = answer.failure() {
        return Err(status).with_context(|| method.name());
    }
    ensure!(answer.message().is_some(), "neither plain nor gzip");
    let is_gzip = encoding.is_some_and(|encoding| encoding == "gzip");
    Ok(if is_gzip { Encoding::Gzip } else { Encoding::Plain })
}
