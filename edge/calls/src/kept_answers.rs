//! The answers of a driver that are kept for calls that are sent again, within bounds of number,
//! bytes and time. It may use `operation`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use bytes::Bytes;
use proto::csi::Method;
use proto::http2::forward::Answer;
use tokio::time::Instant;
use uuid::Uuid;

use crate::operation::Operation;

/// The most answers kept for repeated calls.
pub(crate) const MAX_KEPT: usize = 1024;
/// The most bytes of kept answers and their requests.
const MAX_KEPT_BYTES: usize = 32 * 1024 * 1024;
/// The time for which an answer is kept. Sidecars' deadlines are shorter, so nobody repeats the
/// call later.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(300);

/// A driver's answers, by call.
#[derive(Default)]
pub(crate) struct KeptAnswers {
    by_call: HashMap<Uuid, Arc<Done>>,
    oldest: VecDeque<(Uuid, Instant)>,
    bytes: usize,
}

struct Done {
    method: Method,
    body: Bytes,
    answer: Answer,
}

impl KeptAnswers {
    /// The answer that the call with this id got.
    pub(crate) fn find(&self, id: &Uuid, operation: &Operation) -> Option<Answer> {
        let done = self.by_call.get(id)?;
        // The same id with another request is not a repeated call.
        operation.is_same(done.method, &done.body).then(|| done.answer.clone())
    }

    #[cfg(test)]
    pub(crate) fn is_bounded(&self) -> bool {
        self.bytes <= MAX_KEPT_BYTES && self.by_call.len() == self.oldest.len()
    }

    /// Keeps the answer of these calls.
    pub(crate) fn keep(&mut self, operation: &Operation, calls: &[Uuid], answer: &Answer) {
        let now = Instant::now();
        let body = Bytes::copy_from_slice(&operation.body);
        let done = Arc::new(Done { method: operation.method, body, answer: answer.apart() });
        for id in calls {
            self.bytes += done.size();
            if let Some(older) = self.by_call.insert(*id, done.clone()) {
                self.bytes -= older.size();
            }
            self.oldest.push_back((*id, now));
        }
        while let Some((id, since)) = self.oldest.front().copied() {
            let room = self.oldest.len() <= MAX_KEPT && self.bytes <= MAX_KEPT_BYTES;
            if room && now.duration_since(since) < KEPT_FOR {
                return;
            }
            self.oldest.pop_front();
            self.bytes -= self.by_call.remove(&id).map_or(0, |done| done.size());
        }
    }
}

impl Done {
    /// Its approximate memory. Calls that share an answer each count it.
    fn size(&self) -> usize {
        self.body.len() + self.answer.size()
    }
}
