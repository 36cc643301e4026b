//! `csi-edge status`: this node at a glance.

use clap::Args;
use proto::admin::command::{Answer, Command, Refusal};
use proto::admin::command_line::Printer;
use proto::admin::output::Output;
use proto::control::hello::Run;
use proto::control::metadata::NodeObject;
use proto::host::plain;
use proto::names::NodeName;
use serde::{Deserialize, Serialize};

use super::drivers::{path_text, seconds_text, standing_name};
use super::state::AdminState;
use crate::discovery::table::Registration;

/// Show this node at a glance: its link, its drivers, and what has announced itself.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
pub struct StatusQuery {}

impl Command<AdminState> for StatusQuery {
    const NAME: &'static str = "status";
    const PATH: &'static str = "/status";
    const READS: bool = true;
    type Answer = StatusView;

    async fn carry_out(self, state: &AdminState) -> Result<StatusView, Refusal> {
        Ok(state.status())
    }
}

/// How csi-edge is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    /// This node.
    pub node: NodeName,
    /// The version of csi-edge.
    pub version: String,
    /// Its run, which is another one after a restart.
    #[serde(default)]
    pub run: Option<Run>,
    /// For how long it has run.
    pub runs_s: u64,
    /// Why it is not ready; empty if it is.
    pub not_ready: String,
    /// The endpoint of the link in use; none without a link.
    pub cloud: Option<String>,
    /// For how long that link has been up.
    pub linked_s: Option<u64>,
    /// Why the identity cannot be used yet; empty if it is in use.
    #[serde(default)]
    pub identity: String,
    /// The number of drivers.
    pub drivers: usize,
    /// How many of them are up.
    pub drivers_up: usize,
    /// The number of calls in flight.
    pub calls: usize,
    /// All that has announced itself.
    pub announcements: Vec<Registration>,
    /// The Node in Kubernetes, as csi-cloud sent it last; `None` if it did not.
    #[serde(default)]
    pub node_object: Option<NodeObject>,
}

impl Answer for StatusView {
    fn print(&self, to: &mut Printer<'_>) -> anyhow::Result<()> {
        if to.output == Output::Json {
            return to.json(self);
        }
        let Self { node, version, runs_s, not_ready, drivers, drivers_up, calls, .. } = self;
        writeln!(to.out, "node {node}, csi-edge {version}, running for {}", seconds_text(*runs_s))?;
        if let Some(run) = &self.run {
            writeln!(to.out, "run {run}")?;
        }
        match (&self.cloud, self.linked_s) {
            (Some(cloud), since) => {
                let since = seconds_text(since.unwrap_or_default());
                writeln!(to.out, "linked to {} for {since}", plain(cloud))?;
            }
            (None, _) => writeln!(to.out, "not linked to csi-cloud")?,
        }
        if !self.identity.is_empty() {
            writeln!(to.out, "the identity cannot be used yet: {}", plain(&self.identity))?;
        }
        match not_ready.as_str() {
            "" => writeln!(to.out, "ready")?,
            why => writeln!(to.out, "not ready: {}", plain(why))?,
        }
        writeln!(to.out, "drivers: {drivers}, {drivers_up} up; calls in flight: {calls}")?;
        for of in &self.announcements {
            let named = plain(if of.driver.is_empty() { "-" } else { &of.driver });
            let why =
                if of.why.is_empty() { String::new() } else { format!(": {}", plain(&of.why)) };
            let registrar = plain(&path_text(&of.socket));
            writeln!(
                to.out,
                "announced: {named} by {registrar}, {}{why}",
                standing_name(of.standing)
            )?;
        }
        self.node_object.as_ref().map_or(Ok(()), |node| print_node(node, to))
    }
}

/// The Node, an entry a line.
fn print_node(node: &NodeObject, to: &mut Printer<'_>) -> anyhow::Result<()> {
    writeln!(to.out, "in Kubernetes, as csi-cloud sent it last:")?;
    for (word, entries) in [("label", &node.labels), ("annotation", &node.annotations)] {
        for (key, value) in entries {
            writeln!(to.out, "  {word}: {}", plain(&format!("{key}={value}")))?;
        }
    }
    for (word, entries) in [
        ("taint", &node.taints),
        ("volume attached", &node.volumes_attached),
        ("volume in use", &node.volumes_in_use),
        ("left out", &node.left_out),
    ] {
        for entry in entries {
            writeln!(to.out, "  {word}: {}", plain(entry))?;
        }
    }
    Ok(())
}

impl AdminState {
    /// This node at a glance.
    pub(super) fn status(&self) -> StatusView {
        let linked = self.linked.borrow().clone();
        let drivers = self.drivers.all();
        StatusView {
            node: self.drivers.node().clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            run: Some(self.run),
            runs_s: self.began.elapsed().as_secs(),
            not_ready: self.not_ready().unwrap_or_default(),
            cloud: linked.as_ref().map(|linked| linked.cloud.clone()),
            linked_s: linked.map(|linked| linked.since.elapsed().as_secs()),
            identity: self.identity.as_ref().map(|source| source.waits_for()).unwrap_or_default(),
            drivers: drivers.len(),
            drivers_up: drivers.iter().filter(|driver| driver.health().state.is_up()).count(),
            calls: self.executor.running().len(),
            announcements: self.registrations.all(),
            node_object: self.metadata.node(),
        }
    }
}
