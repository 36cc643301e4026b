//! Callers as sidecars are: each leads volumes through their lives on one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use drivers::grpc::controller_client::ControllerClient;
use harness::requests::{capability, create};
use harness::world::NODE;
use http::Uri;
use hyper_util::rt::TokioIo;
use prost::Message;
use proto::csi;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

/// How long a sidecar waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The results of the callers.
#[derive(Default)]
pub(super) struct Done {
    pub(super) calls: AtomicUsize,
    pub(super) connections: AtomicUsize,
    pub(super) slowest_ms: AtomicUsize,
}

/// A caller that behaves as a sidecar: it ends when a connection is lost or a call fails.
async fn channel(socket: String, done: Arc<Done>) -> anyhow::Result<Channel> {
    let connect = move |_: Uri| {
        let socket = socket.clone();
        let done = done.clone();
        async move {
            done.connections.fetch_add(1, Ordering::Relaxed);
            UnixStream::connect(socket).await.map(TokioIo::new)
        }
    };
    let connector = tower::service_fn(connect);
    Ok(Endpoint::from_static("http://localhost").connect_with_connector(connector).await?)
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(TIMEOUT);
    request
}

/// Makes, publishes, unpublishes and deletes volumes until told to end.
pub(super) async fn lead(
    socket: String,
    caller: usize,
    done: Arc<Done>,
    ended: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let mut client = ControllerClient::new(channel(socket, done.clone()).await?);
    let mut number = 0;
    let counted = |begun: Instant| {
        done.calls.fetch_add(1, Ordering::Relaxed);
        done.slowest_ms.fetch_max(begun.elapsed().as_millis() as usize, Ordering::Relaxed);
        Instant::now()
    };
    while !*ended.borrow() {
        number += 1;
        let name = format!("pvc-{caller}-{number}");
        let create = csi::CreateVolumeRequest::decode(create(&name).as_slice())?;
        let at = Instant::now();
        let made = client.create_volume(timed(create)).await;
        let made = made.with_context(|| format!("create {name}"))?;
        let volume_id = made.into_inner().volume.context("no volume")?.volume_id;
        let at = counted(at);
        let publish = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: NODE.into(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        let published = client.controller_publish_volume(timed(publish)).await;
        published.with_context(|| format!("publish {name}"))?;
        let at = counted(at);
        let node_id = NODE.to_owned();
        let unpublish = csi::ControllerUnpublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id,
            ..Default::default()
        };
        client
            .controller_unpublish_volume(timed(unpublish))
            .await
            .with_context(|| format!("unpublish {name}"))?;
        let at = counted(at);
        let delete = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
        client.delete_volume(timed(delete)).await.with_context(|| format!("delete {name}"))?;
        counted(at);
    }
    Ok(())
}
