//! Runs a socket relay: binds the sockets, keeps the connection to csi-cloud, and stops in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use proto::host::program;
use proto::host::socket::Socket;
use proto::host::tasks;
use proto::host::tasks::{TaskKind, Tasks};
use proto::http2::serve;
use proto::link::tls::{Credentials, Files, Role};
use proto::names::DriverName;

use crate::relay::address::Address;
use crate::relay::front::{RelayFront, RequestMemory};
use crate::relay::last_answers::LastAnswers;
use crate::relay::server::Server;

/// The time limit for closing the connection to csi-cloud after the last call.
const CLOSING: Duration = Duration::from_secs(1);

/// The settings of a socket relay.
#[derive(Debug)]
pub struct Settings {
    /// The directory of the CSI sockets.
    pub fronts: PathBuf,
    /// The drivers that have a socket; at least one.
    pub drivers: Vec<DriverName>,
    /// The addresses of csi-clouds, in order of preference; at least one.
    pub servers: Vec<Address>,
    /// The relay's certificate; an `https` address needs it.
    pub tls: Option<Files>,
    /// The time limit for calls in flight after the stop signal.
    pub grace: Duration,
}

/// Serves the sockets until the stop signal; then finishes calls in flight within the grace.
///
/// # Errors
/// A socket or a certificate cannot be used; the text says which and what to do.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let stop = tasks::stop_signal().context("cannot listen to signals")?;
    let credentials = credentials(&settings)?;
    let Settings { fronts: directory, mut drivers, servers, tls, grace } = settings;
    drivers.sort();
    drivers.dedup();
    let sockets = bind(&directory, &drivers)?;
    // Callers stop first; the connection that carries their calls stays until these are answered.
    let fronts = Tasks::default();
    let calling = fronts.independent();
    if let (Some(credentials), Some(files)) = (&credentials, tls) {
        let current = credentials.clone().keep_current(files, Role::Front);
        calling.spawn_until_stop(TaskKind::All("certificates"), current);
    }
    let last_answers = Arc::new(LastAnswers::default());
    let server = Arc::new(Server::new(servers, credentials));
    let keeping = server.clone().keep(last_answers.clone(), drivers.clone(), calling.clone());
    calling.spawn_until_stop(TaskKind::All("server"), keeping);
    let memory = Arc::new(RequestMemory::default());
    for (driver, socket) in drivers.into_iter().zip(sockets) {
        let front = RelayFront::new(driver, server.clone(), last_answers.clone(), memory.clone());
        let front = Arc::new(front);
        let service = move |request| front.clone().answer(request);
        fronts.spawn(TaskKind::All("front"), serve::serve_socket(socket, service, fronts.clone()));
    }
    program::tell("ready");
    tokio::select! {
        biased;
        panicked = fronts.panicked() => return Err(panicked.into()),
        () = stop => {}
    }
    tracing::info!(?grace, "stopping: no more calls are taken, those in flight are finished");
    fronts.finish_before(tasks::patience(grace)).await;
    calling.finish(CLOSING).await;
    Ok(())
}

fn bind(directory: &Path, drivers: &[DriverName]) -> anyhow::Result<Vec<Socket>> {
    std::fs::create_dir_all(directory).with_context(|| {
        format!("the directory of the fronts, {}, cannot be made", directory.display())
    })?;
    let socket = |driver: &DriverName| Socket::bind(&directory.join(format!("{driver}.sock")));
    drivers.iter().map(|driver| Ok(socket(driver)?)).collect()
}

fn credentials(settings: &Settings) -> anyhow::Result<Option<Credentials>> {
    let is_https = |address: &&Address| matches!(address, Address::Https { .. });
    if let Some(address) = settings.servers.iter().find(is_https) {
        ensure!(
            settings.tls.is_some(),
            "--to {address} needs --ca, --cert and --key; `csi-cloud ca issue --relay NAME` makes \
             them"
        );
    }
    let load = |files| Credentials::load(files, Role::Front);
    Ok(settings.tls.as_ref().map(load).transpose()?)
}
