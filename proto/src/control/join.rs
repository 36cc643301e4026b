//! The two messages of joining: an edge without a certificate asks for one, and the answer.
//!
//! They are exchanged on a connection of their own, never on a link. Both are JSON of at most
//! [`MAX_BYTES`].

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::base64::Base64;
use super::certificate::Certificate;
use super::hello::{PROTOCOL, Refused};

/// The largest message of joining, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;

/// A token with which an edge may join: of `csi-cloud token create`, or of a Kubernetes
/// ServiceAccount. It cannot be printed, and is overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// A token, without the white space around it.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// The token itself; never log it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Zeroize for Token {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl ZeroizeOnDrop for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

/// Edge to cloud: asks for the certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The permission, which names the node.
    pub token: Token,
    /// A certificate signing request (PKCS #10, DER) with the node's key. Only its key and its
    /// proof of possession count.
    pub csr: Base64,
}

/// A request of an edge to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Question {
    Join(Join),
}

/// Cloud to edge: the answer to [`Join`], after which the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The node's certificate.
    Certificate(Certificate),
    /// There is none, and why.
    Refused(Refused),
}

impl Answer {
    /// A refusal with this reason, for an operator.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(Refused { protocol: PROTOCOL, reason: reason.into(), leader: None })
    }
}

/// The reason why bytes are not a message of joining. No text of it has a part of the message,
/// which may hold a token.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// More than [`MAX_BYTES`].
    #[error("a message of joining of {0} bytes, and {MAX_BYTES} is the most")]
    TooLarge(usize),
    /// Not a message of joining.
    #[error("a message of joining that cannot be read, at line {line}, column {column}")]
    Unreadable {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
}

impl From<serde_json::Error> for JoinError {
    fn from(error: serde_json::Error) -> Self {
        Self::Unreadable { line: error.line(), column: error.column() }
    }
}

impl Join {
    /// The message as it is on the wire.
    ///
    /// # Errors
    /// It is larger than [`MAX_BYTES`].
    pub fn encode(&self) -> Result<String, JoinError> {
        encode(&Question::Join(self.clone()))
    }

    /// Reads the message.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, JoinError> {
        let Question::Join(join) = decode(bytes)?;
        Ok(join)
    }
}

impl Answer {
    /// The answer as it is on the wire.
    ///
    /// # Errors
    /// It is larger than [`MAX_BYTES`].
    pub fn encode(&self) -> Result<String, JoinError> {
        encode(self)
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, JoinError> {
        decode(bytes)
    }
}

fn encode(message: &impl Serialize) -> Result<String, JoinError> {
    let text = serde_json::to_string(message)?;
    if text.len() > MAX_BYTES { Err(JoinError::TooLarge(text.len())) } else { Ok(text) }
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, JoinError> {
    if bytes.len() > MAX_BYTES {
        return Err(JoinError::TooLarge(bytes.len()));
    }
    Ok(serde_json::from_slice(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn join() -> Join {
        Join { token: Token::new(" id.secret\n"), csr: Base64(Bytes::from_static(b"\x30\x00")) }
    }

    #[test]
    fn joining_on_the_wire_is_this() {
        let text = r#"{"join":{"token":"id.secret","csr":"MAA="}}"#;
        assert_eq!(join().encode().unwrap(), text);
        assert_eq!(Join::decode(text.as_bytes()).unwrap(), join());
        let certificate = Answer::Certificate(Certificate { chain: "c".into(), ca: "a".into() });
        let refused = Answer::refused("used");
        for (answer, text) in [
            (certificate, r#"{"certificate":{"chain":"c","ca":"a"}}"#),
            (refused, r#"{"refused":{"protocol":1,"reason":"used"}}"#),
        ] {
            assert_eq!(answer.encode().unwrap(), text);
            assert_eq!(Answer::decode(text.as_bytes()).unwrap(), answer);
        }
    }

    #[test]
    fn no_token_is_printed() {
        assert!(!format!("{:?}", join()).contains("secret"));
        let error = Join::decode(br#"{"join":{"token":7,"csr":"id.secret"}}"#).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        let error = Join::decode(br#"{"join":{"token":"t","csr":"id.secret"}}"#).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn a_token_is_overwritten() {
        fn is_on_drop<T: ZeroizeOnDrop>(_: &T) {}
        let mut token = Token::new("id.secret");
        is_on_drop(&token);
        token.zeroize();
        assert_eq!(token.reveal(), "");
    }

    #[test]
    fn a_large_message_is_refused() {
        let large = Join { token: Token::new(&"x".repeat(MAX_BYTES)), ..join() };
        assert!(matches!(large.encode(), Err(JoinError::TooLarge(_))));
        let bytes = vec![b' '; MAX_BYTES + 1];
        assert!(matches!(Join::decode(&bytes), Err(JoinError::TooLarge(_))));
        assert!(matches!(Answer::decode(&bytes), Err(JoinError::TooLarge(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..128),
        ) {
            let _ = Join::decode(&bytes);
            let _ = Answer::decode(&bytes);
        }

        #[test]
        fn what_is_written_is_read_back(
            token in "[!-~]{1,200}",
            csr in proptest::collection::vec(any::<u8>(), 0..512),
        ) {
            let join = Join { token: Token::new(&token), csr: Base64(csr.into()) };
            prop_assert_eq!(Join::decode(join.encode().unwrap().as_bytes()).unwrap(), join);
        }

        #[test]
        fn a_damaged_message_is_a_message_or_an_error(at in 0_usize..50, byte: u8) {
            let mut bytes = join().encode().unwrap().into_bytes();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            let _ = Join::decode(&bytes);
        }
    }
}
