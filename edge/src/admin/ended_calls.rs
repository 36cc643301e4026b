//! `csi-edge calls --ended`: the last calls of the Node service at this node's fronts.

use edge_calls::ended_calls::EndedCall;
use proto::csi::status::code_name;
use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use super::state::AdminState;

/// The path of the command.
pub const PATH: &str = "/calls/ended";

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
