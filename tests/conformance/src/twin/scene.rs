//! A driver, reached at its own socket or through csi-cloud and csi-edge.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::node_client::NodeClient;
use harness::process::Process;
use harness::stand::{Cloud, Stand, channel};
use harness::wait::until;
use harness::world::section;
use proto::csi::{CreateVolumeRequest, VolumeCapability, volume_capability};
use proto::host::backoff::Backoff;
use proto::host::publish::{Existing, publish};
use rustix::process::Signal;
use serde::Deserialize;
use tokio::process::Command;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::sanity::run::Way;

/// The node, and its node id.
pub(super) const NODE: &str = "n1";
/// The name of the driver.
pub(super) const NAME: &str = "field.edge-csi.io";
/// How long a program may take to end.
const STOP: Duration = Duration::from_secs(10);
/// A kubelet's first delay after a failure, and its longest. It has no jitter.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(122);

/// A driver and the way to it.
pub(super) struct Scene {
    stand: Stand,
    way: Way,
    program: PathBuf,
    drivers: Vec<Process>,
    cloud: Option<Cloud>,
    edge: Option<Process>,
}

/// A line of the driver's own log.
#[derive(Deserialize)]
pub(super) struct Entry {
    /// Seconds since 1970.
    pub(super) at: f64,
    pub(super) event: String,
    pub(super) method: String,
    pub(super) about: String,
}

impl Scene {
    /// Starts the driver with these flags, and our programs if they are on the way. Does not wait
    /// until calls reach the driver.
    ///
    /// # Errors
    /// Something does not start.
    pub(super) async fn start(way: Way, go_bin: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let program = go_bin.join("fielddriver");
        let drivers = Vec::new();
        let mut scene = Self { stand, way, program, drivers, cloud: None, edge: None };
        scene.start_driver(flags)?;
        if let Some(listen) = way.listen(&scene.stand) {
            let config = scene.stand.at("cloud.toml");
            let text = section(NAME, "node");
            publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
            let cloud = scene.stand.cloud(&[&listen], &[NAME], &["--config", &config]).await?;
            let url = cloud.urls.first().context("csi-cloud listens nowhere")?.clone();
            scene.cloud = Some(cloud);
            let socket = scene.stand.at("driver.sock");
            scene.edge = Some(scene.stand.edge(NODE, &url, &[(NAME, &socket)]).await?);
        }
        Ok(scene)
    }

    /// Starts a process that serves the driver's socket from now on.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start_driver(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        let number = self.drivers.len();
        let mut command = Command::new(&self.program);
        command.arg(format!("--endpoint=unix://{}", self.stand.at("driver.sock")));
        command
            .args([format!("--node-id={NODE}"), format!("--log={}", self.stand.at("driver.log"))]);
        command.arg(format!("--name={NAME}")).args(flags);
        self.drivers.push(Process::start(&format!("driver-{number}"), command, self.stand.dir())?);
        Ok(())
    }

    /// Stops the driver's process where it is, as the kernel does that waits for a device.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn freeze_driver(&self) -> anyhow::Result<()> {
        self.drivers.last().context("there is no driver")?.signal(Signal::STOP)
    }

    /// Waits until calls of both services reach the driver.
    ///
    /// # Errors
    /// They do not in time.
    pub(super) async fn ready(&self) -> anyhow::Result<()> {
        until("the driver", || async {
            self.create("ready").await?;
            let request = proto::csi::NodeGetInfoRequest {};
            self.node().await?.node_get_info(request).await?;
            Ok(())
        })
        .await
    }

    /// Makes a volume of this name, which is its id too.
    ///
    /// # Errors
    /// The driver's.
    pub(super) async fn create(&self, name: &str) -> anyhow::Result<()> {
        self.controller().await?.create_volume(creation(name)).await?;
        Ok(())
    }

    /// A new connection to the Node service, as a kubelet dials for each call.
    ///
    /// # Errors
    /// Nobody serves it.
    pub(super) async fn node(&self) -> anyhow::Result<NodeClient<Channel>> {
        Ok(NodeClient::new(channel(&self.node_socket()).await?))
    }

    /// The socket that a kubelet calls.
    pub(super) fn node_socket(&self) -> String {
        match self.way {
            Way::Direct => self.stand.at("driver.sock"),
            Way::Ws | Way::Quic => self.stand.edge_front(NODE, NAME),
        }
    }

    /// A new connection to the Controller service.
    ///
    /// # Errors
    /// Nobody serves it.
    pub(super) async fn controller(&self) -> anyhow::Result<ControllerClient<Channel>> {
        Ok(ControllerClient::new(channel(&self.controller_socket()).await?))
    }

    /// The socket that sidecars call.
    pub(super) fn controller_socket(&self) -> String {
        match self.way {
            Way::Direct => self.stand.at("driver.sock"),
            Way::Ws | Way::Quic => self.stand.cloud_front(NAME),
        }
    }

    /// What the driver says that it was asked.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub(super) fn log(&self) -> anyhow::Result<Vec<Entry>> {
        let text = std::fs::read_to_string(self.stand.at("driver.log"))?;
        let lines = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        lines.context("the driver's log")
    }

    /// When a call of this method about this began and ended at the driver, in seconds since 1970.
    ///
    /// # Errors
    /// It did not begin, or has not ended.
    pub(super) fn span(&self, method: &str, about: &str) -> anyhow::Result<(f64, f64)> {
        let log = self.log()?;
        let at = |event: &str| {
            let is_it = |entry: &&Entry| {
                (&*entry.event, &*entry.method, &*entry.about) == (event, method, about)
            };
            let found = log.iter().find(is_it).map(|entry| entry.at);
            found.with_context(|| format!("there is no {event} of {method} {about}"))
        };
        Ok((at("begin")?, at("end")?))
    }

    /// Waits until so many calls that hang are at the driver.
    ///
    /// # Errors
    /// They do not come in time.
    pub(super) async fn hung(&self, count: usize) -> anyhow::Result<()> {
        until("hung calls at the driver", || async {
            let log = self.log()?;
            let hangs = |entry: &&Entry| {
                let (method, what) = entry.about.split_once('=').unwrap_or(("", &entry.about));
                let is_of = method.is_empty() || method == entry.method;
                entry.event == "begin" && is_of && what.starts_with("hang")
            };
            let hung = log.iter().filter(hangs).count();
            ensure!(hung >= count, "{hung} of {count}");
            Ok(())
        })
        .await
    }

    /// True if our programs are on the way.
    pub(super) fn is_behind_us(&self) -> bool {
        self.cloud.is_some()
    }

    /// Ends everything.
    ///
    /// # Errors
    /// One of our programs does not end well.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let mut result = Ok(());
        for process in self.edge.into_iter().chain(self.cloud.map(|cloud| cloud.process)) {
            result = result.and(process.stop(STOP).await);
        }
        for driver in self.drivers {
            // A frozen one handles no other signal.
            result = result.and(driver.kill().await);
        }
        result
    }
}

/// The request for a volume of this name.
pub(super) fn creation(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![capability()],
        ..Default::default()
    }
}

/// A mounted volume.
pub(super) fn capability() -> VolumeCapability {
    let mode = volume_capability::access_mode::Mode::MultiNodeMultiWriter.into();
    let mount = volume_capability::MountVolume::default();
    VolumeCapability {
        access_mode: Some(volume_capability::AccessMode { mode }),
        access_type: Some(volume_capability::AccessType::Mount(mount)),
    }
}

/// A request with a deadline.
pub(super) fn within<T>(deadline: Duration, request: T) -> Request<T> {
    let mut request = Request::new(request);
    request.set_timeout(deadline);
    request
}

/// Repeats a call until it is OK, with a kubelet's delays.
///
/// # Errors
/// It is never OK within this time.
pub(super) async fn repeated<T>(
    limit: Duration,
    mut call: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut delays = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
    let repeat = async {
        loop {
            if let Ok(done) = call().await {
                return done;
            }
            tokio::time::sleep(delays.delay()).await;
        }
    };
    tokio::time::timeout(limit, repeat).await.with_context(|| format!("not OK within {limit:?}"))
}

/// Refuses a call that ended otherwise than a scenario says.
///
/// # Errors
/// It did.
pub(super) fn must_fail<T>(answered: Result<T, Status>) -> anyhow::Result<Status> {
    let status = answered.err().context("it was OK")?;
    ensure!(status.code() != tonic::Code::Unimplemented, "{status}");
    Ok(status)
}
