//! A request for a driver, as far as it is compared with others: what it asks for, what it is
//! about, and what it locks. It uses no other room.

use bytes::Bytes;
use proto::csi::frame::PREFIX;
use proto::csi::{Id, Key, Lock, Method};
use uuid::Uuid;

/// A request for a driver.
pub(crate) struct Operation {
    /// Its method.
    pub(crate) method: Method,
    /// Its framed message.
    pub(crate) body: Bytes,
    /// The ids that it is about.
    pub(crate) about: Vec<Id>,
    /// What it locks while it runs.
    pub(crate) locks: Vec<Lock>,
    /// The id of the caller's call, if it came over a link.
    pub(crate) id: Option<Uuid>,
}

impl Operation {
    /// The operation of an (unframed) message with this key. It has no id yet.
    pub(crate) fn new(method: Method, key: &Key, message: &Bytes, body: Bytes) -> Self {
        let locks = method.locks(key, message);
        Self { method, body, about: method.about(key), locks, id: None }
    }

    /// The same with the id of its call.
    pub(crate) fn of_call(self, id: Option<Uuid>) -> Self {
        Self { id, ..self }
    }

    /// True if a request of this method and framed message asks for the same.
    pub(crate) fn is_same(&self, method: Method, body: &Bytes) -> bool {
        let message = |body: &Bytes| body.slice(PREFIX.min(body.len())..);
        method == self.method && method.same(&message(body), &message(&self.body))
    }
}
