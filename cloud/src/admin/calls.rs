//! `csi-cloud calls`: the calls in flight.

use crate::admin::cells::{lasted, optional, short};
use crate::admin::ended_calls::EndedQuery;
use clap::Args;
use proto::admin::command::{Command, Refusal, Row, ask};
use proto::admin::command_line::Asked;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::telemetry::calls::Running;

/// Show the calls in flight, or the last ones that ended.
#[derive(Debug, Args, Serialize, Deserialize)]
pub struct CallsQuery {
    /// The last calls that ended, the newest first, instead of those in flight
    #[arg(long)]
    #[serde(skip)]
    ended: bool,
    /// Which of those that ended.
    #[command(flatten)]
    #[serde(skip)]
    query: EndedQuery,
}

impl Command<AdminState> for CallsQuery {
    const NAME: &'static str = "calls";
    const PATH: &'static str = "/calls";
    const READS: bool = true;
    const NEEDS_LINKS: bool = true;
    type Answer = Vec<CallView>;

    async fn carry_out(self, admin: &AdminState) -> Result<Vec<CallView>, Refusal> {
        Ok(admin.oldest_calls(usize::MAX))
    }

    async fn run(self, asked: Asked) -> anyhow::Result<()> {
        match self.ended {
            true => ask(self.query, asked).await,
            false => ask(self, asked).await,
        }
    }
}

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

impl Row for CallView {
    const HEADERS: &'static [&'static str] = &["RPC", "DRIVER", "NODE", "SUBJECT", "AGE", "STAGE"];

    fn row(&self) -> Vec<String> {
        let age = lasted(self.age_ms);
        let stage = match self.stage.as_str() {
            "waiting" => "waiting for link",
            stage => stage,
        };
        vec![
            self.rpc.clone(),
            self.driver.to_string(),
            optional(self.node.as_ref()),
            short(&self.subject),
            age,
            stage.to_owned(),
        ]
    }
}

impl AdminState {
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
