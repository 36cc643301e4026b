//! The state of a node, in the one word and colour that the page has for it.

use serde::{Deserialize, Serialize};

/// The state of a node. The worse comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It had a link once, and has none now.
    Away,
    /// It has a link, and one of its drivers is down.
    Down,
    /// It has no link, and its certificates were revoked.
    Revoked,
    /// It gets no new volumes.
    Apart,
    /// Its certificate ends soon.
    Ending,
    /// All is well.
    Linked,
    /// An operator removed it.
    Removed,
}

impl NodeState {
    /// All states, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Away,
        Self::Down,
        Self::Revoked,
        Self::Apart,
        Self::Ending,
        Self::Linked,
        Self::Removed,
    ];

    /// Its word in addresses and in the style sheet.
    pub fn name(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Down => "down",
            Self::Revoked => "revoked",
            Self::Apart => "apart",
            Self::Ending => "ending",
            Self::Linked => "linked",
            Self::Removed => "removed",
        }
    }

    /// The words for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Down => "driver down",
            Self::Revoked => "revoked",
            Self::Apart => "set apart",
            Self::Ending => "certificate ends soon",
            Self::Linked => "linked",
            Self::Removed => "removed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_as_in_json_and_no_two_are_the_same() {
        for (place, state) in NodeState::ALL.into_iter().enumerate() {
            let place_of_name = NodeState::ALL.iter().position(|of| of.name() == state.name());
            assert_eq!(place_of_name, Some(place));
            let place_of_label = NodeState::ALL.iter().position(|of| of.label() == state.label());
            assert_eq!(place_of_label, Some(place));
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("\"{}\"", state.name()));
        }
    }
}
