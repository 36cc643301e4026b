//! The trust records of csi-cloud: its own secret keys, tokens and revocations.
//!
//! [`Trust`] has all of them in memory. None belongs to a driver.

use std::collections::{BTreeMap, HashMap};

use proto::names::certificate::{Serial, Subject};

mod revocation;
mod secrets;
mod token;

pub use revocation::Revocation;
pub use secrets::{NoRandomness, SecretKey, Secrets};
pub use token::{
    Hash, NewToken, NoTokenId, ShownToken, Token, TokenId, TokenRefusal, TokenUse, check_token,
};

/// A change of a trust record; without a value the record is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustChange {
    /// The secret keys. They are made once, and never removed.
    Secrets(Secrets),
    /// A token.
    Token(TokenId, Option<Token>),
    /// A revocation.
    Revocation(Subject, Option<Revocation>),
}

/// All trust records.
#[derive(Debug, Default)]
pub struct Trust {
    secrets: Option<Secrets>,
    tokens: BTreeMap<TokenId, Token>,
    revocations: BTreeMap<Subject, Revocation>,
}

impl Trust {
    /// The secret keys; none before a csi-cloud was started with this store.
    pub fn secrets(&self) -> Option<&Secrets> {
        self.secrets.as_ref()
    }

    /// All tokens, also those that were used or have ended.
    pub fn tokens(&self) -> &BTreeMap<TokenId, Token> {
        &self.tokens
    }

    /// The revocation of a name.
    pub fn revocation(&self, subject: &Subject) -> Option<&Revocation> {
        self.revocations.get(subject)
    }

    /// True if a certificate is revoked.
    pub fn is_revoked(&self, subject: &Subject, serial: &Serial) -> bool {
        self.revocation(subject).is_some_and(|revocation| revocation.refuses(serial))
    }

    /// Applies a durable change.
    pub(super) fn apply(&mut self, change: TrustChange) {
        match change {
            TrustChange::Secrets(secrets) => self.secrets = Some(secrets),
            TrustChange::Token(id, Some(token)) => {
                self.tokens.insert(id, token);
            }
            TrustChange::Token(id, None) => {
                self.tokens.remove(&id);
            }
            TrustChange::Revocation(subject, Some(revocation)) => {
                self.revocations.insert(subject, revocation);
            }
            TrustChange::Revocation(subject, None) => {
                self.revocations.remove(&subject);
            }
        }
    }
}

/// Changes of trust records that are not durable yet.
#[derive(Debug, Default)]
pub(super) struct TrustChanges {
    secrets: Option<Secrets>,
    tokens: HashMap<TokenId, Option<Token>>,
    revocations: HashMap<Subject, Option<Revocation>>,
}

impl TrustChanges {
    /// The secret keys.
    pub(super) fn secrets<'a>(&'a self, before: &'a Trust) -> Option<&'a Secrets> {
        self.secrets.as_ref().or(before.secrets.as_ref())
    }

    /// A token.
    pub(super) fn token<'a>(&'a self, before: &'a Trust, id: &TokenId) -> Option<&'a Token> {
        self.tokens.get(id).map_or_else(|| before.tokens.get(id), Option::as_ref)
    }

    /// The revocation of a name.
    pub(super) fn revocation<'a>(
        &'a self,
        before: &'a Trust,
        subject: &Subject,
    ) -> Option<&'a Revocation> {
        let changed = self.revocations.get(subject);
        changed.map_or_else(|| before.revocation(subject), Option::as_ref)
    }

    /// Adds a change.
    pub(super) fn set(&mut self, change: TrustChange) {
        match change {
            TrustChange::Secrets(secrets) => self.secrets = Some(secrets),
            TrustChange::Token(id, token) => {
                self.tokens.insert(id, token);
            }
            TrustChange::Revocation(subject, revocation) => {
                self.revocations.insert(subject, revocation);
            }
        }
    }

    /// The number of changes.
    pub(super) fn len(&self) -> usize {
        usize::from(self.secrets.is_some()) + self.tokens.len() + self.revocations.len()
    }

    /// All changes, each key once.
    pub(super) fn into_changes(self) -> impl Iterator<Item = TrustChange> {
        let tokens = self.tokens.into_iter().map(|(id, token)| TrustChange::Token(id, token));
        let revocations = self.revocations.into_iter();
        let revocations = revocations.map(|(name, change)| TrustChange::Revocation(name, change));
        self.secrets.map(TrustChange::Secrets).into_iter().chain(tokens).chain(revocations)
    }
}
