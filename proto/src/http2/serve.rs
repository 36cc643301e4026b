//! Serving HTTP/2 over any byte stream, and on sockets.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tonic::Code;
use tracing::debug;

use crate::csi::status::ToStatus;
use crate::host::accept::{accept, leave_reserve};
use crate::host::chain::chain;
use crate::host::socket::Socket;
use crate::host::tasks::Tasks;
use crate::http2::batch::Batched;
use crate::http2::body::Body;
use crate::http2::forward;
use crate::http2::limits::{MAX_HEADERS, MAX_STREAMS, SERVER_WINDOW, STREAM_WINDOW};

/// This process is stopping.
#[derive(Debug, thiserror::Error)]
#[error("{0} is stopping; send the call again")]
pub struct Stopping(pub &'static str);

impl ToStatus for Stopping {
    fn code(&self) -> Code {
        Code::Unavailable
    }
}

/// Starts hyper's tasks. They end with the connection, which is a task of ours.
///
/// They are boxed first: the runtime moves a new future eight times, and hyper's have 1.5 KiB.
#[derive(Clone, Copy)]
struct Spawn;

impl<F> hyper::rt::Executor<F> for Spawn
where
    F: Future<Output = ()> + Send + 'static,
{
    #[expect(
        clippy::disallowed_methods,
        reason = "hyper's own tasks, which end with their connection"
    )]
    fn execute(&self, task: F) {
        drop(tokio::spawn(Box::pin(task)));
    }
}

/// Serves calls over `io` until it closes. After `stop`, it ends when the calls in flight are
/// answered.
///
/// # Errors
/// The other side does not speak HTTP/2, or broke off.
pub async fn serve<I, F, R>(io: I, service: F, stop: impl Future<Output = ()>) -> hyper::Result<()>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: Fn(Request<Incoming>) -> R,
    R: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
{
    let mut builder = hyper::server::conn::http2::Builder::new(Spawn);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(SERVER_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        // An answer is passed on as it came, without a date of ours.
        .auto_date_header(false);
    // Boxed, because hyper moves it several times before it is in a task of its own.
    let service = hyper::service::service_fn(move |request| Box::pin(service(request)));
    let connection = builder.serve_connection(TokioIo::new(Batched::new(io)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = stop => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

/// Serves calls on a socket, each connection in a task of `tasks`, until they are told to stop.
///
/// Then no connection is accepted and callers begin no call (GOAWAY). Calls in flight are still
/// answered. When the group is given up, they get UNAVAILABLE, since they may be running.
pub async fn serve_socket<F, R>(socket: Socket, service: F, tasks: Tasks)
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
{
    // Shared, because a clone for each call would take locks.
    let given_up = Arc::new(tasks.clone());
    let service = move |request| {
        // Boxed: moved into the next future, its memory would be there twice.
        let mut answering = Box::pin(service(request));
        let tasks = given_up.clone();
        async move {
            tokio::select! {
                biased;
                answer = &mut answering => answer,
                () = tasks.given_up() => {
                    Ok(forward::failure(&Stopping("the program behind this socket")))
                }
            }
        }
    };
    loop {
        let stream = tokio::select! {
            biased;
            () = tasks.stopped() => return,
            accepted = accepted(&socket) => accepted,
        };
        let service = service.clone();
        let stop = tasks.clone();
        tasks.spawn("front connection", async move {
            if let Err(error) = serve(stream, service, stop.stopped()).await {
                debug!(error = %chain(&error), "a caller's connection broke");
            }
        });
    }
}
/// The next caller.
async fn accepted(socket: &Socket) -> UnixStream {
    let (stream, _) = accept("a caller", || socket.listener.accept()).await;
    leave_reserve(&stream).await;
    stream
}
