//! What an edge and the cloud say to each other about volumes that one guest owns: control messages of a link.
//!
//! An edge's messages are heard in the order in which it sent them, and nothing that is on a link that a newer one has
//! replaced is heard any more; so what an edge said last is what it means.

use serde::{Deserialize, Serialize};

use crate::names::DriverName;

/// The longest id of a volume that may be spoken of, in bytes; the shortest has one. CSI's limit is 128; drivers exceed it.
pub const MAX_ID: usize = 4096;

/// What an edge says of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// The answer has the same; the edge's own count.
    pub id: u64,
    /// The volume's driver.
    pub driver: DriverName,
    /// The volume's id.
    pub volume: String,
    /// What is said.
    pub step: Step,
}

/// What an edge says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// It has not got the volume, and a pod wants it.
    Ask {
        /// The pod's UID; empty if it is not known.
        pod: String,
    },
    /// It has got the volume.
    Hold {
        /// The epoch that it was told with it; 0 if it was never told one.
        epoch: u64,
        /// The pod's UID; empty if it is not known.
        pod: String,
    },
    /// It has not got the volume, whatever the cloud thinks.
    Release,
}

/// The cloud's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Of what it is the answer.
    pub id: u64,
    /// The answer.
    pub answer: Answer,
}

/// How the volume stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is this node's.
    Held {
        /// Grows with each time that a volume is given to anybody.
        epoch: u64,
    },
    /// It is not this node's any more.
    Released,
    /// It is another node's, so it was not given.
    Anothers {
        /// Whose, and what to do; for an operator.
        why: String,
    },
    /// It was taken from this node by an operator's word; it may be another's.
    Fenced {
        /// Whose, and what to do; for an operator.
        why: String,
    },
    /// It cannot be said now.
    NotNow {
        /// Why; for an operator.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::hello::Message;

    #[test]
    fn what_is_said_of_a_volume_on_the_wire_is_this() {
        let own = |step| {
            Message::Own(Own {
                id: 7,
                driver: "d.example".parse().unwrap(),
                volume: "v".into(),
                step,
            })
        };
        let owner = |answer| Message::Owner(Owner { id: 7, answer });
        for (message, text) in [
            (
                own(Step::Ask { pod: "p".into() }),
                r#"{"own":{"id":7,"driver":"d.example","volume":"v","step":{"ask":{"pod":"p"}}}}"#,
            ),
            (
                own(Step::Hold { epoch: 5, pod: String::new() }),
                r#"{"own":{"id":7,"driver":"d.example","volume":"v","step":{"hold":{"epoch":5,"pod":""}}}}"#,
            ),
            (
                own(Step::Release),
                r#"{"own":{"id":7,"driver":"d.example","volume":"v","step":"release"}}"#,
            ),
            (
                owner(Answer::Held { epoch: 9 }),
                r#"{"owner":{"id":7,"answer":{"held":{"epoch":9}}}}"#,
            ),
            (owner(Answer::Released), r#"{"owner":{"id":7,"answer":"released"}}"#),
            (
                owner(Answer::Fenced { why: "w".into() }),
                r#"{"owner":{"id":7,"answer":{"fenced":{"why":"w"}}}}"#,
            ),
        ] {
            assert_eq!(message.encode().unwrap(), text);
            assert_eq!(Message::decode(text.as_bytes()).unwrap(), message);
        }
    }
}
