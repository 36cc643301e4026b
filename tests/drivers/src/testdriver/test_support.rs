//! A driver on a socket of its own, and a client for it.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use proto::csi::{CreateVolumeRequest, NodePublishVolumeRequest, VolumeCapability};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use super::{Running, TestDriver};

pub(super) struct Bench {
    pub(super) driver: TestDriver,
    pub(super) running: Running,
    pub(super) path: PathBuf,
    pub(super) dir: TempDir,
}

impl Bench {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let driver = TestDriver::new("test.edge-csi.io", "node-a");
        let running = driver.serve(&path).unwrap();
        Self { driver, running, path, dir }
    }

    pub(super) async fn channel(&self) -> Channel {
        connect(self.path.clone()).await.unwrap()
    }
}

pub(super) async fn connect(path: PathBuf) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_static("http://localhost").connect_with_connector(Connector(path)).await
}

/// Connects to this path for every URI.
#[derive(Clone)]
struct Connector(PathBuf);

impl tonic::codegen::Service<http::Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = tonic::codegen::BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}

pub(super) fn create(name: &str) -> CreateVolumeRequest {
    let volume_capabilities = vec![VolumeCapability::default()];
    CreateVolumeRequest { name: name.into(), volume_capabilities, ..Default::default() }
}

pub(super) fn publish(id: &str) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: id.into(),
        target_path: "/target".into(),
        staging_target_path: "/staging".into(),
        volume_capability: Some(VolumeCapability::default()),
        ..Default::default()
    }
}
