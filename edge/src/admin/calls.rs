//! `csi-edge calls`: the calls in flight at the drivers, without streams.

use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use super::state::AdminState;

/// The path of the command.
pub const PATH: &str = "/calls";
/// The most characters of a subject that are shown.
const SUBJECT: usize = 256;

/// A call in flight.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallView {
    /// Its RPC method.
    pub rpc: String,
    /// The driver that carries it out.
    pub driver: DriverName,
    /// The first 256 characters of the ids or the name that it is about.
    pub subject: String,
    /// Its age, in ms.
    pub age_ms: u64,
}

impl AdminState {
    /// The calls in flight, the oldest first.
    pub(super) fn calls(&self) -> Vec<CallView> {
        let mut running = self.executor.running();
        running.sort_by_key(|run| run.begun);
        let view = |run: edge_calls::executor::RunningCall| CallView {
            rpc: run.method.name().into(),
            driver: run.driver,
            subject: subject(&run.subjects),
            age_ms: u64::try_from(run.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        running.into_iter().map(view).collect()
    }
}

fn subject(ids: &[proto::csi::Id]) -> String {
    let ids: Vec<_> = ids.iter().map(proto::csi::Id::text).collect();
    ids.join(" ").chars().take(SUBJECT).collect()
}
