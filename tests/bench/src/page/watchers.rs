//! Open pages without browsers: each loads the first screen, and then reads events.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proto::host::tasks::Tasks;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::pages::TOKEN;

/// Pages that are open.
pub(super) struct Watchers {
    tasks: Tasks,
    read: Arc<AtomicUsize>,
}

impl Watchers {
    /// Opens so many pages.
    pub(super) async fn open(pki: &Path, url: &str, pages: usize) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(pki.join("ca.crt"))?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        let host = url.strip_prefix("https://").context("the page has no TLS")?;
        let tasks = Tasks::default();
        let read = Arc::new(AtomicUsize::new(0));
        for _ in 0..pages {
            open(&connector, host, &tasks, &read).await?;
        }
        Ok(Self { tasks, read })
    }

    /// The events that were read, of all pages.
    pub(super) fn read(&self) -> usize {
        self.read.load(Ordering::Relaxed)
    }

    /// Closes all.
    pub(super) async fn close(self) {
        self.tasks.finish(harness::wait::STOP).await;
    }
}

async fn open(
    connector: &TlsConnector,
    host: &str,
    tasks: &Tasks,
    read: &Arc<AtomicUsize>,
) -> anyhow::Result<()> {
    let tcp = TcpStream::connect(host).await?;
    let name = ServerName::try_from("127.0.0.1")?;
    let io = TokioIo::new(connector.connect(name, tcp).await?);
    let (mut client, connection) = http1::handshake(io).await?;
    tasks.spawn_until_stop("page", async move { drop(connection.await) });
    let request = |path: &str| {
        let request = Request::get(path).header(HOST, host);
        request.header(AUTHORIZATION, format!("Bearer {TOKEN}")).body(Empty::<Bytes>::new())
    };
    let first = client.send_request(request("/")?).await?;
    ensure!(first.status() == StatusCode::OK, "{}", first.status());
    let first = first.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&first);
    let revision = text.split("data-revision=\"").nth(1).and_then(|rest| rest.split('"').next());
    let path = format!("/events?after={}", revision.context("the page has no revision")?);
    let mut events = client.send_request(request(&path)?).await?.into_body();
    let read = read.clone();
    tasks.spawn_until_stop("events", async move {
        // Held, so that the connection stays.
        let _client = client;
        while let Some(Ok(frame)) = events.frame().await {
            let data = frame.into_data().unwrap_or_default();
            let count = data.windows(4).filter(|four| four == b"id: ").count();
            read.fetch_add(count, Ordering::Relaxed);
        }
    });
    Ok(())
}
