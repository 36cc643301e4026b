//! `csi-cloud front`: a small process that holds the sidecars' sockets, so that they never lose a connection while the
//! csi-cloud that serves is started again, on this host or another.
//!
//! It copies each exchange and knows nothing of nodes. While no csi-cloud is there, calls are held until their
//! deadline; one whose connection broke is sent again with the same id, so that nothing runs twice.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use proto::holder::Place;
use proto::host::socket::Socket;
use proto::host::tasks;
use proto::host::tasks::Tasks;
use proto::http2::serve;
use proto::link::tls::{Credentials, Files, Role};

use self::hold::{Held, Room};
use self::known::Known;
use self::server::Server;
use crate::config::arguments::Front;

pub mod hold;
pub mod known;
pub mod listen;
pub mod server;

/// Holds the fronts until the process is asked to stop; calls in flight are finished then, as long as the grace.
///
/// # Errors
/// A socket or a certificate cannot be used; the text says which and what to do.
pub async fn run(flags: Front) -> anyhow::Result<()> {
    let credentials = credentials(&flags)?;
    let making = || format!("the directory of the fronts, {}, cannot be made", flags.fronts.display());
    std::fs::create_dir_all(&flags.fronts).with_context(making)?;
    let mut drivers = flags.drivers;
    drivers.sort();
    drivers.dedup();
    let mut sockets = Vec::new();
    for driver in &drivers {
        sockets.push(Socket::bind(&flags.fronts.join(format!("{driver}.sock")))?);
    }
    // Callers stop first; what carries their calls goes on until these are answered.
    let (fronts, calling) = (Tasks::default(), Tasks::default());
    let (known, server) = (Arc::new(Known::default()), Arc::new(Server::new(flags.to, credentials)));
    let room = Arc::new(Room::default());
    calling.spawn_until_stop("server", server.clone().keep(known.clone(), drivers.clone(), calling.clone()));
    for (driver, socket) in drivers.into_iter().zip(sockets) {
        let held = Arc::new(Held::new(driver, server.clone(), known.clone(), room.clone()));
        let service = move |request| held.clone().answer(request);
        fronts.spawn("front", serve::serve_socket(socket, service, fronts.clone()));
    }
    println!("ready");
    tasks::signal().await.context("cannot listen to signals")?;
    let grace = Duration::from_secs(flags.grace.into());
    tracing::info!(?grace, "stopping: no more calls are taken, those in flight are finished");
    fronts.finish_before(tasks::patience(grace)).await;
    calling.finish(Duration::from_secs(1)).await;
    Ok(())
}

fn credentials(flags: &Front) -> anyhow::Result<Option<Credentials>> {
    let files = flags.ca.clone().zip(flags.cert.clone()).zip(flags.key.clone());
    let files = files.map(|((ca, cert), key)| Files { ca, cert, key });
    let needed = flags.to.iter().find(|place| matches!(place, Place::Https { .. }));
    if let Some(place) = needed {
        ensure!(
            files.is_some(),
            "--to {place} needs --ca, --cert and --key; `csi-cloud ca issue --front NAME` makes them"
        );
    }
    Ok(files.map(|files| Credentials::load(&files, Role::Front)).transpose()?)
}
