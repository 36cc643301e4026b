//! Orders of operators: which replica shall lead, and which shall not.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::keys::{Key, Keys};
use crate::etcd::api::event::EventType;
use crate::etcd::api::{Event, KeyValue};

/// All orders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Orders {
    /// The replica that shall lead.
    pub(super) promote: Option<Arc<str>>,
    /// The replicas that shall not.
    pub(super) drained: BTreeSet<Arc<str>>,
}

impl Orders {
    /// The orders among these keys.
    pub(super) fn of(keys: &Keys, found: &[KeyValue]) -> Self {
        let mut orders = Self::default();
        found.iter().for_each(|found| orders.set(keys.parse(&found.key), Some(&found.value)));
        orders
    }

    /// Takes a change, if it is one of orders.
    pub(super) fn apply(&mut self, keys: &Keys, event: &Event) {
        let Some(found) = &event.kv else { return };
        let is_there = event.r#type() == EventType::Put;
        self.set(keys.parse(&found.key), is_there.then_some(&found.value));
    }

    fn set(&mut self, key: Key<'_>, value: Option<&Vec<u8>>) {
        match (key, value) {
            (Key::Promote, value) => {
                self.promote = value.map(|name| String::from_utf8_lossy(name).into());
            }
            (Key::Drain(name), Some(_)) => drop(self.drained.insert(name.into())),
            (Key::Drain(name), None) => drop(self.drained.remove(name)),
            (Key::Record(..) | Key::Leader | Key::Commit | Key::Other, _) => {}
        }
    }
}
