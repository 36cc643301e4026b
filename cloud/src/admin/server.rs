//! Serves the admin socket: HTTP/1 with JSON, on a unix socket that only its owner may use.
//!
//! A request is a POST of the command's parameters to its path. `COMMANDS` is the list of all
//! commands that a running csi-cloud answers: the command line is made from it too.

use std::sync::Arc;

use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use proto::admin::command;
use proto::admin::command::{Refusal, Served};
use proto::admin::http1::{Answer, Listener};
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;

use crate::admin::accept_store::AcceptStore;
use crate::admin::admin_state::AdminState;
use crate::admin::adopt_volume::AdoptVolume;
use crate::admin::ca_rotation::{FinishRotation, RotationStatus, StartRotation};
use crate::admin::calls::CallsQuery;
use crate::admin::doctor::{Examine, ExamineKubeEdge};
use crate::admin::driver_profile::SetProfile;
use crate::admin::drivers::ListDrivers;
use crate::admin::ended_calls::EndedQuery;
use crate::admin::explain::Explain;
use crate::admin::forget_volume::ForgetVolume;
use crate::admin::intents::IntentsQuery;
use crate::admin::leases::LeasesQuery;
use crate::admin::node_machine::AcceptNode;
use crate::admin::node_purge::PurgeNode;
use crate::admin::node_readmit::ReadmitNode;
use crate::admin::node_removal::{AdmitNode, RemoveNode};
use crate::admin::nodes::NodesQuery;
use crate::admin::rebuild_homes::RebuildHomes;
use crate::admin::release_volume::ReleaseVolume;
use crate::admin::replicas::{
    DrainReplica, ListReplicas, PromoteReplica, RaiseEpoch, UndrainReplica,
};
use crate::admin::resolve_intent::ResolveIntent;
use crate::admin::revocation::Revoke;
use crate::admin::tokens::{CreateToken, ListTokens, RevokeToken};
use crate::admin::volumes::VolumesQuery;

/// Connections at a time.
const CONNECTIONS: usize = 16;
/// The largest request, in bytes: a thousand homes with ids of 4,096 bytes fit.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// The commands that a running csi-cloud answers. A new one is one line here.
pub(crate) static COMMANDS: [Served<AdminState>; 35] = [
    Served::of::<NodesQuery>(),
    Served::of::<ListDrivers>(),
    Served::of::<Examine>(),
    Served::of::<ExamineKubeEdge>(),
    Served::of::<Explain>(),
    Served::of::<VolumesQuery>(),
    Served::of::<LeasesQuery>(),
    Served::of::<IntentsQuery>(),
    Served::of::<CallsQuery>(),
    Served::of::<EndedQuery>(),
    Served::of::<ListReplicas>(),
    Served::of::<PromoteReplica>(),
    Served::of::<DrainReplica>(),
    Served::of::<UndrainReplica>(),
    Served::of::<RaiseEpoch>(),
    Served::of::<RemoveNode>(),
    Served::of::<PurgeNode>(),
    Served::of::<Revoke>(),
    Served::of::<AdmitNode>(),
    Served::of::<AcceptNode>(),
    Served::of::<ReadmitNode>(),
    Served::of::<CreateToken>(),
    Served::of::<ListTokens>(),
    Served::of::<RevokeToken>(),
    Served::of::<SetProfile>(),
    Served::of::<IntentsQuery>().named("intent list"),
    Served::of::<ResolveIntent>(),
    Served::of::<ForgetVolume>(),
    Served::of::<AdoptVolume>(),
    Served::of::<ReleaseVolume>(),
    Served::of::<RebuildHomes>(),
    Served::of::<AcceptStore>(),
    Served::of::<StartRotation>(),
    Served::of::<RotationStatus>(),
    Served::of::<FinishRotation>(),
];

/// Serves the admin socket until the tasks are stopped.
pub async fn serve(state: Arc<AdminState>, socket: Socket, tasks: Tasks) {
    let service = move |request| handle(state.clone(), request);
    Listener::Unix(socket).serve(CONNECTIONS, service, tasks).await;
}

async fn handle(state: Arc<AdminState>, request: Request<Incoming>) -> Answer {
    if request.method() != Method::POST {
        return Refusal::bad("a request is a POST of its parameters, as JSON").answer();
    }
    let path = request.uri().path().to_owned();
    let answered = match Limited::new(request.into_body(), MAX_REQUEST).collect().await {
        Ok(body) => answer(&state, &path, &body.to_bytes()).await,
        Err(_) => Err(Refusal::bad("the request broke off or is larger than 16 MiB")),
    };
    answered.unwrap_or_else(|refused| refused.answer())
}

/// Carries out the command with this path.
///
/// # Errors
/// As for [`command::answer`].
pub(super) async fn answer(state: &AdminState, path: &str, body: &[u8]) -> Result<Answer, Refusal> {
    command::answer(&COMMANDS, state, path, body).await
}
