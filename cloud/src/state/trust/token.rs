//! Tokens with which a node joins: one token, one node, one key.
//!
//! A token is `ID.SECRET`. Only the SHA-256 of the secret is kept, so the store does not let
//! anybody join.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use proto::names::NodeName;
use proto::names::certificate::Serial;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::state::field::{Field, Names, RecordError, record, sized};
use crate::state::json;
use crate::state::trust::secrets::NoRandomness;

/// The characters of an id: 8 random bytes in hexadecimal.
const ID_LENGTH: usize = 16;
/// The characters of a secret: 32 random bytes in base64url.
const SECRET_LENGTH: usize = 43;

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hash(#[serde(with = "json")] pub [u8; 32]);

impl Hash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self(hash)
    }
}

impl Field for Hash {
    type Stored = Bytes;

    fn store(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }

    fn load(stored: Bytes, _: &mut Names) -> Result<Self, RecordError> {
        sized("hash", &stored).map(Self)
    }
}

/// The public half of a token, by which it is listed and revoked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenId(Box<str>);

/// A text is no id of a token.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no id of a token; `csi-cloud token list` shows the ids")]
pub struct NoTokenId(String);

impl TryFrom<String> for TokenId {
    type Error = NoTokenId;

    fn try_from(text: String) -> Result<Self, NoTokenId> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_id = text.len() == ID_LENGTH && text.bytes().all(is_hex);
        if is_id { Ok(Self(text.into())) } else { Err(NoTokenId(text)) }
    }
}

impl FromStr for TokenId {
    type Err = NoTokenId;

    fn from_str(text: &str) -> Result<Self, NoTokenId> {
        text.to_owned().try_into()
    }
}

impl From<TokenId> for String {
    fn from(id: TokenId) -> Self {
        id.0.into()
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TokenId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

record! {
    /// The record of a token.
    #[serde(deny_unknown_fields)]
    pub struct Token {
        /// The node that may join with it.
        pub node: NodeName = 1 (string),
        /// The SHA-256 of its secret.
        pub secret: Hash = 2 (bytes = "bytes"),
        /// The time at which it was made, in ms since 1970.
        pub created: u64 = 3 (uint64),
        /// The time at which it ends, in ms since 1970.
        pub expires: u64 = 4 (uint64),
        /// Its use; none before.
        pub used: Option<TokenUse> = 5 (message, optional),
    }
}

record! {
    /// The use of a token.
    #[serde(deny_unknown_fields)]
    pub struct TokenUse {
        /// The SHA-256 of the public key that got a certificate.
        pub key: Hash = 1 (bytes = "bytes"),
        /// The time of the first certificate, in ms since 1970.
        pub at: u64 = 2 (uint64),
        /// The serial of the last certificate.
        pub serial: Serial = 3 (string),
    }
}

/// A token as an edge shows it. It cannot be printed.
pub struct ShownToken {
    /// Its id.
    pub id: TokenId,
    /// The SHA-256 of the secret in it.
    pub secret: Hash,
}

/// A token that was just made; its text is shown once.
pub struct NewToken {
    /// Its id.
    pub id: TokenId,
    /// The whole token: `ID.SECRET`. Never log it.
    pub text: String,
    /// The SHA-256 of its secret.
    pub secret: Hash,
}

/// The reason why a token lets nobody join. No text has a part of the secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// It has less, or more, than a token.
    #[error(
        "this is no token: it has {0} characters, and a token has {expected}; was it cut off, or \
         pasted twice? Copy it whole from `csi-cloud token create`",
        expected = ID_LENGTH + 1 + SECRET_LENGTH
    )]
    Length(usize),
    /// It has another form.
    #[error("this is no token; copy it whole from `csi-cloud token create`")]
    Form,
    /// Its id is unknown, or its secret is wrong: the answer does not say which.
    #[error("this token is not known here, or was revoked; make one: `csi-cloud token create`")]
    Unknown,
    /// It has ended.
    #[error("the token {id} has ended; make a new one: `csi-cloud token create {node}`")]
    Expired {
        /// Its id.
        id: TokenId,
        /// Its node.
        node: NodeName,
    },
    /// Another key has used it.
    #[error(
        "the token {id} was used by another key, and is for one; if that was not you, somebody \
         else has joined as {node}: `csi-cloud node revoke {node}`. Else make a new token: \
         `csi-cloud token create {node}`"
    )]
    Used {
        /// Its id.
        id: TokenId,
        /// Its node.
        node: NodeName,
    },
}

impl ShownToken {
    /// Reads a token.
    ///
    /// # Errors
    /// It was cut off, was pasted twice, or is something else.
    pub fn parse(text: &str) -> Result<Self, TokenRefusal> {
        if text.len() != ID_LENGTH + 1 + SECRET_LENGTH {
            return Err(TokenRefusal::Length(text.chars().count()));
        }
        let (id, secret) = text.split_once('.').ok_or(TokenRefusal::Form)?;
        let id = TokenId::try_from(id.to_owned()).map_err(|_| TokenRefusal::Form)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(secret).map_err(|_| TokenRefusal::Form)?;
        Ok(Self { id, secret: Hash::of(&bytes) })
    }
}

impl NewToken {
    /// A new token.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Self, NoRandomness> {
        let mut id = [0; ID_LENGTH / 2];
        let mut secret = [0; 32];
        let random = SystemRandom::new();
        random.fill(&mut id).map_err(|_| NoRandomness)?;
        random.fill(&mut secret).map_err(|_| NoRandomness)?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("{id}.{}", BASE64_URL_SAFE_NO_PAD.encode(secret));
        Ok(Self { id: TokenId(id.into()), text, secret: Hash::of(&secret) })
    }
}

/// Whether a shown token lets this key join now; returns the node. `kept` is the record of its id.
///
/// # Errors
/// It does not, and why.
pub fn check_token(
    kept: Option<&Token>,
    shown: &ShownToken,
    key: Hash,
    now: u64,
) -> Result<NodeName, TokenRefusal> {
    // Compared in constant time, also for an unknown id.
    let expected = kept.map_or([0; 32], |token| token.secret.0);
    let is_secret = bool::from(expected.ct_eq(&shown.secret.0));
    let Some(token) = kept.filter(|_| is_secret) else { return Err(TokenRefusal::Unknown) };
    let id = shown.id.clone();
    let node = token.node.clone();
    if token.used.as_ref().is_some_and(|used| used.key != key) {
        return Err(TokenRefusal::Used { id, node });
    }
    if now >= token.expires {
        return Err(TokenRefusal::Expired { id, node });
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Hash = Hash([1; 32]);

    fn made() -> (NewToken, Token) {
        let new = NewToken::generate().unwrap();
        let node = "n1".parse().unwrap();
        let kept = Token { node, secret: new.secret, created: 10, expires: 20, used: None };
        (new, kept)
    }

    fn check(kept: Option<&Token>, text: &str, key: Hash, now: u64) -> Result<(), String> {
        let shown = ShownToken::parse(text).map_err(|refusal| refusal.to_string())?;
        check_token(kept, &shown, key, now).map(drop).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_token_is_for_one_key_until_its_end() {
        let (new, mut kept) = made();
        assert_eq!(check(Some(&kept), &new.text, KEY, 19), Ok(()));
        let said = check(Some(&kept), &new.text, KEY, 20).unwrap_err();
        assert!(said.contains("has ended"), "{said}");
        kept.used = Some(TokenUse { key: KEY, at: 11, serial: Serial::of(b"\x01") });
        assert_eq!(check(Some(&kept), &new.text, KEY, 19), Ok(()), "its answer may be lost");
        let said = check(Some(&kept), &new.text, Hash([2; 32]), 19).unwrap_err();
        assert!(said.contains("another key") && said.contains("node revoke n1"), "{said}");
    }

    #[test]
    fn an_unknown_id_and_a_wrong_secret_are_told_the_same() {
        let (new, kept) = made();
        let (other, _) = made();
        let unknown = check(None, &new.text, KEY, 11).unwrap_err();
        let (_, secret) = other.text.split_once('.').unwrap();
        let wrong = format!("{}.{secret}", new.id);
        assert_eq!(check(Some(&kept), &wrong, KEY, 11).unwrap_err(), unknown);
        // Also after its end: that it has ended is told to its owner only.
        assert_eq!(check(Some(&kept), &wrong, KEY, 99).unwrap_err(), unknown);
        // A hash of zeros is not the hash of a secret that anybody knows.
        assert!(unknown.contains("not known here"), "{unknown}");
    }

    #[test]
    fn what_was_cut_or_doubled_is_named_and_not_repeated() {
        let (new, kept) = made();
        for (text, said) in [
            (new.text[..40].to_owned(), "40 characters"),
            (new.text.repeat(2), "pasted twice"),
            (new.text.replace('.', "-"), "no token"),
            (new.text.to_uppercase(), "no token"),
            (String::new(), "0 characters"),
        ] {
            let refusal = check(Some(&kept), &text, KEY, 11).unwrap_err();
            let secret = new.text.split_once('.').unwrap().1;
            assert!(refusal.contains(said), "{refusal}");
            assert!(!refusal.contains(&secret[..8]), "{refusal}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_or_an_error(text in ".{0,80}") {
            let _ = ShownToken::parse(&text);
        }
    }
}
