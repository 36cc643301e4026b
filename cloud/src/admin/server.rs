//! Serves the admin socket: HTTP/1 with JSON, on a unix socket that only its owner may use.
//!
//! A request is a POST of the command's parameters to its path. The table of paths is `answer`.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use crate::admin::admin_state::AdminState;
use crate::admin::refused::{CommandError, ErrorBody};
use crate::admin::{
    adopt_volume, ca_rotation, calls, doctor, driver_profile, drivers, forget_volume, http1,
    intents, leases, node_purge, node_removal, nodes, rebuild_homes, release_volume,
    resolve_intent, revocation, tokens, top, volumes,
};

/// The admin socket's name in the fronts' directory.
///
/// No driver or node has an underscore in its name, so it is no `DRIVER.sock` and no `NODE/`.
pub(crate) const SOCKET_NAME: &str = "_admin.sock";
/// The mode of the socket: only its owner may connect, and may do everything.
pub const MODE: u32 = 0o600;
/// Connections at a time.
const CONNECTIONS: usize = 16;
/// The largest request, in bytes: a thousand homes with ids of 4,096 bytes fit.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// Serves the admin socket until the tasks are stopped.
pub async fn serve(state: Arc<AdminState>, socket: Socket, tasks: Tasks) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let permit = tokio::select! {
            biased;
            () = tasks.stopped() => return,
            permit = connections.clone().acquire_owned() => permit.ok(),
        };
        let accepted = tokio::select! {
            biased;
            () = tasks.stopped() => return,
            accepted = socket.listener.accept() => accepted,
        };
        let stream = http1::accepted(accepted.map(|(stream, _)| stream)).await;
        let Some(stream) = stream else { continue };
        let state = state.clone();
        let ended = tasks.clone();
        tasks.spawn("admin connection", async move {
            let service = move |request| handle(state.clone(), request);
            http1::serve(stream, service, ended.stopped()).await;
            drop(permit);
        });
    }
}

async fn handle(state: Arc<AdminState>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        return refusal(&CommandError::bad("a request is a POST of its parameters, as JSON"));
    }
    let path = request.uri().path().to_owned();
    let answered = match Limited::new(request.into_body(), MAX_REQUEST).collect().await {
        Ok(body) => answer(&state, &path, &body.to_bytes()).await,
        Err(_) => Err(CommandError::bad("the request broke off or is larger than 16 MiB")),
    };
    answered.unwrap_or_else(|refused| refusal(&refused))
}

/// The commands by path: a new command is one line here.
pub(super) async fn answer(
    state: &AdminState,
    path: &str,
    body: &[u8],
) -> Result<Response<Full<Bytes>>, CommandError> {
    match path {
        nodes::PATH => json(&state.nodes(&read(body)?)),
        drivers::PATH => json(&state.drivers()),
        doctor::KUBEEDGE => json(&state.doctor_kubeedge().await?),
        volumes::PATH => json(&state.volumes(&read(body)?)),
        leases::PATH => json(&state.leases(&read(body)?)),
        intents::PATH => json(&state.intents(&read(body)?)),
        calls::PATH => json(&state.calls()),
        top::PATH => json(&state.top()),
        node_removal::REMOVE => json(&state.remove_node(read(body)?).await?),
        node_removal::ADMIT => json(&state.admit_node(read(body)?).await?),
        tokens::CREATE => json(&state.create_token(read(body)?).await?),
        tokens::LIST => json(&state.tokens()),
        tokens::REVOKE => json(&state.revoke_token(read(body)?).await?),
        revocation::PATH => json(&state.revoke(read(body)?).await?),
        ca_rotation::START => json(&state.start_rotation(read(body)?)?),
        ca_rotation::STATUS => json(&state.rotation()?),
        ca_rotation::FINISH => json(&state.finish_rotation(read(body)?)?),
        driver_profile::PATH => json(&state.set_profile(read(body)?).await?),
        node_purge::PATH => json(&state.purge_node(read(body)?).await?),
        resolve_intent::PATH => json(&state.resolve_intent(read(body)?).await?),
        forget_volume::PATH => json(&state.forget_volume(read(body)?).await?),
        adopt_volume::PATH => json(&state.adopt_volume(read(body)?).await?),
        release_volume::PATH => json(&state.release_volume(read(body)?).await?),
        rebuild_homes::PATH => json(&state.rebuild_homes(read(body)?).await?),
        _ => Err(CommandError::unknown(format!(
            "{path} is no command of this csi-cloud; are both of one version?"
        ))),
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, CommandError> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| CommandError::bad(format!("the parameters cannot be read: {error}")))
}

fn json(value: &impl Serialize) -> Result<Response<Full<Bytes>>, CommandError> {
    let text =
        serde_json::to_vec(value).map_err(|error| CommandError::failed(error.to_string()))?;
    let mut response = Response::new(Full::from(text));
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

fn refusal(refused: &CommandError) -> Response<Full<Bytes>> {
    let refusal = ErrorBody { error: refused.text.clone() };
    let mut response = json(&refusal).unwrap_or_default();
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_REQUEST);
    *response.status_mut() = status;
    response
}
