//! The keys in etcd, all below one prefix. They never change.

use std::sync::Arc;

use crate::state::store::codec::Row;
use crate::state::store::table::Table;

/// Makes and reads keys.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// It ends with a slash.
    prefix: Arc<str>,
}

/// The meaning of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Key<'a> {
    /// A record, by its key in its table.
    Record(Table, &'a [u8]),
    /// The replica that leads; under its lease.
    Leader,
    /// The last commit.
    Commit,
    /// The replica that shall lead; under a lease of its own.
    Promote,
    /// A replica that shall not lead.
    Drain(&'a str),
    /// Anything else: a replica, or a key of a newer csi-cloud.
    Other,
}

impl Keys {
    /// The keys below this prefix.
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{prefix}/").into() }
    }

    fn of(&self, rest: &str) -> Vec<u8> {
        [&*self.prefix, rest].concat().into_bytes()
    }

    /// The prefix of all keys.
    pub(super) fn all(&self) -> Vec<u8> {
        self.of("")
    }

    /// The prefix of all records.
    pub(super) fn records(&self) -> Vec<u8> {
        self.of("r/")
    }

    /// The prefix of all records of a table.
    pub(super) fn table(&self, table: Table) -> Vec<u8> {
        self.of(&format!("r/{}/", table.name()))
    }

    /// A record.
    pub(super) fn record(&self, row: &Row) -> Vec<u8> {
        [self.table(row.table), row.key.clone()].concat()
    }

    /// The replica that leads.
    pub(super) fn leader(&self) -> Vec<u8> {
        self.of("leader")
    }

    /// The last commit.
    pub(super) fn commit(&self) -> Vec<u8> {
        self.of("commit")
    }

    /// The prefix of all orders. They sort after the leader's key, and before the records.
    pub(super) fn orders(&self) -> Vec<u8> {
        self.of("orders/")
    }

    /// The replica that shall lead.
    pub(super) fn promote(&self) -> Vec<u8> {
        self.of("orders/promote")
    }

    /// A replica that shall not lead.
    pub(super) fn drain(&self, name: &str) -> Vec<u8> {
        self.of(&format!("orders/drain/{name}"))
    }

    /// The prefix of all replicas.
    pub(super) fn replicas(&self) -> Vec<u8> {
        self.of("replicas/")
    }

    /// A replica.
    pub(super) fn replica(&self, name: &str) -> Vec<u8> {
        self.of(&format!("replicas/{name}"))
    }

    /// The meaning of a key.
    pub(super) fn parse<'a>(&self, key: &'a [u8]) -> Key<'a> {
        let Some(rest) = key.strip_prefix(self.prefix.as_bytes()) else { return Key::Other };
        if let Some(record) = rest.strip_prefix(b"r/") {
            return Self::parse_record(record).unwrap_or(Key::Other);
        }
        match rest {
            b"leader" => Key::Leader,
            b"commit" => Key::Commit,
            b"orders/promote" => Key::Promote,
            _ => {
                let drain = rest.strip_prefix(b"orders/drain/");
                let name = drain.and_then(|name| std::str::from_utf8(name).ok());
                name.map_or(Key::Other, Key::Drain)
            }
        }
    }

    fn parse_record(record: &[u8]) -> Option<Key<'_>> {
        let slash = record.iter().position(|byte| *byte == b'/')?;
        let (table, key) = record.split_at(slash);
        Some(Key::Record(Table::named(table)?, key.get(1..)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back() {
        let keys = Keys::new("/a/b");
        for table in Table::ALL {
            for key in [b"".as_slice(), b"d\0\x01v", b"a/b/c", b"\xff/"] {
                let row = Row { table, key: key.into(), value: None };
                let written = keys.record(&row);
                assert!(written.starts_with(&keys.records()));
                assert_eq!(keys.parse(&written), Key::Record(table, key));
            }
        }
        assert_eq!(keys.parse(&keys.leader()), Key::Leader);
        assert_eq!(keys.parse(&keys.commit()), Key::Commit);
        assert_eq!(keys.parse(&keys.promote()), Key::Promote);
        assert_eq!(keys.parse(&keys.drain("x/y")), Key::Drain("x/y"));
        assert_eq!(keys.parse(&keys.replica("x")), Key::Other);
        for other in [b"/a/bc/leader".as_slice(), b"/a/b/r/none/x", b"/a/b/r/homes", b""] {
            assert_eq!(keys.parse(other), Key::Other);
        }
    }

    #[test]
    fn a_leader_watches_its_key_and_orders_at_once_and_no_record() {
        let keys = Keys::new("/a");
        let mut sorted =
            [keys.leader(), keys.drain("x"), keys.promote(), keys.records(), keys.replica("x")];
        let given = sorted.clone();
        sorted.sort();
        assert_eq!(sorted, given);
        assert!(keys.commit() < keys.leader());
    }
}
