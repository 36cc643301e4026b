//! `csi-cloud homes rebuild`: learns where volumes live, from the operator or from the nodes.

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use futures_util::{StreamExt, stream};
use proto::admin::command::{Command, Done, Refusal, ask};
use proto::admin::command_line::Asked;
use proto::admin::input;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

use crate::admin::admin_state::AdminState;
use crate::state::ingest;
use crate::state::node_names::names;

/// Homes in one request.
const CHUNK: usize = 1000;
/// Homes that are recorded at the same time, so that they share a commit.
const AT_ONCE: usize = 256;
/// The most silent nodes that the answer names.
const FEW: usize = 10;

/// Learn where volumes live: from the nodes, or from a file.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RebuildHomes {
    /// Of this driver only
    #[arg(long, value_name = "NAME")]
    pub driver: Option<DriverName>,
    /// Lines of DRIVER NODE ID; empty lines and those that begin with # are skipped; - is stdin
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub from: Option<PathBuf>,
    /// These homes; none asks the nodes.
    #[arg(skip)]
    pub homes: Option<Vec<GivenHome>>,
}

impl Command<AdminState> for RebuildHomes {
    const NAME: &'static str = "homes rebuild";
    const PATH: &'static str = "/homes/rebuild";
    type Answer = Done;

    async fn run(mut self, asked: Asked) -> anyhow::Result<()> {
        let Some(file) = self.from.take() else { return ask(self, asked).await };
        let homes = parse_homes(&file, &input::read(&file)?)?;
        for homes in homes.chunks(CHUNK) {
            let (driver, homes) = (self.driver.clone(), Some(homes.to_vec()));
            ask(Self { driver, from: None, homes }, asked.clone()).await?;
        }
        Ok(())
    }

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        match self.homes {
            Some(homes) => admin.record_homes(self.driver, homes).await,
            None => admin.ask_nodes(self.driver).await,
        }
    }
}

/// A volume's home, as the operator gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenHome {
    /// Its driver.
    pub driver: DriverName,
    /// Its node.
    pub node: NodeName,
    /// Its id.
    pub id: String,
}

impl AdminState {
    async fn record_homes(
        &self,
        driver: Option<DriverName>,
        mut homes: Vec<GivenHome>,
    ) -> Result<Done, Refusal> {
        homes.retain(|home| driver.as_ref().is_none_or(|driver| home.driver == *driver));
        let unknown = self.unknown_nodes(&homes);
        let count = homes.len();
        let recording = stream::iter(homes).map(|GivenHome { driver, node, id }| async move {
            ingest::discovered(&self.store, &driver, &Id::Volume(id), &node, Bytes::new()).await
        });
        let recorded: Vec<_> = recording.buffer_unordered(AT_ONCE).collect().await;
        recorded.into_iter().collect::<Result<(), _>>()?;
        let mut text = format!(
            "{count} homes were taken over; those that had another home keep it, see `csi-cloud \
             volumes`"
        );
        if !unknown.is_empty() {
            text += &format!("; never linked so far: {}", names(&unknown));
        }
        Ok(Done::logged(text))
    }

    /// The nodes of these homes that never linked.
    fn unknown_nodes(&self, homes: &[GivenHome]) -> Vec<NodeName> {
        let mut unknown: Vec<_> = self.store.read(|state| {
            let nodes = homes.iter().map(|home| &home.node);
            nodes.filter(|node| state.node(node).is_none()).cloned().collect()
        });
        unknown.sort();
        unknown.dedup();
        unknown
    }

    /// Asks the nodes for all that they have.
    async fn ask_nodes(&self, driver: Option<DriverName>) -> Result<Done, Refusal> {
        let mut lines = Vec::new();
        for (name, front) in &self.fronts {
            if driver.as_ref().is_none_or(|driver| name == driver) {
                let rebuilt = front.lists().rebuild().await;
                lines.push(format!("{name}: {}", summary(rebuilt)));
            }
        }
        if lines.is_empty() {
            return Err(Refusal::unknown(
                "there is no front of that driver; `csi-cloud drivers` shows them",
            ));
        }
        Ok(Done::logged(lines.join("\n")))
    }
}

/// A summary: the nodes that answered, their entries, and the nodes without an answer.
fn summary(rebuilt: Vec<(NodeName, Result<usize, String>)>) -> String {
    let mut answered = 0;
    let mut things = 0;
    let mut silent = Vec::new();
    for (node, outcome) in rebuilt {
        match outcome {
            Ok(count) => {
                answered += 1;
                things += count;
            }
            Err(reason) => silent.push(format!("{node} ({reason})")),
        }
    }
    let text = format!("{answered} nodes have {things} volumes and snapshots");
    if silent.is_empty() {
        return text;
    }
    let named = silent.get(..FEW).unwrap_or(&silent).join(", ");
    format!("{text}; {} did not say: {named}", silent.len())
}

/// The homes in a file.
fn parse_homes(file: &Path, text: &str) -> anyhow::Result<Vec<GivenHome>> {
    let mut homes = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let home = parse(line).with_context(|| format!("{} line {number}", file.display()))?;
        homes.push(home);
    }
    Ok(homes)
}

fn parse(line: &str) -> anyhow::Result<GivenHome> {
    let parts: Vec<_> = line.splitn(3, ' ').filter(|part| !part.is_empty()).collect();
    let [driver, node, id] = parts[..] else {
        bail!("a line is DRIVER NODE ID, with one space between them; an id may have spaces in it");
    };
    Ok(GivenHome { driver: driver.parse()?, node: node.parse()?, id: id.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_file_names_a_home() {
        let home = parse("d.example n1 an id/with #things").unwrap();
        assert_eq!((home.driver.as_str(), home.node.as_str()), ("d.example", "n1"));
        assert_eq!(home.id, "an id/with #things");
        for bad in
            ["d.example n1", "d.example n1 ", "d.example  n1 x", "d_e n1 x", "d.example N1 x"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
