//! One link: the calls that come on it, its control messages, and its end in order.
//!
//! Told to stop, it asks the cloud to begin no call on it and finishes those in flight. The cloud
//! closes it, because it knows when the last answer has arrived.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use edge_calls::executor::Replaced;
use edge_calls::fence::FenceError;
use edge_calls::lease_client::LeaseRequest;
use edge_calls::metadata::Receiving;
use proto::control::hello::{Message, True};
use proto::control::leader::LeaderEpoch;
use proto::control::lease::{Outcome, Reply};
use proto::control::metadata::{Part, Position};
use proto::control::not_taken::NotTaken;
use proto::host::chain;
use proto::host::clock;
use proto::host::peer_log::{LogPeer, peer_info};
use proto::host::tasks::Tasks;
use proto::link::{Event, Io, Link, LinkError, StreamKind};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use super::dial::Dial;
use super::hello::{Greeted, cap};
use super::looks;
use super::looks::{Looks, Sign};
use super::renew;
use super::renew::Renewal;

/// The time limit for the cloud to answer a goodbye, and to close a link after its last call.
const GOODBYE: Duration = Duration::from_secs(2);
/// The time limit for the calls of a replaced link.
const RETIRED: Duration = Duration::from_secs(600);
/// The shortest interval between reports of the drivers; the latest one counts.
const DRIVERS: Duration = Duration::from_secs(1);
/// The interval of checks of the cloud's certificate. The clock may be set meanwhile.
const LOOK: Duration = Duration::from_secs(30);
const EXPIRED: &str = "csi-cloud's certificate has ended; make a new one, and check both clocks";
const SILENT: &str = "no sign of life from the other side";
const STOPPING: &str = "csi-edge lets this link go";

/// An event of a link, for the task that keeps links.
pub(super) enum LinkEvent {
    /// The cloud goes away; find another link.
    Leave,
    /// The cloud's longest backoff, if it gave one.
    BackoffCap(Option<Duration>),
    /// The link ended.
    Ended(LinkError),
}

/// The use of a link.
pub(super) struct Use {
    /// Takes the link's events.
    pub(super) events: mpsc::Sender<LinkEvent>,
    /// The link's own tasks.
    pub(super) tasks: Tasks,
    /// Set when a newer link replaces this one.
    pub(super) replaced: Replaced,
}

/// Serves a link until it ends.
pub(super) async fn run(dial: Arc<Dial>, greeted: Greeted, link: Use) {
    let Use { events, tasks, replaced } = link;
    let Greeted { link, changed, renews, renew_now, epoch, asks, .. } = greeted;
    let looks = asks.then(|| Looks::begin(link.keep_alive().every));
    let requests = dial.leases.linked();
    let mut reports = dial.not_taken.clone();
    // The cloud may have another report, of an earlier link.
    reports.mark_changed();
    let mut serving = Serving {
        dial,
        link: Some(link),
        looks,
        epoch,
        // Stopped when the cloud has heard the goodbye, so not with `tasks`.
        streams: tasks.independent(),
        link_tasks: tasks.clone(),
        events,
        replaced,
        requests,
        reports,
        renewal: None,
        parts: None,
        waiting: HashMap::new(),
        next_drivers: Instant::now(),
        leaving: false,
        end: None,
    };
    serving.renews(renews, renew_now);
    serving.settle_scopes();
    let ended = serving.run(changed, &tasks).await;
    serving.streams.give_up();
    debug!(reason = %chain(&ended), "a link ended");
    // Nobody listens to a link that was let go.
    let _ = serving.events.send(LinkEvent::Ended(ended)).await;
}

/// The way to the task that keeps this link's metadata, and back.
struct Parts {
    take: mpsc::Sender<Part>,
    taken: mpsc::Receiver<Position>,
}

struct Serving {
    dial: Arc<Dial>,
    /// None after it was closed.
    link: Option<Link>,
    /// The looks for signs of life; `None` if the cloud does not read questions from edges.
    looks: Option<Looks>,
    /// The cloud's number among several, as it said last.
    epoch: Option<LeaderEpoch>,
    /// Serve the calls; told to stop, they end with the last call in flight.
    streams: Tasks,
    /// The link's own tasks.
    link_tasks: Tasks,
    events: mpsc::Sender<LinkEvent>,
    replaced: Replaced,
    /// Lease requests for the cloud.
    requests: mpsc::Receiver<LeaseRequest>,
    /// The direct volumes that were not taken.
    reports: watch::Receiver<Option<NotTaken>>,
    /// Renews this node's certificate; none if the cloud issues none.
    renewal: Option<Renewal>,
    /// Takes parts of metadata; none before the first one.
    parts: Option<Parts>,
    /// The waiting requests, by id.
    waiting: HashMap<u64, oneshot::Sender<Outcome>>,
    /// The time at which the drivers may be sent again.
    next_drivers: Instant,
    /// Goodbye has been sent.
    leaving: bool,
    /// The time at which the link is closed whatever is on it.
    end: Option<Instant>,
}

impl Serving {
    async fn run(&mut self, mut changed: watch::Receiver<u64>, tasks: &Tasks) -> LinkError {
        while let Some(link) = &mut self.link {
            let stepped = tokio::select! {
                biased;
                () = tasks.given_up() => self.close(STOPPING).await,
                () = reached(self.end) => self.close(STOPPING).await,
                () = expired(link.expires()) => {
                    let closed = self.close(EXPIRED).await;
                    closed.and_then(|()| Err(LinkError::Closed(EXPIRED.into())))
                }
                () = quiet(&self.streams), if self.streams.is_stopped() => {
                    self.close(STOPPING).await
                }
                () = sleep(GOODBYE), if self.leaving && !self.streams.is_stopped() => {
                    self.streams.stop();
                    Ok(())
                }
                () = tasks.stopped(), if !self.leaving => self.say_goodbye(tasks).await,
                () = changes(&mut changed, self.next_drivers) => {
                    self.next_drivers = Instant::now() + DRIVERS;
                    let drivers = self.dial.drivers.hello();
                    send(link, &Message::Drivers(drivers), tasks).await
                }
                Some(request) = self.requests.recv() => {
                    self.waiting.retain(|_, waiting| !waiting.is_closed());
                    self.waiting.insert(request.request.id, request.answer);
                    send(link, &Message::Lease(request.request), tasks).await
                }
                report = report(&mut self.reports) => {
                    send(link, &Message::NotTaken(report), tasks).await
                }
                position = taken(&mut self.parts) => {
                    send(link, &Message::MetadataTaken(position), tasks).await
                }
                request = renew::next(&mut self.renewal) => send(link, &request, tasks).await,
                look = looks::next(&mut self.looks) => match look.take(link.is_silent()) {
                    Sign::Seen => Ok(()),
                    Sign::Wanted => send(link, &Message::Probe(True), tasks).await,
                    Sign::Missing => Err(LinkError::Closed(SILENT.into())),
                },
                event = link.next() => match self.observe_epoch(&event) {
                    Ok(()) => self.take(event).await,
                    Err(old) => {
                        let reason = old.to_string();
                        let closed = self.close(&reason).await;
                        closed.and(Err(LinkError::Closed(reason)))
                    }
                },
            };
            if let Err(ended) = stepped {
                return ended;
            }
        }
        LinkError::Closed(STOPPING.into())
    }

    /// Refuses the word of a cloud if another one has led since. Calls are refused by
    /// the executor, each by its own epoch.
    fn observe_epoch(&mut self, event: &Event) -> Result<(), FenceError> {
        let Event::Message(message) = event else { return Ok(()) };
        if let Message::Welcome(again) = message {
            self.epoch = again.leader_epoch;
        }
        self.dial.executor.fence().observe(self.epoch)
    }

    async fn take(&mut self, event: Event) -> Result<(), LinkError> {
        match event {
            Event::Opened(kind, io) => self.serve_calls(kind, io),
            Event::Message(Message::Leave) if self.leaving => self.streams.stop(),
            Event::Message(Message::Leave) => {
                peer_info!(LogPeer::Cloud, "the cloud goes away; looking for another link");
                self.end.get_or_insert_with(|| Instant::now() + RETIRED);
                let _ = self.events.send(LinkEvent::Leave).await;
            }
            Event::Message(Message::Welcome(again)) => {
                let _ = self.events.send(LinkEvent::BackoffCap(cap(&again))).await;
                self.renews(again.renews, again.renew_now);
                self.dial.receive(again);
                self.settle_scopes();
            }
            Event::Message(Message::LeaseReply(Reply { id, outcome })) => {
                // A caller that left asks again.
                let _ = self.waiting.remove(&id).map(|waiting| waiting.send(outcome));
            }
            Event::Message(Message::Renewed(certificate)) => {
                if let Some(renewal) = &mut self.renewal {
                    renewal.renewed(certificate, &self.link_tasks);
                }
            }
            Event::Message(Message::NotRenewed(not)) => {
                if let Some(renewal) = &mut self.renewal {
                    renewal.refused(&not.why, &self.link_tasks);
                }
            }
            Event::Message(Message::Metadata(part)) => {
                let parts = self.parts.get_or_insert_with(|| keep(&self.dial, &self.link_tasks));
                // The cloud sends the next one after the answer, so there is room.
                if parts.take.try_send(part).is_err() {
                    return Err(LinkError::Closed("metadata that was not waited for".into()));
                }
            }
            Event::Message(Message::Refused(refused)) => {
                return Err(LinkError::Closed(refused.reason));
            }
            Event::Message(_) => debug!("a control message that this version has no use for"),
            Event::Closed(error) => return Err(error),
        }
        Ok(())
    }

    /// Takes the cloud's word on whether it issues certificates, and whether one is due.
    fn renews(&mut self, renews: bool, now: bool) {
        if !renews {
            self.renewal = None;
        } else if self.renewal.is_none() {
            let identity = self.dial.identity.clone();
            self.renewal = identity.map(|identity| Renewal::new(identity, self.dial.machine));
        }
        if let Some(renewal) = &mut self.renewal {
            renewal.ask_now(now);
        }
    }

    /// Puts received scopes in force, while the link goes on.
    fn settle_scopes(&self) {
        let scopes = self.dial.scopes.clone();
        self.link_tasks.spawn_until_stop("scopes", async move {
            scopes.settle().await;
        });
    }

    /// Asks the cloud to begin no more calls here.
    async fn say_goodbye(&mut self, tasks: &Tasks) -> Result<(), LinkError> {
        self.leaving = true;
        self.end.get_or_insert_with(|| Instant::now() + RETIRED);
        match &mut self.link {
            Some(link) => send(link, &Message::Leaving, tasks).await,
            None => Ok(()),
        }
    }

    async fn close(&mut self, reason: &str) -> Result<(), LinkError> {
        if let Some(link) = self.link.take() {
            link.close(reason).await;
        }
        Ok(())
    }

    /// Serves a byte stream that the cloud opened. It ends with the stream; calls in flight go on.
    fn serve_calls(&self, kind: StreamKind, io: Io) {
        let executor = self.dial.executor.clone();
        let streams = self.streams.clone();
        let replaced = self.replaced.clone();
        self.streams.spawn("link http2", async move {
            if let Err(error) = executor.serve_link(io, replaced, &streams).await {
                debug!(?kind, error = %chain(&error), "HTTP/2 on a link ended");
            }
        });
    }
}

/// Sends a message, unless csi-edge is to end at once.
async fn send(link: &mut Link, message: &Message, tasks: &Tasks) -> Result<(), LinkError> {
    tokio::select! {
        biased;
        () = tasks.given_up() => Err(LinkError::Closed(STOPPING.into())),
        sent = link.send(message) => sent,
    }
}

/// Ends when the drivers have changed, and the cloud may be told.
async fn changes(changed: &mut watch::Receiver<u64>, not_before: Instant) {
    sleep_until(not_before).await;
    if changed.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Begins to keep the parts of a link, one after another.
fn keep(dial: &Dial, tasks: &Tasks) -> Parts {
    let (take, mut parts) = mpsc::channel(1);
    let (done, taken) = mpsc::channel(1);
    let metadata = dial.metadata.clone();
    tasks.spawn_until_stop("metadata", async move {
        let mut receiving = Receiving::default();
        while let Some(part) = parts.recv().await {
            if done.send(metadata.take(&mut receiving, part).await).await.is_err() {
                return;
            }
        }
    });
    Parts { take, taken }
}

/// The next answer to a part of metadata; never one without a part.
async fn taken(parts: &mut Option<Parts>) -> Position {
    match parts {
        Some(parts) => match parts.taken.recv().await {
            Some(position) => position,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// The next report.
async fn report(reports: &mut watch::Receiver<Option<NotTaken>>) -> NotTaken {
    loop {
        if reports.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(report) = reports.borrow_and_update().clone() {
            return report;
        }
    }
}

/// Ends at this time; never without one.
async fn reached(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// Ends soon after a certificate has, by a clock that is believed.
async fn expired(end: Option<SystemTime>) {
    let Some(end) = end else { return std::future::pending().await };
    while clock::is_doubted() || SystemTime::now() < end {
        sleep(LOOK).await;
    }
}

/// Ends when nothing more is served, and the cloud has had time to close.
async fn quiet(streams: &Tasks) {
    streams.ended().await;
    sleep(GOODBYE).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_of_drivers_are_told_at_most_once_a_second() {
        let drivers = watch::Sender::new(0);
        let mut changed = drivers.subscribe();
        let begun = Instant::now();
        drivers.send_modify(|count| *count += 1);
        changes(&mut changed, begun).await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "the first one at once");
        drivers.send_modify(|count| *count += 1);
        // Something else happens on the link meanwhile.
        let soon = tokio::time::timeout(DRIVERS / 2, changes(&mut changed, begun + DRIVERS));
        assert!(soon.await.is_err());
        drivers.send_modify(|count| *count += 1);
        changes(&mut changed, begun + DRIVERS).await;
        assert_eq!(begun.elapsed(), DRIVERS);
        let more = tokio::time::timeout(DRIVERS * 9, changes(&mut changed, begun));
        assert!(more.await.is_err(), "both were told");
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_has_ended_is_noticed_within_a_minute() {
        let now = SystemTime::now();
        let minute = Duration::from_secs(60);
        assert!(tokio::time::timeout(minute, expired(Some(now))).await.is_ok());
        let later = now.checked_add(100 * minute);
        assert!(tokio::time::timeout(10 * minute, expired(later)).await.is_err());
        assert!(tokio::time::timeout(minute, expired(None)).await.is_err(), "it is not known");
    }
}
