//! The direct volumes of a node: all that the rest of csi-edge knows of them.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use edge_calls::error::GuardRefusal;
use edge_calls::executor::{DeleteGuard, Executor, Origin};
use edge_calls::expansions::IsDirect;
use edge_calls::lease_client::LeaseClient;
use edge_calls::metadata::Metadata;
use edge_calls::scopes::Scopes;
use http::Response;
use hyper::body::Incoming;
use proto::control::not_taken::NotTaken;
use proto::csi::Method;
use proto::host::chain;
use proto::host::tasks::{TaskKind, Tasks};
use proto::http2::body::Body;
use proto::names::DriverName;
use tokio::sync::watch;
use tracing::warn;

use super::front;
use super::locks::VolumeLocks;
use super::reconcile;
use super::request;
use super::request::Request;
use super::rounds;
use super::state::Service;
use crate::device::host::Host;
use crate::device::vfio::Nvme;
use crate::lease::exclusive::Leases;
use crate::records::lock::{NotLocked, StateLock};
use crate::records::published;
use crate::runtimes::mount_info::Root;
use crate::runtimes::prerequisites;
use crate::runtimes::prerequisites::{CheckVerdict, Checks};
use crate::runtimes::{PATIENCE, Roots, Runtimes};
use crate::volume::node::Node;

/// The settings of direct volumes on this node.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The directory of what may not be forgotten; without one no volume is handed over.
    pub state: Option<PathBuf>,
    /// The kernel's files.
    pub host: Host,
    /// The directories in which runtimes look for volumes and have their sandboxes.
    pub roots: Roots,
    /// The check of the installed runtimes.
    pub checks: Checks,
    /// Whether they take NVMe controllers.
    pub nvme: Nvme,
    /// The directories in which targets may be; anywhere if there are none.
    pub targets: Vec<PathBuf>,
}

/// The data from the cloud, and the client for requests to it.
#[derive(Clone, Default)]
pub struct Cloud {
    /// The client for lease requests to the cloud.
    pub leases: Arc<LeaseClient>,
    /// The scopes of drivers.
    pub scopes: Arc<Scopes>,
    /// The Pods of this node, as the cloud sends them.
    pub metadata: Arc<Metadata>,
}

/// The node's calls: those about direct volumes are carried out here, all others are passed on.
pub struct Direct {
    service: Arc<Service>,
}

impl Direct {
    /// Refuses a DeleteVolume while this state directory has the volume as handed over, and forgets
    /// the content of a volume that was deleted.
    pub fn delete_guard(state: Option<PathBuf>) -> DeleteGuard {
        let method = Method::DeleteVolume;
        let known = state.clone();
        DeleteGuard {
            check: Box::new(move |driver, message| {
                let request = Request { state: state.as_deref(), driver, method, message };
                request::may_be_deleted(&request).map_err(|error| GuardRefusal::of(&error))
            }),
            deleted: Box::new(move |driver, message| {
                request::forget_deleted(&Request {
                    state: known.as_deref(),
                    driver,
                    method,
                    message,
                })
            }),
        }
    }

    /// Whether a volume is a direct one here, as this state directory has it.
    pub fn is_direct(state: PathBuf) -> IsDirect {
        Box::new(move |driver, volume| {
            let known = request::is_direct(&state, driver, volume);
            known.map_err(|error| GuardRefusal::of(&error))
        })
    }

    /// Takes the direct volumes of a node over; operations run in `tasks`.
    ///
    /// While the state directory cannot be locked, no volume is handed over.
    ///
    /// # Errors
    /// Another csi-edge works on the state directory.
    pub fn open(
        settings: Settings,
        executor: Arc<Executor>,
        cloud: Cloud,
        tasks: Tasks,
    ) -> Result<Self, NotLocked> {
        let lock = match settings.state.as_deref().map(StateLock::take) {
            Some(Ok(lock)) => Some(lock),
            Some(Err(error @ NotLocked::Io { .. })) => {
                let error = chain(&error);
                warn!(error, "no volume is handed over until the state directory can be written");
                None
            }
            Some(Err(another @ NotLocked::Another { .. })) => return Err(another),
            None => None,
        };
        let service = Arc::new(service(settings, lock, executor, cloud, tasks));
        Ok(Self { service })
    }

    /// Reconciles entries and leases with the records, before any call comes, and looks after them
    /// from then on.
    pub async fn start(&self) {
        let service = &self.service;
        if let Some(why) = fault_of_runtimes(&service.node) {
            warn!(why, "a runtime here does not take direct volumes: csi-edge direct check");
        }
        reconcile::reconcile(&service.node, &service.leases).await;
        rounds::settle_all(service);
        service.tasks.spawn_until_stop(TaskKind::All("leases"), rounds::keep(service.clone()));
    }

    /// True if this csi-edge has its state directory to itself.
    pub fn has_state(&self) -> bool {
        self.service.node.has_lock()
    }

    /// The direct volumes that no runtime took, for the cloud; none until they were looked at.
    pub fn not_taken(&self) -> watch::Receiver<Option<NotTaken>> {
        self.service.not_taken.subscribe()
    }

    /// Answers a request that came by this node's front of a driver.
    ///
    /// # Errors
    /// None: a call that fails is answered with its status.
    pub async fn answer(
        self: Arc<Self>,
        driver: DriverName,
        origin: Origin,
        request: http::Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        front::answer(self.service.clone(), driver, origin, request).await
    }
}

/// Why the runtimes of this node do not take direct volumes. `None` also for a node that hands
/// nothing over, which needs no such runtime.
fn fault_of_runtimes(node: &Node) -> Option<String> {
    if published::each(node.state.as_deref()?).ok()?.is_empty() {
        return None;
    }
    match prerequisites::check(&node.checks.root).verdict() {
        CheckVerdict::Failed(why) => Some(why),
        CheckVerdict::Passed | CheckVerdict::Unknown => None,
    }
}

fn service(
    settings: Settings,
    lock: Option<StateLock>,
    executor: Arc<Executor>,
    cloud: Cloud,
    tasks: Tasks,
) -> Service {
    let Settings { state, host, roots, checks, nvme, targets } = settings;
    let root = Root::new(roots.entries.clone());
    let node = Node::new(state, host, root).with_lock(lock).with_checks(checks);
    let node = Arc::new(node.with_nvme(nvme).with_targets(targets));
    let leases = Leases::new(node.clone(), cloud.leases);
    let metadata = cloud.metadata;
    let runtimes = Runtimes::new(roots, PATIENCE);
    let locks = VolumeLocks::default();
    let not_taken = watch::Sender::default();
    Service { executor, node, leases, metadata, runtimes, locks, not_taken, tasks }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use edge_calls::drivers;
    use edge_calls::drivers::Drivers;
    use proto::host::publish::{Existing, publish};

    use super::*;

    /// The service of a node without drivers.
    pub(in crate::service) fn service_of(settings: Settings, cloud: Cloud) -> Arc<Service> {
        let tasks = Tasks::default();
        let drivers = Drivers::new("n1".parse().unwrap(), drivers::unix());
        let executor = Arc::new(Executor::new(Arc::new(drivers), tasks.clone()));
        Arc::new(super::service(settings, None, executor, cloud, tasks))
    }

    /// The same with this state directory.
    pub(in crate::service) fn service(dir: &tempfile::TempDir) -> Arc<Service> {
        let settings = Settings { state: Some(dir.path().to_owned()), ..Settings::default() };
        service_of(settings, Cloud::default())
    }

    /// Settings with all directories below this one, and with a runtime that passes its check: it
    /// gets volumes whose target cannot be covered.
    pub(in crate::service) fn checked(dir: &Path, host: Host) -> Settings {
        let checks = Checks { root: dir.join("host"), required: true };
        let path = checks.root.join("etc/kata-containers/configuration.toml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = b"[hypervisor.qemu]\ndisable_block_device_use = false\n";
        publish(&path, text, 0o600, Existing::Keep).unwrap();
        let roots = Roots { entries: dir.join("entries"), ..Roots::default() };
        Settings { state: Some(dir.join("state")), host, roots, checks, ..Settings::default() }
    }

    #[test]
    fn a_node_that_hands_nothing_over_needs_no_runtime() {
        let dir = tempfile::tempdir().unwrap();
        let settings = checked(dir.path(), Host::default());
        let checks = Checks { root: dir.path().join("unreadable"), ..settings.checks };
        let service = service_of(Settings { checks, ..settings }, Cloud::default());
        assert_eq!(fault_of_runtimes(&service.node), None);
        published::tests::record("v").keep(service.node.state.as_deref().unwrap()).unwrap();
        assert!(fault_of_runtimes(&service.node).unwrap().contains("unreadable"));
    }
}
