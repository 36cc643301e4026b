//! Records as lines of JSON, for an export that people and other programs can read.
//!
//! The names of fields and variants are part of the format, so they never change.

use proto::control::leader::LeaderEpoch;
use proto::csi::Id;
use proto::names::certificate::Subject;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::state::clock::now;
use crate::state::json;
use crate::state::record::{
    Change, Earlier, Elected, Home, Intent, LeaseRecord, Node, NodeDriver, Profile,
};
use crate::state::starts::StartRecord;
use crate::state::trust::{Revocation, Secrets, Token, TokenId, TrustChange};

/// The version of the format. It grows when an older csi-cloud could misread a line.
pub(super) const FORMAT: u64 = 1;

/// A line of an export: the header, the trailer, or a record.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Line {
    /// The header: the kind of file and its format.
    #[serde(rename = "csi-cloud store")]
    Begin { format: u64 },
    /// The trailer with the number of records; without it an export is incomplete.
    End { records: u64 },
    /// A node.
    Node { name: NodeName, node: Node },
    /// A driver at a node.
    #[serde(rename = "at")]
    NodeDriver { driver: DriverName, node: NodeName, at: NodeDriver },
    /// The node that carries out the calls of a shared driver.
    Elected {
        driver: DriverName,
        node: NodeName,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        before: Vec<Earlier>,
    },
    /// The profile of a driver.
    Profile { driver: DriverName, profile: Profile },
    /// A home.
    Home {
        driver: DriverName,
        #[serde(with = "json")]
        id: Id,
        home: Home,
    },
    /// An intent.
    Intent {
        driver: DriverName,
        #[serde(with = "json")]
        id: Id,
        intent: Intent,
    },
    /// The lease of a direct volume.
    #[serde(rename = "owner")]
    Lease {
        driver: DriverName,
        #[serde(with = "json")]
        id: Id,
        #[serde(rename = "own")]
        record: LeaseRecord,
    },
    /// The last lease epoch.
    Epoch { last: u64 },
    /// The epoch of the last csi-cloud that led.
    Leader { epoch: LeaderEpoch },
    /// The secret keys of csi-cloud, if the export is asked for them.
    Secrets(Secrets),
    /// A start of a csi-cloud, in an export with the secret keys: only they tell what it means.
    Start { start: Uuid, record: StartRecord },
    /// A token, with hashes only.
    Token { id: TokenId, token: Token },
    /// The revocation of a name.
    Revoked { name: Subject, revocation: Revocation },
}

/// The line is no record.
pub(super) struct NoRecord;

impl TryFrom<Change> for Line {
    type Error = NoRecord;

    fn try_from(change: Change) -> Result<Self, NoRecord> {
        Ok(match change {
            Change::Home(driver, id, Some(home)) => Self::Home { driver, id, home },
            Change::Intent(driver, id, Some(intent)) => Self::Intent { driver, id, intent },
            Change::NodeDriver(driver, node, Some(at)) => Self::NodeDriver { driver, node, at },
            Change::Node(name, Some(node)) => Self::Node { name, node },
            // What is over is left out: an older csi-cloud does not know the field.
            Change::Elected(driver, Some(Elected { node, mut before })) => {
                before.retain(|earlier| earlier.until > now());
                Self::Elected { driver, node, before }
            }
            Change::Lease(driver, id, Some(record)) => Self::Lease { driver, id, record },
            Change::Epoch(last) => Self::Epoch { last },
            Change::LeaderEpoch(epoch) => Self::Leader { epoch },
            Change::Profile(driver, Some(profile)) => Self::Profile { driver, profile },
            Change::Trust(TrustChange::Secrets(secrets)) => Self::Secrets(secrets),
            Change::Start(start, Some(record)) => Self::Start { start, record },
            Change::Trust(TrustChange::Token(id, Some(token))) => Self::Token { id, token },
            Change::Trust(TrustChange::Revocation(name, Some(revocation))) => {
                Self::Revoked { name, revocation }
            }
            // A removal has no line. An ended home has none that an older csi-cloud would read,
            // and is not needed: without it a repeated delete goes to all nodes.
            Change::EndedHome(..)
            | Change::Home(_, _, None)
            | Change::Intent(_, _, None)
            | Change::NodeDriver(_, _, None)
            | Change::Node(_, None)
            | Change::Elected(_, None)
            | Change::Lease(_, _, None)
            | Change::Profile(_, None)
            | Change::Start(_, None)
            | Change::Trust(TrustChange::Token(_, None) | TrustChange::Revocation(_, None)) => {
                return Err(NoRecord);
            }
        })
    }
}

impl TryFrom<Line> for Change {
    type Error = NoRecord;

    fn try_from(line: Line) -> Result<Self, NoRecord> {
        Ok(match line {
            Line::Home { driver, id, home } => Self::Home(driver, id, Some(home)),
            Line::Intent { driver, id, intent } => Self::Intent(driver, id, Some(intent)),
            Line::NodeDriver { driver, node, at } => Self::NodeDriver(driver, node, Some(at)),
            Line::Node { name, node } => Self::Node(name, Some(node)),
            Line::Elected { driver, node, before } => {
                Self::Elected(driver, Some(Elected { node, before }))
            }
            Line::Lease { driver, id, record } => Self::Lease(driver, id, Some(record)),
            Line::Epoch { last } => Self::Epoch(last),
            Line::Leader { epoch } => Self::LeaderEpoch(epoch),
            Line::Profile { driver, profile } => Self::Profile(driver, Some(profile)),
            Line::Start { start, record } => Self::Start(start, Some(record)),
            Line::Secrets(secrets) => Self::Trust(TrustChange::Secrets(secrets)),
            Line::Token { id, token } => Self::Trust(TrustChange::Token(id, Some(token))),
            Line::Revoked { name, revocation } => {
                Self::Trust(TrustChange::Revocation(name, Some(revocation)))
            }
            Line::Begin { .. } | Line::End { .. } => return Err(NoRecord),
        })
    }
}
