//! The keys, with all that they were since the last compaction.
//!
//! Each change has a revision of its own, and the changes of one transaction have the same one.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::etcd::api::event::EventType;
use crate::etcd::api::{Event, KeyValue, RangeRequest, RangeResponse};
use tonic::{Code, Status};

/// The revision of an empty etcd.
const FIRST: i64 = 1;

/// A key after a change; none if it was deleted.
type Version = (i64, Option<KeyValue>);

/// All keys.
pub(super) struct Keys {
    revision: i64,
    compacted: i64,
    history: BTreeMap<Vec<u8>, Vec<Version>>,
    events: BTreeMap<i64, Vec<Event>>,
}

/// Keys from the first one to before the second one. Without a second one: the first one alone.
#[derive(Clone)]
pub(super) struct Span {
    first: Vec<u8>,
    end: Vec<u8>,
}

impl Span {
    /// That of a request.
    pub(super) fn new(key: &[u8], range_end: &[u8]) -> Self {
        Self { first: key.to_vec(), end: range_end.to_vec() }
    }

    /// True if the key is in it.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        match self.end.as_slice() {
            [] => key == self.first,
            [0] => key >= self.first.as_slice(),
            end => key >= self.first.as_slice() && key < end,
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self { revision: FIRST, compacted: 0, history: BTreeMap::new(), events: BTreeMap::new() }
    }
}

/// An error in etcd's own words.
pub(super) fn refusal(code: Code, why: &str) -> Status {
    Status::new(code, format!("etcdserver: {why}"))
}

impl Keys {
    /// The revision of the last change.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// The revision up to which history is forgotten.
    pub(super) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// A key as it is.
    pub(super) fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.history.get(key)?.last()?.1.as_ref()
    }

    /// The names of the keys of a span.
    pub(super) fn names(&self, span: &Span) -> Vec<Vec<u8>> {
        let all = self.versions(span, self.revision);
        all.map(|kv| kv.key.clone()).collect()
    }

    fn versions(&self, span: &Span, at: i64) -> impl Iterator<Item = &KeyValue> {
        let from = (Bound::Included(span.first.clone()), Bound::Unbounded);
        let span = span.clone();
        self.history.range(from).take_while(move |(key, _)| span.has(key)).filter_map(
            move |(_, versions)| {
                let before = versions.iter().rev().find(|(revision, _)| *revision <= at);
                before.and_then(|(_, kv)| kv.as_ref())
            },
        )
    }

    /// Reads keys.
    pub(super) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        let at = if request.revision > 0 { request.revision } else { self.revision };
        if at > self.revision {
            let why = "mvcc: required revision is a future revision";
            return Err(refusal(Code::OutOfRange, why));
        }
        if at < self.compacted {
            let why = "mvcc: required revision has been compacted";
            return Err(refusal(Code::OutOfRange, why));
        }
        let span = Span::new(&request.key, &request.range_end);
        let all: Vec<_> = self.versions(&span, at).collect();
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let limit = limit.unwrap_or(all.len());
        Ok(RangeResponse {
            header: None,
            kvs: all.iter().take(limit).map(|&kv| kv.clone()).collect(),
            more: all.len() > limit,
            count: i64::try_from(all.len()).unwrap_or(i64::MAX),
        })
    }

    /// Sets a key. The change belongs to the next revision.
    pub(super) fn put(&mut self, key: &[u8], value: Vec<u8>, lease: i64) {
        let revision = self.revision + 1;
        let before = self.get(key);
        let create_revision = before.map_or(revision, |kv| kv.create_revision);
        let version = before.map_or(1, |kv| kv.version + 1);
        let key = key.to_vec();
        let kv = KeyValue { key, create_revision, mod_revision: revision, version, value, lease };
        self.change(kv.clone(), Some(kv), EventType::Put);
    }

    /// Deletes a key. The change belongs to the next revision.
    pub(super) fn delete(&mut self, key: &[u8]) {
        if self.get(key).is_some() {
            let mod_revision = self.revision + 1;
            let kv = KeyValue { key: key.to_vec(), mod_revision, ..KeyValue::default() };
            self.change(kv, None, EventType::Delete);
        }
    }

    fn change(&mut self, told: KeyValue, now: Option<KeyValue>, kind: EventType) {
        let revision = self.revision + 1;
        let prev_kv = self.get(&told.key).cloned();
        self.history.entry(told.key.clone()).or_default().push((revision, now));
        let event = Event { r#type: kind.into(), kv: Some(told), prev_kv };
        self.events.entry(revision).or_default().push(event);
    }

    /// Ends a revision, if anything was changed.
    pub(super) fn commit(&mut self) {
        let changed = self.events.contains_key(&(self.revision + 1));
        self.revision += i64::from(changed);
    }

    /// The changes since a revision, with that, by revision.
    pub(super) fn events(&self, from: i64, span: &Span) -> Vec<(i64, Vec<Event>)> {
        let of_span = |event: &&Event| event.kv.as_ref().is_some_and(|kv| span.has(&kv.key));
        // A watcher may begin at a revision that is not there yet.
        let some = self.events.range(from.min(self.revision + 1)..self.revision + 1);
        some.map(|(at, events)| (*at, events.iter().filter(of_span).cloned().collect()))
            .filter(|(_, events): &(i64, Vec<Event>)| !events.is_empty())
            .collect()
    }

    /// Forgets what was before a revision.
    pub(super) fn compact(&mut self, at: i64) -> Result<(), Status> {
        if at > self.revision {
            let why = "mvcc: required revision is a future revision";
            return Err(refusal(Code::OutOfRange, why));
        }
        if at <= self.compacted {
            let why = "mvcc: required revision has been compacted";
            return Err(refusal(Code::OutOfRange, why));
        }
        self.compacted = at;
        self.events = self.events.split_off(&at);
        self.history.retain(|_, versions| {
            let last_before = versions.iter().rposition(|(revision, _)| *revision <= at);
            versions.drain(..last_before.unwrap_or(0));
            versions.len() > 1 || versions.iter().any(|(_, kv)| kv.is_some())
        });
        Ok(())
    }
}
