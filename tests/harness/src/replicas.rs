//! Several csi-clouds with one store, as processes, and the socket relay that finds the leader.

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context;
use rustix::process::Signal;

use crate::etcd_server::EtcdServer;
use crate::port;
use crate::process::Process;
use crate::stand::Stand;
use crate::wait::{START, STOP, until};

/// In the log of a csi-cloud, when it begins to lead.
const LEADS: &str = "this csi-cloud leads";

/// One of several csi-clouds. It keeps its ports when it is started again.
pub struct Replica {
    name: String,
    /// Where it listens for edges.
    urls: Vec<String>,
    store: String,
    drivers: Vec<String>,
    more: Vec<String>,
    /// None while it does not run.
    process: Option<Process>,
    http: Option<String>,
    /// How long its log was when it was started last.
    before: usize,
}

impl Replica {
    /// One that does not run yet. It listens for edges with each of these transports.
    ///
    /// # Errors
    /// There are no ports.
    pub fn new(
        name: &str,
        transports: &[&str],
        store: &str,
        drivers: &[&str],
    ) -> anyhow::Result<Self> {
        let mut urls = Vec::new();
        for transport in transports {
            urls.push(format!("{transport}://127.0.0.1:{}", port::free()?));
        }
        Ok(Self {
            name: name.to_owned(),
            urls,
            store: store.to_owned(),
            drivers: drivers.iter().map(ToString::to_string).collect(),
            more: Vec::new(),
            process: None,
            http: None,
            before: 0,
        })
    }

    /// The same with further arguments.
    #[must_use]
    pub fn with(self, more: &[&str]) -> Self {
        Self { more: more.iter().map(ToString::to_string).collect(), ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where edges reach it.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Where it takes the calls of socket relays.
    pub fn relays(&self, stand: &Stand) -> String {
        format!("unix:{}", stand.at(&format!("{}-relays.sock", self.name)))
    }

    /// Its own CSI socket for a driver.
    pub fn front(&self, stand: &Stand, driver: &str) -> String {
        stand.at(&format!("{}/{driver}.sock", self.name))
    }

    /// Where it serves HTTP.
    ///
    /// # Errors
    /// It has no `--http`.
    pub fn http(&self) -> anyhow::Result<&str> {
        self.http.as_deref().with_context(|| format!("{} serves no HTTP", self.name))
    }

    /// Starts it, and waits until it is ready. A follower is ready, too.
    ///
    /// # Errors
    /// It does not get ready; the error holds its log.
    pub async fn start(&mut self, stand: &Stand) -> anyhow::Result<()> {
        let log = stand.dir().join(format!("csi-{}.log", self.name));
        self.before = std::fs::metadata(log).map_or(0, |log| log.len() as usize);
        let relays = self.relays(stand);
        let store = format!("--store={}", self.store);
        let mut more = vec!["--replica", &self.name, "--holders", &relays, &store];
        more.extend(self.urls.iter().flat_map(|url| ["--advertise", url]));
        more.extend(self.more.iter().map(String::as_str));
        let listen: Vec<_> = self.urls.iter().map(String::as_str).collect();
        let drivers: Vec<_> = self.drivers.iter().map(String::as_str).collect();
        let cloud = stand.cloud_as(&self.name, &listen, &drivers, &more).await?;
        self.process = Some(cloud.process);
        self.http = cloud.http;
        Ok(())
    }

    /// Whether it runs and began to lead. It may be deposed, and about to end.
    pub fn leads(&self) -> bool {
        let Some(process) = &self.process else { return false };
        let log = process.log();
        let log = log.get(self.before..).unwrap_or_default();
        String::from_utf8_lossy(log).contains(LEADS)
    }

    /// The program.
    ///
    /// # Errors
    /// It does not run.
    pub fn process(&self) -> anyhow::Result<&Process> {
        self.process.as_ref().with_context(|| format!("{} does not run", self.name))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        self.process()?.signal(signal)
    }

    /// The program, which the caller ends. It can be started again.
    ///
    /// # Errors
    /// It does not run.
    pub fn take(&mut self) -> anyhow::Result<Process> {
        self.process.take().with_context(|| format!("{} does not run", self.name))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It does not run, or the time was over: then it is killed.
    pub async fn ended(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        self.take()?.ended(limit).await
    }

    /// Whether it ended by itself since it was started.
    ///
    /// # Errors
    /// The system's.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        self.process.as_mut().map_or(Ok(false), Process::has_ended)
    }

    /// Kills it if it runs.
    ///
    /// # Errors
    /// The system's.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        match self.process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }
}

/// Waits until one of these leads, and says which. Those of before may be left out.
///
/// # Errors
/// None leads in time.
pub async fn leader(replicas: &[Replica], except: &[usize]) -> anyhow::Result<usize> {
    let look = || async {
        let mut others = (0..replicas.len()).filter(|place| !except.contains(place));
        others.find(|place| replicas.get(*place).is_some_and(Replica::leads)).context("none leads")
    };
    until("one of several csi-clouds leads", look).await
}

/// The directory of the sockets that the socket relay holds.
pub fn held(stand: &Stand, driver: &str) -> String {
    stand.at(&format!("held/{driver}.sock"))
}

/// Starts an edge that knows all of these, with its driver's socket, and waits until it is linked.
///
/// # Errors
/// It does not link in time.
pub async fn edge(
    stand: &mut Stand,
    replicas: &[Replica],
    node: &str,
    driver: (&str, &str),
) -> anyhow::Result<Process> {
    let state = stand.at("state");
    let mut more = vec!["--state", &state];
    let urls = replicas.iter().flat_map(Replica::urls);
    more.extend(urls.flat_map(|url| ["--cloud", url.as_str()]));
    let mut edge = stand.edge_with(node, &[driver], &more).await?;
    edge.line_starting("linked ", START).await?;
    Ok(edge)
}

/// Starts a socket relay to all of these, which finds the leader.
///
/// # Errors
/// It does not get ready.
pub async fn relay<'a>(
    stand: &Stand,
    replicas: impl IntoIterator<Item = &'a Replica>,
    drivers: &[&str],
) -> anyhow::Result<Process> {
    let mut command = stand.program("csi-cloud")?;
    command.args(["front", "--fronts", &stand.at("held")]);
    command.args(drivers.iter().flat_map(|driver| ["--driver", driver]));
    for replica in replicas {
        command.args(["--to", &replica.relays(stand)]);
    }
    let mut relay = Process::start("csi-front", command, stand.dir())?;
    relay.line_starting("ready", START).await?;
    Ok(relay)
}

/// Stops csi-clouds as an operator does, and then their etcd.
///
/// # Errors
/// One does not run, or does not end in time.
pub async fn end(replicas: &mut [Replica], etcd: &mut EtcdServer) -> anyhow::Result<()> {
    for replica in replicas {
        replica.take()?.stop(STOP).await?;
    }
    for place in 0..etcd.members() {
        etcd.kill(place).await?;
    }
    Ok(())
}
