//! Trust records as keys and values; see `codec`, whose rules hold here too.

use bytes::Bytes;
use prost::Message;

use crate::state::store::key::KeyError;
use crate::state::trust::{SecretKey, Secrets, TrustChange};

/// The only key of the table of secrets.
const OWN: &[u8] = b"own";

#[derive(Clone, PartialEq, Message)]
struct SecretsValue {
    #[prost(bytes = "bytes", tag = "1")]
    resets: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    leases: Bytes,
}

/// Why bytes are no trust record.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrustCodecError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("its value is not the protobuf message that it should be")]
    Value(#[from] prost::DecodeError),
    #[error("its {what} has {length} bytes and should have {expected}")]
    Length { what: &'static str, length: usize, expected: usize },
}

/// The key and value of a change; without a value the record is removed.
pub(super) fn encode(change: &TrustChange) -> (Vec<u8>, Option<Vec<u8>>) {
    match change {
        TrustChange::Secrets(Secrets { resets, leases }) => {
            let bytes = |key: &SecretKey| Bytes::copy_from_slice(key.expose());
            let value = SecretsValue { resets: bytes(resets), leases: bytes(leases) };
            (OWN.into(), Some(value.encode_to_vec()))
        }
    }
}

/// The change that sets the secrets.
pub(super) fn secrets(key: &[u8], value: &[u8]) -> Result<TrustChange, TrustCodecError> {
    if key != OWN {
        return Err(KeyError::Key.into());
    }
    let value = SecretsValue::decode(value)?;
    let resets = SecretKey::of(sized("key of resets", &value.resets)?);
    let leases = SecretKey::of(sized("key of leases", &value.leases)?);
    Ok(TrustChange::Secrets(Secrets { resets, leases }))
}

fn sized<const N: usize>(what: &'static str, bytes: &[u8]) -> Result<[u8; N], TrustCodecError> {
    let wrong = |_| TrustCodecError::Length { what, length: bytes.len(), expected: N };
    bytes.try_into().map_err(wrong)
}
