//! The links that edges hold to this cloud: one for each node, the newest wins.
//!
//! HTTP/2 on a link starts with its first call, since most edges are idle most of the time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use proto::error::{Error, chain};
use proto::hello::{Hello, Message, MessageError, PROTOCOL, Refused, Welcome};
use proto::identity::NodeName;
use proto::link::{Event, HANDSHAKE, Io, Kind, Link, LinkError};
use proto::stop::Tasks;
use proto::upstream::{self, MAX_PASSING, Upstream};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc, oneshot};
use tracing::{info, warn};

use crate::known::Known;

/// Calls on their way on one link; more are refused, since each holds its request in memory.
const MAX_CALLS: usize = 2048;

type Want = (Kind, oneshot::Sender<Result<Io, LinkError>>);

/// All links, by node.
pub struct Links {
    by_node: StdMutex<HashMap<NodeName, Arc<Handle>>>,
    /// Those whose call was on a link that is lost.
    waiting: StdMutex<HashMap<NodeName, Vec<oneshot::Sender<Arc<Handle>>>>>,
    known: Arc<Known>,
    tasks: Tasks,
}

/// What a call needs of a link.
pub struct Handle {
    calls: Mutex<Option<Upstream>>,
    bulk: Mutex<Option<Upstream>>,
    want: mpsc::Sender<Want>,
    room: Semaphore,
    passing: Arc<Semaphore>,
    /// Stopped when the link ends; what runs on the link is part of it.
    tasks: Tasks,
}

impl Links {
    /// No links yet. Their tasks are part of `tasks`.
    pub fn new(known: Arc<Known>, tasks: Tasks) -> Self {
        Self { by_node: StdMutex::default(), waiting: StdMutex::default(), known, tasks }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<NodeName, Vec<oneshot::Sender<Arc<Handle>>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<NodeName, Arc<Handle>>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link of a node, if it has one.
    pub fn now(&self, node: &NodeName) -> Option<Arc<Handle>> {
        self.map().get(node).cloned()
    }

    /// Waits until the node has another link than `lost`. None if this cloud stops before.
    pub async fn next(&self, node: &NodeName, lost: &Arc<Handle>) -> Option<Arc<Handle>> {
        let linked = {
            let map = self.map();
            if let Some(other) = map.get(node).filter(|link| !Arc::ptr_eq(link, lost)) {
                return Some(other.clone());
            }
            let (linked, next) = oneshot::channel();
            // Under the map's lock, so that no link comes in between.
            let mut waiting = self.waiting();
            let of_node = waiting.entry(node.clone()).or_default();
            of_node.retain(|waiting| !waiting.is_closed());
            of_node.push(linked);
            next
        };
        tokio::select! { link = linked => link.ok(), () = self.tasks.stopped() => None }
    }

    /// Makes this the link of a node; gives back the one that it replaces.
    fn put(&self, node: &NodeName, handle: &Arc<Handle>) -> Option<Arc<Handle>> {
        let older = self.map().insert(node.clone(), handle.clone());
        for waiting in self.waiting().remove(node).unwrap_or_default() {
            // Who left does not want it any more.
            let _ = waiting.send(handle.clone());
        }
        older
    }

    /// Runs a link whose other end is proved to be `node`, until it ends.
    pub async fn run(&self, node: NodeName, mut link: Link) {
        let hello = match tokio::time::timeout(HANDSHAKE, link.next()).await {
            Ok(Event::Message(Message::Hello(hello))) => hello,
            Ok(Event::Closed(LinkError::Message(error))) => return refuse(&node, link, &error).await,
            Ok(Event::Closed(error)) => {
                return warn!(%node, error = %chain(&error), "a link ended before its hello");
            }
            Ok(_) => return link.close("the first message on a link is a hello").await,
            Err(_) => return link.close("no hello came in time").await,
        };
        self.greet(&node, &hello);
        self.known.learn_drivers(&node, hello.drivers);
        let welcome = Welcome { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").into() };
        if let Err(error) = link.send(&Message::Welcome(welcome)).await {
            return warn!(%node, error = %chain(&error), "a link ended at its welcome");
        }
        let (want, wanted) = mpsc::channel(16);
        let tasks = self.tasks.child();
        let handle = Arc::new(Handle::new(want, tasks));
        if let Some(older) = self.put(&node, &handle) {
            info!(%node, "a newer link replaces the older one");
            older.tasks.stop();
        }
        info!(%node, "linked");
        self.drive(&node, link, &handle, wanted).await;
        handle.tasks.stop();
        let mut map = self.map();
        if map.get(&node).is_some_and(|current| Arc::ptr_eq(current, &handle)) {
            map.remove(&node);
        }
    }

    fn greet(&self, node: &NodeName, hello: &Hello) {
        let drivers: Vec<_> = hello.drivers.iter().map(|driver| driver.name.to_string()).collect();
        info!(%node, version = hello.version, drivers = drivers.join(" "), "hello");
        if hello.node != *node {
            warn!(%node, says = %hello.node, "an edge calls itself otherwise than its certificate; that counts");
        }
    }

    /// Until the link ends: learns what the edge says, and opens the byte streams that calls want.
    async fn drive(
        &self,
        node: &NodeName,
        mut link: Link,
        handle: &Handle,
        mut wanted: mpsc::Receiver<Want>,
    ) {
        let mut opening = FuturesUnordered::new();
        loop {
            tokio::select! {
                event = link.next() => match event {
                    Event::Message(Message::Drivers(drivers)) => {
                        info!(%node, "drivers changed");
                        self.known.learn_drivers(node, drivers);
                    }
                    Event::Message(_) | Event::Opened(..) => {
                        warn!(%node, "the edge broke the rules of the link: it may only tell of its drivers");
                        return link.close("an edge may only tell of its drivers").await;
                    }
                    Event::Closed(error) => return info!(%node, reason = %chain(&error), "unlinked"),
                },
                Some((kind, answer)) = wanted.recv() => {
                    let opened = link.open(kind);
                    opening.push(async move { drop(answer.send(opened.await)) });
                }
                Some(()) = opening.next() => {}
                () = handle.tasks.stopped() => {
                    info!(%node, "unlinked by csi-cloud");
                    let reason = if self.tasks.is_stopped() { "csi-cloud is stopping" } else { "replaced by a newer link" };
                    return link.close(reason).await;
                }
            }
        }
    }
}

impl Handle {
    fn new(want: mpsc::Sender<Want>, tasks: Tasks) -> Self {
        let (room, passing) = (Semaphore::new(MAX_CALLS), Arc::new(Semaphore::new(MAX_PASSING)));
        Self { calls: Mutex::default(), bulk: Mutex::default(), want, room, passing, tasks }
    }

    /// Whether the link still holds.
    pub fn is_up(&self) -> bool {
        !self.tasks.is_stopped()
    }

    /// Room for one more call.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn room(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.room.try_acquire().map_err(|_| Error::Full(MAX_CALLS))
    }

    /// Room for one more stream that is passed on as it arrives.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn passing(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.passing.clone().try_acquire_owned().map_err(|_| Error::Full(MAX_PASSING))
    }

    /// The connection for this kind of calls. Who comes first begins it, the others wait for that.
    ///
    /// # Errors
    /// The link ended, or opens no byte stream.
    pub async fn upstream(&self, kind: Kind) -> Result<Upstream, LinkError> {
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

async fn refuse(node: &NodeName, mut link: Link, error: &MessageError) {
    let reason = chain(error);
    warn!(%node, reason, "refused a link");
    let refused = Refused { protocol: PROTOCOL, reason: reason.clone() };
    if link.send(&Message::Refused(refused)).await.is_ok() {
        link.close(&reason).await;
    }
}
