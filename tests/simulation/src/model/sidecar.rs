//! One running sidecar: its kind, its calls at a start, and how it calls.

use std::time::Duration;

use parking_lot::Mutex;
use proto::csi;
use tonic::Code;

use super::client::{Client, Reply, Unusual};
use super::world::World;
use crate::dice::Dice;

/// Which sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidecarKind {
    /// external-provisioner.
    Provisioner,
    /// external-attacher.
    Attacher,
    /// external-resizer.
    Resizer,
    /// external-snapshotter.
    Snapshotter,
}

/// All four.
pub const KINDS: [SidecarKind; 4] = [
    SidecarKind::Provisioner,
    SidecarKind::Attacher,
    SidecarKind::Resizer,
    SidecarKind::Snapshotter,
];

impl SidecarKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::Attacher => "attacher",
            Self::Resizer => "resizer",
            Self::Snapshotter => "snapshotter",
        }
    }
}

/// A running sidecar.
pub(super) struct Sidecar {
    pub(super) world: World,
    pub(super) client: Client,
    pub(super) dice: Mutex<Dice>,
}

impl Sidecar {
    /// The calls of a start: the first error but a late or unready Probe is an exit.
    pub(super) async fn begin(&self, kind: SidecarKind) -> Result<(), String> {
        self.probe().await?;
        self.ask("GetPluginInfo", &csi::GetPluginInfoRequest {}).await?;
        if kind != SidecarKind::Snapshotter {
            self.ask("GetPluginCapabilities", &csi::GetPluginCapabilitiesRequest {}).await?;
        }
        self.ask("ControllerGetCapabilities", &csi::ControllerGetCapabilitiesRequest {}).await
    }

    async fn probe(&self) -> Result<(), String> {
        loop {
            let reply =
                self.client.call("Probe", "", &csi::ProbeRequest {}, &Unusual::default()).await;
            let ready = reply.decode::<csi::ProbeResponse>().and_then(|answer| answer.ready);
            match reply.code {
                Code::Ok if ready != Some(false) => return Ok(()),
                Code::Ok | Code::DeadlineExceeded => {
                    tokio::time::sleep(Duration::from_secs(1)).await
                }
                code => return Err(format!("Probe {code:?}")),
            }
        }
    }

    async fn ask(&self, method: &'static str, request: &impl prost::Message) -> Result<(), String> {
        let reply = self.client.call(method, "", request, &Unusual::default()).await;
        if reply.code == Code::Ok { Ok(()) } else { Err(format!("{method} {:?}", reply.code)) }
    }

    pub(super) async fn call(
        &self,
        method: &'static str,
        key: &str,
        request: &impl prost::Message,
    ) -> Reply {
        self.client.call(method, key, request, &self.world.unusual).await
    }

    /// Whether what a call returned could not be written to the API server, so that the same call
    /// is made once more.
    pub(super) fn is_unwritten(&self) -> bool {
        self.dice(|dice| dice.chance(10))
    }

    pub(super) fn dice<T>(&self, throw: impl FnOnce(&mut Dice) -> T) -> T {
        throw(&mut self.dice.lock())
    }
}
