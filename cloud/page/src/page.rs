//! All that requests share: the settings, the guard, the hub and the way to csi-cloud.
//! It is made once at the start.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use maud::Markup;
use proto::host::tasks::Tasks;
use tokio::sync::Semaphore;

use crate::access::guard::{Guard, Pass, TooMany};
use crate::connection::Peer;
use crate::hub::Hub;

/// Pages that watch.
const WATCHERS: usize = 200;
/// Pages that are made at a time; those of claims ask Kubernetes.
const MAKING: usize = 16;

type ClientCa = Box<dyn Fn() -> Arc<BTreeSet<String>> + Send + Sync>;

/// All that requests share.
pub(crate) struct Page {
    pub(crate) hub: Arc<Hub>,
    pub(crate) guard: Guard,
    pub(crate) watchers: Arc<Semaphore>,
    pub(crate) making: Semaphore,
    pub(crate) tasks: Tasks,
    client_ca: ClientCa,
}

impl Page {
    /// The page of the fleet that `hub` keeps.
    pub(crate) fn new(
        hub: Arc<Hub>,
        guard: Guard,
        client_ca: impl Fn() -> Arc<BTreeSet<String>> + Send + Sync + 'static,
        tasks: Tasks,
    ) -> Self {
        let watchers = Arc::new(Semaphore::new(WATCHERS));
        let client_ca = Box::new(client_ca);
        Self { hub, guard, client_ca, watchers, making: Semaphore::new(MAKING), tasks }
    }

    /// Why a request is let in; `None` if it is not.
    ///
    /// # Errors
    /// A token is wrong, and so were too many before.
    pub(crate) fn pass(&self, peer: &Peer, headers: &HeaderMap) -> Result<Option<Pass>, TooMany> {
        // The CA of the nodes lets nobody in, or each node could see the page.
        let is_person = peer.has_certificate && !self.hub.is_ca_of_nodes((self.client_ca)().iter());
        self.guard.pass(peer.address, is_person, headers)
    }
}

/// An answer with a page.
pub(crate) fn html(status: StatusCode, markup: Markup) -> Response {
    let content = [(CONTENT_TYPE, "text/html; charset=utf-8")];
    (status, content, markup.into_string()).into_response()
}
