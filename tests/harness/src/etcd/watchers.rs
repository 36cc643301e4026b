//! Watches: each stream has a task that tells its watchers what changed, in order.

use std::collections::BTreeMap;
use std::pin::Pin;

use crate::etcd::api::watch_request::RequestUnion;
use crate::etcd::api::watch_server::Watch;
use crate::etcd::api::{Event, WatchCreateRequest, WatchRequest, WatchResponse};
use futures_util::stream::{self, Stream};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status, Streaming};

use super::core::Etcd;
use super::keys::{Span, refusal};

/// Answers of a stream that wait for their reader.
const WAITING: usize = 16;
/// The most events of an answer to a watcher that takes a revision in several.
const EVENTS: usize = 16;

/// The answers of a stream.
type Answers = mpsc::Sender<Result<WatchResponse, Status>>;

/// A watcher, and the first revision that it was not told.
struct Watcher {
    span: Span,
    next: i64,
    in_parts: bool,
    with_before: bool,
}

/// A stream of watchers.
struct Watchers {
    etcd: Etcd,
    by_id: BTreeMap<i64, Watcher>,
    answers: Answers,
}

/// Nobody reads the answers any more.
struct Gone;

#[tonic::async_trait]
impl Watch for Etcd {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (answers, mut told) = mpsc::channel(WAITING);
        let watchers = Watchers { etcd: self.clone(), by_id: BTreeMap::new(), answers };
        self.tasks.spawn_until_stop("watch", watchers.run(request.into_inner()));
        let answers = stream::poll_fn(move |context| told.poll_recv(context));
        Ok(Response::new(Box::pin(answers)))
    }
}

impl Watchers {
    async fn run(mut self, mut requests: Streaming<WatchRequest>) {
        let mut changes = self.etcd.changes();
        loop {
            let next_end = self.etcd.next_end();
            let told = tokio::select! {
                biased;
                () = self.answers.closed() => return,
                request = requests.message() => match request {
                    Ok(Some(request)) => self.hear(request).await,
                    Ok(None) | Err(_) => return,
                },
                _ = changes.changed() => self.tell().await,
                // Whoever looks ends the leases that are over.
                () = until(next_end) => {
                    drop(self.etcd.lock());
                    Ok(())
                }
            };
            if told.is_err() {
                return;
            }
        }
    }

    async fn hear(&mut self, request: WatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create).await,
            None => Ok(()),
        }
    }

    async fn create(&mut self, create: WatchCreateRequest) -> Result<(), Gone> {
        let next = self.etcd.lock().keys.revision() + 1;
        let watch_id = self.by_id.keys().last().map_or(0, |last| last + 1);
        let watcher = Watcher {
            span: Span::new(&create.key, &create.range_end),
            next: if create.start_revision > 0 { create.start_revision } else { next },
            in_parts: create.fragment,
            with_before: create.prev_kv,
        };
        self.by_id.insert(watch_id, watcher);
        self.say(WatchResponse { watch_id, created: true, ..self.answer() }).await?;
        self.tell().await
    }

    fn answer(&self) -> WatchResponse {
        WatchResponse { header: self.etcd.lock().header(), ..WatchResponse::default() }
    }

    async fn say(&self, answer: WatchResponse) -> Result<(), Gone> {
        self.answers.send(Ok(answer)).await.map_err(|_| Gone)
    }

    /// Tells all watchers what is new.
    async fn tell(&mut self) -> Result<(), Gone> {
        if !self.etcd.lock().has_quorum() {
            // Nobody hears it if the connection is gone.
            let _ = self.answers.send(Err(refusal(Code::Unavailable, "no leader"))).await;
            return Err(Gone);
        }
        for answer in self.news() {
            if answer.canceled {
                self.by_id.remove(&answer.watch_id);
            }
            self.say(answer).await?;
        }
        Ok(())
    }

    /// What the watchers were not told.
    fn news(&mut self) -> Vec<WatchResponse> {
        let mut answers = Vec::new();
        let state = self.etcd.lock();
        let header = state.header();
        for (id, watcher) in &mut self.by_id {
            let of_it = WatchResponse { header, watch_id: *id, ..WatchResponse::default() };
            if watcher.next < state.keys.compacted() {
                answers.push(WatchResponse {
                    canceled: true,
                    compact_revision: state.keys.compacted(),
                    cancel_reason: "etcdserver: mvcc: required revision has been compacted".into(),
                    ..of_it
                });
                continue;
            }
            for (_, events) in state.keys.events(watcher.next, &watcher.span) {
                let part = |(events, fragment)| WatchResponse { events, fragment, ..of_it.clone() };
                answers.extend(parts(watcher, &events).into_iter().map(part));
            }
            watcher.next = watcher.next.max(state.keys.revision() + 1);
        }
        answers
    }
}

/// The events of a revision, in several answers if the watcher takes that. True with each but the
/// last one.
fn parts(watcher: &Watcher, events: &[Event]) -> Vec<(Vec<Event>, bool)> {
    let size = if watcher.in_parts { EVENTS } else { events.len().max(1) };
    let count = events.len().div_ceil(size);
    let with_before = watcher.with_before;
    let told = |event: &Event| Event {
        prev_kv: event.prev_kv.clone().filter(|_| with_before),
        ..event.clone()
    };
    let part = |(at, part): (usize, &[Event])| (part.iter().map(told).collect(), at + 1 < count);
    events.chunks(size).enumerate().map(part).collect()
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}
