//! Changes as bytes: a table, a key and a value. All backends store the same bytes.
//!
//! A value is the protobuf message that `record!` makes of a record. An undecodable record is an
//! error, and is never skipped.

use std::sync::Arc;

use prost::Message;
use proto::control::leader::LeaderEpoch;
use proto::csi::Id;
use proto::names::DriverName;
use proto::names::certificate::Subject;
use uuid::Uuid;

use crate::state::field::{Field, Names, RecordError};
use crate::state::key;
use crate::state::key::KeyError;
use crate::state::record::Change;
use crate::state::store::backend::StoreError;
use crate::state::store::table::Table;
use crate::state::trust::{TokenId, TrustChange};

/// The keys of the epochs: the last one of leases, and that of the last leader.
const LAST: &[u8] = b"last";
const LEADER: &[u8] = b"leader";
/// The only key of the table of secrets.
const OWN: &[u8] = b"own";
/// The kinds of names in the keys of revocations.
const NODE: &str = "node";
const FRONT: &str = "front";

/// A change as bytes; without a value the record is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

#[derive(Message)]
struct StoredEpoch {
    #[prost(uint64, tag = "1")]
    last: u64,
}

/// Encodes a change.
pub(super) fn encode(change: &Change) -> Row {
    let (key, value) = match change {
        Change::Home(driver, id, home) => (key::of_id(driver, id), bytes(home.as_ref())),
        Change::EndedHome(driver, id, home) => (key::of_id(driver, id), bytes(home.as_ref())),
        Change::Intent(driver, id, intent) => (key::of_id(driver, id), bytes(intent.as_ref())),
        Change::Lease(driver, id, lease) => (key::of_id(driver, id), bytes(lease.as_ref())),
        Change::NodeDriver(driver, node, at) => (key::of_node(driver, node), bytes(at.as_ref())),
        Change::Node(name, node) => (name.as_str().into(), bytes(node.as_ref())),
        Change::Elected(driver, elected) => (driver.as_str().into(), bytes(elected.as_ref())),
        Change::Profile(driver, profile) => (driver.as_str().into(), bytes(profile.as_ref())),
        Change::Epoch(last) => (LAST.into(), Some(StoredEpoch { last: *last }.encode_to_vec())),
        Change::LeaderEpoch(LeaderEpoch(last)) => {
            (LEADER.into(), Some(StoredEpoch { last: *last }.encode_to_vec()))
        }
        Change::Start(start, record) => (start.as_bytes().into(), bytes(record.as_ref())),
        Change::Trust(TrustChange::Secrets(secrets)) => (OWN.into(), bytes(Some(secrets))),
        Change::Trust(TrustChange::Token(id, token)) => (id.as_str().into(), bytes(token.as_ref())),
        Change::Trust(TrustChange::Revocation(subject, revocation)) => {
            (of_subject(subject), bytes(revocation.as_ref()))
        }
    };
    Row { table: Table::of(change), key, value }
}

fn bytes<R: Field<Stored: Message>>(record: Option<&R>) -> Option<Vec<u8>> {
    record.map(|record| record.store().encode_to_vec())
}

/// Decodes changes. Equal names share one copy.
#[derive(Default)]
pub(super) struct Decoder(Names);

impl Decoder {
    /// Returns the change that sets this record.
    ///
    /// # Errors
    /// [`StoreError::Record`] if the key or the value is none of this table.
    pub(super) fn decode(
        &mut self,
        table: Table,
        key: &[u8],
        value: &[u8],
    ) -> Result<Change, StoreError> {
        self.change(table, key, Some(value)).map_err(|source| unreadable(table, key, source))
    }

    /// Returns the change that removes this record, or `None` for one that is never removed.
    ///
    /// # Errors
    /// [`StoreError::Record`] if the key is none of this table.
    pub(super) fn removal(
        &mut self,
        table: Table,
        key: &[u8],
    ) -> Result<Option<Change>, StoreError> {
        match self.change(table, key, None) {
            Ok(change) => Ok(Some(change)),
            Err(RecordError::Removed) => Ok(None),
            Err(source) => Err(unreadable(table, key, source)),
        }
    }

    fn change(
        &mut self,
        table: Table,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Change, RecordError> {
        Ok(match table {
            Table::Homes => {
                let (driver, id) = self.driver_and_id(key)?;
                Change::Home(driver, id, self.record(value)?)
            }
            Table::EndedHomes => {
                let (driver, id) = self.driver_and_id(key)?;
                Change::EndedHome(driver, id, self.record(value)?)
            }
            Table::Intents => {
                let (driver, id) = self.driver_and_id(key)?;
                Change::Intent(driver, id, self.record(value)?)
            }
            Table::Leases => {
                let (driver, id) = self.driver_and_id(key)?;
                Change::Lease(driver, id, self.record(value)?)
            }
            Table::NodeDrivers => {
                let (driver, node) = key::split(key)?;
                let node = self.0.node(key::text(node)?)?;
                Change::NodeDriver(self.0.driver(driver)?, node, self.record(value)?)
            }
            Table::Nodes => Change::Node(self.0.node(key::text(key)?)?, self.record(value)?),
            Table::Elected => Change::Elected(self.0.driver(key::text(key)?)?, self.record(value)?),
            Table::Profiles => {
                Change::Profile(self.0.driver(key::text(key)?)?, self.record(value)?)
            }
            Table::Epochs => {
                let StoredEpoch { last } = StoredEpoch::decode(value.ok_or(RecordError::Removed)?)?;
                match key {
                    LAST => Change::Epoch(last),
                    LEADER => Change::LeaderEpoch(LeaderEpoch(last)),
                    _ => return Err(KeyError::Key.into()),
                }
            }
            Table::Starts => {
                let start = Uuid::from_slice(key).map_err(|_| KeyError::Key)?;
                Change::Start(start, self.record(value)?)
            }
            Table::Secrets => {
                let secrets = self.record(value)?.ok_or(RecordError::Removed)?;
                if key != OWN {
                    return Err(KeyError::Key.into());
                }
                Change::Trust(TrustChange::Secrets(secrets))
            }
            Table::Tokens => {
                let id =
                    TokenId::try_from(key::text(key)?.to_owned()).map_err(|_| KeyError::Key)?;
                Change::Trust(TrustChange::Token(id, self.record(value)?))
            }
            Table::Revocations => {
                Change::Trust(TrustChange::Revocation(subject(key)?, self.record(value)?))
            }
        })
    }

    fn driver_and_id(&mut self, key: &[u8]) -> Result<(DriverName, Id), RecordError> {
        let (driver, id) = key::split(key)?;
        Ok((self.0.driver(driver)?, key::id(id)?))
    }

    fn record<R>(&mut self, value: Option<&[u8]>) -> Result<Option<R>, RecordError>
    where
        R: Field<Stored: Message + Default>,
    {
        value.map(|value| R::load(R::Stored::decode(value)?, &mut self.0)).transpose()
    }
}

/// The key of a revocation: the kind of its name, NUL, and the name.
fn of_subject(subject: &Subject) -> Vec<u8> {
    let (kind, name) = match subject {
        Subject::Node(node) => (NODE, node.as_str()),
        Subject::Front(front) => (FRONT, front.as_str()),
    };
    [kind, "\0", name].concat().into()
}

fn subject(key: &[u8]) -> Result<Subject, RecordError> {
    let (kind, name) = key::split(key)?;
    let name = key::text(name)?;
    match kind {
        NODE => Ok(Subject::Node(name.parse()?)),
        FRONT => Ok(Subject::Front(name.parse()?)),
        _ => Err(KeyError::Key.into()),
    }
}

fn unreadable(table: Table, key: &[u8], source: RecordError) -> StoreError {
    let key = key.escape_ascii().to_string();
    StoreError::Record { table: table.name(), key, source: Arc::new(source) }
}
