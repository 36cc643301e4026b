//! A small world of real programs: csi-cloud, csi-edge and drivers as processes. Their sockets,
//! certificates and logs are in one directory that is deleted with it.
//!
//! Tests, the demo, the benchmark and the conformance runs all start their programs here.

use std::collections::HashSet;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};
use cloud::state::record::Change;
use cloud::state::store::backend::Backend;
use cloud::state::store::file::File;
use cloud::state::trust::{Secrets, TrustChange};
use proto::host::publish::{Existing, publish};
use proto::link::proxy::{EXCEPTIONS, VARIABLES};
use proto::link::tls::{Credentials, Files, Role, TlsError};
use tempfile::TempDir;
use tokio::process::Command;
use tonic::transport::{Channel, Endpoint};

use crate::net::{Net, Space};
use crate::port::with_port;
use crate::process::Process;
use crate::programs::Programs;
use crate::wait::START;

/// Keeps the proxies of this environment from a program. They would take its links away from where
/// the tests have them.
pub fn without_proxies(command: &mut Command) {
    for name in VARIABLES.into_iter().chain(EXCEPTIONS) {
        command.env_remove(name);
    }
}

/// The directory of everything, with a CA in it.
pub struct Stand {
    dir: TempDir,
    programs: Programs,
    issued: HashSet<String>,
    /// The programs' `RUST_LOG`; otherwise that of the test's own environment.
    log: Option<String>,
    /// Further variables of the programs' environment.
    environment: Vec<(String, String)>,
    /// Between the cloud and the edges, if they are not on one host.
    net: Option<Net>,
}

/// A running csi-cloud, and its URLs for edges in the order of the requested listeners.
pub struct Cloud {
    /// The program.
    pub process: Process,
    /// For example `wss://127.0.0.1:40123`.
    pub urls: Vec<String>,
    /// Where it serves HTTP, if it has `--http`.
    pub http: Option<String>,
}

/// A running csi-page.
pub struct Page {
    /// The program.
    pub process: Process,
    /// For example `https://127.0.0.1:40123`.
    pub url: String,
}

impl Stand {
    /// A new world. The programs stand in the directory of the running one, so build the workspace
    /// first.
    ///
    /// # Errors
    /// The programs are not there, or no directory or CA can be made.
    pub async fn new() -> anyhow::Result<Self> {
        Self::with(None).await
    }

    /// A new world whose links go over this network: csi-cloud runs on one side of it, edges on the
    /// other. Drivers and callers have their sockets as ever.
    ///
    /// # Errors
    /// As for [`Stand::new`].
    pub async fn over(net: Net) -> anyhow::Result<Self> {
        Self::with(Some(net)).await
    }

    async fn with(net: Option<Net>) -> anyhow::Result<Self> {
        let programs = Programs::beside_this()?;
        // A short path: a socket's has at most 107 bytes.
        let dir = tempfile::Builder::new().prefix("ec-").tempdir()?;
        let stand =
            Self { dir, programs, issued: HashSet::new(), log: None, environment: Vec::new(), net };
        let pki = stand.pki();
        stand.run("csi-cloud", &["ca", "init", "--host", &stand.host(), "--dir", &pki]).await?;
        Ok(stand)
    }

    /// The address at which csi-cloud listens.
    pub fn host(&self) -> String {
        self.net.as_ref().map_or_else(|| "127.0.0.1".to_owned(), |net| net.host().to_string())
    }

    /// Sets a variable in the environment of programs that are started from now on.
    pub fn environment(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Sets the log filter of later programs, as in `RUST_LOG`.
    pub fn log(&mut self, filter: &str) {
        self.log = Some(filter.to_owned());
    }

    /// The network between the cloud and the edges, if there is one.
    pub fn net(&self) -> Option<&Net> {
        self.net.as_ref()
    }

    /// Everything is below here.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The directory of the certificates.
    pub fn pki(&self) -> String {
        self.at("pki")
    }

    /// The certificates of the cloud, or of a node that has been issued one.
    pub fn files(&self, name: &str) -> Files {
        Files::of(Path::new(&self.pki()), name)
    }

    /// The same, read.
    ///
    /// # Errors
    /// There are none of this name for this role.
    pub fn credentials(&self, name: &str, role: Role) -> Result<Credentials, TlsError> {
        Credentials::load(&self.files(name), role)
    }

    /// A path in the directory, as text.
    pub fn at(&self, name: &str) -> String {
        self.dir().join(name).display().to_string()
    }

    /// One of our programs, to be run with further arguments.
    ///
    /// # Errors
    /// It has not been built.
    pub fn program(&self, name: &str) -> anyhow::Result<Command> {
        self.program_in(None, name)
    }

    fn program_in(&self, space: Option<&Space>, name: &str) -> anyhow::Result<Command> {
        let path = self.programs.built(name)?;
        let mut command =
            space.map_or_else(|| Command::new(&path), |space| space.command(path.as_os_str()));
        command.envs(self.log.iter().map(|filter| ("RUST_LOG", filter)));
        without_proxies(&mut command);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Runs one of our programs to its end and returns its output.
    ///
    /// # Errors
    /// It failed; the error holds what it wrote to stderr.
    pub async fn run(&self, name: &str, args: &[&str]) -> anyhow::Result<String> {
        let mut command = self.program(name)?;
        let output = command.args(args).stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(START, output).await.context("it does not end")??;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name} {} failed: {error}", args.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Writes a configuration by which csi-cloud issues certificates of this CA, and returns its
    /// path. `more` comes after it.
    ///
    /// # Errors
    /// It cannot be written, or there is one already.
    pub fn issuing(&self, more: &str) -> anyhow::Result<String> {
        let config = self.at("ca.toml");
        let pki = self.pki();
        let text = format!("[ca]\ncert = \"{pki}/ca.crt\"\nkey = \"{pki}/ca.key\"\n{more}");
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
        Ok(config)
    }

    /// Runs the command that `csi-cloud token create` printed, as an operator does, and returns its
    /// output. The identity is in this directory.
    ///
    /// # Errors
    /// It is another command, or it failed.
    pub async fn join(&self, command: &str, dir: &str) -> anyhow::Result<String> {
        let dir = self.at(dir);
        let (token, args) = shown(command)?;
        let mut args: Vec<_> = args.split(' ').chain(["--identity", &dir]).collect();
        let file = format!("{dir}.token");
        if let Some(token) = token {
            publish(file.as_ref(), token.as_bytes(), 0o600, Existing::Replace)?;
            args.iter_mut().filter(|arg| **arg == "-").for_each(|arg| *arg = &file);
        }
        self.run("csi-edge", &args).await
    }

    /// Starts csi-cloud with a front for each driver, and waits until it is ready.
    ///
    /// # Errors
    /// It does not get ready; the error holds its log.
    pub async fn cloud(
        &self,
        listen: &[&str],
        drivers: &[&str],
        more: &[&str],
    ) -> anyhow::Result<Cloud> {
        self.cloud_as("cloud", listen, drivers, more).await
    }

    /// Starts a csi-cloud that is one of several: its fronts are in a directory of this name.
    ///
    /// # Errors
    /// It does not get ready; the error holds its log.
    pub async fn cloud_as(
        &self,
        name: &str,
        listen: &[&str],
        drivers: &[&str],
        more: &[&str],
    ) -> anyhow::Result<Cloud> {
        let mut command = self.program_in(self.net.as_ref().map(|net| &net.cloud), "csi-cloud")?;
        command.arg("serve").args(["--fronts", &self.at(name)]).args(more);
        if !more.iter().any(|flag| flag.starts_with("--store")) {
            // It stands in the directory of the fronts, so that a later csi-cloud of the same name
            // finds it.
            let store = self.at(&format!("{name}.redb"));
            begin_long_ago(store.as_ref())?;
            command.arg(format!("--store=file:{store}"));
        }
        self.tls(&mut command, "cloud");
        for url in listen {
            command.args(["--listen", &with_port(url)?]);
        }
        command.args(drivers.iter().flat_map(|driver| ["--driver", driver]));
        let mut process = Process::start(&format!("csi-{name}"), command, self.dir())?;
        let http = match more.contains(&"--http") {
            true => Some(process.line_starting("http ", START).await?),
            false => None,
        };
        let mut urls = Vec::new();
        for _ in listen {
            urls.push(process.line_starting("listening ", START).await?);
        }
        process.line_starting("ready", START).await?;
        Ok(Cloud { process, urls, http })
    }

    /// Returns the socket `view` of a csi-cloud that has it by `--view`.
    pub fn view(&self) -> String {
        self.at("view.sock")
    }

    /// Starts csi-page at an address, over the csi-cloud at [`Stand::view`]. Addresses of TCP have
    /// csi-cloud's certificate.
    ///
    /// # Errors
    /// It does not get ready; the error holds its log.
    pub async fn page(&self, listen: &str, more: &[&str]) -> anyhow::Result<Page> {
        let mut command = self.program_in(None, "csi-page")?;
        command.args(["--view", &self.view(), "--listen", listen]).args(more);
        if !listen.starts_with("unix:") {
            let [certificate, key] =
                ["crt", "key"].map(|end| format!("{}/cloud.{end}", self.pki()));
            command.args(["--certificate", &certificate, "--key", &key]);
        }
        let mut process = Process::start("csi-page", command, self.dir())?;
        let url = process.line_starting("page ", START).await?;
        process.line_starting("ready", START).await?;
        Ok(Page { process, url })
    }

    /// Starts csi-edge at a node and waits until it is linked.
    ///
    /// # Errors
    /// It does not link; the error holds its log.
    pub async fn edge(
        &mut self,
        node: &str,
        url: &str,
        drivers: &[(&str, &str)],
    ) -> anyhow::Result<Process> {
        let mut process = self.edge_started(node, url, drivers).await?;
        process.line_starting("linked ", START).await?;
        Ok(process)
    }

    /// Starts csi-edge at a node and does not wait.
    ///
    /// # Errors
    /// It cannot be started, or its certificate cannot be made.
    pub async fn edge_started(
        &mut self,
        node: &str,
        url: &str,
        drivers: &[(&str, &str)],
    ) -> anyhow::Result<Process> {
        self.edge_with(node, drivers, &["--cloud", url]).await
    }

    /// Starts csi-edge at a node with further arguments, among them where the cloud is, and does
    /// not wait.
    ///
    /// # Errors
    /// It cannot be started, or its certificate cannot be made.
    pub async fn edge_with(
        &mut self,
        node: &str,
        drivers: &[(&str, &str)],
        more: &[&str],
    ) -> anyhow::Result<Process> {
        let command = self.edge_command(node, drivers, more).await?;
        Process::start(&format!("csi-edge-{node}"), command, self.dir())
    }

    /// The same in a mount namespace of its own, after a shell script that runs in it. Only root
    /// may do that.
    ///
    /// # Errors
    /// As for [`Stand::edge_with`].
    pub async fn edge_in(
        &mut self,
        script: &str,
        node: &str,
        drivers: &[(&str, &str)],
        more: &[&str],
    ) -> anyhow::Result<Process> {
        let edge = self.edge_command(node, drivers, more).await?;
        let mut command = Command::new("unshare");
        let script = format!("{script} && exec \"$@\"");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", &script, "sh"]);
        command.arg(edge.as_std().get_program()).args(edge.as_std().get_args());
        command.envs(self.log.iter().map(|filter| ("RUST_LOG", filter)));
        Process::start(&format!("csi-edge-{node}"), command, self.dir())
    }

    async fn edge_command(
        &mut self,
        node: &str,
        drivers: &[(&str, &str)],
        more: &[&str],
    ) -> anyhow::Result<Command> {
        if self.issued.insert(node.to_owned()) {
            self.run("csi-cloud", &["ca", "issue", node, "--dir", &self.pki()]).await?;
        }
        let mut command = self.program_in(self.net.as_ref().map(|net| &net.edge), "csi-edge")?;
        command.args(["serve", "--fronts", &self.at(node)]).args(more);
        self.tls(&mut command, node);
        let drivers = drivers.iter().map(|(name, socket)| format!("--driver={name}={socket}"));
        command.args(drivers);
        Ok(command)
    }

    fn tls(&self, command: &mut Command, name: &str) {
        let Files { ca, cert, key } = self.files(name);
        command.arg("--ca").arg(ca).arg("--cert").arg(cert).arg("--key").arg(key);
    }

    /// The cloud's CSI socket for a driver.
    pub fn cloud_front(&self, driver: &str) -> String {
        self.at(&format!("cloud/{driver}.sock"))
    }

    /// A node's own CSI socket for a driver.
    pub fn edge_front(&self, node: &str, driver: &str) -> String {
        self.at(&format!("{node}/{driver}.sock"))
    }
}

/// Makes a store in this file that began long ago, unless there is one. In the first ten minutes
/// of a store that csi-cloud makes, no id gets a home by the word of nodes alone.
///
/// # Errors
/// It cannot be written.
pub fn begin_long_ago(store: &Path) -> anyhow::Result<()> {
    if store.try_exists()? {
        return Ok(());
    }
    let secrets = Change::Trust(TrustChange::Secrets(Secrets::generate()?));
    Ok(File::open(store)?.commit(&[secrets])?)
}

/// A gRPC channel to a unix socket; one HTTP/2 connection.
///
/// # Errors
/// Nobody serves the socket.
pub async fn channel(socket: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{socket}"))?;
    endpoint.connect().await.with_context(|| format!("cannot connect to {socket}"))
}

/// The token and the arguments of csi-edge in what `csi-cloud token create` printed. Until 0.2.0
/// the token is one of the arguments.
fn shown(command: &str) -> anyhow::Result<(Option<&str>, &str)> {
    let command = command.trim();
    let (token, command) = match command.strip_prefix("printf %s ") {
        Some(piped) => {
            let (token, command) = piped.split_once(" | ").context("no pipe")?;
            (Some(token), command)
        }
        None => (None, command),
    };
    Ok((token, command.strip_prefix("csi-edge ").context("another command")?))
}
