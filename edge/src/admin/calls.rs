//! `csi-edge calls`: the calls in flight at the drivers, without streams.

use clap::Args;
use proto::admin::cells::short;
use proto::admin::command::{Command, Refusal, Row, ask};
use proto::admin::command_line::Asked;
use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use super::ended_calls::{EndedQuery, lasted};
use super::state::AdminState;

/// The most characters of a subject that are shown.
const SUBJECT: usize = 256;

/// Show the calls in flight at the drivers, or the last ones of this node that ended.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
pub struct CallsQuery {
    /// Instead of the calls in flight, the last 256 of the Node service at this node's sockets that
    /// ended, the newest first. Of those that only ask, only failures are kept. They end with
    /// csi-edge
    #[arg(long)]
    #[serde(skip)]
    ended: bool,
}

impl Command<AdminState> for CallsQuery {
    const NAME: &'static str = "calls";
    const PATH: &'static str = "/calls";
    const READS: bool = true;
    type Answer = Vec<CallView>;

    async fn carry_out(self, state: &AdminState) -> Result<Vec<CallView>, Refusal> {
        Ok(state.calls())
    }

    async fn run(self, asked: Asked) -> anyhow::Result<()> {
        match self.ended {
            true => ask(EndedQuery {}, asked).await,
            false => ask(self, asked).await,
        }
    }
}

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

impl Row for CallView {
    const HEADERS: &'static [&'static str] = &["RPC", "DRIVER", "SUBJECT", "AGE"];

    fn row(&self) -> Vec<String> {
        let age = lasted(self.age_ms);
        vec![self.rpc.clone(), self.driver.to_string(), short(&self.subject), age]
    }
}

impl AdminState {
    /// The calls in flight, the oldest first.
    pub(super) fn calls(&self) -> Vec<CallView> {
        let mut running = self.executor.running();
        running.sort_by_key(|run| run.begun);
        let view = |run: edge_calls::executor::RunningCall| CallView {
            rpc: run.method.name().into(),
            driver: run.driver,
            subject: subject(&run.about),
            age_ms: u64::try_from(run.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        running.into_iter().map(view).collect()
    }
}

fn subject(ids: &[proto::csi::Id]) -> String {
    let ids: Vec<_> = ids.iter().map(proto::csi::Id::text).collect();
    ids.join(" ").chars().take(SUBJECT).collect()
}
