//! The admin socket: what csi-cloud knows, shown to its operator and changed by him.
//!
//! HTTP/1 with JSON on a unix socket of mode 0600: who may open it may do all of it. A request is a POST of its
//! parameters to the command's path.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::names::DriverName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use crate::admin::health::{connection, taken};
use crate::csi::front::Front;
use crate::kubernetes::published::Published;
use crate::nodes::links::Links;
use crate::state::policy::Policy;
use crate::state::store::writer::Store;
use crate::telemetry::calls::Calls;

use self::change::Refused;

pub mod change;
pub mod health;
pub mod look;
pub mod owners;
pub mod shown;
pub mod sum;

/// The admin socket below the fronts' directory. No driver and no node can have a name with an underscore, so it is
/// neither `DRIVER.sock` nor `NODE/`.
pub(crate) const SOCKET_NAME: &str = "_admin.sock";
/// Who may connect: the owner.
pub const MODE: u32 = 0o600;
/// Connections at a time.
const CONNECTIONS: usize = 16;
/// The largest request, in bytes: a thousand homes with ids of 4,096 bytes fit.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// All that there is to show and to change.
pub struct Insight {
    /// What is durable.
    pub store: Store,
    /// All links.
    pub links: Arc<Links>,
    /// The calls in flight, and what is counted.
    pub calls: Arc<Calls>,
    /// The drivers that have a front, and what the operator wants of them.
    pub policies: BTreeMap<DriverName, Policy>,
    /// Their fronts.
    pub fronts: BTreeMap<DriverName, Arc<Front>>,
    /// How things stand in Kubernetes, if there is one.
    pub kubernetes: Option<Arc<Published>>,
}

impl Insight {
    /// Serves the admin socket until told to stop.
    pub async fn serve(self: Arc<Self>, socket: Socket, tasks: Tasks) {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let place = tokio::select! {
                biased;
                () = tasks.stopped() => return,
                place = room.clone().acquire_owned() => place.ok(),
            };
            let accepted = tokio::select! {
                biased;
                () = tasks.stopped() => return,
                accepted = socket.listener.accept() => accepted,
            };
            let Some(stream) = taken(accepted.map(|(stream, _)| stream)).await else { continue };
            let (insight, ended) = (self.clone(), tasks.clone());
            tasks.spawn("admin connection", async move {
                connection(stream, move |request| insight.clone().request(request), ended.stopped()).await;
                drop(place);
            });
        }
    }

    async fn request(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::POST {
            return refusal(&Refused::bad("a request is a POST of its parameters, as JSON"));
        }
        let path = request.uri().path().to_owned();
        let answered = match Limited::new(request.into_body(), MAX_REQUEST).collect().await {
            Ok(body) => self.answer(&path, &body.to_bytes()).await,
            Err(_) => Err(Refused::bad("the request broke off or is larger than 16 MiB")),
        };
        answered.unwrap_or_else(|refused| refusal(&refused))
    }

    async fn answer(&self, path: &str, body: &[u8]) -> Result<Response<Full<Bytes>>, Refused> {
        match path {
            "/nodes" => json(&self.nodes(&read(body)?)),
            "/drivers" => json(&self.drivers()),
            "/volumes" => json(&self.volumes(&read(body)?)),
            "/owners" => json(&self.owners(&read(body)?)),
            "/intents" => json(&self.intents(&read(body)?)),
            "/calls" => json(&self.calls()),
            "/top" => json(&self.top()),
            "/node/remove" => json(&self.remove_node(read(body)?).await?),
            "/node/admit" => json(&self.admit_node(read(body)?).await?),
            "/intent/resolve" => json(&self.resolve_intent(read(body)?).await?),
            "/volume/forget" => json(&self.forget_volume(read(body)?).await?),
            "/volume/release" => json(&self.release_volume(read(body)?).await?),
            "/homes/rebuild" => json(&self.rebuild_homes(read(body)?).await?),
            _ => Err(Refused::unknown(format!(
                "{path} is no command of this csi-cloud; are both of one version?"
            ))),
        }
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| Refused::bad(format!("the parameters cannot be read: {error}")))
}

fn json(value: &impl Serialize) -> Result<Response<Full<Bytes>>, Refused> {
    let text = serde_json::to_vec(value).map_err(|error| Refused::failed(error.to_string()))?;
    let mut response = Response::new(Full::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn refusal(refused: &Refused) -> Response<Full<Bytes>> {
    let refusal = shown::Refusal { error: refused.text.clone() };
    let mut response = json(&refusal).unwrap_or_default();
    *response.status_mut() = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_REQUEST);
    response
}

#[cfg(test)]
pub(crate) mod tests;
