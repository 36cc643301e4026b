//! `csi-cloud calls --ended`: the last calls that ended.

use std::sync::Arc;

use proto::admin::command::{Answer, Command, Refusal, Row};
use proto::admin::command_line::Printer;
use proto::admin::output::Output;

use crate::admin::cells::{lasted, optional, short, since};
use clap::Args;
use proto::csi::status::code_name;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::telemetry::ended::EndedCall;

/// The most calls that are shown unless more are asked for.
pub(crate) const MOST: usize = 200;

/// Asks for calls that ended.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndedQuery {
    /// Of this driver only
    #[arg(long, value_name = "NAME", requires = "ended")]
    pub driver: Option<DriverName>,
    /// Last sent to this node only
    #[arg(long, value_name = "NODE", requires = "ended")]
    pub node: Option<NodeName>,
    /// With this text in the volume's id, name or claim only
    #[arg(long, value_name = "TEXT", requires = "ended")]
    pub subject: Option<String>,
    /// Without those that were carried out
    #[arg(long, requires = "ended")]
    pub failed: bool,
    /// The most calls that are shown [default: 200]
    #[arg(long, value_name = "N", requires = "ended")]
    pub limit: Option<usize>,
}

impl Command<AdminState> for EndedQuery {
    const NAME: &'static str = "";
    const PATH: &'static str = "/calls/ended";
    const READS: bool = true;
    type Answer = EndedList;

    async fn carry_out(self, admin: &AdminState) -> Result<EndedList, Refusal> {
        Ok(admin.ended_calls(&self))
    }
}

/// The calls that ended.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedList {
    /// The time since which calls are known, in ms since 1970: the start of this csi-cloud.
    pub since_ms: u64,
    /// The calls, the newest first.
    pub calls: Vec<EndedView>,
}

/// A call that ended.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedView {
    /// The time at which it ended, in ms since 1970.
    pub at_ms: u64,
    /// Its id, as in the logs of csi-cloud and csi-edge.
    pub id: String,
    /// Its RPC method.
    pub rpc: String,
    /// The driver at whose front it was.
    pub driver: DriverName,
    /// The node to which it was sent last.
    pub node: Option<NodeName>,
    /// The first 256 characters of the id or name that it was about.
    pub subject: String,
    /// The claim that a volume was to be made for, as `NAMESPACE/NAME`.
    pub claim: Option<String>,
    /// The code that its caller got, for example `NOT_FOUND`.
    pub code: String,
    /// The message that its caller got, at most 512 bytes.
    pub message: String,
    /// Its duration, in ms.
    pub took_ms: u64,
    /// The number of times that it may have been sent to its node.
    pub attempts: u32,
    /// The failures in a row of this method about this subject, this one included; 0 if it was
    /// carried out.
    pub failures: u32,
}

impl Row for EndedView {
    const HEADERS: &'static [&'static str] =
        &["AGE", "RPC", "DRIVER", "NODE", "SUBJECT", "CODE", "TOOK", "TRIES", "FAILED", "MESSAGE"];

    fn row(&self) -> Vec<String> {
        vec![
            since(self.at_ms),
            self.rpc.clone(),
            self.driver.to_string(),
            optional(self.node.as_ref()),
            short(&self.subject),
            self.code.clone(),
            lasted(self.took_ms),
            self.attempts.to_string(),
            failed(self.failures),
            short(&self.message),
        ]
    }
}

/// The failures in a row; empty if the call was carried out.
fn failed(failures: u32) -> String {
    match failures {
        0 => String::new(),
        1 => "once".to_owned(),
        many => format!("{many} times"),
    }
}

impl Answer for EndedList {
    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()> {
        self.calls.print(to)?;
        if to.output == Output::Table {
            let since = since(self.since_ms);
            writeln!(to.out, "\ncalls of the last {since}, since csi-cloud started")?;
        }
        Ok(())
    }
}

impl AdminState {
    /// The last calls about a volume, snapshot or name of a driver, the newest first.
    pub fn ended_about(&self, driver: &DriverName, subject: &str) -> Vec<Arc<EndedCall>> {
        self.calls.ended.about(driver, subject)
    }

    /// The calls of those that are kept that were last sent to a node, the newest first.
    pub fn ended_at(&self, node: &NodeName) -> Vec<Arc<EndedCall>> {
        self.calls.ended.at(node)
    }

    /// The calls that ended, the newest first.
    pub(super) fn ended_calls(&self, query: &EndedQuery) -> EndedList {
        let EndedQuery { driver, node, subject, failed, limit } = query;
        let wanted = |call: &EndedCall| {
            driver.as_ref().is_none_or(|driver| call.driver == *driver)
                && node.as_ref().is_none_or(|node| call.node.as_ref() == Some(node))
                && subject.as_ref().is_none_or(|text| is_about(call, text))
                && (!failed || call.failed())
        };
        let latest = self.calls.ended.latest(wanted);
        let calls = latest.iter().take(limit.unwrap_or(MOST)).map(|call| view(call)).collect();
        EndedList { since_ms: self.calls.ended.since(), calls }
    }
}

fn is_about(call: &EndedCall, text: &str) -> bool {
    call.subject.contains(text) || call.claim.as_ref().is_some_and(|claim| claim.contains(text))
}

fn view(call: &EndedCall) -> EndedView {
    EndedView {
        at_ms: call.at,
        id: call.id.to_string(),
        rpc: call.rpc.into(),
        driver: call.driver.clone(),
        node: call.node.clone(),
        subject: call.subject.to_string(),
        claim: call.claim.as_deref().map(Into::into),
        code: code_name(call.code).into(),
        message: call.message.to_string(),
        took_ms: u64::try_from(call.duration.as_millis()).unwrap_or(u64::MAX),
        attempts: call.attempts,
        failures: call.failures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::{admin_state, refuse};
    use crate::telemetry::ended::Outcome;
    use proto::csi::{Id, Key};
    use proto::host::tasks::Tasks;
    use tonic::Code;

    #[tokio::test]
    async fn the_newest_of_the_wanted_calls_come_first() {
        let tasks = Tasks::default();
        let admin = admin_state(&tasks);
        let driver: DriverName = "d.example".parse().unwrap();
        for (volume, code) in [("v1", Code::Ok), ("v2", Code::Internal), ("v1", Code::NotFound)] {
            let ongoing = admin.calls.clone().begin("DeleteVolume", &driver, 255.into());
            ongoing.running().is_about(&Key::Delete(Id::Volume(volume.into())));
            drop(ongoing.running().sent(&"n1".parse().unwrap()));
            ongoing.ended(&Outcome { code, message: "said".into() });
        }
        let shown = |query: EndedQuery| {
            let shown = admin.ended_calls(&query).calls;
            shown.into_iter().map(|call| (call.subject, call.code)).collect::<Vec<_>>()
        };
        let call = |subject: &str, code: &str| (subject.to_owned(), code.to_owned());
        let all = [call("v1", "NOT_FOUND"), call("v2", "INTERNAL"), call("v1", "OK")];
        assert_eq!(shown(EndedQuery::default()), all);
        assert_eq!(shown(EndedQuery { failed: true, ..EndedQuery::default() }), all[..2]);
        let of = |text: &str| EndedQuery { subject: Some(text.into()), ..EndedQuery::default() };
        assert_eq!(shown(of("2")), all[1..2]);
        refuse(&admin, "shop/data", "pvc-7", "n2");
        let refused = &admin.ended_calls(&of("shop/")).calls[0];
        assert_eq!((&*refused.subject, refused.claim.as_deref()), ("pvc-7", Some("shop/data")));
        let at = |node: &str| EndedQuery { node: node.parse().ok(), ..EndedQuery::default() };
        assert_eq!((shown(at("n1")).len(), shown(at("n3")).len()), (3, 0));
        let other = "e.example".parse().ok();
        assert!(shown(EndedQuery { driver: other, ..EndedQuery::default() }).is_empty());
        let one = EndedQuery { limit: Some(1), ..EndedQuery::default() };
        let newest = admin.ended_calls(&one).calls;
        assert_eq!(newest.len(), 1);
        let id = format!("{:032x}", 7);
        assert_eq!((&newest[0].id, &*newest[0].message), (&id, "node n2 has no link"));
        assert_eq!(admin.ended_about(&driver, "v1").len(), 2);
        assert_eq!(admin.ended_at(&"n1".parse().unwrap()).len(), 3);
    }
}
