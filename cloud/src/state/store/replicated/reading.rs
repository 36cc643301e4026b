//! Reads which record an event of etcd changes.

use super::keys::{Key, Keys};
use crate::etcd::api::Event;
use crate::etcd::api::event::EventType;
use crate::state::record::Change;
use crate::state::store::backend::StoreError;
use crate::state::store::codec::Decoder;

/// Reads events of the keys below a prefix.
pub struct RecordReader {
    keys: Keys,
    decoder: Decoder,
}

impl RecordReader {
    /// One for the keys below this prefix.
    pub fn new(prefix: &str) -> Self {
        Self { keys: Keys::new(prefix), decoder: Decoder::default() }
    }

    /// The change of a record; none if the event is about something else.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn read(&mut self, event: &Event) -> Result<Option<Change>, StoreError> {
        let Some(found) = &event.kv else { return Ok(None) };
        let Key::Record(table, key) = self.keys.parse(&found.key) else { return Ok(None) };
        match event.r#type() {
            EventType::Put => self.decoder.decode(table, key, &found.value).map(Some),
            EventType::Delete => self.decoder.removal(table, key),
        }
    }
}
