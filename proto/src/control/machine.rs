//! The machine under csi-edge, which no copy of its disk takes along.

use std::fmt;
use std::str::FromStr;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

/// Hashed before the machine's own id, so that the result is of use nowhere else.
const PURPOSE: &[u8] = b"edge-csi machine\0";

/// The id of a machine: 32 hexadecimal digits, a hash of what its firmware or its hardware says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MachineId([u8; 16]);

/// The text is not a [`MachineId`].
#[derive(Debug, thiserror::Error)]
#[error("not the id of a machine: 32 hexadecimal digits, as csi-cloud's log and `explain` name it")]
pub struct NotAMachineId;

impl MachineId {
    /// The id of the machine that its firmware or hardware names so.
    pub fn new(own: &str) -> Self {
        let mut hash = Context::new(&SHA256);
        hash.update(PURPOSE);
        hash.update(own.as_bytes());
        let hash = hash.finish();
        let half = hash.as_ref().iter().take(size_of::<Self>());
        Self(half.fold(0, |id, byte| id << 8 | u128::from(*byte)).to_be_bytes())
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for MachineId {
    type Err = NotAMachineId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hex = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let id = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        id.map(|id| Self(id.to_be_bytes())).ok_or(NotAMachineId)
    }
}

impl TryFrom<String> for MachineId {
    type Error = NotAMachineId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<MachineId> for String {
    fn from(id: MachineId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_machine_has_its_own_id_which_does_not_tell_its_serial_number() {
        let [one, other] = ["4c4c4544-0042", "4c4c4544-0043"].map(MachineId::new);
        assert_ne!(one, other);
        assert_eq!(one.to_string(), "60e8e60abec730bd538052edeb121835");
        assert_eq!(one.to_string().parse::<MachineId>().unwrap(), one);
    }

    proptest! {
        #[test]
        fn any_text_is_an_id_or_an_error(text in "[+-]?[0-9a-fA-Fxé]{0,34}") {
            let is_id = text.len() == 32 && text.chars().all(|digit| digit.is_ascii_hexdigit());
            prop_assert_eq!(text.parse::<MachineId>().is_ok(), is_id);
        }
    }
}
