//! The finding of a doctor about one object: a verdict, what was found, and what to do.

use serde::{Deserialize, Serialize};

use crate::host::plain;

/// The verdict about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it has to be.
    Ok,
    /// It works, and soon or in part it will not.
    Warning,
    /// Something does not work until it is mended.
    Fault,
    /// It cannot be seen from here.
    Unknown,
}

impl Verdict {
    /// The word in tables and in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Fault => "fault",
            Self::Unknown => "unknown",
        }
    }
}

/// The result of one check of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the check; it never changes.
    pub check: String,
    /// The object: `ClusterRole cloudcore`.
    pub about: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The result in words.
    pub found: String,
    /// Advice; empty if all is well.
    pub advice: String,
}

impl Finding {
    /// It is as it has to be.
    pub fn ok(check: &str, about: impl Into<String>, found: impl Into<String>) -> Self {
        Self::of(Verdict::Ok, check, about.into(), &found.into(), "")
    }

    /// It works, and needs somebody to look.
    pub fn warning(
        check: &str,
        about: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::of(Verdict::Warning, check, about.into(), &found.into(), &advice.into())
    }

    /// It does not work.
    pub fn fault(
        check: &str,
        about: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::of(Verdict::Fault, check, about.into(), &found.into(), &advice.into())
    }

    /// It cannot be seen.
    pub fn unknown(
        check: &str,
        about: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::of(Verdict::Unknown, check, about.into(), &found.into(), &advice.into())
    }

    /// Escapes the texts, because they may quote a peer.
    fn of(verdict: Verdict, check: &str, about: String, found: &str, advice: &str) -> Self {
        Self { check: check.into(), about, verdict, found: plain(found), advice: plain(advice) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_a_table_is_that_of_the_json() {
        use Verdict::{Fault, Ok, Unknown, Warning};
        for verdict in [Ok, Warning, Fault, Unknown] {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.word());
        }
    }

    #[test]
    fn what_a_peer_says_does_not_move_the_cursor() {
        let finding = Finding::fault("c", "a", "\u{1b}[2J", "ask\nagain");
        assert_eq!(
            (finding.found.as_str(), finding.advice.as_str()),
            ("\\u{1b}[2J", "ask\\nagain")
        );
    }
}
