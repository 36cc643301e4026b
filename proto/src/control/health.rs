//! The health of a driver at its node, as an edge tells the cloud.
//!
//! It is apart from the link's: a link can be up while its driver is not. Nobody stores it.

use serde::{Deserialize, Serialize};

use crate::host::plain::plain_text;

/// The health of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// It answers. After it was down, it has answered without a failure for 30 s.
    Up,
    /// It is not ready yet: it was never reached, or says so itself, or was down until just now.
    Starting,
    /// Three attempts in a row found nobody at its socket.
    Gone,
    /// Three answers in a row were failures. A word that is newer than this version is read as
    /// this.
    #[serde(other)]
    Failing,
}

impl HealthState {
    /// True if new volumes may go to it.
    pub fn is_up(self) -> bool {
        self == Self::Up
    }

    /// True if it failed three times in a row.
    pub fn is_down(self) -> bool {
        matches!(self, Self::Gone | Self::Failing)
    }
}

/// The health of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Its health.
    pub state: HealthState,
    /// For how long it has been so when the message was sent, in seconds. The clocks of two
    /// machines differ, so no time of day is sent.
    pub seconds: u64,
    /// The reason why it is not up, for an operator; empty if it is up.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "plain_text")]
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_on_the_wire_is_this() {
        let gone = Health { state: HealthState::Gone, seconds: 7, why: "no socket".into() };
        let text = r#"{"state":"gone","seconds":7,"why":"no socket"}"#;
        assert_eq!(serde_json::to_string(&gone).unwrap(), text);
        assert_eq!(serde_json::from_str::<Health>(text).unwrap(), gone);
        let up: Health = serde_json::from_str(r#"{"state":"up","seconds":0}"#).unwrap();
        assert_eq!(up, Health { state: HealthState::Up, seconds: 0, why: String::new() });
    }

    #[test]
    fn a_newer_word_is_no_promise_of_health() {
        let newer: Health = serde_json::from_str(r#"{"state":"splendid","seconds":1}"#).unwrap();
        assert!(!newer.state.is_up() && newer.state.is_down());
    }

    #[test]
    fn a_reason_is_shown_without_its_control_characters() {
        let text = r#"{"state":"failing","seconds":1,"why":"\u001b[2J"}"#;
        assert_eq!(serde_json::from_str::<Health>(text).unwrap().why, "\\u{1b}[2J");
    }
}
