//! Stopping either end: calls in flight are finished, no new ones begin, and no caller gets a final
//! code.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use drivers::testdriver::{Fault, Gate, TestDriver, Times};
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create, created, delete};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, World, ready};
use rustix::process::Signal;
use tokio::time::Instant;
use tonic::Code;

/// A call that waits in the driver until the gate opens.
fn held(driver: &TestDriver) -> Gate {
    let gate = Gate::new();
    driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
    gate
}

#[tokio::test]
async fn a_cloud_that_stops_finishes_what_it_has_and_sends_its_edges_elsewhere()
-> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut stand = Stand::new().await?;
        let driver = TestDriver::new(DRIVER, NODE);
        let socket = stand.at("driver.sock");
        let serving = driver.serve(Path::new(&socket))?;
        let first = stand.cloud_as("a", &[transport], &[DRIVER], &[]).await?;
        let second = stand.cloud_as("b", &[transport], &[DRIVER], &[]).await?;
        let ways = ["--cloud", &first.urls[0], "--cloud", &second.urls[0]];
        let mut edge = stand.edge_with(NODE, &[(DRIVER, &socket)], &ways).await?;
        assert!(edge.line_starting("linked ", START).await?.starts_with(&first.urls[0]));
        let front = RawClient::connect(&stand.at(&format!("a/{DRIVER}.sock"))).await?;
        until("it has learned", || ready(&front)).await?;

        let gate = held(&driver);
        let path = controller("CreateVolume");
        let request = create("v");
        let stopping = async {
            gate.wait_for(1).await?;
            first.process.signal(Signal::TERM)?;
            // The new link is there while the call is still in flight on the old one.
            assert!(edge.line_starting("linked ", START).await?.starts_with(&second.urls[0]));
            let socket = stand.at(&format!("a/{DRIVER}.sock"));
            anyhow::ensure!(
                !Path::new(&socket).exists(),
                "a front that takes no calls is still there"
            );
            gate.open();
            anyhow::Ok(())
        };
        let (answer, stopped) = tokio::join!(front.call(&path, &request), stopping);
        stopped?;
        assert_eq!(answer?.code(), Code::Ok);
        let mut process = first.process;
        assert!(process.ended(START).await?.success());

        let front = RawClient::connect(&stand.at(&format!("b/{DRIVER}.sock"))).await?;
        until("the other has learned", || ready(&front)).await?;
        assert_eq!(front.call(&path, &request).await?.code(), Code::Ok);
        assert_eq!(driver.volumes().len(), 1);
        edge.stop(START).await?;
        second.process.stop(START).await?;
        serving.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn an_edge_that_stops_finishes_what_it_has_and_gets_nothing_new() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let World { stand, cloud, mut edge, driver, serving } = World::new(transport).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        let node_front = RawClient::connect(&stand.edge_front(NODE, DRIVER)).await?;
        let gate = held(&driver);
        let stage = Gate::new();
        driver.inject("GetCapacity", Fault::Gate(stage.clone()), Times::Next(1));
        let path = controller("CreateVolume");
        let request = create("v");
        let stopping = async {
            gate.wait_for(1).await?;
            stage.wait_for(1).await?;
            edge.signal(Signal::TERM)?;
            cloud.process.logged("no call is begun on it any more").await?;
            let begun = Instant::now();
            let status = front.call(&controller("DeleteVolume"), &delete("x")).await?.status();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(
                begun.elapsed() < Duration::from_millis(500),
                "not at once: {:?}",
                begun.elapsed()
            );
            gate.open();
            stage.open();
            anyhow::Ok(())
        };
        let capacity = controller("GetCapacity");
        let calls =
            async { tokio::join!(front.call(&path, &request), node_front.call(&capacity, &[])) };
        let ((by_cloud, by_node), stopped) = tokio::join!(calls, stopping);
        stopped?;
        assert_eq!((by_cloud?.code(), by_node?.code()), (Code::Ok, Code::Ok));
        assert!(edge.ended(START).await?.success());
        assert!(driver.calls_of("DeleteVolume").is_empty(), "a call was begun after the goodbye");
        cloud.process.logged("unlinked, as the edge wished").await?;
        cloud.process.stop(START).await?;
        serving.stop().await;
    }
    Ok(())
}

/// Tells a program to stop, once or twice, and waits until it has.
async fn end(process: &mut Process, twice: bool) -> anyhow::Result<std::process::ExitStatus> {
    process.signal(Signal::TERM)?;
    process.logged("stopping").await?;
    if twice {
        process.signal(Signal::TERM)?;
    }
    process.ended(Duration::from_secs(10)).await
}

#[tokio::test]
async fn who_is_told_twice_or_waits_too_long_goes_and_says_that_the_outcome_is_open()
-> anyhow::Result<()> {
    for (transport, grace, twice) in [(TRANSPORTS[0], "30", true), (TRANSPORTS[1], "1", false)] {
        for cloud_stops in [true, false] {
            let flags = ["--grace", grace];
            let World { stand, mut cloud, mut edge, driver, serving } =
                World::with(transport, &flags, &flags).await?;
            let front = if cloud_stops {
                stand.cloud_front(DRIVER)
            } else {
                stand.edge_front(NODE, DRIVER)
            };
            let front = RawClient::connect(&front).await?;
            driver.inject("CreateVolume", Fault::Hang, Times::Next(1));
            let path = controller("CreateVolume");
            let request = create("v");
            let process = if cloud_stops { &mut cloud.process } else { &mut edge };
            let stopping = async {
                driver.wait_for("CreateVolume", 1).await?;
                end(process, twice).await
            };
            let (answer, stopped) = tokio::join!(front.call(&path, &request), stopping);
            assert!(stopped?.success());
            let status = answer?.status();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains("is stopping"), "{status}");
            driver.release();
            if cloud_stops {
                edge.stop(START).await?
            } else {
                cloud.process.stop(START).await?
            }
            serving.stop().await;
        }
    }
    Ok(())
}

/// Runs volumes through their lives, again and again, as a sidecar that retries only retryable
/// codes.
struct Caller {
    front: String,
    stop: Arc<AtomicBool>,
    seen: Arc<Seen>,
}

/// The results of the callers.
#[derive(Debug, Default)]
struct Seen {
    /// No front was there.
    no_front: AtomicUsize,
    /// UNAVAILABLE, and nothing had been done.
    unavailable: AtomicUsize,
    /// UNAVAILABLE for a call that may have started.
    unknown: AtomicUsize,
    /// The connection to the front broke with the call on it.
    broken: AtomicUsize,
}

impl Caller {
    async fn run(self, name: usize) -> anyhow::Result<usize> {
        let mut lives = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let name = format!("v-{name}-{lives}");
            let made = created(&self.call("CreateVolume", &create(&name)).await?)?;
            let again = created(&self.call("CreateVolume", &create(&name)).await?)?;
            anyhow::ensure!(made.volume_id == again.volume_id, "{name} was made twice");
            self.call("DeleteVolume", &delete(&made.volume_id)).await?;
            lives += 1;
        }
        Ok(lives)
    }

    /// Calls until it is answered; a connection for each, since its other end may be another
    /// process by now.
    async fn call(&self, method: &str, request: &[u8]) -> anyhow::Result<RawAnswer> {
        let deadline = Instant::now() + START;
        loop {
            let met = match RawClient::connect(&self.front).await {
                Err(_) => &self.seen.no_front,
                Ok(front) => match front.call(&controller(method), request).await {
                    Err(_) => &self.seen.broken,
                    Ok(answer) => match (answer.code(), answer.status().message()) {
                        (Code::Ok, _) => return Ok(answer),
                        (Code::Unavailable, text) if text.contains("not known") => {
                            &self.seen.unknown
                        }
                        (Code::Unavailable, _) => &self.seen.unavailable,
                        _ => anyhow::bail!("{method}: {}", answer.status()),
                    },
                },
            };
            met.fetch_add(1, Ordering::Relaxed);
            anyhow::ensure!(Instant::now() < deadline, "{method} is not answered within {START:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn restarts_of_either_end_under_load_lose_nothing_and_double_nothing() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let World { mut stand, mut cloud, mut edge, driver, serving } =
            World::new(transport).await?;
        driver.inject("CreateVolume", Fault::Delay(Duration::from_millis(20)), Times::All);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Seen::default());
        let callers = (0..8).map(|name| {
            let front = stand.cloud_front(DRIVER);
            Caller { front, stop: stop.clone(), seen: seen.clone() }.run(name)
        });
        let callers = futures_util::future::try_join_all(callers);
        let url = cloud.urls[0].clone();
        let restarts = async {
            for _ in 0..2 {
                let calls = driver.calls().len();
                driver.wait_for("*", calls + 50).await?;
                cloud.process.stop(START).await?;
                cloud = stand.cloud(&[&url], &[DRIVER], &[]).await?;
                edge.line_starting("linked ", START).await?;
                let calls = driver.calls().len();
                driver.wait_for("*", calls + 50).await?;
                edge.stop(START).await?;
                edge = stand.edge(NODE, &url, &[(DRIVER, &stand.at("driver.sock"))]).await?;
            }
            stop.store(true, Ordering::Relaxed);
            anyhow::Ok((cloud, edge))
        };
        let (lives, restarted) = tokio::join!(callers, restarts);
        let (cloud, edge) = restarted?;
        let lives: usize = lives?.iter().sum();
        println!("{transport}: {lives} volumes, tried again: {seen:?}");
        assert!(driver.volumes().is_empty(), "left behind: {:?}", driver.volumes().len());
        edge.stop(START).await?;
        cloud.process.stop(START).await?;
        serving.stop().await;
    }
    Ok(())
}
