//! The links that edges hold to this cloud: one for each node, the newest wins.
//!
//! HTTP/2 on a link starts with its first call, since most edges are idle most of the time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use proto::error::{Error, chain};
use proto::identity::{DriverName, NodeName};
use proto::link::{Io, Kind, LinkError};
use proto::stop::Tasks;
use proto::upstream::{self, Upstream};
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use self::drive::backoff_cap;
use crate::known::Known;

mod drive;

type Want = (Kind, oneshot::Sender<Result<Io, LinkError>>);

/// All links, by node.
pub struct Links {
    by_node: StdMutex<HashMap<NodeName, Arc<Handle>>>,
    known: Arc<Known>,
    tasks: Tasks,
    /// Told to stop when edges are to go elsewhere.
    draining: Tasks,
    /// The backoff that edges were told last; it grows with the largest fleet seen.
    backoff_cap: watch::Sender<Duration>,
}

/// What a call needs of a link.
struct Handle {
    calls: Mutex<Option<Upstream>>,
    bulk: Mutex<Option<Upstream>>,
    want: mpsc::Sender<Want>,
    /// Stopped when the link ends; what runs on the link is part of it.
    tasks: Tasks,
}

impl Links {
    /// No links yet. Their tasks are part of `tasks`.
    pub fn new(known: Arc<Known>, tasks: Tasks) -> Self {
        let (draining, backoff_cap) = (Tasks::default(), watch::Sender::new(backoff_cap(0)));
        Self { by_node: StdMutex::default(), known, tasks, draining, backoff_cap }
    }

    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<NodeName, Arc<Handle>>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The HTTP/2 connection to a node, begun if this is its first call.
    ///
    /// # Errors
    /// The node has no link, or lost it just now.
    pub async fn upstream(
        &self,
        node: &NodeName,
        driver: &DriverName,
        kind: Kind,
    ) -> Result<Upstream, Error> {
        let handle = self.map().get(node).cloned();
        let handle = handle.ok_or_else(|| Error::NotLinked { node: node.clone(), driver: driver.clone() })?;
        let lost = |source: LinkError| Error::LinkLost { node: node.clone(), source: source.into() };
        handle.sender(kind).await.map_err(lost)
    }

    /// Tells all edges to go elsewhere. No link is taken any more; those that are there go on.
    pub fn drain(&self) {
        self.draining.stop();
    }

    /// Ends when the links are drained.
    pub async fn drained(&self) {
        self.draining.stopped().await;
    }

    /// Whether the links are drained.
    pub fn is_drained(&self) -> bool {
        self.draining.is_stopped()
    }
}

impl Handle {
    /// The connection for this kind of calls. Who comes first begins it, the others wait for that.
    async fn sender(&self, kind: Kind) -> Result<Upstream, LinkError> {
        let mut slot = if kind == Kind::Calls { self.calls.lock().await } else { self.bulk.lock().await };
        if let Some(sender) = slot.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let gone = || LinkError::Closed("it ended before the call was sent".into());
        let (answer, opened) = oneshot::channel();
        self.want.send((kind, answer)).await.map_err(|_| gone())?;
        let io = opened.await.map_err(|_| gone())??;
        let begun = upstream::connect(io).await.map_err(|error| LinkError::Closed(chain(&error)));
        let (sender, connection) = begun?;
        self.tasks.spawn_until_stop("link http2", async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %chain(&error), "HTTP/2 on a link ended");
            }
        });
        *slot = Some(sender.clone());
        Ok(sender)
    }
}
