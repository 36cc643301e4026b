//! One link's life at the cloud: hello and welcome, what the edge says and what calls want of it, its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_channel::mpsc;
use futures_util::StreamExt;
use proto::control::hello::{Hello, Message, PROTOCOL, Refused, Welcome};
use proto::control::lease::Request;
use proto::host::chain;
use proto::link::{Event, HANDSHAKE, Link, LinkError};
use proto::names::NodeName;
use tokio::sync::watch;
use tracing::{info, warn};

use super::lease_queue::LeaseQueue;
use super::links::{Handle, Links, Peer, Told, Want, backoff_cap};
use crate::state::ingest;

/// What others want of a link.
struct Asked {
    wanted: mpsc::Receiver<Want>,
    told: watch::Receiver<Told>,
}

/// What an edge said.
enum Heard {
    Drivers,
    Own(Request),
    Leaving,
    Broken(String),
    Closed(LinkError),
}

impl Links {
    /// Runs a link whose other end is proved to be `node`, and was seen at `from`, until it ends.
    pub async fn run(&self, node: NodeName, link: Link, from: Option<SocketAddr>) {
        // Boxed, as all that is seldom: what idle links wait in has no room for it.
        let Some((link, handle, asked)) = Box::pin(self.begin(&node, link, from)).await else {
            return;
        };
        self.drive(&node, link, &handle, asked).await;
        handle.tasks.stop();
        self.remove(&node, &handle);
        handle.tasks.ended().await;
    }

    /// Hello and welcome; none if it does not come to a link.
    async fn begin(
        &self,
        node: &NodeName,
        mut link: Link,
        from: Option<SocketAddr>,
    ) -> Option<(Link, Arc<Handle>, Asked)> {
        let hello = match self.hello(node, &mut link).await {
            Ok(hello) => hello,
            Err(Some(reason)) => {
                refuse(node, link, &reason).await;
                return None;
            }
            Err(None) => return None,
        };
        let (transport, version) = (link.transport(), hello.version.into());
        let peer = Peer { transport, address: from, version, leases: hello.leases };
        if let Err(error) = ingest::drivers(&self.store, node, hello.drivers).await {
            refuse(node, link, &chain(&error)).await;
            return None;
        }
        self.look();
        let told = self.told.subscribe();
        if let Err(error) = link.send(&self.welcome(node)).await {
            warn!(%node, error = %chain(&error), "a link ended at its welcome");
            return None;
        }
        // Two are wanted at a time, one of each kind. Not tokio's channel, which takes 1.1 KiB of each idle link.
        let (want, wanted) = mpsc::channel(2);
        let handle = Arc::new(Handle::new(peer, want, self.tasks.group()));
        self.enter(node, &handle);
        Some((link, handle, Asked { wanted, told }))
    }

    /// The hello of a node that may link; else why it may not, and none if there is nobody any more to hear it.
    async fn hello(&self, node: &NodeName, link: &mut Link) -> Result<Hello, Option<String>> {
        let hello = match tokio::time::timeout(HANDSHAKE, link.next()).await {
            Ok(Event::Message(Message::Hello(hello))) => hello,
            Ok(Event::Closed(LinkError::Message(error))) => return Err(Some(chain(&error))),
            Ok(Event::Closed(error)) => {
                warn!(%node, error = %chain(&error), "a link ended before its hello");
                return Err(None);
            }
            Ok(_) => return Err(Some("the first message on a link is a hello".into())),
            Err(_) => return Err(Some("no hello came in time".into())),
        };
        self.greet(node, &hello);
        if self.is_drained() {
            return Err(Some("csi-cloud is stopping; dial it elsewhere, or later".into()));
        }
        if self.store.read(|state| state.is_removed(node)) {
            let admit = format!("`csi-cloud node admit {node}` lets it in again");
            return Err(Some(format!("an operator removed this node; {admit}")));
        }
        Ok(hello)
    }

    /// Makes this the node's link.
    pub(crate) fn enter(&self, node: &NodeName, handle: &Arc<Handle>) {
        if let Some(older) = self.put(node, handle) {
            info!(%node, "a newer link replaces the older one");
            older.tasks.stop();
        }
        let cap = backoff_cap(self.map().len());
        self.told.send_if_modified(|told| {
            let larger = cap > told.backoff_cap;
            told.backoff_cap = cap.max(told.backoff_cap);
            larger
        });
        info!(%node, "linked");
    }

    /// Takes a link out, so that no call is begun on it, if it is still its node's.
    pub(crate) fn remove(&self, node: &NodeName, handle: &Arc<Handle>) {
        let mut map = self.map();
        if map.get(node).is_some_and(|current| Arc::ptr_eq(current, handle)) {
            map.remove(node);
            handle.in_use.store(false, Ordering::SeqCst);
            let mut lost = self.lost.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            lost.insert(node.clone(), tokio::time::Instant::now());
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
    async fn drive(&self, node: &NodeName, mut link: Link, handle: &Arc<Handle>, mut asked: Asked) {
        let (mut told_to_go, mut leaving) = (false, false);
        let mut owners = LeaseQueue::new(self, node, handle);
        loop {
            // What the edge says comes last, so that it keeps nothing else waiting however much that is.
            let send = tokio::select! {
                biased;
                () = handle.tasks.stopped() => {
                    info!(%node, "unlinked by csi-cloud");
                    let reason = if self.tasks.is_stopped() { "csi-cloud is stopping" } else { "replaced by a newer link" };
                    return link.close(reason).await;
                }
                () = self.drained(), if !told_to_go => {
                    told_to_go = true;
                    Some(Message::Leave)
                }
                Some((kind, answer)) = asked.wanted.next() => {
                    let opened = link.open(kind);
                    let opening = async move { drop(answer.send(opened.await)) };
                    handle.tasks.spawn_until_stop("opening", opening);
                    None
                }
                answer = owners.next() => Some(Message::LeaseReply(answer)),
                Ok(()) = asked.told.changed() => Some(self.welcome(node)),
                () = handle.tasks.ended(), if leaving => {
                    info!(%node, "unlinked, as the edge wished");
                    return link.close("the last call is answered").await;
                }
                event = link.next() => match Box::pin(self.hear(node, event)).await {
                    Heard::Drivers => Some(self.welcome(node)),
                    Heard::Own(own) => match owners.push(own) {
                        Ok(()) => None,
                        Err(reason) => return link.close(reason).await,
                    },
                    Heard::Leaving => {
                        leaving = true;
                        self.remove(node, handle);
                        Some(Message::Leave)
                    }
                    Heard::Broken(reason) => {
                        warn!(%node, reason, "the edge broke the rules of the link; it is closed");
                        return link.close(&reason).await;
                    }
                    // Over WebSocket its last byte stream may be seen to end first.
                    Heard::Closed(_) if leaving => return info!(%node, "unlinked, as the edge wished"),
                    Heard::Closed(error) => return info!(%node, reason = %chain(&error), "unlinked"),
                },
            };
            // If it cannot be said, the link is gone, and says so next.
            if let Some(message) = send {
                let _ = link.send(&message).await;
            }
        }
    }

    /// What an event on a link comes to.
    async fn hear(&self, node: &NodeName, event: Event) -> Heard {
        match event {
            Event::Message(Message::Drivers(drivers)) => {
                info!(%node, "drivers changed");
                match ingest::drivers(&self.store, node, drivers).await {
                    Ok(()) => {
                        self.look();
                        Heard::Drivers
                    }
                    Err(error) => Heard::Broken(chain(&error)),
                }
            }
            Event::Message(Message::Lease(own)) => Heard::Own(own),
            Event::Message(Message::Leaving) => {
                info!(%node, "the edge lets this link go; no call is begun on it any more");
                Heard::Leaving
            }
            Event::Message(_) | Event::Opened(..) => Heard::Broken(
                "an edge may only tell of its drivers and volumes, and that it leaves".into(),
            ),
            Event::Closed(LinkError::Message(error)) => Heard::Broken(chain(&error)),
            Event::Closed(error) => Heard::Closed(error),
        }
    }

    /// Looks whether what a node said has changed a driver's scope for all.
    pub(super) fn look(&self) {
        let mut scopes = self.scopes.all(&self.store);
        self.told.send_if_modified(|told| {
            std::mem::swap(&mut told.scopes, &mut scopes);
            told.scopes != scopes
        });
    }

    /// What a node is told at first, and again when something of it has changed.
    fn welcome(&self, node: &NodeName) -> Message {
        Message::Welcome(Welcome {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            backoff_cap_ms: u32::try_from(self.told.borrow().backoff_cap.as_millis()).ok(),
            scopes: self.scopes.at(node, &self.store),
            leases: true,
        })
    }
}

async fn refuse(node: &NodeName, mut link: Link, reason: &str) {
    warn!(%node, reason, "refused a link");
    let refused = Refused { protocol: PROTOCOL, reason: reason.into() };
    if link.send(&Message::Refused(refused)).await.is_ok() {
        link.close(reason).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::store::memory::Memory;
    use crate::state::store::writer::Store;
    use proto::host::tasks::Tasks;

    #[test]
    fn a_larger_fleet_takes_longer_to_come_back() {
        for (linked, seconds) in
            [(0, 2), (1_999, 2), (5_000, 4), (9_000, 8), (20_000, 16), (usize::MAX, 16)]
        {
            assert_eq!(backoff_cap(linked), Duration::from_secs(seconds), "{linked}");
        }
    }

    #[tokio::test]
    async fn edges_are_told_again_when_the_fleet_has_grown() {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let links = Links::new(store, tasks.clone(), |_, _, _, _| Box::pin(async { None }));
        let told = links.told.subscribe();
        for name in 0..4_000 {
            let handle = Arc::new(Handle::new(Peer::default(), mpsc::channel(1).0, tasks.child()));
            assert!(!told.has_changed().unwrap(), "with {name} links");
            links.enter(&format!("n{name}").parse().unwrap(), &handle);
        }
        assert_eq!(told.borrow().backoff_cap, Duration::from_secs(4));
        assert!(told.has_changed().unwrap());
    }

    #[tokio::test]
    async fn a_link_that_was_replaced_does_not_take_its_successor_out() {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let links = Links::new(store, tasks.clone(), |_, _, _, _| Box::pin(async { None }));
        let node: NodeName = "n1".parse().unwrap();
        let [older, newer] = [(); 2]
            .map(|()| Arc::new(Handle::new(Peer::default(), mpsc::channel(1).0, tasks.child())));
        links.enter(&node, &older);
        links.enter(&node, &newer);
        assert!(!older.is_up() && newer.is_up());
        links.remove(&node, &older);
        assert!(links.now(&node).is_some_and(|now| Arc::ptr_eq(&now, &newer)));
        links.remove(&node, &newer);
        assert!(links.now(&node).is_none());
    }
}
