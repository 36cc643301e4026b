//! Callers that behave as the sidecars do. A code that leaves the outcome open is tried again for
//! ever. No caller expects a final code, because every request is valid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use drivers::grpc::controller_client::ControllerClient;
use proto::csi;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use harness::requests::capability;

/// The deadline of a call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The results of a caller.
#[derive(Default)]
pub struct Seen {
    /// Calls answered OK.
    pub ok: u64,
    /// Lives that were completed.
    pub lives: u64,
    /// Answers that left the outcome open, and lost connections to the front.
    pub open: BTreeMap<String, u64>,
    /// Volumes that are to be there at the end: driver and id.
    pub kept: BTreeSet<(String, String)>,
    /// Violations.
    pub wrong: Vec<String>,
}

impl Seen {
    /// Adds what another caller saw.
    pub fn add(&mut self, other: Self) {
        self.ok += other.ok;
        self.lives += other.lives;
        for (code, count) in other.open {
            *self.open.entry(code).or_default() += count;
        }
        self.kept.extend(other.kept);
        self.wrong.extend(other.wrong);
    }
}

struct Caller {
    client: ControllerClient<Channel>,
    driver: &'static str,
    /// The front may go away; that of a socket relay may not.
    may_go: bool,
    random: StdRng,
    seen: Seen,
}

/// Leads volumes through their lives, one after the other, until `ended`; then ends the one that it
/// is at.
pub async fn lead(
    front: String,
    driver: &'static str,
    (seed, may_go): (u64, bool),
    ended: watch::Receiver<bool>,
) -> Seen {
    // Never fails: the path is ours.
    let endpoint = Endpoint::from_shared(format!("unix://{front}"))
        .unwrap_or_else(|_| Endpoint::from_static("unix:///"));
    let client = ControllerClient::new(endpoint.connect_lazy());
    let random = StdRng::seed_from_u64(seed);
    let mut caller = Caller { client, driver, may_go, random, seen: Seen::default() };
    let mut number = 0;
    while !*ended.borrow() {
        number += 1;
        caller.life(&format!("{seed:x}-{number}")).await;
    }
    caller.seen
}

impl Caller {
    async fn life(&mut self, name: &str) {
        let request = csi::CreateVolumeRequest {
            name: format!("pvc-{name}"),
            capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
            volume_capabilities: vec![capability()],
            ..Default::default()
        };
        let made =
            self.insist("CreateVolume", &request, async |c, r| c.create_volume(r).await).await;
        let Some(csi::Volume { volume_id, accessible_topology, .. }) =
            made.and_then(|made| made.volume)
        else {
            return;
        };
        // hostdir publishes a volume only at its home, and answers with its topology; the test
        // driver does neither.
        let mut segments = accessible_topology.into_iter().flat_map(|topology| topology.segments);
        let node_id = segments.next().map_or_else(|| "any".to_owned(), |(_, node_id)| node_id);
        for _ in 0..self.random.random_range(0..3) {
            let volume_id = volume_id.clone();
            let publish = csi::ControllerPublishVolumeRequest {
                volume_id: volume_id.clone(),
                node_id: node_id.clone(),
                volume_capability: Some(capability()),
                ..Default::default()
            };
            self.insist("Publish", &publish, async |c, r| c.controller_publish_volume(r).await)
                .await;
            let node_id = node_id.clone();
            let unpublish =
                csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
            self.insist("Unpublish", &unpublish, async |c, r| {
                c.controller_unpublish_volume(r).await
            })
            .await;
        }
        if self.random.random_ratio(1, 4) {
            self.snapshot(name, &volume_id).await;
        }
        self.seen.lives += 1;
        if self.random.random_ratio(1, 16) {
            self.seen.kept.insert((self.driver.to_owned(), volume_id));
            return;
        }
        let delete = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
        self.insist("DeleteVolume", &delete, async |c, r| c.delete_volume(r).await).await;
    }

    async fn snapshot(&mut self, name: &str, volume_id: &str) {
        let name = format!("snapshot-{name}");
        let source_volume_id = volume_id.to_owned();
        let cut = csi::CreateSnapshotRequest { name, source_volume_id, ..Default::default() };
        let made =
            self.insist("CreateSnapshot", &cut, async |c, r| c.create_snapshot(r).await).await;
        let Some(snapshot_id) = made.and_then(|made| made.snapshot).map(|s| s.snapshot_id) else {
            return;
        };
        let delete = csi::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
        self.insist("DeleteSnapshot", &delete, async |c, r| c.delete_snapshot(r).await).await;
    }

    /// Calls until the answer is OK. A final code is noted, and ends the life.
    async fn insist<R: Clone, A, C>(&mut self, what: &str, message: &R, call: C) -> Option<A>
    where
        C: AsyncFn(&mut ControllerClient<Channel>, Request<R>) -> Result<Response<A>, Status>,
    {
        let mut wait = Duration::from_millis(20);
        loop {
            let mut request = Request::new(message.clone());
            request.set_timeout(TIMEOUT);
            let slack = Duration::from_millis(500);
            let status = match tokio::time::timeout(
                TIMEOUT + slack,
                call(&mut self.client, request),
            )
            .await
            {
                Ok(Ok(answer)) => {
                    self.seen.ok += 1;
                    return Some(answer.into_inner());
                }
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("the caller's own"),
            };
            use std::error::Error as _;
            let open = matches!(
                status.code(),
                Code::Unavailable | Code::DeadlineExceeded | Code::Aborted | Code::Cancelled
            );
            // tonic's own word for a front that went away, not an answer of anybody. A deadline
            // of its own is no such word.
            let lost = status.source().is_some() && status.code() != Code::Cancelled;
            let driver = self.driver;
            if !open && !lost {
                self.seen
                    .wrong
                    .push(format!("{driver}: {what} was answered with a final code: {status}"));
                return None;
            }
            if lost && !self.may_go {
                self.seen.wrong.push(format!("{driver}: {what} lost its front: {status}"));
            }
            let label = if lost { "front away".to_owned() } else { format!("{:?}", status.code()) };
            *self.seen.open.entry(label).or_default() += 1;
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(1));
        }
    }
}
