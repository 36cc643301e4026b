//! `csi-edge calls --ended`: the last calls of the Node service at this node's fronts.

use std::time::Duration;

use clap::Args;
use edge_calls::ended_calls::EndedCall;
use proto::admin::cells::{age, short};
use proto::admin::command::{Command, Refusal, Row};
use proto::csi::status::code_name;
use proto::host::clock;
use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use super::state::AdminState;

/// Show the last calls that ended.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
pub struct EndedQuery {}

impl Command<AdminState> for EndedQuery {
    const NAME: &'static str = "";
    const PATH: &'static str = "/calls/ended";
    const READS: bool = true;
    type Answer = Vec<EndedView>;

    async fn carry_out(self, state: &AdminState) -> Result<Vec<EndedView>, Refusal> {
        Ok(state.ended_calls())
    }
}

/// A call that ended. The fields are those of `csi-cloud calls --ended`, as far as they are known.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedView {
    /// The time at which it ended, in ms since 1970.
    pub at_ms: u64,
    /// Its id, as in csi-edge's log.
    pub id: String,
    /// Its RPC method.
    pub rpc: String,
    /// The driver at whose front it was.
    pub driver: DriverName,
    /// The first 256 characters of the id of its volume.
    pub subject: String,
    /// The code that its caller got, for example `NOT_FOUND`.
    pub code: String,
    /// The message that its caller got, at most 512 bytes.
    pub message: String,
    /// Its duration, in ms.
    pub took_ms: u64,
}

impl Row for EndedView {
    const HEADERS: &'static [&'static str] =
        &["AGE", "RPC", "DRIVER", "SUBJECT", "CODE", "TOOK", "MESSAGE"];

    fn row(&self) -> Vec<String> {
        let since = clock::now().saturating_sub(self.at_ms);
        vec![
            age(Duration::from_millis(since)),
            self.rpc.clone(),
            self.driver.to_string(),
            short(&self.subject),
            self.code.clone(),
            lasted(self.took_ms),
            short(&self.message),
        ]
    }
}

impl AdminState {
    /// The calls that ended, the newest first.
    pub(super) fn ended_calls(&self) -> Vec<EndedView> {
        self.executor.ended().latest().iter().map(|call| view(call)).collect()
    }
}

fn view(call: &EndedCall) -> EndedView {
    EndedView {
        at_ms: call.at,
        id: call.id.to_string(),
        rpc: call.method.name().into(),
        driver: call.driver.clone(),
        subject: call.volume.clone(),
        code: code_name(call.code).into(),
        message: call.message.clone(),
        took_ms: u64::try_from(call.duration.as_millis()).unwrap_or(u64::MAX),
    }
}

/// A duration, which may be short.
pub(super) fn lasted(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        _ => age(Duration::from_millis(ms)),
    }
}
