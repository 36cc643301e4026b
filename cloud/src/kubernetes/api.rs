//! Requests to the API server: paced, counted, each with a timeout. Errors say what to do.
//!
//! An outage is logged when it begins and when it ends. Our role, which `deploy/` creates, has:
//!
//! | group | resource | verbs | why |
//! |---|---|---|---|
//! | storage.k8s.io | csidrivers | get, list, watch, create, patch | the object of each driver |
//! | storage.k8s.io | csinodes | get, list, watch, create, patch | entries that no kubelet makes |
//! | (core) | nodes | get, list, watch, patch | labels of segments, the annotation with ids |
//! | (core) | persistentvolumeclaims | get, list, watch | claims that wait for a node |
//! | (core) | persistentvolumes | get, list | whose volume is lost, and where one may be used |
//! | (core) | pods | get | whose direct volume was not taken, and which does not start |
//! | (core) | pods | list | the sidecars beside csi-cloud, in its own namespace alone |
//! | (core) | pods | list, watch | metadata of nodes, in a role of its own |
//! | (core) | persistentvolumes | watch | the same |
//! | storage.k8s.io | volumeattachments | list, watch | the same |
//! | node.k8s.io | runtimeclasses | list, watch | the same |
//! | authentication.k8s.io | tokenreviews | create | nodes that join, in a role of its own |
//! | (core) | configmaps | get, patch | the hash of the CA, in `csi-cloud-ca` alone |
//! | (core) | secrets | get, patch | the relays' certificate, in `csi-sidecars-tls` alone |
//! | events.k8s.io | events | create, patch | Events |
//! | (core) | events | list | warnings about what `csi-cloud explain` is asked for |
//! | storage.k8s.io | storageclasses | get, list | the same |
//! | storage.k8s.io | volumeattachments | get | the same |
//! | snapshot.storage.k8s.io | volumesnapshots | get | what `csi-cloud explain` is asked for |
//! | snapshot.storage.k8s.io | volumesnapshotclasses | get | the same |
//! | snapshot.storage.k8s.io | volumesnapshotcontents | get | the same |
//!
//! What only `csi-cloud doctor` reads is in the chart's `rights.yaml`, with `kubeedge: true`.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use proto::host::chain;
use proto::host::limit::{Bucket, Rate};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::kubernetes::settings::ApiAt;
use crate::telemetry::calls::Calls;

/// Objects in one answer.
const PAGE: u32 = 500;
/// The rate of requests.
const RATE: Rate = Rate::per_second(20, 40);
/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest silence of a connection. The API server itself ends a watch after 290 s.
const SILENCE: Duration = Duration::from_secs(330);

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// There is no answer in time, or only "not now".
    #[error("the API server of Kubernetes does not answer; what is to be done there waits")]
    Away(#[source] Option<Box<kube::Error>>),
    /// Our role lacks a right.
    #[error("the API server does not let us; does our ClusterRole have all that deploy/ gives it?")]
    Forbidden(#[source] Box<kube::Error>),
    /// Another manager has a field, or the object changed since it was read.
    #[error("somebody else manages a part of it, or has just changed it")]
    Conflict(#[source] Box<kube::Error>),
    /// There is no such object.
    #[error("there is none")]
    Missing,
    /// The API server refuses the object, or fails at it.
    #[error("the API server refuses it, or fails with it")]
    Refused(#[source] Box<kube::Error>),
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        let code = match &error {
            kube::Error::Api(status) => status.code,
            // A request or answer that cannot be encoded concerns one object only.
            kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) => 500,
            _ => 0,
        };
        match code {
            401 | 403 => Self::Forbidden(error.into()),
            404 => Self::Missing,
            409 => Self::Conflict(error.into()),
            // Too many requests, a proxy without a server, or no answer at all.
            0 | 429 | 502 | 503 | 504 => Self::Away(Some(error.into())),
            // A webhook that is down, say. It concerns one object only.
            _ => Self::Refused(error.into()),
        }
    }
}

impl ApiError {
    /// Its name in the metrics.
    fn outcome(&self) -> &'static str {
        match self {
            Self::Away(_) => "away",
            Self::Forbidden(_) => "forbidden",
            Self::Conflict(_) => "conflict",
            Self::Missing => "missing",
            Self::Refused(_) => "refused",
        }
    }
}

/// The API server.
pub(super) struct Server {
    pub(super) client: Client,
    pace: Mutex<Bucket>,
    calls: Arc<Calls>,
    away: AtomicBool,
    /// Notified when it answers again.
    back: Notify,
    /// The watches whose failure was logged.
    logged: Mutex<BTreeSet<&'static str>>,
}

impl Server {
    /// The API server that the operator chose. No request is sent yet.
    ///
    /// # Errors
    /// The kubeconfig or the pod's environment cannot be read or used.
    pub(super) async fn new(at: &ApiAt, calls: Arc<Calls>) -> anyhow::Result<Self> {
        let mut config = match at {
            ApiAt::InCluster => kube::Config::incluster().context(
                "the API of Kubernetes cannot be found (kubernetes = in-cluster); is this a pod?",
            )?,
            ApiAt::Kubeconfig(path) => {
                let cannot =
                    || format!("the kubeconfig {} cannot be used (--kubernetes)", path.display());
                let file = kube::config::Kubeconfig::read_from(path).with_context(cannot)?;
                kube::Config::from_custom_kubeconfig(
                    file,
                    &kube::config::KubeConfigOptions::default(),
                )
                .await
                .with_context(cannot)?
            }
        };
        limit(&mut config);
        let client =
            Client::try_from(config).context("no client for the API of Kubernetes can be made")?;
        Ok(Self::with(client, calls))
    }

    pub(super) fn with(client: Client, calls: Arc<Calls>) -> Self {
        Self {
            client,
            pace: Mutex::default(),
            calls,
            away: AtomicBool::new(false),
            back: Notify::new(),
            logged: Mutex::default(),
        }
    }

    /// Sends a request when it is its turn. `what` is its name in the metrics.
    ///
    /// # Errors
    /// There is no answer in time, or the API server refuses; see [`ApiError`].
    pub(super) async fn ask<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = Result<T, kube::Error>> + Send,
    ) -> Result<T, ApiError> {
        let wait = self.pace.lock().take(RATE, Instant::now());
        tokio::time::sleep(wait).await;
        let begun = Instant::now();
        let answered = tokio::time::timeout(PATIENCE, request).await;
        let answered = answered
            .map_err(|_| ApiError::Away(None))
            .and_then(|answer| answer.map_err(ApiError::from));
        let outcome = answered.as_ref().err().map_or("ok", ApiError::outcome);
        self.calls.metrics.api_request(what, outcome, begun.elapsed());
        match &answered {
            Err(error @ ApiError::Away(_)) => self.missed(error),
            _ => self.reached(),
        }
        answered
    }

    /// Reads all objects, page by page, and keeps the results of `keep`.
    ///
    /// # Errors
    /// A page cannot be had, as for [`Server::ask`].
    pub(super) async fn list<K, T>(
        &self,
        what: &'static str,
        api: &Api<K>,
        keep: impl Fn(K) -> Option<T>,
    ) -> Result<Vec<T>, ApiError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut kept = Vec::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let listed = self.ask(what, api.list(&page)).await?;
            kept.extend(listed.items.into_iter().filter_map(&keep));
            match listed.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(kept),
            }
        }
    }

    /// A watch failed. The same failure is logged once.
    pub(super) fn watch_failed(&self, what: &'static str, error: watcher::Error) {
        let (watcher::Error::InitialListFailed(failed) | watcher::Error::WatchStartFailed(failed)) =
            error
        else {
            // Watches end now and then, and begin again.
            debug!(what, error = chain(&error), "a watch ended");
            return;
        };
        let error = ApiError::from(failed);
        self.calls.metrics.api_request(what, error.outcome(), Duration::ZERO);
        match &error {
            ApiError::Away(_) => self.missed(&error),
            _ if self.logged.lock().insert(what) => {
                warn!(
                    what,
                    error = chain(&error),
                    "cannot be watched in Kubernetes; it is tried again, later and later"
                );
            }
            _ => debug!(what, error = chain(&error), "still cannot be watched in Kubernetes"),
        }
    }

    /// A watch brought an event.
    pub(super) fn watched(&self, what: &'static str) {
        self.logged.lock().remove(what);
        self.reached();
    }

    /// The API server answers.
    fn reached(&self) {
        if self.away.swap(false, Ordering::Relaxed) {
            info!("the API server of Kubernetes answers again");
            self.back.notify_one();
        }
    }

    /// Waits until it answers again after an outage.
    pub(super) async fn back(&self) {
        self.back.notified().await;
    }

    fn missed(&self, error: &ApiError) {
        if !self.away.swap(true, Ordering::Relaxed) {
            warn!(error = chain(error), "Kubernetes is away");
        }
    }
}

/// Every request times out; callers retry.
fn limit(config: &mut kube::Config) {
    config.default_retry = false;
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
}

#[cfg(test)]
impl Server {
    /// A server that no request reaches.
    pub(super) fn nowhere() -> Self {
        let config = kube::Config::new(http::Uri::from_static("http://127.0.0.1:9"));
        Self::with(Client::try_from(config).unwrap(), Arc::default())
    }

    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    pub(super) fn logged(&self) -> Vec<&'static str> {
        self.logged.lock().iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::ListParams;
    use kube::core::Status;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_says_nothing_does_not_hold_a_list_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let mut config = kube::Config::new(at.parse().unwrap());
        limit(&mut config);
        let nodes: Api<Node> = Api::all(Client::try_from(config).unwrap());
        let all = ListParams::default();
        let listing = nodes.list(&all);
        let (listed, _silent) =
            tokio::join!(tokio::time::timeout(SILENCE * 3, listing), listener.accept());
        assert!(listed.expect("it has no end").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_burst_requests_come_evenly() {
        let mut pace = Bucket::default();
        let now = Instant::now();
        assert!((0..40).all(|_| pace.take(RATE, now).is_zero()));
        assert_eq!(pace.take(RATE, now), Duration::from_millis(50));
        assert_eq!(pace.take(RATE, now), Duration::from_millis(100));
        assert!(pace.take(RATE, now + Duration::from_secs(60)).is_zero());
    }

    #[test]
    fn an_answer_says_whether_to_wait_or_to_look() {
        let of = |code: u16| {
            let status = Status { code, ..Status::default() };
            ApiError::from(kube::Error::Api(Box::new(status))).outcome()
        };
        for (code, outcome) in [
            (403, "forbidden"),
            (401, "forbidden"),
            (404, "missing"),
            (409, "conflict"),
            (422, "refused"),
            (429, "away"),
            (500, "refused"),
            (502, "away"),
            (503, "away"),
            (504, "away"),
        ] {
            assert_eq!(of(code), outcome, "{code}");
        }
        let lost = std::io::Error::other("x");
        assert_eq!(ApiError::from(kube::Error::ReadEvents(lost)).outcome(), "away");
    }
}
