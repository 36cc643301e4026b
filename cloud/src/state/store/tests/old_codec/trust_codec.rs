//! Trust records as keys and values; see `codec`, whose rules hold here too.

use bytes::Bytes;
use prost::Message;
use proto::names::IdentityError;
use proto::names::certificate::{Serial, Subject};

use crate::state::key;
use crate::state::key::KeyError;
use crate::state::trust::{
    Hash, Revocation, SecretKey, Secrets, Token, TokenId, TokenUse, TrustChange,
};

/// The only key of the table of secrets.
const OWN: &[u8] = b"own";
/// The kinds of names in keys.
const NODE: &str = "node";
const FRONT: &str = "front";

#[derive(Clone, PartialEq, Message)]
struct SecretsValue {
    #[prost(bytes = "bytes", tag = "1")]
    resets: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    leases: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct TokenValue {
    #[prost(string, tag = "1")]
    node: String,
    #[prost(bytes = "bytes", tag = "2")]
    secret: Bytes,
    #[prost(uint64, tag = "3")]
    created: u64,
    #[prost(uint64, tag = "4")]
    expires: u64,
    #[prost(message, optional, tag = "5")]
    used: Option<UseValue>,
}

#[derive(Clone, PartialEq, Message)]
struct UseValue {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(uint64, tag = "2")]
    at: u64,
    #[prost(string, tag = "3")]
    serial: String,
}

#[derive(Clone, PartialEq, Message)]
struct RevocationValue {
    #[prost(uint64, tag = "1")]
    since: u64,
    #[prost(string, repeated, tag = "2")]
    allowed: Vec<String>,
}

/// The reason why bytes are no trust record.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum TrustCodecError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("its value is not the protobuf message that it should be")]
    Value(#[from] prost::DecodeError),
    #[error("it holds a name that is none")]
    Name(#[from] IdentityError),
    #[error("it holds a serial number that is none: {0:?}")]
    Serial(String),
    #[error("its {what} has {length} bytes and should have {expected}")]
    Length { what: &'static str, length: usize, expected: usize },
}

/// The key and value of a change; without a value the record is removed.
pub(super) fn encode(change: &TrustChange) -> (Vec<u8>, Option<Vec<u8>>) {
    match change {
        TrustChange::Secrets(Secrets { resets, leases, .. }) => {
            let bytes = |key: &SecretKey| Bytes::copy_from_slice(key.expose());
            let value = SecretsValue { resets: bytes(resets), leases: bytes(leases) };
            (OWN.into(), Some(value.encode_to_vec()))
        }
        TrustChange::Token(id, token) => {
            let value = token.as_ref().map(|token| TokenValue::from(token).encode_to_vec());
            (id.as_str().into(), value)
        }
        TrustChange::Revocation(subject, revocation) => {
            let value = revocation.as_ref().map(|Revocation { since, allowed }| {
                let allowed = allowed.iter().map(ToString::to_string).collect();
                RevocationValue { since: *since, allowed }.encode_to_vec()
            });
            (of_subject(subject), value)
        }
    }
}

/// The change that sets the secrets.
///
/// # Errors
/// The key is another, or the value is no message with two keys of the right length.
pub(super) fn secrets(key: &[u8], value: &[u8]) -> Result<TrustChange, TrustCodecError> {
    if key != OWN {
        return Err(KeyError::Key.into());
    }
    let value = SecretsValue::decode(value)?;
    let resets = SecretKey::of(sized("key of resets", &value.resets)?);
    let leases = SecretKey::of(sized("key of leases", &value.leases)?);
    Ok(TrustChange::Secrets(Secrets { resets, leases, begun: 0 }))
}

/// The change that removes a token.
///
/// # Errors
/// The key is no id of a token.
pub(super) fn removed_token(id: &[u8]) -> Result<TrustChange, TrustCodecError> {
    Ok(TrustChange::Token(token_id(id)?, None))
}

/// The change that removes a revocation.
///
/// # Errors
/// The key names no node and no relay.
pub(super) fn removed_revocation(key: &[u8]) -> Result<TrustChange, TrustCodecError> {
    Ok(TrustChange::Revocation(subject_of(key)?, None))
}

fn token_id(id: &[u8]) -> Result<TokenId, TrustCodecError> {
    Ok(TokenId::try_from(key::text(id)?.to_owned()).map_err(|_| KeyError::Key)?)
}

/// The change that sets a token.
///
/// # Errors
/// The id or the value cannot be read, or a name, hash or serial in it is none.
pub(super) fn token(id: &[u8], value: &[u8]) -> Result<TrustChange, TrustCodecError> {
    let id = token_id(id)?;
    let value = TokenValue::decode(value)?;
    let used = match value.used {
        Some(used) => Some(TokenUse {
            key: Hash(sized("hash of a key", &used.key)?),
            at: used.at,
            serial: serial(used.serial)?,
        }),
        None => None,
    };
    let token = Token {
        node: value.node.parse()?,
        secret: Hash(sized("hash of a secret", &value.secret)?),
        created: value.created,
        expires: value.expires,
        used,
    };
    Ok(TrustChange::Token(id, Some(token)))
}

/// The change that sets a revocation.
///
/// # Errors
/// The key names no node and no relay, or the value or a serial in it cannot be read.
pub(super) fn revocation(key: &[u8], value: &[u8]) -> Result<TrustChange, TrustCodecError> {
    let RevocationValue { since, allowed } = RevocationValue::decode(value)?;
    let allowed = allowed.into_iter().map(serial).collect::<Result<_, _>>()?;
    Ok(TrustChange::Revocation(subject_of(key)?, Some(Revocation { since, allowed })))
}

/// The key of a name: its kind, NUL, and the name.
fn of_subject(subject: &Subject) -> Vec<u8> {
    let (kind, name) = match subject {
        Subject::Node(node) => (NODE, node.as_str()),
        Subject::Front(front) => (FRONT, front.as_str()),
    };
    [kind, "\0", name].concat().into()
}

fn subject_of(key: &[u8]) -> Result<Subject, TrustCodecError> {
    let (kind, name) = key::split(key)?;
    let name = key::text(name)?;
    match kind {
        NODE => Ok(Subject::Node(name.parse()?)),
        FRONT => Ok(Subject::Front(name.parse()?)),
        _ => Err(KeyError::Key.into()),
    }
}

/// A serial in hexadecimal.
fn serial(text: String) -> Result<Serial, TrustCodecError> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    Ok(Serial::of(&bytes.ok_or(TrustCodecError::Serial(text))?))
}

impl From<&Token> for TokenValue {
    fn from(token: &Token) -> Self {
        let bytes = |hash: &Hash| Bytes::copy_from_slice(&hash.0);
        let used = token.used.as_ref().map(|used| UseValue {
            key: bytes(&used.key),
            at: used.at,
            serial: used.serial.to_string(),
        });
        Self {
            node: token.node.to_string(),
            secret: bytes(&token.secret),
            created: token.created,
            expires: token.expires,
            used,
        }
    }
}

fn sized<const N: usize>(what: &'static str, bytes: &[u8]) -> Result<[u8; N], TrustCodecError> {
    let wrong = |_| TrustCodecError::Length { what, length: bytes.len(), expected: N };
    bytes.try_into().map_err(wrong)
}
