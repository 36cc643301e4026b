//! `csi-edge volumes`: what this node knows of its volumes.
//!
//! Volumes that a driver has mounted are the driver's and the kubelet's. csi-edge keeps records of
//! direct volumes, and of those that are yet to grow here.

use std::path::PathBuf;

use edge_calls::node_volumes::NodeVolume;
use edge_direct::admin::volumes;
use edge_direct::admin::volumes::DirectVolume;
use edge_direct::runtimes::{PATIENCE, Runtimes};
use serde::{Deserialize, Serialize};

use super::state::AdminState;

/// The path of the command.
pub const PATH: &str = "/volumes";

/// A volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeView {
    /// `direct`, or `expansion` for a volume that has grown at its driver's controller only.
    pub kind: String,
    /// Its id; empty if it is not known.
    pub volume: String,
    /// Its driver's name; empty with the id.
    pub driver: String,
    /// How it stands, as in `csi-edge direct list`; `due` for an expansion.
    pub standing: String,
    /// What a runtime is given.
    pub device: PathBuf,
    /// The sandbox that has it.
    pub sandbox: Option<String>,
    /// Where it is published.
    pub target: PathBuf,
    /// What is wrong with it; empty if nothing is.
    pub why: String,
}

impl AdminState {
    /// The volumes by target.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(super) async fn volumes(&self) -> anyhow::Result<Vec<VolumeView>> {
        let Some(state) = &self.state else { return Ok(Vec::new()) };
        let runtimes = Runtimes::new(self.roots.clone(), PATIENCE);
        let volumes = volumes::all(state, &runtimes).await?;
        let due = self.executor.due_expansions();
        Ok(volumes.into_iter().map(view).chain(due.into_iter().map(expansion)).collect())
    }
}

fn expansion(volume: NodeVolume) -> VolumeView {
    let bytes = volume.due().unwrap_or_default();
    VolumeView {
        kind: "expansion".into(),
        standing: "due".into(),
        driver: volume.driver.to_string(),
        device: PathBuf::new(),
        sandbox: None,
        target: volume.places.path().map(PathBuf::from).unwrap_or_default(),
        why: format!("to {bytes} bytes, when it is next staged or published"),
        volume: volume.volume_id,
    }
}

fn view(volume: DirectVolume) -> VolumeView {
    VolumeView {
        kind: "direct".into(),
        standing: volume.standing.name().into(),
        volume: volume.volume_id,
        driver: volume.driver,
        device: volume.device,
        sandbox: volume.sandbox,
        target: volume.target,
        why: volume.damage.or(volume.fault).unwrap_or_default(),
    }
}
