//! A csi-edge and a driver that keep the rules, and how fast calls to that driver are answered.

use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::testdriver::{Running, TOPOLOGY_KEY, TestDriver};
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::controller;
use harness::wait::{STOP, until};
use prost::Message as _;
use proto::csi;
use tokio::time::{Instant, interval};
use tonic::Code;

use super::meter::Meter;
use super::world::{DRIVER, World};
use crate::load::Seen;

/// Its node.
const SERVED: &str = "served";
/// Between two calls. They use little of a core, so csi-cloud's CPU time is that of the attack.
const EVERY: Duration = Duration::from_millis(5);
/// The p99 is the median of those of windows this long, since other machines disturb this one. A
/// thousand calls are in each.
const WINDOW: Duration = Duration::from_secs(5);

/// What callers of a debug build may wait longer, in ms: other programs use the machine too.
const SHORT_MORE: f64 = 100.0;

/// Such an edge, linked, and a front that reaches its driver.
pub(super) struct Served {
    edge: Process,
    serving: Running,
    front: RawClient,
}

/// What callers see for some time, and what csi-cloud takes for it.
pub(super) struct Load {
    /// Of calls to the driver, in ms: the median of several windows.
    pub(super) p99: f64,
    /// The part of a core that csi-cloud uses.
    pub(super) cores: f64,
}

impl Served {
    /// An edge of this world whose driver answers.
    pub(super) async fn new(world: &mut World) -> anyhow::Result<Self> {
        let driver = TestDriver::new(DRIVER, SERVED);
        driver.record(false);
        let socket = world.stand.at("served.sock");
        let serving = driver.serve(socket.as_ref())?;
        let url = world.url().to_owned();
        let edge = world.stand.edge(SERVED, &url, &[(DRIVER, &socket)]).await?;
        let front = RawClient::connect(&world.stand.cloud_front(DRIVER)).await?;
        let served = Self { edge, serving, front };
        until("the driver answers", || served.call()).await?;
        Ok(served)
    }

    /// One call that goes to this node only.
    async fn call(&self) -> anyhow::Result<()> {
        let segments = [(TOPOLOGY_KEY.to_owned(), SERVED.to_owned())].into();
        let request = csi::GetCapacityRequest {
            accessible_topology: Some(csi::Topology { segments }),
            ..Default::default()
        };
        let path = controller("GetCapacity");
        let answer = self.front.call(&path, &request.encode_to_vec()).await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
        let message = answer.message().unwrap_or_default();
        let capacity = csi::GetCapacityResponse::decode(message)?.available_capacity;
        ensure!(capacity > 0, "the driver's node is not counted");
        Ok(())
    }

    /// Calls for so long, and measures.
    ///
    /// # Errors
    /// A call fails.
    pub(super) async fn load(&self, world: &World, time: Duration) -> anyhow::Result<Load> {
        let meter = Meter::begin(&world.cloud.process)?;
        let begun = Instant::now();
        let mut windows = Vec::new();
        while begun.elapsed() < time {
            let left = time.saturating_sub(begun.elapsed());
            windows.push(self.window(left.min(WINDOW)).await?);
        }
        windows.sort_by(f64::total_cmp);
        let p99 = windows.get(windows.len() / 2).copied().context("it lasted no time")?;
        Ok(Load { p99, cores: meter.end()?.cores })
    }

    /// Calls for so long; their p99, in ms.
    async fn window(&self, time: Duration) -> anyhow::Result<f64> {
        let begun = Instant::now();
        let mut ticks = interval(EVERY);
        let mut seen = Seen::default();
        while begun.elapsed() < time {
            ticks.tick().await;
            let called = Instant::now();
            self.call().await?;
            seen.answered(called);
        }
        Ok(seen.finished(begun).percentile(0.99) / 1000.0)
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.edge.stop(STOP).await?;
        self.serving.stop().await;
        Ok(())
    }
}

impl Load {
    /// True if callers wait at most twice as long as in `quiet`, or `more` ms longer.
    pub(super) fn is_near(&self, quiet: &Self, more: f64) -> bool {
        self.p99 <= (2.0 * quiet.p99).max(quiet.p99 + more)
    }
}

/// What callers may wait longer than twice as long, in ms; short runs are of a debug build.
pub(super) fn slack(short: bool) -> f64 {
    if short { SHORT_MORE } else { 0.0 }
}
