//! The task of one link: hello and welcome, the edge's messages, the byte streams that calls want,
//! and the end.
//!
//! A link's task owns the link. Everybody else uses its [`Handle`].

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use futures_channel::mpsc;
use futures_util::StreamExt;
use proto::control::certificate::{NotRenewed, Renew};
use proto::control::hello::{Driver, Hello, Message};
use proto::control::not_taken::NotTaken;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::link::{Event, HANDSHAKE, Link, LinkError};
use proto::names::NodeName;
use proto::names::certificate::{Identity, Subject};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::metadata::sending::Sending;
use crate::metadata::view::Wanted;
use crate::nodes::broadcast::Broadcast;
use crate::nodes::cordon;
use crate::nodes::cordon::CORDONED;
use crate::nodes::driver_health::ReportedHealth;
use crate::nodes::greetings::Greeting;
use crate::nodes::handle::{Handle, Peer, Want};
use crate::nodes::labelled_report::LabelledReport;
use crate::nodes::lease_queue::LeaseQueue;
use crate::nodes::links::Links;
use crate::nodes::machine::{self, OTHER_MACHINE};
use crate::nodes::refusal::{Exclusion, NoHello, end_without_hello, refuse};
use crate::pki::enrolment::EnrolmentError;
use crate::pki::issuer::CaTag;
use crate::state::authority::Unserved;
use crate::state::{ingest, older_store, report};

const STOPPING: &str = "csi-cloud is stopping; dial it elsewhere, or later";

/// Runs a link of this authenticated peer, dialed from `from`, until it ends.
///
/// The future holds what an idle link needs and no more. The peer is boxed, since an argument
/// counts twice. What the greeting found is moved as a whole, so that it counts once.
pub async fn run(
    links: &Links,
    peer: Box<Identity<NodeName>>,
    link: Link,
    from: Option<SocketAddr>,
) {
    // Boxed like all rare steps, so that the future of an idle link stays small.
    let greeted = Box::pin(greet(links, &peer, link, from)).await;
    let Some((handle, established)) = greeted else { return };
    let entered = Entered { links, node: &peer.name, handle: &handle };
    {
        let mut task = established.task(links, &peer, &handle);
        let end = task.drive().await;
        // No call begins on a link that is being closed.
        drop(entered);
        if let End::Close(reason) = end {
            task.link.close(&reason).await;
        }
    }
    handle.tasks.stop();
    handle.tasks.ended().await;
}

/// The place of a link as its node's. It is left even if the link's task panics.
struct Entered<'a> {
    links: &'a Links,
    node: &'a NodeName,
    handle: &'a Arc<Handle>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.links.remove(self.node, self.handle);
        if std::thread::panicking() {
            self.handle.tasks.stop();
        }
    }
}

/// A link after its welcome.
struct Established {
    link: Link,
    wanted: mpsc::Receiver<Want>,
    broadcasts: watch::Receiver<Broadcast>,
    labelled: LabelledReport,
    metadata: Sending,
}

impl Established {
    fn task<'a>(
        self,
        links: &'a Links,
        identity: &'a Identity<NodeName>,
        handle: &'a Arc<Handle>,
    ) -> LinkTask<'a> {
        let Self { link, wanted, broadcasts, labelled, metadata } = self;
        let node = &identity.name;
        LinkTask {
            links,
            identity,
            node,
            handle,
            link,
            wanted,
            broadcasts,
            labelled,
            metadata,
            leases: LeaseQueue::new(links, node, handle),
            leave_sent: false,
            leaving: false,
        }
    }
}

/// Hello and welcome; none if the link is refused or lost, or loses its place meanwhile.
async fn greet(
    links: &Links,
    identity: &Identity<NodeName>,
    link: Link,
    from: Option<SocketAddr>,
) -> Option<(Arc<Handle>, Established)> {
    let node = &identity.name;
    let greeting = links.greetings.begin(node);
    let (handle, established) = tokio::select! {
        biased;
        () = greeting.ended() => {
            peer_info!(
                LogPeer::Node(node), %node,
                "a link lost its place before its welcome, to a newer one or a removal"
            );
            return None;
        }
        established = establish(links, identity, link, from, &greeting) => established?,
    };
    // A removal or revocation is durable before it ends greetings and links, so none is missed.
    if let Some(exclusion) = excluded(links, identity) {
        handle.end(exclusion.why());
    }
    if machine::check(links, node, &handle.peer).is_err() {
        handle.end(OTHER_MACHINE);
    }
    if cordon::check_record(links, node, &handle.peer).is_err() {
        handle.end(CORDONED);
    }
    Some((handle, established))
}

async fn establish(
    links: &Links,
    identity: &Identity<NodeName>,
    mut link: Link,
    from: Option<SocketAddr>,
    greeting: &Greeting,
) -> Option<(Arc<Handle>, Established)> {
    let node = &identity.name;
    if let Some(reason) = refusal(links, identity) {
        refuse(node, link, &reason).await;
        return None;
    }
    let mut hello = match hello(links, identity, &mut link, from).await {
        Ok(hello) => hello,
        Err(why) => {
            end_without_hello(links, node, link, why).await;
            return None;
        }
    };
    let peer = peer(identity, &link, from, &hello);
    if let Err(reason) = take_place(links, node, &peer, &mut link, greeting).await {
        refuse(node, link, &reason).await;
        return None;
    }
    hello.drivers = match report::check(links.store(), node, hello.drivers) {
        Ok(drivers) => drivers,
        Err(over) => {
            refuse(node, link, &chain(&over)).await;
            return None;
        }
    };
    let labelled = LabelledReport::new(links.authority(), node, &hello.drivers);
    let (position, wanted_metadata) = (hello.metadata, Wanted::new(hello.takes_node));
    let health = ReportedHealth::default();
    health.set(&hello.drivers, |driver| links.authority().serves(driver));
    let unserved = match record(links, identity, &peer, hello).await {
        Ok(unserved) => unserved,
        Err(reason) => {
            refuse(node, link, &reason).await;
            return None;
        }
    };
    links.refresh_scopes();
    let broadcasts = links.broadcasts();
    let published = links.topology_published_at(node);
    let welcome = links.welcome(node, &unserved, peer.ca, link.keep_alive());
    if let Err(error) = link.send(&Message::Welcome(welcome)).await {
        peer_warn!(
            LogPeer::Node(node), %node, error = %chain(&error), "a link ended at its welcome"
        );
        return None;
    }
    // Room for one byte stream of each kind. tokio's channel would take 1.1 KiB of each idle link.
    let (want, wanted) = mpsc::channel(2);
    let handle = Handle::new(peer, want, links.tasks().group()).expiring(link.expires());
    let handle = handle.sharing(links.connections().clone(), link.reopens_calls());
    let handle = Arc::new(handle.with_health(health));
    handle.set_unserved(unserved);
    links.enter(node, &handle);
    if links.topology_published_at(node) != published {
        // It changed when this was not yet the node's link.
        handle.news.notify_one();
    }
    let metadata = Sending::new(links.metadata(), node, position, wanted_metadata);
    Some((handle, Established { link, wanted, broadcasts, labelled, metadata }))
}

/// Takes the place of the node's other links that are not welcomed yet. Another machine, or an
/// earlier run, is refused before that, so that a copy of the node's disk costs the node nothing.
///
/// # Errors
/// The reason, for the edge.
async fn take_place(
    links: &Links,
    node: &NodeName,
    peer: &Peer,
    link: &mut Link,
    greeting: &Greeting,
) -> Result<(), String> {
    machine::check(links, node, peer)?;
    Box::pin(cordon::check(links, node, peer, link)).await?;
    greeting.hello_received();
    links.take_link(node, peer)
}

/// Records what the hello says. Returns the drivers that have no front.
///
/// # Errors
/// The reason, for the edge.
async fn record(
    links: &Links,
    identity: &Identity<NodeName>,
    peer: &Peer,
    hello: Hello,
) -> Result<Vec<Unserved>, String> {
    let node = &identity.name;
    // A certificate that is in memory only is gone after a crash, and the one before it is used.
    let issue = if hello.certificate_on_disk { identity.serial.issue_number() } else { None };
    machine::record(links, node, peer, issue).await?;
    if let Some(watermark) = &hello.watermark {
        let taken = older_store::take(links.store(), node, watermark).await;
        taken.map_err(|error| chain(&error))?;
    }
    let recorded = ingest::drivers(links.store(), links.authority(), node, hello.drivers).await;
    recorded.map_err(|error| chain(&error))
}

/// The peer, from its hello and from the connection itself.
fn peer(
    identity: &Identity<NodeName>,
    link: &Link,
    from: Option<SocketAddr>,
    hello: &Hello,
) -> Peer {
    let trust = hello.trust.as_deref();
    Peer {
        ca: trust.map(|trust| CaTag::of(trust, identity.issuer.as_ref())),
        transport: link.transport(),
        address: from,
        version: hello.version.as_str().into(),
        expands: hello.expands,
        begins_within: hello.begins_within,
        takes_watermark: hello.takes_watermark,
        answers_challenge: hello.answers_challenge,
        run: Some(hello.run),
        machine: hello.machine,
    }
}

/// The hello of a node that may link.
async fn hello(
    links: &Links,
    identity: &Identity<NodeName>,
    link: &mut Link,
    from: Option<SocketAddr>,
) -> Result<Hello, NoHello> {
    let node = &identity.name;
    let hello = match timeout(HANDSHAKE, link.next()).await {
        Ok(Event::Message(Message::Renew(request))) => {
            // Also of a certificate that has ended, which may do nothing else.
            let answer = renewed(links, identity, &request, from).await;
            let _ = link.send(&answer).await;
            return Err(NoHello::Renewed);
        }
        Ok(Event::Message(Message::Hello(hello))) => hello,
        Ok(Event::Closed(LinkError::Message(error))) => {
            return Err(NoHello::Refused(chain(&error)));
        }
        Ok(Event::Closed(error)) => {
            peer_warn!(
                LogPeer::Node(node), %node, error = %chain(&error), "a link ended before its hello"
            );
            return Err(NoHello::Lost);
        }
        Ok(_) => return Err(NoHello::Refused("the first message on a link is a hello".into())),
        Err(_) => return Err(NoHello::Refused("no hello came in time".into())),
    };
    log_hello(node, &hello);
    if links.is_drained() {
        return Err(NoHello::Refused(STOPPING.into()));
    }
    if identity.validity.ended(SystemTime::now()) {
        links.history.ended(node, identity.validity.not_after);
        let ended = "the certificate of this node has ended, and may only be renewed";
        let advice = "a csi-edge that renews does so by itself; otherwise check both clocks";
        return Err(NoHello::Refused(format!("{ended}; {advice}")));
    }
    if let Some(reason) = refusal(links, identity) {
        return Err(NoHello::Refused(reason));
    }
    tokio::select! {
        biased;
        () = links.drained() => Err(NoHello::Refused(STOPPING.into())),
        checked = links.leading().check_for_edge(hello.awaits_leader) => {
            checked.map(|()| hello).map_err(NoHello::Follows)
        }
    }
}

/// The reason why a node may not link any more, after its handshake began; none if it may.
fn excluded(links: &Links, identity: &Identity<NodeName>) -> Option<Exclusion> {
    let node = &identity.name;
    let subject = Subject::Node(node.clone());
    links.store().read(|state| {
        let is_revoked = state.trust().is_revoked(&subject, &identity.serial);
        if state.is_removed(node) {
            Some(Exclusion::Removed)
        } else {
            is_revoked.then_some(Exclusion::Revoked)
        }
    })
}

/// The same, and what to do.
fn refusal(links: &Links, identity: &Identity<NodeName>) -> Option<String> {
    excluded(links, identity).map(|exclusion| exclusion.refusal(&identity.name))
}

/// The answer to a request for a new certificate, which came from this address.
async fn renewed(
    links: &Links,
    identity: &Identity<NodeName>,
    request: &Renew,
    from: Option<SocketAddr>,
) -> Message {
    let node = &identity.name;
    if let Err(why) = links.leading().check() {
        return Message::NotRenewed(NotRenewed { why: why.to_string() });
    }
    match links.enrolment().renew(identity, request).await {
        Ok(certificate) => Message::Renewed(certificate),
        Err(error) => {
            if let EnrolmentError::Older(_) = error {
                links.history.refused_renewal(node, from);
            }
            let error_chain = chain(&error);
            peer_warn!(
                LogPeer::Node(node), %node, ?from, error = error_chain,
                "refused a new certificate"
            );
            Message::NotRenewed(NotRenewed { why: error.to_string() })
        }
    }
}

fn log_hello(node: &NodeName, hello: &Hello) {
    let drivers: Vec<_> = hello.drivers.iter().map(|driver| driver.name.to_string()).collect();
    peer_info!(
        LogPeer::Node(node), %node, version = hello.version, drivers = drivers.join(" "), "hello"
    );
    if hello.node != *node {
        let says = &hello.node;
        peer_warn!(
            LogPeer::Node(node), %node, %says,
            "an edge calls itself otherwise than its certificate; that counts"
        );
    }
}

/// An established link.
struct LinkTask<'a> {
    links: &'a Links,
    identity: &'a Identity<NodeName>,
    node: &'a NodeName,
    handle: &'a Arc<Handle>,
    link: Link,
    wanted: mpsc::Receiver<Want>,
    broadcasts: watch::Receiver<Broadcast>,
    labelled: LabelledReport,
    metadata: Sending,
    leases: LeaseQueue<'a>,
    /// The edge was asked to leave.
    leave_sent: bool,
    /// The edge has said that it leaves.
    leaving: bool,
}

/// The end of a link.
enum End {
    /// The cloud closes it for this reason.
    Close(Cow<'static, str>),
    /// It is closed already.
    Closed,
}

impl LinkTask<'_> {
    /// Serves the edge and the calls until the link ends.
    async fn drive(&mut self) -> End {
        loop {
            // The edge's messages come last, so that they never delay anything else.
            let send = tokio::select! {
                biased;
                () = self.handle.tasks.stopped() => return self.stopped(),
                () = self.links.drained(), if !self.leave_sent => {
                    self.leave_sent = true;
                    Some(Message::Leave)
                }
                Some(want) = self.wanted.next() => {
                    self.open(want);
                    None
                }
                reply = self.leases.next() => Some(Message::LeaseReply(reply)),
                part = self.metadata.next(), if !self.leaving => Some(Message::Metadata(part)),
                Ok(()) = self.broadcasts.changed() => Some(self.welcome()),
                () = self.handle.news.notified() => Some(self.welcome()),
                drivers = self.labelled.changed() => match Box::pin(self.drivers(drivers)).await {
                    Ok(message) => Some(message),
                    Err(end) => return end,
                },
                () = self.handle.tasks.ended(), if self.leaving => {
                    self.log_unlinked();
                    return End::Close("the last call is answered".into());
                }
                event = self.link.next() => match Box::pin(self.handle_event(event)).await {
                    Ok(message) => message,
                    Err(end) => return end,
                },
            };
            if let Some(message) = send
                && let Some(end) = Box::pin(self.send(message)).await
            {
                return end;
            }
        }
    }

    fn stopped(&self) -> End {
        peer_info!(LogPeer::Node(self.node), node = %self.node, "unlinked by csi-cloud");
        End::Close(self.handle.why().unwrap_or("csi-cloud is stopping").into())
    }

    /// Sends a message; returns how the link ends if the edge does not take it, or is not to.
    async fn send(&mut self, message: Message) -> Option<End> {
        let sent = tokio::select! {
            biased;
            () = self.handle.tasks.stopped() => return Some(self.stopped()),
            sent = self.link.send(&message) => sent,
        };
        match sent {
            Err(error @ LinkError::NotRead) => Some(self.broken(chain(&error))),
            // Any other failure means that the link is lost; its next event says so.
            _ => None,
        }
    }

    /// Opens a byte stream for a call.
    fn open(&mut self, (kind, answer): Want) {
        let opened = self.link.open(kind);
        let opening = async move { drop(answer.send(opened.await)) };
        self.handle.tasks.spawn_until_stop("opening", opening);
    }

    fn welcome(&self) -> Message {
        let (unserved, ca) = (self.handle.unserved(), self.handle.peer.ca);
        Message::Welcome(self.links.welcome(self.node, &unserved, ca, self.link.keep_alive()))
    }

    /// Handles an event of the link; returns the message to send back, if any.
    async fn handle_event(&mut self, event: Event) -> Result<Option<Message>, End> {
        let counts = matches!(event, Event::Message(_)) && !self.is_paced(&event);
        if counts && let Err(over) = self.links.take_message(self.node) {
            return Err(self.broken(over.to_string()));
        }
        match event {
            Event::Message(Message::Drivers(drivers)) => {
                let authority = self.links.authority();
                self.handle.health.set(&drivers, |driver| authority.serves(driver));
                self.drivers(drivers).await.map(Some)
            }
            Event::Message(Message::Lease(request)) => {
                self.leases.push(request).map_err(|reason| End::Close(reason.into()))?;
                Ok(None)
            }
            Event::Message(Message::Renew(request)) => {
                let Peer { machine, address, .. } = self.handle.peer;
                let request = Renew { machine: request.machine.or(machine), ..request };
                Ok(Some(renewed(self.links, self.identity, &request, address).await))
            }
            Event::Message(Message::NotTaken(report)) => {
                self.not_taken(report);
                Ok(None)
            }
            Event::Message(Message::MetadataTaken(position)) => {
                if self.metadata.taken(position) {
                    return Ok(None);
                }
                Err(self.broken("it answered metadata that was not sent".into()))
            }
            Event::Message(Message::Probe(_)) => Ok(None),
            Event::Message(Message::Leaving) => {
                peer_info!(
                    LogPeer::Node(self.node),
                    node = %self.node,
                    "the edge lets this link go; no call is begun on it any more"
                );
                self.leaving = true;
                self.links.remove(self.node, self.handle);
                Ok(Some(Message::Leave))
            }
            Event::Message(_) | Event::Opened(..) => Err(self.broken(
                "an edge may only tell of its drivers and volumes, renew, and say that it leaves"
                    .into(),
            )),
            Event::Closed(LinkError::Message(error)) => Err(self.broken(chain(&error))),
            // Over WebSocket the last byte stream may end first.
            Event::Closed(_) if self.leaving => {
                self.log_unlinked();
                Err(End::Closed)
            }
            Event::Closed(error) => {
                peer_info!(
                    LogPeer::Node(self.node), node = %self.node, reason = %chain(&error), "unlinked"
                );
                Err(End::Closed)
            }
        }
    }

    /// True for a lease request of an edge that waits for earlier answers, and for the answer to
    /// metadata: what we send paces them.
    fn is_paced(&self, event: &Event) -> bool {
        match event {
            Event::Message(Message::Lease(_)) => !self.leases.is_crowded(),
            Event::Message(Message::MetadataTaken(_)) => self.metadata.is_awaited(),
            _ => false,
        }
    }

    /// Records the edge's drivers, and tells it their scopes.
    async fn drivers(&mut self, drivers: Vec<Driver>) -> Result<Message, End> {
        peer_info!(LogPeer::Node(self.node), node = %self.node, "drivers changed");
        let checked = report::check(self.links.store(), self.node, drivers);
        let drivers = checked.map_err(|over| self.broken(chain(&over)))?;
        let Self { links, node, .. } = self;
        self.labelled = LabelledReport::new(links.authority(), node, &drivers);
        let recorded = ingest::drivers(links.store(), links.authority(), node, drivers).await;
        let unserved = recorded.map_err(|error| self.broken(chain(&error)))?;
        self.handle.set_unserved(unserved);
        self.links.refresh_scopes();
        Ok(self.welcome())
    }

    /// Keeps the edge's report of direct volumes that no runtime took.
    fn not_taken(&self, report: NotTaken) {
        let total = report.total;
        // The newer link has a newer report.
        if self.handle.is_in_use() && self.links.store().not_taken().set(self.node, report) {
            let node = self.node;
            peer_warn!(
                LogPeer::Node(node), %node, total, "direct volumes were not taken by their runtimes"
            );
        }
    }

    fn broken(&self, reason: String) -> End {
        peer_warn!(
            LogPeer::Node(self.node), node = %self.node, reason,
            "the edge broke the rules of the link; it is closed"
        );
        End::Close(reason.into())
    }

    fn log_unlinked(&self) {
        peer_info!(LogPeer::Node(self.node), node = %self.node, "unlinked, as the edge wished");
    }
}
