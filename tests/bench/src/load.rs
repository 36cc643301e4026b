//! The load: callers on one HTTP/2 connection, each leading volumes through their lives, every
//! answer checked.

use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use proto::csi;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Channel;

use drivers::testdriver::TOPOLOGY_KEY;
use harness::requests::capability;

/// The size of each volume, in bytes.
const SIZE: i64 = 1 << 30;

/// The result of one run of the load.
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
        percentile(&self.latencies, part).map_or(f64::NAN, f64::from)
    }

    /// Calls answered in a second.
    pub fn calls_per_s(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    /// Counts a call that was answered now.
    pub fn answered(&mut self, begun: Instant) {
        self.latencies.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
    }

    /// Counts what was seen at the same time.
    pub fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.errors += other.errors;
    }

    /// The result of a run that ends now.
    pub fn finished(mut self, begun: Instant) -> Self {
        self.took = begun.elapsed();
        self.latencies.sort_unstable();
        self
    }
}

/// The one of these sorted values below which `part` (0 to 1) of them stay.
pub fn percentile<T: Copy>(sorted: &[T], part: f64) -> Option<T> {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((last * part).round() as usize).copied()
}

/// Lets callers call at the same time and counts what they saw together.
///
/// # Errors
/// A caller crashed.
pub async fn together<F>(callers: impl Iterator<Item = F>) -> anyhow::Result<Seen>
where
    F: Future<Output = Seen> + Send + 'static,
{
    let begun = Instant::now();
    let mut running: JoinSet<_> = callers.collect();
    let mut all = Seen::default();
    while let Some(seen) = running.join_next().await {
        all.add(seen.context("a caller crashed")?);
    }
    Ok(all.finished(begun))
}

/// The calls for one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is made, attached, detached and deleted.
    Whole,
    /// It is made and deleted.
    Made,
}

/// Lets `callers` call for `time`; each ends with the life of its volume.
///
/// # Errors
/// A caller crashed. Failed calls are counted, not returned.
pub async fn run(
    channel: &Channel,
    node: &str,
    callers: usize,
    time: Duration,
    life: Life,
) -> anyhow::Result<Seen> {
    let end = Instant::now() + time;
    let caller = |_| {
        let client = ControllerClient::new(channel.clone());
        Caller { client, node: node.to_owned(), life, seen: Seen::default() }.call_until(end)
    };
    together((0..callers).map(caller)).await
}

/// Lets each of `callers` lead this many volumes through their whole lives, one after another.
///
/// # Errors
/// A caller crashed, or a call failed.
pub async fn lives(
    channel: &Channel,
    node: &str,
    callers: usize,
    lives: usize,
) -> anyhow::Result<Seen> {
    let caller = |_| {
        let client = ControllerClient::new(channel.clone());
        let node = node.to_owned();
        Caller { client, node, life: Life::Whole, seen: Seen::default() }.call_times(lives)
    };
    let seen = together((0..callers).map(caller)).await?;
    ensure!(seen.errors == 0, "{} calls failed", seen.errors);
    Ok(seen)
}

struct Caller {
    client: ControllerClient<Channel>,
    node: String,
    life: Life,
    seen: Seen,
}

impl Caller {
    async fn call_times(mut self, lives: usize) -> Seen {
        for _ in 0..lives {
            if let Err(error) = self.life().await {
                tracing::error!("a call failed: {error:#}");
                self.seen.errors += 1;
            }
        }
        self.seen
    }

    async fn call_until(mut self, end: Instant) -> Seen {
        while Instant::now() < end {
            if let Err(error) = self.life().await {
                if self.seen.errors == 0 {
                    tracing::error!("a caller's first error: {error:#}");
                }
                self.seen.errors += 1;
                // A stack that refuses everything is not called a million times a second.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        self.seen
    }

    /// Create, attach, detach, delete, with requests as external-provisioner and external-attacher
    /// make them.
    async fn life(&mut self) -> anyhow::Result<()> {
        let request = create(&self.node);
        let begun = Instant::now();
        let volume =
            self.client.create_volume(request).await?.into_inner().volume.unwrap_or_default();
        self.seen.answered(begun);
        ensure!(!volume.volume_id.is_empty(), "CreateVolume was answered without a volume id");
        ensure!(volume.capacity_bytes >= SIZE, "CreateVolume made {} bytes", volume.capacity_bytes);
        ensure!(
            !volume.accessible_topology.is_empty(),
            "CreateVolume was answered without a topology"
        );
        let volume_id = volume.volume_id.clone();
        if self.life == Life::Whole {
            self.attached(volume).await?;
        }
        let begun = Instant::now();
        self.client
            .delete_volume(csi::DeleteVolumeRequest { volume_id, ..Default::default() })
            .await?;
        self.seen.answered(begun);
        Ok(())
    }

    async fn attached(&mut self, volume: csi::Volume) -> anyhow::Result<()> {
        let volume_id = volume.volume_id;
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: self.node.clone(),
            volume_capability: Some(capability()),
            volume_context: volume.volume_context,
            ..Default::default()
        };
        let begun = Instant::now();
        let published = self.client.controller_publish_volume(request).await?.into_inner();
        self.seen.answered(begun);
        ensure!(
            !published.publish_context.is_empty(),
            "ControllerPublishVolume was answered without a context"
        );
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id,
            node_id: self.node.clone(),
            ..Default::default()
        };
        let begun = Instant::now();
        self.client.controller_unpublish_volume(request).await?;
        self.seen.answered(begun);
        Ok(())
    }
}

/// The CreateVolume of external-provisioner for a class with WaitForFirstConsumer and its extra
/// metadata.
fn create(node: &str) -> csi::CreateVolumeRequest {
    let name = format!("pvc-{}", uuid::Uuid::new_v4());
    let parameters = [
        ("csi.storage.k8s.io/pv/name", name.as_str()),
        ("csi.storage.k8s.io/pvc/name", "data-postgres-0"),
        ("csi.storage.k8s.io/pvc/namespace", "production"),
        ("type", "ssd"),
    ];
    let segments = [(TOPOLOGY_KEY.to_owned(), node.to_owned())].into();
    let here = vec![csi::Topology { segments }];
    csi::CreateVolumeRequest {
        capacity_range: Some(csi::CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        parameters: parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: here.clone(),
            preferred: here,
        }),
        name,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_are_counted_together() -> anyhow::Result<()> {
        let seen = |latencies, errors| async move { Seen { latencies, errors, ..Seen::default() } };
        let all =
            together([seen(vec![3, 1], 1), seen(vec![2], 0), seen(Vec::new(), 2)].into_iter())
                .await?;
        assert_eq!((&all.latencies[..], all.errors), (&[1, 2, 3][..], 3));
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|part| all.percentile(part)), [1.0, 2.0, 3.0, 3.0]);
        assert!(Seen::default().percentile(0.5).is_nan());
        Ok(())
    }
}
