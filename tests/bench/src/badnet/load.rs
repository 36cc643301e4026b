//! The load on the bad network: small calls, as sidecars make them, and large lists at the same
//! time.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::join_all;
use http_body_util::BodyExt;
use tokio::time::Instant;
use tonic::{Code, Status};
use uuid::Uuid;

use crate::load::{Seen, together};
use harness::raw::RawClient;
use harness::requests::{controller, create, created, delete};

/// Callers of small calls at the same time.
pub const CALLERS: usize = 4;
/// How long a caller waits between two calls, in ms.
const THINK: std::ops::Range<u64> = 25..75;
/// The volumes in a list, and the bytes that each adds. Together they stay just below 4 MiB, the
/// most that gRPC takes in a message.
pub const FILL: (usize, usize) = (64, 65_300);

/// The result of the lists.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    /// The whole ones, and how long each took.
    pub seen: Seen,
    /// Bytes that arrived, including those of a list that the end cut short.
    pub bytes: u64,
}

impl Lists {
    /// Megabits that arrived in a second.
    pub fn mbit(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.seen.took.as_secs_f64()
    }
}

/// Lets [`CALLERS`] make and delete volumes for `time`.
///
/// # Errors
/// A caller crashed. Failed calls are counted.
pub async fn small_calls(front: &RawClient, time: Duration) -> anyhow::Result<Seen> {
    let end = Instant::now() + time;
    let caller = |_| Caller { front: front.clone(), seen: Seen::default() }.call_until(end);
    together((0..CALLERS).map(caller)).await
}

struct Caller {
    front: RawClient,
    seen: Seen,
}

impl Caller {
    async fn call_until(mut self, end: Instant) -> Seen {
        while Instant::now() < end {
            if let Err(error) = self.life().await {
                self.seen.errors += 1;
                tracing::error!("a small call failed: {error:#}");
            }
        }
        self.seen
    }

    async fn life(&mut self) -> anyhow::Result<()> {
        let made = self.call("CreateVolume", &create(&format!("pvc-{}", Uuid::new_v4()))).await?;
        let volume = created(&made)?;
        self.call("DeleteVolume", &delete(&volume.volume_id)).await?;
        Ok(())
    }

    async fn call(
        &mut self,
        method: &str,
        request: &[u8],
    ) -> anyhow::Result<harness::raw::RawAnswer> {
        tokio::time::sleep(Duration::from_millis(rand::random_range(THINK))).await;
        let begun = Instant::now();
        let answer = self.front.call(&controller(method), request).await?;
        self.seen.answered(begun);
        ensure!(answer.code() == Code::Ok, "{method}: {}", answer.status());
        Ok(answer)
    }
}

/// Lists all volumes again and again, until `end` or until a number of lists.
pub async fn lists(front: &RawClient, end: Instant, most: usize) -> Lists {
    let begun = Instant::now();
    let mut lists = Lists::default();
    while lists.seen.latencies.len() < most && Instant::now() < end {
        let listed = Instant::now();
        match tokio::time::timeout_at(end, list(front, &mut lists.bytes)).await {
            Ok(Ok(())) => lists.seen.answered(listed),
            Ok(Err(error)) => {
                lists.seen.errors += 1;
                tracing::error!("a list failed: {error:#}");
                // The next one fails at once perhaps.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(_) => break,
        }
    }
    lists.seen = lists.seen.finished(begun);
    lists
}

/// Several [`lists`] at the same time, counted together.
pub async fn listers(front: &RawClient, listers: usize, end: Instant) -> Lists {
    let begun = Instant::now();
    let mut all = Lists::default();
    for one in join_all((0..listers).map(|_| lists(front, end, usize::MAX))).await {
        all.bytes += one.bytes;
        all.seen.add(one.seen);
    }
    all.seen = all.seen.finished(begun);
    all
}

/// One list; counts the bytes as they arrive.
async fn list(front: &RawClient, bytes: &mut u64) -> anyhow::Result<()> {
    let (head, mut body) = front
        .begin(&controller("ListVolumes"), proto::csi::frame::frame(&[]), &[])
        .await?
        .into_parts();
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => *bytes += data.len() as u64,
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    let trailers = trailers.unwrap_or(head.headers);
    let status = Status::from_header_map(&trailers).context("a list without a status")?;
    ensure!(status.code() == Code::Ok, "{status}");
    Ok(())
}
