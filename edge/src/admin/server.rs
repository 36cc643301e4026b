//! Serves the admin socket and, where asked for, monitoring over HTTP.
//!
//! The socket has `/livez`, `/readyz` and `/metrics` too. A command is a POST to its path.

use std::sync::Arc;

use http::{Method, Request};
use hyper::body::Incoming;
use proto::admin::command;
use proto::admin::command::Served;
use proto::admin::http1;
use proto::admin::http1::{Answer, Listener};
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use tokio::net::TcpListener;

use super::calls::CallsQuery;
use super::drivers::ListDrivers;
use super::ended_calls::EndedQuery;
use super::state::AdminState;
use super::status::StatusQuery;
use super::volumes::ListVolumes;

/// Connections at a time; more wait.
const CONNECTIONS: usize = 16;

/// Serves the admin socket until the tasks are stopped.
pub async fn serve(state: Arc<AdminState>, socket: Socket, tasks: Tasks) {
    let service = move |request: Request<Incoming>| {
        let state = state.clone();
        async move {
            let path = request.uri().path();
            match monitored(&state, request.method(), path) {
                Some(answer) => answer,
                None => command(&state, path).await,
            }
        }
    };
    Listener::Unix(socket).serve(CONNECTIONS, service, tasks).await;
}

/// Serves monitoring until the tasks are stopped. Commands are for the admin socket alone.
pub async fn serve_http(state: Arc<AdminState>, listener: TcpListener, tasks: Tasks) {
    let service = move |request: Request<Incoming>| {
        let answer = monitored(&state, request.method(), request.uri().path());
        let answer = answer.unwrap_or_else(http1::not_monitored);
        async move { answer }
    };
    Listener::Tcp(listener).serve(CONNECTIONS, service, tasks).await;
}

/// The answer to monitoring; none for another path.
pub(super) fn monitored(state: &AdminState, method: &Method, path: &str) -> Option<Answer> {
    let not_ready = state.not_ready();
    let ready = not_ready.as_deref().map_or(Ok("ready"), Err);
    http1::monitored(method, path, ready, || Ok(state.metrics()))
}

/// The commands that a running csi-edge answers. The command line is made from them too: a new one
/// is one line here.
pub(crate) static COMMANDS: [Served<AdminState>; 5] = [
    Served::of::<StatusQuery>(),
    Served::of::<ListDrivers>(),
    Served::of::<ListVolumes>(),
    Served::of::<CallsQuery>(),
    Served::of::<EndedQuery>(),
];

/// Carries out the command with this path. None has parameters.
pub(super) async fn command(state: &AdminState, path: &str) -> Answer {
    let answered = command::answer(&COMMANDS, state, path, b"").await;
    answered.unwrap_or_else(|refused| refused.answer())
}
