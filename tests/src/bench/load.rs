//! The load: callers on one HTTP/2 connection, each leading volumes through their lives, every answer checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use proto::csi::controller_client::ControllerClient;
use proto::csi::{self, volume_capability};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Channel;

/// What one run of the load saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How long each call took, in µs, sorted.
    pub latencies: Vec<u32>,
    /// Calls that failed, or were answered wrongly.
    pub errors: u64,
    /// How long the run took.
    pub took: Duration,
}

impl Seen {
    /// The latency below which `part` (0 to 1) of the calls stayed, in µs.
    pub fn percentile(&self, part: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1) as f64;
        self.latencies.get((last * part).round() as usize).copied().map_or(f64::NAN, f64::from)
    }

    /// Calls answered in a second.
    pub fn calls_per_s(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }
}

/// Lets `callers` call for `time`; each ends with the life of its volume.
///
/// # Errors
/// A caller crashed. Failed calls are counted, not returned.
pub async fn run(channel: &Channel, node: &str, callers: usize, time: Duration) -> anyhow::Result<Seen> {
    let (begun, errors) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut running = JoinSet::new();
    for _ in 0..callers {
        let caller = Caller {
            client: ControllerClient::new(channel.clone()),
            node: node.to_owned(),
            took: Vec::new(),
        };
        running.spawn(caller.call_until(begun + time, errors.clone()));
    }
    let mut seen = Seen::default();
    while let Some(took) = running.join_next().await {
        seen.latencies.extend(took.context("a caller crashed")?);
    }
    seen.took = begun.elapsed();
    seen.errors = errors.load(Ordering::Relaxed);
    seen.latencies.sort_unstable();
    Ok(seen)
}

struct Caller {
    client: ControllerClient<Channel>,
    node: String,
    took: Vec<u32>,
}

impl Caller {
    async fn call_until(mut self, end: Instant, errors: Arc<AtomicU64>) -> Vec<u32> {
        while Instant::now() < end {
            if let Err(error) = self.life().await {
                if errors.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::error!("first error: {error:#}");
                }
                // A stack that refuses everything is not called a million times a second.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        self.took
    }

    /// Create, attach, detach, delete.
    async fn life(&mut self) -> anyhow::Result<()> {
        let name = format!("pvc-{}", uuid::Uuid::new_v4());
        let (begun, capability) = (Instant::now(), capability());
        let request = csi::CreateVolumeRequest {
            name,
            capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
            volume_capabilities: vec![capability.clone()],
            ..Default::default()
        };
        let volume = self.client.create_volume(request).await?.into_inner().volume.unwrap_or_default();
        self.answered(begun);
        ensure!(!volume.volume_id.is_empty(), "CreateVolume was answered without a volume id");
        let (begun, volume_id) = (Instant::now(), volume.volume_id);
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: self.node.clone(),
            volume_capability: Some(capability),
            ..Default::default()
        };
        self.client.controller_publish_volume(request).await?;
        self.answered(begun);
        let (begun, node_id) = (Instant::now(), self.node.clone());
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id,
            ..Default::default()
        };
        self.client.controller_unpublish_volume(request).await?;
        self.answered(begun);
        let begun = Instant::now();
        self.client.delete_volume(csi::DeleteVolumeRequest { volume_id, ..Default::default() }).await?;
        self.answered(begun);
        Ok(())
    }

    fn answered(&mut self, begun: Instant) {
        self.took.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
}

/// A mounted volume that one node writes.
pub fn capability() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(volume_capability::AccessMode {
            mode: volume_capability::access_mode::Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(volume_capability::AccessType::Mount(volume_capability::MountVolume::default())),
    }
}
