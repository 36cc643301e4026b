//! The codec of csi-cloud 0.2.0 as it was, written by hand, to compare today's codec with.
//!
//! Do not edit it with the records. A field that is added later has no value here: leave it out of
//! the changes that are compared, and keep its bytes in `the_bytes_of_a_record_never_change`.

mod trust_codec;
mod value;

use std::collections::HashMap;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::Arc;

use prost::Message;
use proto::control::leader::LeaderEpoch;
use proto::names::{DriverName, IdentityError, NodeName};

use crate::state::key;
use crate::state::key::KeyError;
use crate::state::record::{
    Attached, Broken, Change, Earlier, Elected, Holder, Home, Intent, LeaseClaim, LeaseRecord,
    Node, Profile,
};
use crate::state::store::backend::StoreError;
use crate::state::store::table::Table;
use crate::state::store::tests::old_codec::trust_codec::TrustCodecError;
use crate::state::store::tests::old_codec::value::{
    AttachedValue, BrokenValue, EarlierValue, ElectedValue, EpochValue, HolderValue, HomeValue,
    IntentValue, LeaseClaimValue, LeaseValue, NodeDriverValue, NodeValue, ProfileValue,
};

/// A change as bytes; without a value the record is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

/// The reason why bytes are no record.
#[derive(Debug, thiserror::Error)]
pub(super) enum CodecError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("it holds a name that is none")]
    Name(#[from] IdentityError),
    #[error("its value is not the protobuf message that it should be")]
    Value(#[from] prost::DecodeError),
    #[error(transparent)]
    Trust(#[from] TrustCodecError),
}

/// Encodes a change.
pub(super) fn encode(change: &Change) -> Row {
    let (key, value) = match change {
        Change::Home(driver, id, home) => (
            key::of_id(driver, id),
            home.as_ref().map(|home| HomeValue::from(home).encode_to_vec()),
        ),
        Change::EndedHome(..) | Change::Start(..) => unreachable!("it had none"),
        Change::Intent(driver, id, intent) => (
            key::of_id(driver, id),
            intent.as_ref().map(|intent| IntentValue::from(intent).encode_to_vec()),
        ),
        Change::NodeDriver(driver, node, at) => (
            key::of_node(driver, node),
            at.as_ref().map(|at| NodeDriverValue::from(at).encode_to_vec()),
        ),
        Change::Node(name, node) => {
            let value =
                node.as_ref().map(|node| NodeValue { since: node.since, removed: node.removed });
            (name.as_str().into(), value.map(|value| value.encode_to_vec()))
        }
        Change::Elected(driver, elected) => {
            let value = elected.as_ref().map(|elected| ElectedValue::from(elected).encode_to_vec());
            (driver.as_str().into(), value)
        }
        Change::Profile(driver, profile) => (
            driver.as_str().into(),
            profile.as_ref().map(|profile| ProfileValue::from(profile).encode_to_vec()),
        ),
        Change::Lease(driver, id, lease) => (
            key::of_id(driver, id),
            lease.as_ref().map(|lease| LeaseValue::from(lease).encode_to_vec()),
        ),
        Change::Epoch(last) => (LAST.into(), Some(EpochValue { last: *last }.encode_to_vec())),
        Change::LeaderEpoch(LeaderEpoch(last)) => {
            (LEADER.into(), Some(EpochValue { last: *last }.encode_to_vec()))
        }
        Change::Trust(change) => trust_codec::encode(change),
    };
    Row { table: Table::of(change), key, value }
}

/// The keys of the epochs: the last one of leases, and that of the last leader.
const LAST: &[u8] = b"last";
const LEADER: &[u8] = b"leader";

/// Decodes changes. Equal names share one copy: a million homes are at thousands of nodes.
#[derive(Default)]
pub(super) struct Decoder {
    drivers: HashMap<Box<str>, DriverName>,
    nodes: HashMap<Box<str>, NodeName>,
}

impl Decoder {
    /// The change that sets this record.
    ///
    /// # Errors
    /// [`StoreError::Record`] if the key or the value is none of this table.
    pub(super) fn decode(
        &mut self,
        table: Table,
        key: &[u8],
        value: &[u8],
    ) -> Result<Change, StoreError> {
        self.change(table, key, value).map_err(|source| unreadable(table, key, source))
    }

    /// The change that removes this record; none of one that is never removed.
    ///
    /// # Errors
    /// [`StoreError::Record`] if the key is none of this table.
    pub(super) fn removal(
        &mut self,
        table: Table,
        key: &[u8],
    ) -> Result<Option<Change>, StoreError> {
        self.removed(table, key).map_err(|source| unreadable(table, key, source))
    }

    fn elected(&mut self, value: ElectedValue) -> Result<Elected, CodecError> {
        let mut before = Vec::with_capacity(value.before.len());
        for EarlierValue { node, until } in value.before {
            before.push(Earlier { node: self.node(&node)?, until });
        }
        Ok(Elected { node: self.node(&value.node)?, before })
    }

    fn removed(&mut self, table: Table, key: &[u8]) -> Result<Option<Change>, CodecError> {
        Ok(Some(match table {
            Table::Homes => {
                let (driver, rest) = self.driver(key)?;
                Change::Home(driver, key::id(rest)?, None)
            }
            Table::EndedHomes | Table::Starts => return Err(KeyError::Key.into()),
            Table::Intents => {
                let (driver, rest) = self.driver(key)?;
                Change::Intent(driver, key::id(rest)?, None)
            }
            Table::NodeDrivers => {
                let (driver, rest) = self.driver(key)?;
                Change::NodeDriver(driver, self.node(key::text(rest)?)?, None)
            }
            Table::Nodes => Change::Node(self.node(key::text(key)?)?, None),
            Table::Elected => Change::Elected(named(&mut self.drivers, key::text(key)?)?, None),
            Table::Profiles => Change::Profile(named(&mut self.drivers, key::text(key)?)?, None),
            Table::Leases => {
                let (driver, rest) = self.driver(key)?;
                Change::Lease(driver, key::id(rest)?, None)
            }
            Table::Tokens => Change::Trust(trust_codec::removed_token(key)?),
            Table::Revocations => Change::Trust(trust_codec::removed_revocation(key)?),
            Table::Epochs | Table::Secrets => return Ok(None),
        }))
    }

    fn change(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<Change, CodecError> {
        Ok(match table {
            Table::Homes => {
                let (driver, rest) = self.driver(key)?;
                Change::Home(driver, key::id(rest)?, Some(self.home(HomeValue::decode(value)?)?))
            }
            Table::EndedHomes => return Err(KeyError::Key.into()),
            Table::Intents => {
                let (driver, rest) = self.driver(key)?;
                Change::Intent(
                    driver,
                    key::id(rest)?,
                    Some(self.intent(IntentValue::decode(value)?)?),
                )
            }
            Table::NodeDrivers => {
                let (driver, rest) = self.driver(key)?;
                let node = self.node(key::text(rest)?)?;
                Change::NodeDriver(driver, node, Some(NodeDriverValue::decode(value)?.into()))
            }
            Table::Nodes => {
                let NodeValue { since, removed } = NodeValue::decode(value)?;
                Change::Node(
                    self.node(key::text(key)?)?,
                    Some(Node { since, removed, ..Node::default() }),
                )
            }
            Table::Elected => {
                let driver = named(&mut self.drivers, key::text(key)?)?;
                Change::Elected(driver, Some(self.elected(ElectedValue::decode(value)?)?))
            }
            Table::Profiles => {
                let driver = named(&mut self.drivers, key::text(key)?)?;
                Change::Profile(driver, Some(self.profile(ProfileValue::decode(value)?)?))
            }
            Table::Leases => {
                let (driver, rest) = self.driver(key)?;
                Change::Lease(driver, key::id(rest)?, Some(self.lease(LeaseValue::decode(value)?)?))
            }
            Table::Epochs if key == LAST => Change::Epoch(EpochValue::decode(value)?.last),
            Table::Epochs if key == LEADER => {
                Change::LeaderEpoch(LeaderEpoch(EpochValue::decode(value)?.last))
            }
            Table::Secrets => Change::Trust(trust_codec::secrets(key, value)?),
            Table::Tokens => Change::Trust(trust_codec::token(key, value)?),
            Table::Revocations => Change::Trust(trust_codec::revocation(key, value)?),
            Table::Epochs | Table::Starts => return Err(KeyError::Key.into()),
        })
    }

    fn driver<'a>(&mut self, key: &'a [u8]) -> Result<(DriverName, &'a [u8]), CodecError> {
        let (driver, rest) = key::split(key)?;
        Ok((named(&mut self.drivers, driver)?, rest))
    }

    fn node(&mut self, name: &str) -> Result<NodeName, CodecError> {
        Ok(named(&mut self.nodes, name)?)
    }

    fn home(&mut self, value: HomeValue) -> Result<Home, CodecError> {
        let source = value
            .source
            .map(|source| key::id_of(source.kind, &source.method, source.text))
            .transpose()?;
        Ok(Home {
            node: self.node(&value.node)?,
            name: value.name.map(Into::into),
            entry: value.entry,
            claim: value.claim.map(|claim| Box::new(claim.into())),
            parameters: value.parameters.map(|parameters| Box::new(parameters.ours)),
            source: source.map(Box::new),
            since: value.since,
            absent: value.absent,
            lost: value.lost,
            conflicts: value
                .conflicts
                .iter()
                .map(|node| self.node(node))
                .collect::<Result<_, _>>()?,
            adopted: false,
        })
    }

    fn lease(&mut self, value: LeaseValue) -> Result<LeaseRecord, CodecError> {
        let mut lease = LeaseRecord::default();
        if let Some(HolderValue { node, epoch, pod, since, unproven }) = value.holder {
            let node = self.node(&node)?;
            lease.holder = Some(Holder { node, epoch, pod: pod.into(), since, unproven });
        }
        if let Some(AttachedValue { node, id, since }) = value.attached {
            lease.attached = Some(Attached { node: self.node(&node)?, id: id.into(), since });
        }
        for BrokenValue { node, epoch } in value.broken {
            lease.broken.push(Broken { node: self.node(&node)?, epoch });
        }
        for LeaseClaimValue { node, epoch, since } in value.claims {
            lease.claims.push(LeaseClaim { node: self.node(&node)?, epoch, since });
        }
        Ok(lease)
    }

    fn profile(&mut self, value: ProfileValue) -> Result<Profile, CodecError> {
        Ok(Profile {
            answers: Arc::new(value.answers),
            since: value.since,
            from: value.from.iter().map(|node| self.node(node)).collect::<Result<_, _>>()?,
        })
    }

    fn intent(&mut self, value: IntentValue) -> Result<Intent, CodecError> {
        Ok(Intent {
            node: self.node(&value.node)?,
            since: value.since,
            until: value.until,
            made: value.made.map(Into::into),
            claim: value.claim.map(|claim| Box::new(claim.into())),
            attempts: value.attempts,
            direct: value.direct,
            narrowed: None,
            machine: None,
        })
    }
}

fn unreadable(table: Table, key: &[u8], source: CodecError) -> StoreError {
    let key = key.escape_ascii().to_string();
    StoreError::Record { table: table.name(), key, source: Arc::new(source) }
}

fn named<N>(known: &mut HashMap<Box<str>, N>, name: &str) -> Result<N, IdentityError>
where
    N: Clone + Hash + Eq + FromStr<Err = IdentityError>,
{
    if let Some(known) = known.get(name) {
        return Ok(known.clone());
    }
    let new: N = name.parse()?;
    known.insert(name.into(), new.clone());
    Ok(new)
}
