//! The listener and the connections.
//!
//! The driver has its own HTTP/2 server, not tonic's, because a fault must be able to break one
//! connection. A stop must cut all of them at once, as the end of a process does.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::core::Core;
use super::lock::lock;
use super::route::Routes;

/// A driver that listens. Dropping it stops it too, without waiting for its tasks.
pub struct Running {
    stop: CancellationToken,
    tasks: TaskTracker,
    routes: Arc<Routes>,
}

impl Running {
    /// Serves one more connection, which need not be a socket's.
    pub fn take<I>(&self, io: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let stop = self.stop.child_token();
        self.tasks.spawn(connection(io, Arc::clone(&self.routes), stop, self.tasks.clone()));
    }

    /// Closes the listener and all connections at once and drops all calls, as a SIGKILL does. The
    /// socket file and the driver's memory stay.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Binds `path`, in place of a socket that may be left there, and accepts from now on.
pub(super) fn serve(core: &Arc<Core>, path: &Path) -> io::Result<Running> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    let running = start(core);
    let Running { stop, tasks, routes } = &running;
    let accepting = accept(listener, Arc::clone(routes), stop.clone(), tasks.clone());
    tasks.spawn(stop.clone().run_until_cancelled_owned(accepting));
    Ok(running)
}

/// A driver without a socket, which serves connections from [`Running::take`].
pub(super) fn start(core: &Arc<Core>) -> Running {
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    tasks.close();
    Running { stop, tasks, routes: Arc::new(Routes::new(Arc::clone(core))) }
}

async fn accept(
    listener: UnixListener,
    routes: Arc<Routes>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection =
                    connection(stream, Arc::clone(&routes), stop.child_token(), tasks.clone());
                tasks.spawn(connection);
            }
            // The process is most likely out of file descriptors, so others need time to end.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn connection<I>(
    stream: I,
    routes: Arc<Routes>,
    broken: CancellationToken,
    tasks: TaskTracker,
) where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // Two tokens, because the order matters. If a call were dropped before its connection, the
    // caller would receive a clean cancellation and unwritten bytes would be lost.
    let cut = broken.clone();
    let alive = CancellationToken::new();
    let core = Arc::clone(routes.core());
    let service = service_fn(move |request| {
        let answer = Arc::clone(&routes).answer(request, cut.clone());
        async move { Ok::<_, Infallible>(answer.await) }
    });
    // This runs even if the task is dropped or the caller has left, because nobody waits for these
    // calls any more.
    let _calls = alive.clone().drop_guard();
    let (age, streams) = *lock(&core.connections);
    let served = http2::Builder::new(Streams { tasks, alive })
        // The tests decide how many calls there are at once and how many are cancelled in a row.
        .max_concurrent_streams(streams)
        .max_pending_accept_reset_streams(4096)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    let is_old = tokio::select! {
        // This branch is first, so that bytes from before a break are still written: see
        // `answer::half_of`.
        biased;
        _ = served.as_mut() => false,
        () = broken.cancelled() => false,
        () = aged(age) => true,
    };
    if is_old {
        served.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            _ = served => {}
            () = broken.cancelled() => {}
        }
    }
    lock(&core.ends).push(Instant::now());
}

/// Ends when a connection is so old; never without an age.
async fn aged(age: Option<Duration>) {
    match age {
        Some(age) => tokio::time::sleep(age).await,
        None => std::future::pending().await,
    }
}

/// Runs the calls of one connection and drops them with it.
#[derive(Clone)]
struct Streams {
    tasks: TaskTracker,
    alive: CancellationToken,
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, call: F) {
        let alive = self.alive.clone();
        self.tasks.spawn(async move {
            // No result is of use here, neither hyper's nor that of the token.
            let _ = alive.run_until_cancelled_owned(call).await;
        });
    }
}
