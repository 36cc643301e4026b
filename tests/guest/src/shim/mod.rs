//! Shims that behave as the real ones do on their sockets, their faults included, and as dying or
//! broken ones do.
//!
//! A shim ends, and its socket refuses, when it is dropped; the file of the socket stays, as after
//! a crash.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use proto::host::tasks::Tasks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

mod answer;
pub(crate) mod go;
mod reference;
mod rs;

pub use self::answer::GuestFileSystem;
pub(crate) use self::answer::{parameter, reply, statistics};

/// Which runtime a shim is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Kata's Go runtime: any method, paths decoded twice, Go's JSON, errors as text.
    Go,
    /// Kata's runtime-rs: POST only, text for people, closes without a word when its handler fails.
    Rs,
    /// A runtime that serves our own contract.
    Reference,
}

/// How a shim treats connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Answers as its runtime does.
    Well,
    /// Answers so, but confirms a resize without doing it.
    Lies,
    /// Answers so, but a resize fails in the guest.
    Fails,
    /// Reads the request and never answers.
    Hangs,
    /// Dies in the middle of its answer.
    Half,
    /// Closes without an answer.
    Closes,
    /// Answers without end.
    Floods,
    /// Answers in another protocol.
    Babbles,
}

/// The state that all connections of a shim share.
struct Inner {
    dialect: Dialect,
    manner: Manner,
    /// The volumes by the name that requests use.
    volumes: BTreeMap<String, GuestFileSystem>,
    requests: Vec<String>,
}

/// A shim that runs.
pub struct Shim {
    /// Its socket.
    pub socket: PathBuf,
    inner: Arc<Mutex<Inner>>,
    tasks: Tasks,
}

impl Shim {
    /// Starts the shim of a sandbox in the directory where its runtime has them.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn start(root: &Path, sandbox: &str, dialect: Dialect) -> std::io::Result<Self> {
        let file = if dialect == Dialect::Reference { "direct.sock" } else { "shim-monitor.sock" };
        let socket = root.join(sandbox).join(file);
        std::fs::create_dir_all(root.join(sandbox))?;
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        let inner =
            Inner { dialect, manner: Manner::Well, volumes: BTreeMap::new(), requests: Vec::new() };
        let inner = Arc::new(Mutex::new(inner));
        let tasks = Tasks::default();
        tasks.spawn_until_stop("shim", accept(listener, inner.clone(), tasks.clone()));
        Ok(Self { socket, inner, tasks })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Gives its guest a volume, by the device or path that requests name it with.
    pub fn has(&self, name: impl Into<String>, volume: GuestFileSystem) {
        self.lock().volumes.insert(name.into(), volume);
    }

    /// Its containers with this volume end: the sandbox lives and does not know the volume.
    pub fn has_no_container(&self, name: &str) {
        self.lock().volumes.remove(name);
    }

    /// From now on it behaves so.
    pub fn behave(&self, manner: Manner) {
        self.lock().manner = manner;
    }

    /// The requests that it received, method and target, in order.
    pub fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        self.tasks.give_up();
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock()
}

async fn accept(listener: UnixListener, inner: Arc<Mutex<Inner>>, tasks: Tasks) {
    while let Ok((stream, _)) = listener.accept().await {
        let manner = lock(&inner).manner;
        let inner = inner.clone();
        tasks.spawn_until_stop("shim connection", async move {
            let _ = match manner {
                Manner::Well | Manner::Lies | Manner::Fails => serve(stream, inner).await,
                bad => misbehave(stream, bad).await,
            };
        });
    }
}

async fn serve(stream: UnixStream, inner: Arc<Mutex<Inner>>) -> std::io::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let inner = inner.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
            let mut inner = lock(&inner);
            inner.requests.push(format!("{} {}", parts.method, parts.uri));
            let resizes = parts.uri.path().ends_with("/resize");
            let answer = match inner.dialect {
                _ if resizes && inner.manner == Manner::Lies => Some(reply(StatusCode::OK, "")),
                _ if resizes && inner.manner == Manner::Fails => {
                    Some(reply(StatusCode::INTERNAL_SERVER_ERROR, "No space left on device"))
                }
                Dialect::Go => Some(go::answer(&mut inner.volumes, &parts, &body)),
                Dialect::Rs => rs::answer(&inner.volumes, &parts, &body),
                Dialect::Reference => Some(reference::answer(&mut inner.volumes, &parts, &body)),
            };
            // hyper closes the connection of a service that fails.
            answer.ok_or_else(|| std::io::Error::other("the handler failed"))
        }
    });
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    served.map_err(std::io::Error::other)
}

/// Reads the first bytes of a request, and misbehaves instead of an answer.
async fn misbehave(mut stream: UnixStream, manner: Manner) -> std::io::Result<()> {
    let mut request = [0; 4096];
    if stream.read(&mut request).await? == 0 {
        return Ok(());
    }
    match manner {
        Manner::Well | Manner::Lies | Manner::Fails | Manner::Closes => Ok(()),
        Manner::Hangs => std::future::pending().await,
        Manner::Half => {
            stream
                .write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{\"usage\":[{\"total\":1,",
                )
                .await
        }
        Manner::Babbles => stream.write_all(b"SSH-2.0-x\r\n\r\n").await,
        Manner::Floods => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            loop {
                stream.write_all(b"8\r\n[[[[[[[[\r\n").await?;
            }
        }
    }
}
