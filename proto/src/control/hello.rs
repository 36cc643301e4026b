//! The control messages of a link, in JSON, beside the calls.
//!
//! The edge's hello is the first message on every link, the cloud's welcome or refusal the second.
//! A hello is read in two steps, the protocol number first. So a newer protocol is refused as such,
//! not as garbage.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A protobuf message, in base64 within JSON.
pub use super::base64::Base64 as Protobuf;
use super::certificate::{Certificate, NotRenewed, Renew};
use super::health::Health;
use super::leader::LeaderEpoch;
use super::lease::{Reply, Request};
use super::machine::MachineId;
use super::metadata::{Part, Position};
use super::not_taken::NotTaken;
pub use super::run::{NotARun, Run};
use super::watermark::Watermark;
use crate::csi::topology::Scope;
use crate::host::plain::{plain, plain_text};
use crate::names::{DriverName, NodeName};

/// The protocol that this version speaks; `docs/reference/wire.md` describes it.
pub const PROTOCOL: u32 = 1;
/// The oldest version that this one links to.
pub const OLDEST_PEER: &str = "0.2.0";
/// The largest control message, in bytes; a hello of 100 drivers is about 100 KiB.
pub const MAX_BYTES: usize = 256 * 1024;

/// One control message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Edge to cloud, first on a link.
    Hello(Hello),
    /// Cloud to edge: the link is up. Sent again when its content changes.
    Welcome(Welcome),
    /// Cloud to edge, in the place of the welcome and before it, if the hello says
    /// `answers_challenge`: the edge is to say this nonce.
    Challenge(Uuid),
    /// Edge to cloud: the nonce of the challenge. The program that said hello runs still.
    ChallengeAnswer(Uuid),
    /// Cloud to edge: the link will be closed, and why.
    Refused(Refused),
    /// Edge to cloud, if the welcome has `keep_alive_ms`: nothing came for that long. The
    /// transport's acknowledgement is the answer.
    Probe(True),
    /// Edge to cloud: a driver has changed; the list has all drivers, like the hello.
    Drivers(Vec<Driver>),
    /// Cloud to edge, over transports that need it: open the bulk stream and show this ticket.
    Bulk(Uuid),
    /// Cloud to edge: no new call will use this link; open another one, to another csi-cloud if
    /// there is one. It is also the answer to [`Message::Leaving`].
    Leave,
    /// Edge to cloud: begin no call on this link; it ends when the calls in flight are answered.
    Leaving,
    /// Edge to cloud, if the welcome says `owners`: a request about a volume's lease.
    #[serde(rename = "own")]
    Lease(Request),
    /// Cloud to edge: the reply to that.
    #[serde(rename = "owner")]
    LeaseReply(Reply),
    /// Edge to cloud, if the welcome says `not_taken`: the direct volumes that no runtime took. The
    /// first follows the welcome, a further one each change.
    NotTaken(NotTaken),
    /// Cloud to edge, if the hello has `metadata`: objects of Kubernetes that concern this node's
    /// volumes. The next part follows the answer to this one.
    Metadata(Part),
    /// Edge to cloud: the answer to each part, how far the edge has the metadata now.
    MetadataTaken(Position),
    /// Edge to cloud, if the welcome says `renews`: asks for a new certificate. It may also be the
    /// first message on a link, instead of the hello. That is all that a link with an ended
    /// certificate may send; the cloud closes such a link after its answer.
    Renew(Renew),
    /// Cloud to edge: the new certificate.
    Renewed(Certificate),
    /// Cloud to edge: there is no new certificate, and why.
    NotRenewed(NotRenewed),
}

/// An edge introduces itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol it speaks.
    pub protocol: u32,
    /// Its node's name, for the log; its identity is in its certificate.
    pub node: NodeName,
    /// The version of csi-edge, for the log.
    #[serde(deserialize_with = "plain_text")]
    pub version: String,
    /// The drivers at this node.
    pub drivers: Vec<Driver>,
    /// It takes leases of direct volumes, with [`Message::Lease`].
    #[serde(rename = "owners")]
    pub leases: True,
    /// It reports direct volumes that were not taken, with [`Message::NotTaken`].
    pub not_taken: True,
    /// True if it expands volumes on its node itself, in the place of the kubelet. It does not have
    /// the secrets of that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expands: bool,
    /// Its position in the metadata of its node; none from an edge that takes no metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Position>,
    /// True if it takes the Node among that metadata.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_node: bool,
    /// True if it refuses to begin a call after the time that csi-cloud gives with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begins_within: bool,
    /// True if it takes another stream of calls on a WebSocket when the cloud has ended one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reopens_calls: bool,
    /// True if the certificate of this link is on the edge's disk. An older one may then be renewed
    /// no more: the edge does not fall back to it after a crash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub certificate_on_disk: bool,
    /// A hash of the CAs that it trusts. It is compared, and shown to nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Box<str>>,
    /// True if it waits at a csi-cloud that follows until another one leads: it cannot use the
    /// leader that it was told of.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_leader: bool,
    /// True if it answers a challenge, and no other csi-edge can have its state directory: two runs
    /// that answer one are two copies of the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answers_challenge: bool,
    /// The run of csi-edge.
    pub run: Run,
    /// Its machine. `None` if that has no id, and of an edge that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
    /// True if it keeps watermarks: without that a create has none, since an older edge passes
    /// headers that it does not know on to the driver.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_watermark: bool,
    /// The newest watermark that it was told. `None` if it was told none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<Box<Watermark>>,
}

/// A field that both ends have set to true since [`OLDEST_PEER`], and that they still look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "bool", into = "bool")]
pub struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(is_set: bool) -> Result<Self, Self::Error> {
        if is_set { Ok(Self) } else { Err("a field that must be true is false") }
    }
}

impl From<True> for bool {
    fn from(True: True) -> Self {
        true
    }
}

/// The cloud accepts the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The protocol it speaks.
    pub protocol: u32,
    /// The version of csi-cloud, for the log.
    #[serde(deserialize_with = "plain_text")]
    pub version: String,
    /// The longest wait of the edge before it dials again, in ms. A small fleet is back soon, and a
    /// large fleet does not come back all at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_cap_ms: Option<u32>,
    /// The known scopes of the edge's drivers; a driver that is left out keeps its scope.
    ///
    /// Where the scope is `node` and the driver has no topology, the edge shows ours to the node's
    /// own callers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scopes: BTreeMap<DriverName, Scope>,
    /// The drivers whose topology at this node the cloud alone publishes. The node's own front
    /// leaves it out for them, and for no other driver.
    ///
    /// None if the cloud does not know it, or not yet; the last list holds then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publishes_topology: Option<BTreeSet<DriverName>>,
    /// How often, in s, the edge asks a driver of [`Self::publishes_topology`] for NodeGetInfo
    /// again, where the driver's CSIDriver object says it (`nodeAllocatableUpdatePeriodSeconds`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_info_every_s: BTreeMap<DriverName, u32>,
    /// The cloud grants leases of direct volumes, and reads [`Message::Lease`].
    #[serde(rename = "owners")]
    pub leases: True,
    /// The cloud reads [`Message::NotTaken`].
    pub not_taken: True,
    /// True if the cloud sends the metadata of the node, with [`Message::Metadata`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metadata: bool,
    /// True if the cloud issues certificates, and reads [`Message::Renew`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renews: bool,
    /// True if the edge shall renew its certificate now: the CAs have changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renew_now: bool,
    /// The epoch of this csi-cloud, and of each call on the link; none if its store is its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<LeaderEpoch>,
    /// How far its store is. `None` if nothing was created yet, or the store is an older copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<Box<Watermark>>,
    /// The interval of signs of life on this link, in ms. The cloud reads [`Message::Probe`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_ms: Option<u32>,
}

/// The cloud refuses the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The protocol that the cloud speaks.
    pub protocol: u32,
    /// The reason, for an operator.
    #[serde(deserialize_with = "plain_text")]
    pub reason: String,
    /// From a csi-cloud that follows, the endpoints of the one that leads; empty if none does. An
    /// edge that links dials only those that it is configured with. One that joins asks each
    /// `wss://` one, by the same hash of the CA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Vec<String>>,
}

/// A driver and its description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Its CSI name.
    pub name: DriverName,
    /// Its answers, by RPC (`GetPluginInfo`, `NodeGetInfo`, …). Empty while the driver cannot be
    /// reached; an RPC that it does not implement is left out.
    pub answers: BTreeMap<String, Protobuf>,
    /// Its health; none from an edge that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

/// The reason why bytes are not a control message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// More than [`MAX_BYTES`].
    #[error("a control message of {0} bytes, and {MAX_BYTES} is the most")]
    TooLarge(usize),
    /// Its length, which comes first, is more than [`MAX_BYTES`]; it was not read.
    #[error("a control message of more than {MAX_BYTES} bytes")]
    Larger,
    /// Not a message of this protocol.
    #[error("a control message that cannot be read: {0}")]
    Unreadable(String),
    /// A hello or welcome of a version before [`OLDEST_PEER`].
    #[error(
        "{program} {version} is too old for this version, which links to {OLDEST_PEER} and later: \
         upgrade {program}"
    )]
    TooOld {
        /// The peer: csi-edge or csi-cloud.
        program: &'static str,
        /// Its version.
        version: String,
    },
    /// A hello of another protocol than ours.
    #[error(
        "the edge speaks link protocol {theirs} and this cloud speaks {PROTOCOL}; {}",
        advice(*.theirs)
    )]
    Protocol {
        /// The protocol in the hello.
        theirs: u32,
    },
}

/// Hides serde's text, which may quote the peer.
fn unreadable(error: serde_json::Error) -> MessageError {
    MessageError::Unreadable(plain(&error.to_string()))
}

fn advice(theirs: u32) -> &'static str {
    if theirs > PROTOCOL { "upgrade csi-cloud first, then csi-edge" } else { "upgrade csi-edge" }
}

impl Message {
    /// The message as it is on the wire.
    ///
    /// # Errors
    /// It is larger than [`MAX_BYTES`].
    pub fn encode(&self) -> Result<String, MessageError> {
        let text = serde_json::to_string(self).map_err(unreadable)?;
        if text.len() > MAX_BYTES { Err(MessageError::TooLarge(text.len())) } else { Ok(text) }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// See [`MessageError`]; a hello of another protocol has an error of its own.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() > MAX_BYTES {
            return Err(MessageError::TooLarge(bytes.len()));
        }
        if let Ok(peek) = serde_json::from_slice::<Peek>(bytes) {
            peek.check()?;
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }
}

/// What a first message says of its sender, in whatever version.
#[derive(Deserialize)]
struct Peek {
    hello: Option<PeekHello>,
    welcome: Option<PeekWelcome>,
}

#[derive(Deserialize)]
struct PeekHello {
    protocol: u32,
    version: Option<String>,
    /// Told since 0.2.0.
    run: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct PeekWelcome {
    protocol: u32,
    version: Option<String>,
    /// Told since 0.2.0.
    not_taken: Option<IgnoredAny>,
}

impl Peek {
    /// Refuses a hello of another protocol, and a peer that is too old.
    fn check(self) -> Result<(), MessageError> {
        if let Some(hello) = self.hello {
            if hello.protocol != PROTOCOL {
                return Err(MessageError::Protocol { theirs: hello.protocol });
            }
            if hello.run.is_none() {
                return Err(too_old("csi-edge", hello.version));
            }
        }
        match self.welcome {
            Some(PeekWelcome { protocol: PROTOCOL, version, not_taken: None }) => {
                Err(too_old("csi-cloud", version))
            }
            _ => Ok(()),
        }
    }
}

fn too_old(program: &'static str, version: Option<String>) -> MessageError {
    let version = plain(&version.unwrap_or_else(|| "of an unknown version".into()));
    MessageError::TooOld { program, version }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn hello() -> Message {
        let info = Protobuf(Bytes::from_static(b"\x0a\x01x"));
        let answers = BTreeMap::from([("GetPluginInfo".to_owned(), info)]);
        Message::Hello(Hello {
            protocol: PROTOCOL,
            node: "n1".parse().unwrap(),
            version: "0.2.0".into(),
            drivers: vec![Driver {
                name: "hostdir.edge-csi.io".parse().unwrap(),
                answers,
                health: None,
            }],
            leases: True,
            not_taken: True,
            expands: false,
            metadata: None,
            takes_node: false,
            begins_within: false,
            reopens_calls: false,
            certificate_on_disk: false,
            trust: None,
            awaits_leader: false,
            run: Run::nil(),
            machine: None,
            takes_watermark: false,
            answers_challenge: false,
            watermark: None,
        })
    }

    fn welcome(scopes: BTreeMap<DriverName, Scope>) -> Welcome {
        Welcome {
            protocol: 1,
            version: "0.2.0".into(),
            backoff_cap_ms: None,
            scopes,
            publishes_topology: None,
            node_info_every_s: BTreeMap::new(),
            leases: True,
            not_taken: True,
            metadata: false,
            renews: false,
            renew_now: false,
            leader_epoch: None,
            watermark: None,
            keep_alive_ms: None,
        }
    }

    #[test]
    fn only_several_csi_clouds_say_which_one_leads() {
        let alone = Message::Welcome(welcome(BTreeMap::new())).encode().unwrap();
        let whole =
            r#"{"welcome":{"protocol":1,"version":"0.2.0","owners":true,"not_taken":true}}"#;
        assert_eq!(alone, whole);
        let led = Welcome { leader_epoch: Some(LeaderEpoch(7)), ..welcome(BTreeMap::new()) };
        let leader = vec!["wss://b.example:7443".to_owned()];
        let refused = |leader| Refused { protocol: 1, reason: "no".into(), leader };
        let Message::Hello(hello) = hello() else { unreachable!() };
        for (message, end) in [
            (Message::Welcome(led), r#","leader_epoch":7}}"#),
            (Message::Refused(refused(None)), r#""reason":"no"}}"#),
            (Message::Refused(refused(Some(vec![]))), r#""reason":"no","leader":[]}}"#),
            (Message::Refused(refused(Some(leader))), r#","leader":["wss://b.example:7443"]}}"#),
            (
                Message::Hello(Hello {
                    awaits_leader: true,
                    takes_node: true,
                    begins_within: true,
                    reopens_calls: true,
                    certificate_on_disk: true,
                    ..hello
                }),
                concat!(
                    r#","takes_node":true,"begins_within":true,"reopens_calls":true,"#,
                    r#""certificate_on_disk":true,"awaits_leader":true,"#
                ),
            ),
        ] {
            let text = message.encode().unwrap();
            assert!(text.contains(end), "{text}");
            assert_eq!(Message::decode(text.as_bytes()).unwrap(), message);
        }
    }

    #[test]
    fn a_hello_names_the_run_of_csi_edge() {
        let [run, other] = [Run::begin(), Run::begin()];
        assert_ne!(run, other);
    }

    #[test]
    fn a_peer_that_is_too_old_is_refused_with_the_versions_that_work() {
        let edge =
            br#"{"hello":{"protocol":1,"node":"n1","version":"0.1.0","drivers":[],"owners":true}}"#;
        let cloud = br#"{"welcome":{"protocol":1,"version":"0.1.0","owners":true}}"#;
        for (older, expected) in [
            (edge.as_slice(), "csi-edge 0.1.0 is too old for this version, which links to 0.2.0"),
            (cloud.as_slice(), "csi-cloud 0.1.0 is too old for this version, which links to 0.2.0"),
        ] {
            let error = Message::decode(older).unwrap_err();
            assert!(matches!(error, MessageError::TooOld { .. }), "{error}");
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        let lying = Message::Welcome(welcome(BTreeMap::new())).encode().unwrap();
        let lying = lying.replace(r#""owners":true"#, r#""owners":false"#);
        assert!(Message::decode(lying.as_bytes()).is_err());
    }

    #[test]
    fn a_hello_on_the_wire_is_this() {
        let driver = r#"{"name":"hostdir.edge-csi.io","answers":{"GetPluginInfo":"CgF4"}}"#;
        let run = "00000000-0000-0000-0000-000000000000";
        let expected = format!(
            r#"{{"hello":{{"protocol":1,"node":"n1","version":"0.2.0","drivers":[{driver}],{}}}}}"#,
            format_args!(r#""owners":true,"not_taken":true,"run":"{run}""#)
        );
        assert_eq!(hello().encode().unwrap(), expected);
        assert_eq!(Message::decode(expected.as_bytes()).unwrap(), hello());
    }

    #[test]
    fn a_goodbye_on_the_wire_is_a_word() {
        assert_eq!(Message::Leave.encode().unwrap(), r#""leave""#);
        assert_eq!(Message::decode(br#""leaving""#).unwrap(), Message::Leaving);
    }

    #[test]
    fn scopes_on_the_wire_are_words() {
        let scopes = r#"{"a.example":"node","b.example":"shared"}"#;
        let end = r#""owners":true,"not_taken":true"#;
        let text =
            format!(r#"{{"welcome":{{"protocol":1,"version":"0.2.0","scopes":{scopes},{end}}}}}"#);
        let scopes = [("a.example", Scope::Node), ("b.example", Scope::Shared)];
        let scopes = scopes.map(|(name, scope)| (name.parse().unwrap(), scope)).into();
        let welcome = welcome(scopes);
        assert_eq!(Message::decode(text.as_bytes()).unwrap(), Message::Welcome(welcome.clone()));
        assert_eq!(Message::Welcome(welcome).encode().unwrap(), text);
    }

    #[test]
    fn a_welcome_may_name_the_drivers_whose_topology_the_cloud_publishes() {
        let older = Message::Welcome(welcome(BTreeMap::new()));
        assert!(!older.encode().unwrap().contains("publishes_topology"));
        for (drivers, text) in [(vec![], "[]"), (vec!["a.example"], r#"["a.example"]"#)] {
            let drivers = drivers.iter().map(|name| name.parse().unwrap()).collect();
            let newer = Welcome { publishes_topology: Some(drivers), ..welcome(BTreeMap::new()) };
            let newer = Message::Welcome(newer);
            let encoded = newer.encode().unwrap();
            assert!(encoded.contains(&format!(r#""publishes_topology":{text}"#)), "{encoded}");
            assert_eq!(Message::decode(encoded.as_bytes()).unwrap(), newer);
        }
        let node_info_every_s = [("a.example".parse().unwrap(), 60)].into();
        let newer = Message::Welcome(Welcome { node_info_every_s, ..welcome(BTreeMap::new()) });
        let encoded = newer.encode().unwrap();
        assert!(encoded.contains(r#""node_info_every_s":{"a.example":60}"#), "{encoded}");
        assert_eq!(Message::decode(encoded.as_bytes()).unwrap(), newer);
    }

    #[test]
    fn a_hello_from_the_future_is_refused_by_its_number() {
        let future = br#"{"hello":{"protocol":7,"who":{"name":"n1"},"things":[]}}"#;
        let error = Message::decode(future).unwrap_err();
        assert!(matches!(error, MessageError::Protocol { theirs: 7 }));
        assert!(
            error.to_string().contains("speaks link protocol 7 and this cloud speaks 1"),
            "{error}"
        );
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let known = r#""protocol":1,"version":"9","owners":true,"not_taken":true"#;
        let newer = format!(r#"{{"welcome":{{{known},"mood":"good"}}}}"#);
        assert!(Message::decode(newer.as_bytes()).is_ok());
    }

    #[test]
    fn a_cut_and_an_oversized_hello_are_errors() {
        let whole = hello().encode().unwrap();
        for end in 0..whole.len() {
            assert!(Message::decode(&whole.as_bytes()[..end]).is_err());
        }
        let large =
            format!(r#"{{"refused":{{"protocol":1,"reason":"{}"}}}}"#, "x".repeat(MAX_BYTES));
        assert!(matches!(Message::decode(large.as_bytes()), Err(MessageError::TooLarge(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..128),
        ) {
            let _ = Message::decode(&bytes);
        }

        #[test]
        fn a_damaged_hello_is_a_message_or_an_error(at in 0_usize..150, byte: u8) {
            let mut bytes = hello().encode().unwrap().into_bytes();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            let _ = Message::decode(&bytes);
        }
    }

    #[test]
    fn what_a_peer_says_is_shown_without_its_control_characters() {
        let evil = "\u{1b}[2J\nforged\u{202e}";
        let refused = Refused { protocol: PROTOCOL, reason: evil.into(), leader: None };
        let refused = Message::Refused(refused);
        let Message::Hello(hello) = hello() else { panic!("no hello") };
        let hello = Message::Hello(Hello { version: evil.into(), ..hello });
        let shown = |message: Message| match Message::decode(message.encode().unwrap().as_bytes()) {
            Ok(Message::Refused(refused)) => refused.reason,
            Ok(Message::Hello(hello)) => hello.version,
            _ => panic!("another message"),
        };
        for text in [shown(refused), shown(hello)] {
            assert_eq!(text, "\\u{1b}[2J\\nforged\\u{202e}");
        }
        let name = format!("{{\"hello{}\":1}}", "\\u001b\\n");
        let error = Message::decode(name.as_bytes()).unwrap_err().to_string();
        assert!(!error.contains(char::is_control) && error.contains("\\u{1b}"), "{error}");
    }
}
