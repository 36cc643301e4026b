//! `csi-edge volumes`: what this node knows of its volumes.
//!
//! Volumes that a driver has mounted are the driver's and the kubelet's. csi-edge keeps records of
//! direct volumes, and of those that are yet to grow here.

use std::path::{Path, PathBuf};

use edge_calls::node_volumes::NodeVolume;
use edge_direct::admin::volumes;
use edge_direct::admin::volumes::{DirectVolume, pod_in};
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
    /// Its pod, `NAMESPACE/NAME`; none if csi-cloud did not send it.
    #[serde(default)]
    pub pod: Option<String>,
    /// Its claim, `NAMESPACE/NAME`; none if csi-cloud did not send it.
    #[serde(default)]
    pub claim: Option<String>,
    /// Whether its pod was here and is gone from Kubernetes: it is left over.
    #[serde(default)]
    pub left_over: bool,
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
        let direct = volumes.into_iter().map(|volume| {
            let pod = volume.pod_uid.clone();
            self.named(view(volume), &pod)
        });
        let due = due.into_iter().map(|volume| {
            let pod = volume.places.path().map(|path| pod_in(Path::new(path)));
            self.named(expansion(volume), &pod.unwrap_or_default())
        });
        Ok(direct.chain(due).collect())
    }

    /// The volume with the names of its pod and its claim, as csi-cloud sent them last.
    pub(super) fn named(&self, volume: VolumeView, pod: &str) -> VolumeView {
        let metadata = &self.metadata;
        VolumeView {
            pod: metadata.pod_text(pod),
            claim: metadata.claim(&volume.driver, &volume.volume),
            left_over: metadata.gone_pod(pod).is_some(),
            ..volume
        }
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
        pod: None,
        claim: None,
        left_over: false,
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
        pod: None,
        claim: None,
        left_over: false,
    }
}
