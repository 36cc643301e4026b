//! `csi-cloud calls`: the calls in flight.

use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::telemetry::calls::Running;

/// The path of the command.
pub(crate) const PATH: &str = "/calls";

/// A call in flight.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallView {
    /// Its number since csi-cloud began.
    pub number: u64,
    /// Its RPC method.
    pub rpc: String,
    /// The driver at whose front it is.
    pub driver: DriverName,
    /// The node to which it was sent last.
    pub node: Option<NodeName>,
    /// The first 256 characters of the id or name that it is about.
    pub subject: String,
    /// Its age, in ms.
    pub age_ms: u64,
    /// `front`, `sent`, or `waiting` for its node's next link.
    pub stage: String,
}

impl AdminState {
    /// The calls in flight, the oldest first.
    pub(super) fn calls(&self) -> Vec<CallView> {
        self.oldest_calls(usize::MAX)
    }

    /// The oldest calls in flight, at most so many.
    pub(crate) fn oldest_calls(&self, most: usize) -> Vec<CallView> {
        let running = self.calls.running();
        running.iter().take(most).map(|(number, call)| view(*number, call)).collect()
    }
}

fn view(number: u64, call: &Running) -> CallView {
    let progress = call.progress();
    CallView {
        number,
        rpc: call.rpc.into(),
        driver: call.driver.clone(),
        node: progress.node,
        subject: progress.subject,
        age_ms: u64::try_from(call.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        stage: progress.stage.name().into(),
    }
}
