//! `csi-cloud token`: makes, lists and revokes the tokens with which nodes join.
//!
//! The token itself is in one answer only. What is kept of it lets nobody join.

use proto::link::endpoint::Endpoint;
use proto::names::NodeName;
use proto::names::certificate::Subject;
use serde::{Deserialize, Serialize};
use tracing::info;

use crate::admin::admin_state::AdminState;
use crate::admin::done::{Done, done};
use crate::admin::refused::CommandError;
use crate::state::clock::now;
use crate::state::trust::{NewToken, Token, TokenId, TrustChange};
use crate::state::txn::Txn;

/// The path of `token create`.
pub(crate) const CREATE: &str = "/token/create";
/// The path of `token list`.
pub(crate) const LIST: &str = "/tokens";
/// The path of `token revoke`.
pub(crate) const REVOKE: &str = "/token/revoke";

/// The shortest life of a token, in s.
pub(crate) const SHORTEST: u64 = 60;
/// The longest life of a token, in s.
pub(crate) const LONGEST: u64 = 7 * 86_400;
/// The time for which an ended token is still listed, in ms.
const SHOWN: u64 = 7 * 86_400_000;
/// The tokens that are kept at a time.
const MOST: usize = 10_000;

/// Makes a token for a node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// The node that may join with it.
    pub node: NodeName,
    /// Its life, in s.
    pub ttl_s: u64,
    /// The endpoint for the edge: `wss://HOST:PORT`. None for the configured one.
    #[serde(default)]
    pub cloud: Option<String>,
}

/// A new token, which is shown once.
#[derive(Debug, Serialize, Deserialize)]
pub struct CreatedToken {
    /// Its id, by which it is listed and revoked.
    pub id: TokenId,
    /// The node that may join with it.
    pub node: NodeName,
    /// The token itself.
    pub token: String,
    /// The time at which it ends, in ms since 1970.
    pub expires_ms: u64,
    /// The endpoint for the edge.
    pub cloud: String,
    /// The hash of the CA, which the edge checks before it sends anything.
    pub ca_hash: String,
    /// The command that joins the node, to be run there.
    pub command: String,
}

/// A token, without its secret.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// Its id.
    pub id: TokenId,
    /// The node that may join with it.
    pub node: NodeName,
    /// `open`, `used`, `ended`, or `void`: its node was revoked or removed since.
    pub state: String,
    /// The time at which it was made, in ms since 1970.
    pub created_ms: u64,
    /// The time at which it ends, in ms since 1970.
    pub expires_ms: u64,
    /// The time at which it was used, in ms since 1970.
    pub used_ms: Option<u64>,
    /// The serial of the certificate that was issued for it.
    pub serial: Option<String>,
}

/// Revokes a token.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeToken {
    /// Its id.
    pub id: TokenId,
}

impl AdminState {
    /// Makes a token.
    ///
    /// # Errors
    /// The life or the endpoint cannot be used, this csi-cloud issues no certificates, or the
    /// system has no random numbers. It also fails if the node was removed, there are too many
    /// tokens, or the change is not durable.
    pub(super) async fn create_token(
        &self,
        request: CreateToken,
    ) -> Result<CreatedToken, CommandError> {
        let CreateToken { node, ttl_s, cloud } = request;
        if !(SHORTEST..=LONGEST).contains(&ttl_s) {
            return Err(CommandError::bad("a token lives for 1 minute to 7 days (--ttl)"));
        }
        let cloud = self.reached_at(cloud.as_deref())?;
        let issuers = self.links.enrolment().issuers().ok_or_else(|| {
            CommandError::conflict(
                "this csi-cloud issues no certificates: its configuration has no section [ca]; \
                 `csi-cloud ca use` says what to put there",
            )
        })?;
        // An edge that joins sees the certificate of csi-cloud itself.
        let ca_hash = issuers.read_again().own.root_pin().to_string();
        let new = NewToken::generate().map_err(|error| CommandError::failed(error.to_string()))?;
        let id = new.id.clone();
        let hash = new.secret;
        let of = node.clone();
        let keep = move |txn: &mut Txn<'_>| keep_token(txn, id, of, hash, ttl_s);
        let expires_ms = self.store.write(keep).await??;
        info!(id = %new.id, %node, "made a token");
        let text = &new.text;
        let command = format!("csi-edge join --cloud {cloud} --ca-hash {ca_hash} --token {text}");
        let NewToken { id, text: token, .. } = new;
        Ok(CreatedToken { id, node, token, expires_ms, cloud, ca_hash, command })
    }

    /// All tokens, by id.
    pub(super) fn tokens(&self) -> Vec<TokenView> {
        let now = now();
        self.store.read(|state| {
            let tokens = state.trust().tokens().iter();
            let view = |(id, token): (&TokenId, &Token)| {
                let subject = Subject::Node(token.node.clone());
                let revocation = state.trust().revocation(&subject);
                let is_void = state.is_removed(&token.node)
                    || revocation.is_some_and(|it| !it.allows_token(token.created));
                TokenView {
                    id: id.clone(),
                    node: token.node.clone(),
                    state: state_of(token, is_void, now).into(),
                    created_ms: token.created,
                    expires_ms: token.expires,
                    used_ms: token.used.as_ref().map(|used| used.at),
                    serial: token.used.as_ref().map(|used| used.serial.to_string()),
                }
            };
            tokens.map(view).collect()
        })
    }

    /// Revokes a token: nobody joins with it any more. Certificates stay.
    ///
    /// # Errors
    /// There is no such token, or the change is not durable.
    pub(super) async fn revoke_token(&self, request: RevokeToken) -> Result<Done, CommandError> {
        let RevokeToken { id } = request;
        let of = id.clone();
        let removed = self.store.write(move |txn| {
            let token = txn.token(&of).cloned();
            txn.set_trust(TrustChange::Token(of, None));
            token
        });
        let Some(token) = removed.await? else {
            return Err(CommandError::unknown(format!(
                "there is no token {id}; `csi-cloud token list`"
            )));
        };
        let node = token.node;
        let certificate = match token.used {
            Some(_) => {
                format!(
                    "; the certificate that was issued for it stays: `csi-cloud node revoke {node}`"
                )
            }
            None => String::new(),
        };
        Ok(done(format!("the token {id} of {node} is revoked{certificate}")))
    }

    /// The endpoint of this csi-cloud that an edge is told.
    fn reached_at(&self, asked: Option<&str>) -> Result<String, CommandError> {
        let endpoint = match asked {
            Some(text) => {
                let parsed = text.parse::<Endpoint>();
                parsed.map_err(|error| CommandError::bad(format!("--cloud: {error}")))?
            }
            None => self.advertise.clone().ok_or_else(|| {
                CommandError::bad(
                    "nobody has said where edges reach this csi-cloud: give --cloud \
                     wss://HOST:PORT, or put `advertise` into its configuration",
                )
            })?,
        };
        if !endpoint.transport.takes_tokens() {
            return Err(CommandError::bad(format!(
                "{endpoint} cannot be joined over; name a wss:// endpoint of csi-cloud (--cloud)"
            )));
        }
        Ok(endpoint.to_string())
    }
}

fn state_of(token: &Token, is_void: bool, now: u64) -> &'static str {
    match &token.used {
        Some(_) => "used",
        None if is_void => "void",
        None if token.expires <= now => "ended",
        None => "open",
    }
}

/// Keeps a new token, and forgets those that ended long ago; returns when it ends.
fn keep_token(
    txn: &mut Txn<'_>,
    id: TokenId,
    node: NodeName,
    secret: crate::state::trust::Hash,
    ttl_s: u64,
) -> Result<u64, CommandError> {
    if txn.node(&node).is_some_and(|node| node.removed.is_some()) {
        return Err(CommandError::conflict(format!(
            "{node} was removed; `csi-cloud node admit {node}` lets it in again"
        )));
    }
    let now = now();
    let tokens = txn.state().trust().tokens();
    let old = tokens.iter().filter(|(_, token)| token.expires.saturating_add(SHOWN) < now);
    let old: Vec<_> = old.map(|(id, _)| id.clone()).collect();
    if tokens.len() - old.len() >= MOST {
        return Err(CommandError::conflict(format!(
            "there are {MOST} tokens, which is the most; `csi-cloud token revoke` some"
        )));
    }
    for id in old {
        txn.set_trust(TrustChange::Token(id, None));
    }
    // A token of the same millisecond as a revocation is later than it.
    let subject = Subject::Node(node.clone());
    let earliest = txn.revocation(&subject).map_or(0, |revocation| revocation.since + 1);
    let created = now.max(earliest);
    let expires = created + ttl_s * 1000;
    let token = Token { node, secret, created, expires, used: None };
    txn.set_trust(TrustChange::Token(id, Some(token)));
    Ok(expires)
}
