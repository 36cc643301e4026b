//! csi-sanity against one driver at several nodes. The controller's specs go to the cloud, which
//! has to find each volume's node. The others go to the last node.
//!
//! Placement takes the first of nodes with equally few volumes. In `spread` a spec's first volume
//! is therefore at another node than the suite's. The specs that depend on this are listed
//! beforehand.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use proto::host::publish::{Existing, publish};
use tokio_util::sync::CancellationToken;

use super::kept::KeptVolumes;
use super::report::Report;
use super::run::{Way, split};
use super::started::{Driver, Started, guarded};
use super::suite::{Part, Suite};
use harness::stand::Stand;
use harness::wait::{START, until};

/// How long a whole run may take.
const RUN: Duration = Duration::from_secs(600);

/// The placement of a run over several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// New volumes go to the suite's node; everything is as with one node.
    Pinned,
    /// The same, and between the controller's specs and the others csi-cloud is killed and its
    /// store deleted, and the homes are learned of the nodes.
    Rebuilt,
    /// New volumes go where the fewest are; only the controller's specs are run.
    Spread,
}

/// The programs of a run.
struct Fleet<'a> {
    stand: &'a mut Stand,
    started: &'a mut Started,
    /// The driver's name.
    name: String,
    nodes: Vec<String>,
    /// Where csi-cloud listens.
    listen: Vec<String>,
    config: String,
}

/// Runs the suite in one of the cases. All its programs have ended when it returns, even after a
/// cancellation.
///
/// # Errors
/// Something cannot be started, ends badly, or takes too long; there is no report; it was
/// cancelled. Or something that was made before the loss of the store has changed.
pub async fn run_nodes(
    driver: &Driver,
    way: Way,
    nodes: usize,
    case: Case,
    go_bin: &Path,
    cancel: &CancellationToken,
) -> anyhow::Result<Report> {
    ensure!(!cancel.is_cancelled(), "stopped before it began");
    let suite = Suite::at(go_bin, &driver.options)?;
    guarded(Stand::new().await?, RUN, cancel, async |stand, started| {
        let nodes: Vec<_> = (1..=nodes).map(|number| format!("n{number}")).collect();
        let node = nodes.last().context("there must be a node")?.clone();
        let mut fleet = Fleet::start(driver, way, case, nodes, stand, started).await?;
        let sockets = split(fleet.stand, &fleet.name, &node)?;
        match case {
            Case::Pinned => suite.run(fleet.stand, Part::All, &sockets).await,
            Case::Spread => suite.run(fleet.stand, Part::Controller, &sockets).await,
            Case::Rebuilt => {
                let before = suite.run(fleet.stand, Part::Controller, &sockets).await?;
                fleet.lose_store().await?;
                Ok(before.and(suite.run(fleet.stand, Part::Others, &sockets).await?))
            }
        }
    })
    .await
}

impl<'a> Fleet<'a> {
    async fn start(
        driver: &Driver,
        way: Way,
        case: Case,
        nodes: Vec<String>,
        stand: &'a mut Stand,
        started: &'a mut Started,
    ) -> anyhow::Result<Self> {
        let mut served = Vec::new();
        for node in &nodes {
            let socket = stand.at(&format!("{node}.sock"));
            served.push(started.driver(driver, stand, node, &socket).await?);
        }
        let name = served.last().context("there must be a node")?.name.clone();
        let placement = match (case, nodes.last()) {
            (Case::Pinned | Case::Rebuilt, Some(node)) => {
                format!("placement = \"pinned\"\nnode = \"{node}\"\n")
            }
            _ => "placement = \"spread\"\n".to_owned(),
        };
        let config = stand.at("cloud.toml");
        let text = format!("[driver.\"{name}\"]\n{placement}");
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
        let listen = vec![way.listen(stand).context("several nodes need links")?];
        let mut fleet = Self { stand, started, name, nodes, listen, config };
        fleet.start_cloud().await?;
        let url = fleet.listen.first().context("csi-cloud listens nowhere")?.clone();
        for (node, driver) in fleet.nodes.iter().zip(&served) {
            fleet.started.edge(fleet.stand, node, &url, driver).await?;
        }
        fleet.rebuild().await?;
        Ok(fleet)
    }

    /// Starts csi-cloud where it was before.
    async fn start_cloud(&mut self) -> anyhow::Result<()> {
        let listen: Vec<_> = self.listen.iter().map(String::as_str).collect();
        let cloud = self.stand.cloud(&listen, &[&self.name], &["--config", &self.config]).await?;
        self.started.cloud = Some(cloud.process);
        self.listen = cloud.urls;
        Ok(())
    }

    /// Kills csi-cloud, deletes its store, and starts it again with only the nodes' knowledge.
    /// Earlier objects can still be used, and none of them stays.
    async fn lose_store(&mut self) -> anyhow::Result<()> {
        let front = self.stand.cloud_front(&self.name);
        let edges = self.nodes.iter().map(|node| self.stand.edge_front(node, &self.name)).collect();
        let kept = KeptVolumes::make(&front, edges).await?;
        self.started.cloud.take().context("csi-cloud is not there")?.kill().await?;
        tokio::fs::remove_file(self.stand.at("cloud.redb")).await?;
        self.start_cloud().await?;
        for edge in &mut self.started.edges {
            edge.line_starting("linked ", START).await?;
        }
        self.rebuild().await?;
        kept.is_usable(&front).await.context("after the store was lost")
    }

    /// Has csi-cloud learn what lives where, from all nodes: it then knows all of them.
    async fn rebuild(&mut self) -> anyhow::Result<()> {
        let stand = &*self.stand;
        let count = self.nodes.len();
        let admin = stand.at("cloud/_admin.sock");
        until("csi-cloud learns of all nodes", || async {
            let said = stand.run("csi-cloud", &["homes", "rebuild", "--admin", &admin]).await?;
            let all = format!("{count} nodes have ");
            ensure!(said.contains(&all) && !said.contains("did not say"), "{said}");
            Ok(())
        })
        .await
    }
}
