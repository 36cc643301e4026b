//! Serves the admin socket and, where asked for, monitoring over HTTP.
//!
//! The socket has `/livez`, `/readyz` and `/metrics` too. A command is a POST to its path.

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use proto::admin::client::ErrorBody;
use proto::admin::http1;
use proto::admin::http1::{Answer, Listener};
use proto::host::chain;
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use tokio::net::TcpListener;

use super::state::AdminState;
use super::{calls, drivers, ended_calls, status, volumes};

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
    let ready = state.not_ready().map_or(Ok("ready"), Err);
    http1::monitored(method, path, ready, || Ok(state.metrics()))
}

/// The commands by path: a new command is one line here.
pub(super) async fn command(state: &AdminState, path: &str) -> Answer {
    let answered = match path {
        status::PATH => http1::json(StatusCode::OK, &state.status()),
        drivers::PATH => http1::json(StatusCode::OK, &state.drivers()),
        calls::PATH => http1::json(StatusCode::OK, &state.calls()),
        ended_calls::PATH => http1::json(StatusCode::OK, &state.ended_calls()),
        volumes::PATH => match state.volumes().await {
            Ok(volumes) => http1::json(StatusCode::OK, &volumes),
            Err(error) => Ok(refusal(StatusCode::INTERNAL_SERVER_ERROR, chain(error.as_ref()))),
        },
        _ => {
            let error = format!("{path} is no command of this csi-edge; are both of one version?");
            Ok(refusal(StatusCode::NOT_FOUND, error))
        }
    };
    answered.unwrap_or_else(|error| refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn refusal(status: StatusCode, error: String) -> Answer {
    http1::json(status, &ErrorBody { error }).unwrap_or_default()
}
