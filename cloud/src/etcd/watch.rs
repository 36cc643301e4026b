//! The changes of keys, as etcd tells them.
//!
//! Changes of one revision come together, or not at all.

use std::sync::Arc;

use futures_util::stream;
use futures_util::stream::StreamExt;
use tonic::metadata::MetadataValue;
use tonic::{Request, Streaming};

use crate::etcd::api::watch_request::RequestUnion;
use crate::etcd::api::{Event, WatchCreateRequest, WatchRequest, WatchResponse};
use crate::etcd::error::EtcdError;
use crate::etcd::members::Members;

/// The metadata by which a member that has lost its quorum ends a watch, instead of being silent.
const HAS_LEADER: &str = "hasleader";

/// A watch of keys. It ends when it is dropped.
pub struct Watch {
    answers: Streaming<WatchResponse>,
    members: Arc<Members>,
    /// The turn of the member that it asks.
    turn: usize,
    /// The first revision that it wants.
    start: i64,
    /// The first part of changes that come in several.
    events: Vec<Event>,
}

impl Watch {
    pub(super) fn of(
        answers: Streaming<WatchResponse>,
        members: Arc<Members>,
        (turn, start): (usize, i64),
    ) -> Self {
        Self { answers, members, turn, start, events: Vec::new() }
    }

    /// A stream that asks once and stays open: its end would be that of the watch.
    pub(super) fn request(
        request: Request<WatchCreateRequest>,
    ) -> Request<impl stream::Stream<Item = WatchRequest> + Send + 'static> {
        let mut request = request.map(|create| {
            let create = WatchCreateRequest { fragment: true, ..create };
            let create = RequestUnion::CreateRequest(create);
            let create = WatchRequest { request_union: Some(create) };
            stream::iter([create]).chain(stream::pending())
        });
        request.metadata_mut().insert(HAS_LEADER, MetadataValue::from_static("true"));
        request
    }

    /// The next changes, in their order; at least one. It waits without an end, and a dead
    /// connection is noticed. A caller that stops waiting loses none.
    ///
    /// # Errors
    /// The watch has ended; [`EtcdError::Compacted`] if what it wants is gone, and
    /// [`EtcdError::Behind`] if it is not there yet.
    pub async fn next(&mut self) -> Result<Vec<Event>, EtcdError> {
        loop {
            let answer = match self.answers.message().await {
                Ok(Some(answer)) => answer,
                ended => {
                    self.members.leave(self.turn);
                    let status = ended.err();
                    let ended = || tonic::Status::unavailable("the watch has ended");
                    return Err(status.unwrap_or_else(ended).into());
                }
            };
            if answer.compact_revision > 0 {
                let oldest = answer.compact_revision;
                return Err(EtcdError::Compacted(format!("it begins at {oldest}")));
            }
            if answer.canceled {
                self.members.leave(self.turn);
                return Err(canceled(answer.cancel_reason));
            }
            let now = answer.header.map_or(0, |header| header.revision);
            // etcd was put back to an older state, or this member is behind.
            if answer.created && now.saturating_add(1) < self.start {
                self.members.leave(self.turn);
                return Err(EtcdError::Behind { at: now, wanted: self.start });
            }
            self.events.extend(answer.events);
            if !answer.fragment && !self.events.is_empty() {
                return Ok(std::mem::take(&mut self.events));
            }
        }
    }
}

/// A watch changes nothing, so its end is a refusal.
fn canceled(reason: String) -> EtcdError {
    if reason.contains("permission denied") {
        return EtcdError::Auth(reason);
    }
    if reason.contains("auth token") {
        return EtcdError::Token(reason);
    }
    EtcdError::Refused(reason)
}
