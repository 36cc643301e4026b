//! Exclusive leases of direct volumes, as edges and the cloud speak of them: control messages.
//!
//! The cloud reads an edge's messages in the order in which the edge sent them. It reads nothing
//! more from a link that a newer one has replaced. So the last message of an edge counts.

use serde::{Deserialize, Serialize};

use crate::host::plain::plain_text;
use crate::names::DriverName;

/// The longest id of a volume in a message, in bytes; the shortest has one. CSI's limit is 128,
/// which some drivers exceed.
pub const MAX_ID: usize = 4096;

/// An edge's request about a volume's lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The edge's own count; the reply repeats it.
    pub id: u64,
    /// The volume's driver.
    pub driver: DriverName,
    /// The volume's id.
    pub volume: String,
    /// The request or report.
    pub step: LeaseAction,
}

/// What an edge asks or reports about a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseAction {
    /// A pod needs the volume, and the edge has no lease of it.
    Ask {
        /// The pod's UID; empty if it is unknown.
        #[serde(deserialize_with = "plain_text")]
        pod: String,
    },
    /// The edge has the lease.
    Hold {
        /// The epoch that the cloud granted it with; 0 if the cloud never did.
        epoch: u64,
        /// The pod's UID; empty if it is unknown.
        #[serde(deserialize_with = "plain_text")]
        pod: String,
        /// The cloud's MAC of the lease, as it came; none if the cloud gave none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mac: Option<String>,
    },
    /// The edge has no lease, whatever the cloud recorded.
    Release,
}

/// The cloud's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's id.
    pub id: u64,
    /// The outcome.
    #[serde(rename = "answer")]
    pub outcome: Outcome,
}

/// The holder of the lease after the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// This node.
    Held {
        /// Grows with each lease of the volume that the cloud grants.
        epoch: u64,
        /// Proves to the cloud that it granted this lease to this node: base64, opaque to edges.
        /// None of an older cloud, and of a lease that the node has by its own word.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mac: Option<String>,
    },
    /// This node no longer.
    Released,
    /// Another node, so it was not granted.
    #[serde(rename = "anothers")]
    HeldElsewhere {
        /// The other node and advice, for an operator.
        #[serde(deserialize_with = "plain_text")]
        why: String,
    },
    /// An operator took it from this node; another node may have it.
    Fenced {
        /// The other node and advice, for an operator.
        #[serde(deserialize_with = "plain_text")]
        why: String,
    },
    /// Unknown for now.
    NotNow {
        /// The reason; for an operator.
        #[serde(deserialize_with = "plain_text")]
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::hello::Message;

    #[test]
    fn each_message_on_the_wire_is_this() {
        let request = |step| {
            let driver = "d.example".parse().unwrap();
            Message::Lease(Request { id: 7, driver, volume: "v".into(), step })
        };
        let reply = |outcome| Message::LeaseReply(Reply { id: 7, outcome });
        for (message, text) in [
            (
                request(LeaseAction::Ask { pod: "p".into() }),
                r#"{"own":{"id":7,"driver":"d.example","volume":"v","step":{"ask":{"pod":"p"}}}}"#,
            ),
            (
                request(LeaseAction::Hold { epoch: 5, pod: String::new(), mac: None }),
                concat!(
                    r#"{"own":{"id":7,"driver":"d.example","volume":"v","#,
                    r#""step":{"hold":{"epoch":5,"pod":""}}}}"#
                ),
            ),
            (
                request(LeaseAction::Hold { epoch: 5, pod: "p".into(), mac: Some("bWFj".into()) }),
                concat!(
                    r#"{"own":{"id":7,"driver":"d.example","volume":"v","#,
                    r#""step":{"hold":{"epoch":5,"pod":"p","mac":"bWFj"}}}}"#
                ),
            ),
            (
                reply(Outcome::Held { epoch: 9, mac: Some("bWFj".into()) }),
                r#"{"owner":{"id":7,"answer":{"held":{"epoch":9,"mac":"bWFj"}}}}"#,
            ),
            (
                request(LeaseAction::Release),
                r#"{"own":{"id":7,"driver":"d.example","volume":"v","step":"release"}}"#,
            ),
            (
                reply(Outcome::Held { epoch: 9, mac: None }),
                r#"{"owner":{"id":7,"answer":{"held":{"epoch":9}}}}"#,
            ),
            (reply(Outcome::Released), r#"{"owner":{"id":7,"answer":"released"}}"#),
            (
                reply(Outcome::HeldElsewhere { why: "w".into() }),
                r#"{"owner":{"id":7,"answer":{"anothers":{"why":"w"}}}}"#,
            ),
            (
                reply(Outcome::Fenced { why: "w".into() }),
                r#"{"owner":{"id":7,"answer":{"fenced":{"why":"w"}}}}"#,
            ),
            (
                reply(Outcome::NotNow { why: "w".into() }),
                r#"{"owner":{"id":7,"answer":{"not_now":{"why":"w"}}}}"#,
            ),
        ] {
            assert_eq!(message.encode().unwrap(), text);
            assert_eq!(Message::decode(text.as_bytes()).unwrap(), message);
        }
    }
}
