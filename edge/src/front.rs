//! The CSI socket of each driver at this node, for the kubelet and others on the node.
//!
//! It serves all of the driver's services. Its callers see our topology if the driver has none, and
//! [`Direct`] carries out what they do with direct volumes. It may use `edge-calls`
//! and `edge-direct`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use edge_calls::Error;
use edge_calls::drivers::Drivers;
use edge_calls::executor::Origin;
use edge_direct::Direct;
use hyper::body::Incoming;
use proto::csi::{Local, Method};
use proto::host::bind::until_bound;
use proto::host::chain;
use proto::host::socket::{Socket, SocketError};
use proto::host::tasks::{TaskKind, Tasks};
use proto::http2::body::Body;
use proto::http2::{forward, serve};
use proto::names::{DriverName, NodeName};
use tracing::{info, warn};

use crate::identity::source::IdentitySource;

/// The fronts of this node, one `NAME.sock` for each driver in a directory.
pub struct Fronts {
    directory: PathBuf,
    drivers: Arc<Drivers>,
    direct: Arc<Direct>,
    identity: Arc<IdentitySource>,
    tasks: Tasks,
    served: BTreeSet<DriverName>,
}

impl Fronts {
    /// Serves the drivers that are known now. What the file system refuses is tried again. The
    /// fronts end with `tasks`.
    ///
    /// # Errors
    /// A socket's path is in use, or can never be one.
    pub fn open(
        directory: PathBuf,
        drivers: Arc<Drivers>,
        direct: Arc<Direct>,
        identity: Arc<IdentitySource>,
        tasks: Tasks,
    ) -> Result<Self, SocketError> {
        let mut fronts =
            Self { directory, drivers, direct, identity, tasks, served: BTreeSet::new() };
        fronts.make_directory();
        for driver in fronts.drivers.all() {
            fronts.serve(&driver.name)?;
        }
        Ok(fronts)
    }

    /// Makes the directory, now or when it can be: the admin socket may be in it, too.
    fn make_directory(&self) {
        let (path, tasks) = (self.directory.clone(), self.tasks.clone());
        let first = std::fs::create_dir_all(&path);
        self.tasks.spawn(TaskKind::All("directory of fronts"), async move {
            let served = "the directory of the fronts";
            until_bound(served, first, || std::fs::create_dir_all(&path), &tasks).await;
        });
    }

    /// Serves the drivers that are found later too.
    pub async fn keep(mut self) {
        let mut changes = self.drivers.changes();
        loop {
            for driver in self.drivers.all() {
                if self.served.contains(&driver.name) {
                    continue;
                }
                match self.serve(&driver.name) {
                    Ok(()) => {
                        info!(driver = %driver.name, "a driver was found; its front is served")
                    }
                    Err(error) => {
                        let error = chain(&error);
                        warn!(driver = %driver.name, error, "a driver was found and has no front");
                    }
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Serves a driver. That is tried once if what is in the way is an operator's.
    fn serve(&mut self, driver: &DriverName) -> Result<(), SocketError> {
        self.served.insert(driver.clone());
        let path = self.directory.join(format!("{driver}.sock"));
        let bind = move || Socket::bind(&path);
        let first = match bind() {
            Err(error) if !error.may_pass() => return Err(error),
            first => first,
        };
        let front = DriverFront {
            driver: driver.clone(),
            node: self.drivers.node().clone(),
            direct: self.direct.clone(),
            identity: self.identity.clone(),
        };
        let tasks = self.tasks.clone();
        self.tasks.spawn(TaskKind::All("front"), async move {
            let served = format!("the front of driver {}", front.driver);
            if let Some(socket) = until_bound(&served, first, bind, &tasks).await {
                front.serve(socket, tasks).await;
            }
        });
        Ok(())
    }
}

/// The front of one driver.
struct DriverFront {
    driver: DriverName,
    node: NodeName,
    direct: Arc<Direct>,
    identity: Arc<IdentitySource>,
}

impl DriverFront {
    /// Serves the socket until told to stop; calls in flight are answered first.
    async fn serve(self, socket: Socket, tasks: Tasks) {
        let front = Arc::new(self);
        let service = move |request| front.clone().answer(request);
        serve::serve_socket(socket, service, tasks).await;
    }

    async fn answer(
        self: Arc<Self>,
        request: http::Request<Incoming>,
    ) -> Result<http::Response<Body>, Infallible> {
        if let Err(error) = self.check_name(request.uri().path()) {
            return Ok(forward::failure(&error));
        }
        let origin = Origin { front_of: Some(self.node.clone()), ..Origin::default() };
        self.direct.clone().answer(self.driver.clone(), origin, request).await
    }

    /// A kubelet registers the node by what NodeGetInfo says, so nothing in it may be a guess.
    fn check_name(&self, path: &str) -> Result<(), Error> {
        let asked = Method::of_path(path).and_then(Method::local);
        if asked != Some(Local::NodeInfo) || !self.identity.is_name_uncertain() {
            return Ok(());
        }
        Err(Error::NameUncertain { node: self.node.clone(), why: self.identity.waits_for() })
    }
}
