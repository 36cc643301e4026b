//! `csi-edge volumes`: what this node knows of its volumes.
//!
//! csi-edge keeps records of direct volumes, and of those whose expansion is open. Volumes that a
//! driver has mounted are the kubelet's: its own notes tell of them. It may use `ordinary`.

use std::path::{Path, PathBuf};

use clap::Args;
use edge_calls::node_volumes::NodeVolume;
use edge_direct::admin::volumes;
use edge_direct::admin::volumes::{DirectVolume, pod_in};
use edge_direct::runtimes::{PATIENCE, Runtimes};
use proto::admin::cells::{optional, short};
use proto::admin::command::{Command, Refusal, Row};
use serde::{Deserialize, Serialize};

use super::drivers::path_text;
use super::ordinary;
use super::ordinary::{Note, OrdinaryVolume};
use super::state::AdminState;

/// Show what this node knows of its volumes.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
pub struct ListVolumes {}

impl Command<AdminState> for ListVolumes {
    const NAME: &'static str = "volumes";
    const PATH: &'static str = "/volumes";
    const READS: bool = true;
    const IS_SLOW: bool = true;
    type Answer = Vec<VolumeView>;

    async fn carry_out(self, state: &AdminState) -> Result<Vec<VolumeView>, Refusal> {
        state.volumes().await.map_err(|error| Refusal::because(error.as_ref()))
    }
}

/// A volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeView {
    /// `direct`; `expansion` for a volume whose expansion has not ended here; or `ordinary` for one
    /// in a pod's directory.
    pub kind: String,
    /// Its id; empty if it is not known.
    pub volume: String,
    /// Its driver's name; empty with the id.
    pub driver: String,
    /// How it stands, as in `csi-edge direct list`. An expansion is `due` if it is done at the
    /// driver's controller only, and `begun` if that is not known. An ordinary volume is `mounted`,
    /// `not mounted`, `unknown` (the host's mounts are not seen) or `damaged`.
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

impl Row for VolumeView {
    const HEADERS: &'static [&'static str] = &[
        "KIND", "VOLUME", "DRIVER", "STANDING", "POD", "CLAIM", "DEVICE", "SANDBOX", "TARGET",
        "WHY",
    ];

    fn row(&self) -> Vec<String> {
        vec![
            self.kind.clone(),
            short(&self.volume),
            self.driver.clone(),
            if self.left_over {
                format!("{}, left over", self.standing)
            } else {
                self.standing.clone()
            },
            optional(self.pod.as_ref()),
            optional(self.claim.as_ref()),
            path_text(&self.device),
            optional(self.sandbox.as_ref()),
            path_text(&self.target),
            self.why.clone(),
        ]
    }
}

impl AdminState {
    /// The direct volumes by target, then the open expansions, then the ordinary volumes.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(super) async fn volumes(&self) -> anyhow::Result<Vec<VolumeView>> {
        let direct = match &self.state {
            Some(state) => {
                let runtimes = Runtimes::new(self.roots.clone(), PATIENCE);
                volumes::all(state, &runtimes).await?
            }
            None => Vec::new(),
        };
        let ordinary = self.ordinary().await?.into_iter();
        let ordinary =
            ordinary.filter(|volume| !direct.iter().any(|direct| is_same(direct, volume)));
        let ordinary: Vec<_> = ordinary.map(|volume| self.ordinary_view(volume)).collect();
        let growing = self.executor.open_expansions();
        let direct = direct.into_iter().map(|volume| {
            let pod = volume.pod_uid.clone();
            self.named(view(volume), &pod)
        });
        let growing = growing.into_iter().map(|volume| {
            let pod = volume.places.path().map(|path| pod_in(Path::new(path)));
            self.named(expansion(volume), &pod.unwrap_or_default())
        });
        Ok(direct.chain(growing).chain(ordinary).collect())
    }

    /// What a kubelet noted of the volumes of its pods.
    async fn ordinary(&self) -> anyhow::Result<Vec<OrdinaryVolume>> {
        let kubelets = self.kubelets.clone();
        let looking = move || {
            let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
            ordinary::all(&kubelets, &String::from_utf8_lossy(&mountinfo))
        };
        Ok(tokio::task::spawn_blocking(looking).await?)
    }

    fn ordinary_view(&self, volume: OrdinaryVolume) -> VolumeView {
        let OrdinaryVolume { pod_uid, note, target, is_mounted } = volume;
        let standing = match (&note, is_mounted) {
            (Err(_), _) => "damaged",
            (Ok(_), Some(true)) => "mounted",
            (Ok(_), Some(false)) => "not mounted",
            (Ok(_), None) => "unknown",
        };
        let why = note.as_ref().err().cloned().unwrap_or_default();
        let (driver, volume) =
            note.map(|Note { driver, volume }| (driver, volume)).unwrap_or_default();
        let view = VolumeView {
            kind: "ordinary".into(),
            volume,
            driver,
            standing: standing.into(),
            device: PathBuf::new(),
            sandbox: None,
            target,
            why,
            pod: None,
            claim: None,
            left_over: false,
        };
        self.named(view, &pod_uid)
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

/// Whether the volume in a pod's directory is this direct one.
fn is_same(direct: &DirectVolume, volume: &OrdinaryVolume) -> bool {
    let is_noted = |note: &Note| {
        direct.pod_uid == volume.pod_uid
            && direct.driver == note.driver
            && direct.volume_id == note.volume
    };
    direct.target == volume.target || volume.note.as_ref().is_ok_and(is_noted)
}

pub(super) fn expansion(volume: NodeVolume) -> VolumeView {
    let (standing, why) = match volume.due() {
        Some(bytes) => ("due", format!("to {bytes} bytes, when it is next staged or published")),
        None => ("begun", "its outcome is not known; the next expansion of it goes on".into()),
    };
    VolumeView {
        kind: "expansion".into(),
        standing: standing.into(),
        driver: volume.driver.to_string(),
        device: PathBuf::new(),
        sandbox: None,
        target: volume.places.path().map(PathBuf::from).unwrap_or_default(),
        why,
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
