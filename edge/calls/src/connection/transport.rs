//! One HTTP/2 connection to a driver's socket, and the streams on it. It uses `questions`.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use proto::host::socket::abstract_name;
use proto::host::tasks::Tasks;
use proto::http2::forward::{self, Upstream};
use proto::link::Connect;
use proto::names::DriverName;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::sleep;

use super::questions::{BoxError, check_name};

/// How often it is looked whether another process serves the path.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The device and the inode of a socket's path.
type Inode = (u64, u64);

/// Why a driver cannot be called.
pub(super) struct NotUsable {
    /// Somebody serves the socket.
    pub(super) is_served: bool,
    pub(super) source: BoxError,
}

impl NotUsable {
    pub(super) fn unfit(source: impl Into<BoxError>) -> Self {
        Self { is_served: true, source: source.into() }
    }
}

/// One connection. It is usable, or draining (it lives for the streams that it has), or ended.
pub(super) struct DriverTransport {
    upstream: Upstream,
    /// Streams that wait for their answers.
    open: AtomicUsize,
    /// Streams that we ended unanswered. Their handlers may go on, and then the server counts them.
    abandoned: AtomicUsize,
    draining: watch::Sender<bool>,
    info: OnceLock<Bytes>,
    /// What the path led to when it was dialed.
    inode: Option<Inode>,
}

/// A stream on a connection, while it lives.
pub(crate) struct OpenStream {
    transport: Arc<DriverTransport>,
    is_over: bool,
}

impl DriverTransport {
    /// Dials a socket.
    ///
    /// # Errors
    /// Nobody serves it, or not with HTTP/2.
    pub(super) async fn dial(
        connect: &Connect,
        socket: &str,
        tasks: &Tasks,
    ) -> Result<Self, NotUsable> {
        let inode = inode(socket);
        let stream = connect(socket.to_owned()).await;
        let away = |error| NotUsable { is_served: false, source: why_away(socket, error) };
        let connected = forward::connect(stream.map_err(away)?).await;
        let (upstream, driving) = connected.map_err(NotUsable::unfit)?;
        tasks.spawn_until_stop("driver connection", async move {
            let _ = driving.await;
        });
        Ok(Self {
            upstream,
            open: AtomicUsize::default(),
            abandoned: AtomicUsize::default(),
            draining: watch::Sender::default(),
            info: OnceLock::new(),
            inode,
        })
    }

    /// Refuses a driver that calls itself otherwise than it is configured.
    ///
    /// # Errors
    /// It does, or it does not say its name.
    pub(super) async fn check_name(&self, driver: &DriverName) -> Result<(), NotUsable> {
        let info = check_name(&self.upstream, driver).await.map_err(NotUsable::unfit)?;
        self.info.get_or_init(|| info);
        Ok(())
    }

    /// Who serves it: the driver's GetPluginInfoResponse. None before its name was checked.
    pub(super) fn info(&self) -> Option<&Bytes> {
        self.info.get()
    }

    pub(super) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// True if new calls may use it.
    pub(super) fn is_usable(&self) -> bool {
        !*self.draining.borrow() && !self.upstream.is_closed()
    }

    /// True if the driver takes one more stream.
    pub(super) fn has_room(&self) -> bool {
        self.busy() < self.upstream.max_streams()
    }

    /// Its streams, as far as the driver may count them.
    pub(super) fn busy(&self) -> usize {
        self.open.load(Ordering::Relaxed) + self.abandoned.load(Ordering::Relaxed)
    }

    /// Lets it live for its streams only.
    pub(super) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Ends when no new call may use it.
    pub(super) async fn unusable(&self) {
        let mut draining = self.draining.subscribe();
        tokio::select! {
            biased;
            _ = draining.wait_for(|is_draining| *is_draining) => {}
            () = self.upstream.closed() => {}
        }
    }

    /// True if the driver has asked for no more calls here. It may, so that is no failure.
    pub(super) fn was_told_to_leave(&self) -> bool {
        *self.draining.borrow() || self.upstream.was_told_to_leave()
    }

    /// Ends when the socket's path leads to another file. A path that leads nowhere says nothing: a
    /// process that stops may have removed its successor's.
    pub(super) async fn replaced(&self, socket: &str) {
        let Some(dialed) = self.inode else { return std::future::pending().await };
        while inode(socket).is_none_or(|now| now == dialed) {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Counts a stream.
    pub(super) fn begin(self: &Arc<Self>) -> OpenStream {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenStream { transport: self.clone(), is_over: false }
    }
}

impl OpenStream {
    /// True if its connection takes no new calls.
    pub(crate) fn is_draining(&self) -> bool {
        *self.transport.draining.borrow()
    }

    /// Its connection.
    pub(super) fn upstream(&self) -> &Upstream {
        self.transport.upstream()
    }

    /// Lets its connection live for the streams that it has.
    pub(super) fn drain(&self) {
        self.transport.drain();
    }

    /// Lets its connection live for the streams that it has, without this one. Ends with it.
    pub(super) fn retire(self) -> impl Future<Output = ()> + Send + use<> {
        self.transport.drain();
        self.transport.upstream.closed()
    }

    /// Notes that it was answered, or broke: the driver has no handler for it that nobody awaits.
    pub(crate) fn over(&mut self) {
        self.is_over = true;
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let transport = &self.transport;
        if !self.is_over {
            transport.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        let was_last = transport.open.fetch_sub(1, Ordering::Relaxed) == 1;
        // What was ended there and goes on ends with the connection, if it ends at all.
        if was_last && transport.abandoned.load(Ordering::Relaxed) > 0 {
            transport.drain();
        }
    }
}

fn inode(socket: &str) -> Option<Inode> {
    let meta = std::fs::metadata(socket).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Connects to a unix socket by its path, or by the name of an abstract one.
///
/// # Errors
/// Nobody serves it.
pub(crate) async fn dial_unix(path: &str) -> std::io::Result<UnixStream> {
    match abstract_name(path) {
        // So tokio tells such a name from a path.
        Some(name) => UnixStream::connect(format!("\0{name}")).await,
        None => UnixStream::connect(path).await,
    }
}

/// Explains to people why there is no connection.
pub(crate) fn why_away(socket: &str, error: std::io::Error) -> BoxError {
    match std::fs::metadata(socket) {
        _ if abstract_name(socket).is_some() => {
            "nobody serves its abstract socket; does the driver run, and in csi-edge's network \
             namespace?"
                .into()
        }
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => {
            "there is nothing at its socket's path; is the driver running?".into()
        }
        Ok(meta) if !meta.file_type().is_socket() => {
            "what is at its socket's path is no socket".into()
        }
        _ if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            "nobody serves its socket; is the driver running?".into()
        }
        _ => error.into(),
    }
}
