//! Serves the admin socket: HTTP/1 with JSON, on a unix socket that only its owner may use.
//!
//! A request is a POST of the command's parameters to its path. The table of paths is `answer`.

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use proto::admin::client::ErrorBody;
use proto::admin::http1;
use proto::admin::http1::{Answer, Listener};
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admin::admin_state::AdminState;
use crate::admin::refused::CommandError;
use crate::admin::{
    adopt_volume, ca_rotation, calls, doctor, driver_profile, drivers, ended_calls, explain,
    forget_volume, intents, leases, node_purge, node_removal, nodes, rebuild_homes, release_volume,
    replicas, resolve_intent, revocation, tokens, top, volumes,
};
use crate::error::NotLeading;

/// Connections at a time.
const CONNECTIONS: usize = 16;
/// The largest request, in bytes: a thousand homes with ids of 4,096 bytes fit.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// Serves the admin socket until the tasks are stopped.
pub async fn serve(state: Arc<AdminState>, socket: Socket, tasks: Tasks) {
    let service = move |request| handle(state.clone(), request);
    Listener::Unix(socket).serve(CONNECTIONS, service, tasks).await;
}

async fn handle(state: Arc<AdminState>, request: Request<Incoming>) -> Answer {
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

/// The commands about links and calls, of which a csi-cloud that follows has none: to it all nodes
/// would look away.
const OF_LINKS: [&str; 6] =
    [nodes::PATH, drivers::PATH, explain::PATH, calls::PATH, top::PATH, doctor::KUBEEDGE];

/// Refuses a command about links if another csi-cloud has them.
fn check_leads(state: &AdminState, path: &str) -> Result<(), CommandError> {
    match state.links.leading().check() {
        Err(NotLeading::Follows(leader)) if OF_LINKS.contains(&path) => {
            Err(CommandError::conflict(format!(
                "this csi-cloud follows {leader}, which leads and has the links of all nodes; ask \
                 {leader} (`csi-cloud replicas` shows who leads)"
            )))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The commands by path: a new command is one line here.
///
/// # Errors
/// Another csi-cloud has the links, the path is no command, or the parameters cannot be read.
/// Otherwise the command's own.
pub(super) async fn answer(
    state: &AdminState,
    path: &str,
    body: &[u8],
) -> Result<Answer, CommandError> {
    check_leads(state, path)?;
    match path {
        nodes::PATH => json(&state.nodes(&read(body)?)),
        drivers::PATH => json(&state.drivers()),
        doctor::PATH => json(&state.doctor().await),
        doctor::KUBEEDGE => json(&state.doctor_kubeedge().await?),
        explain::PATH => json(&state.explain(&read(body)?).await),
        volumes::PATH => json(&state.volumes(&read(body)?)),
        leases::PATH => json(&state.leases(&read(body)?)),
        intents::PATH => json(&state.intents(&read(body)?)),
        calls::PATH => json(&state.calls()),
        ended_calls::PATH => json(&state.ended_calls(&read(body)?)),
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
        replicas::LIST => json(&state.replicas().await?),
        replicas::PROMOTE => json(&state.promote_replica(read(body)?).await?),
        replicas::DRAIN => json(&state.drain_replica(read(body)?).await?),
        replicas::UNDRAIN => json(&state.undrain_replica(read(body)?).await?),
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

fn json(value: &impl Serialize) -> Result<Answer, CommandError> {
    let answered = http1::json(StatusCode::OK, value);
    answered.map_err(|error| CommandError::failed(error.to_string()))
}

fn refusal(refused: &CommandError) -> Answer {
    let refusal = ErrorBody { error: refused.text.clone() };
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_REQUEST);
    http1::json(status, &refusal).unwrap_or_default()
}
