//! `csi-cloud token`: makes, lists and revokes the tokens with which nodes join.
//!
//! The token itself is in one answer only. What is kept of it lets nobody join.

use crate::admin::cells::{age, optional, since};
use clap::Args;
use proto::admin::command::{Answer, Command, Done, Refusal, Row};
use proto::admin::command_line::Printer;
use proto::admin::output::Output;
use proto::link::endpoint::{Endpoint, EndpointError};
use proto::names::NodeName;
use proto::names::certificate::Subject;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tracing::info;

use crate::admin::admin_state::AdminState;
use crate::state::clock::now;
use crate::state::trust::{NewToken, Token, TokenId, TrustChange};
use crate::state::txn::Txn;

/// The shortest life of a token, in s.
pub(crate) const SHORTEST: u64 = 60;
/// The longest life of a token, in s.
pub(crate) const LONGEST: u64 = 7 * 86_400;
/// The time for which an ended token is still listed, in ms.
const SHOWN: u64 = 7 * 86_400_000;
/// The tokens that are kept at a time.
const MOST: usize = 10_000;

/// Make a token for one node, and print the command that joins it, to be run there.
///
/// It lets that node join once, with one key. Whoever has it can be that node: hand it over as
/// you would a password.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// The node's name, as Kubernetes knows it
    pub node: NodeName,
    /// How long it is valid: 1m to 7d
    #[arg(long = "ttl", value_name = "TIME", default_value = "1h", value_parser = token_life)]
    pub ttl_s: u64,
    /// Where the edge reaches csi-cloud [default: `advertise` of csi-cloud's configuration]
    #[arg(long, value_name = "wss://HOST:PORT", value_parser = endpoint)]
    #[serde(default)]
    pub cloud: Option<String>,
}

impl Command<AdminState> for CreateToken {
    const NAME: &'static str = "token create";
    const PATH: &'static str = "/token/create";
    type Answer = CreatedToken;

    async fn carry_out(self, admin: &AdminState) -> Result<CreatedToken, Refusal> {
        let Self { node, ttl_s, cloud } = self;
        if !(SHORTEST..=LONGEST).contains(&ttl_s) {
            return Err(Refusal::bad("a token lives for 1 minute to 7 days (--ttl)"));
        }
        let cloud = admin.reached_at(cloud.as_deref())?;
        let issuers = admin.links.enrolment().issuers().ok_or_else(|| {
            Refusal::conflict(
                "this csi-cloud issues no certificates: its configuration has no section [ca]; \
                 `csi-cloud ca use` says what to put there",
            )
        })?;
        // An edge that joins sees the certificate of csi-cloud itself.
        let ca_hash = issuers.read_again().own.root_pin().to_string();
        let new = NewToken::generate().map_err(|error| Refusal::failed(error.to_string()))?;
        let id = new.id.clone();
        let hash = new.secret;
        let of = node.clone();
        let keep = move |txn: &mut Txn<'_>| keep_token(txn, id, of, hash, ttl_s);
        let expires_ms = admin.store.write(keep).await??;
        info!(id = %new.id, %node, "made a token");
        let text = &new.text;
        // printf is part of the shell, so no list of processes shows the token.
        let join = format!("csi-edge join --cloud {cloud} --ca-hash {ca_hash} --token-file -");
        let command = format!("printf %s {text} | {join}");
        let NewToken { id, text: token, .. } = new;
        Ok(CreatedToken { id, node, token, expires_ms, cloud, ca_hash, command })
    }
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
    /// The command that joins the node, to be run there. It reads the token from stdin.
    pub command: String,
}

impl Answer for CreatedToken {
    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()> {
        if to.output == Output::Json {
            return to.json(self);
        }
        let Self { id, node, expires_ms, command, .. } = self;
        // Only the command is on stdout, for a pipe.
        let left = age(Duration::from_millis(expires_ms.saturating_sub(now())));
        eprintln!("The token {id} lets {node} join once, within {left}. Run at that node:\n");
        Ok(writeln!(to.out, "{command}")?)
    }
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

impl Row for TokenView {
    const HEADERS: &'static [&'static str] = &["ID", "NODE", "STATE", "ENDS IN", "AGE", "SERIAL"];

    fn row(&self) -> Vec<String> {
        let left = self.expires_ms.saturating_sub(now());
        let is_open = self.state == "open";
        vec![
            self.id.to_string(),
            self.node.to_string(),
            self.state.clone(),
            if is_open { age(Duration::from_millis(left)) } else { String::new() },
            since(self.created_ms),
            optional(self.serial.as_ref()),
        ]
    }
}

/// Revoke a token. A certificate that was issued for it stays.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeToken {
    /// Its id, as `token list` shows it
    pub id: TokenId,
}

/// Show all tokens, without their secrets.
#[derive(Debug, Args, Serialize, Deserialize)]
pub struct ListTokens {}

impl Command<AdminState> for RevokeToken {
    const NAME: &'static str = "token revoke";
    const PATH: &'static str = "/token/revoke";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { id } = self;
        let of = id.clone();
        let removed = admin.store.write(move |txn| {
            let token = txn.token(&of).cloned();
            txn.set_trust(TrustChange::Token(of, None));
            token
        });
        let Some(token) = removed.await? else {
            return Err(Refusal::unknown(format!(
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
        Ok(Done::logged(format!("the token {id} of {node} is revoked{certificate}")))
    }
}

impl Command<AdminState> for ListTokens {
    const NAME: &'static str = "token list";
    const PATH: &'static str = "/tokens";
    const READS: bool = true;
    type Answer = Vec<TokenView>;

    async fn carry_out(self, admin: &AdminState) -> Result<Vec<TokenView>, Refusal> {
        let now = now();
        let tokens = admin.store.read(|state| {
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
        });
        Ok(tokens)
    }
}

impl AdminState {
    /// The endpoint of this csi-cloud that an edge is told.
    fn reached_at(&self, asked: Option<&str>) -> Result<String, Refusal> {
        let endpoint = match asked {
            Some(text) => {
                let parsed = text.parse::<Endpoint>();
                parsed.map_err(|error| Refusal::bad(format!("--cloud: {error}")))?
            }
            None => self.advertise.clone().ok_or_else(|| {
                Refusal::bad(
                    "nobody has said where edges reach this csi-cloud: give --cloud \
                     wss://HOST:PORT, or put `advertise` into its configuration",
                )
            })?,
        };
        if !endpoint.transport.takes_tokens() {
            return Err(Refusal::bad(format!(
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
) -> Result<u64, Refusal> {
    if txn.node(&node).is_some_and(|node| node.removed.is_some()) {
        return Err(Refusal::conflict(format!(
            "{node} was removed; `csi-cloud node admit {node}` lets it in again"
        )));
    }
    let now = now();
    let tokens = txn.state().trust().tokens();
    let old = tokens.iter().filter(|(_, token)| token.expires.saturating_add(SHOWN) < now);
    let old: Vec<_> = old.map(|(id, _)| id.clone()).collect();
    if tokens.len() - old.len() >= MOST {
        return Err(Refusal::conflict(format!(
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

/// The life of a token, in s.
fn token_life(text: &str) -> Result<u64, String> {
    let life = duration(text)?.as_secs();
    if !(SHORTEST..=LONGEST).contains(&life) {
        return Err("a token lives for 1 minute to 7 days".into());
    }
    Ok(life)
}

/// Reads a whole number and its unit, for example `90s`, `30m`, `12h` or `7d`.
///
/// # Errors
/// It is not written so, or is too long to count in seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration; write 90s, 30m, 12h or 7d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let seconds = number.parse().ok().and_then(|number: u64| number.checked_mul(seconds));
    Ok(Duration::from_secs(seconds.ok_or_else(wrong)?))
}

/// An endpoint, checked and as text.
fn endpoint(text: &str) -> Result<String, EndpointError> {
    text.parse::<Endpoint>().map(|endpoint| endpoint.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_of_a_token_is_a_number_and_a_unit() {
        assert_eq!(token_life("1m"), Ok(60));
        assert_eq!(token_life("7d"), Ok(604_800));
        for text in ["", "1", "h", "1h30m", "-1h", "59s", "8d", "1é", "99999999999999999999d"] {
            assert!(token_life(text).is_err(), "{text}");
        }
    }
}
