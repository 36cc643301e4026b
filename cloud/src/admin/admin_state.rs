//! The parts of csi-cloud that admin commands read and change.

use proto::admin::command::{Program, Refusal};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use proto::config::places::{Places, SocketPlace};
use proto::link::endpoint::Endpoint;
use proto::link::tls::Credentials;
use proto::names::{DriverName, NodeName};

use crate::admin::doctor::installation::Installation;
use crate::csi::front::Front;
use crate::error::NotLeading;
use crate::kubernetes::doctor::examine::Doctor;
use crate::kubernetes::published::Published;
use crate::nodes::links::Links;
use crate::state::driver_state::DriverState;
use crate::state::policy::Policy;
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::telemetry::calls::{Calls, Stage};

/// The data that admin commands show and change.
pub struct AdminState {
    /// The store.
    pub store: Store,
    /// All links.
    pub links: Arc<Links>,
    /// The calls in flight, and the metrics.
    pub calls: Arc<Calls>,
    /// The policies of the drivers that have a front.
    pub policies: BTreeMap<DriverName, Policy>,
    /// Their fronts.
    pub fronts: BTreeMap<DriverName, Arc<Front>>,
    /// Our certificate and the CA; none in tests.
    pub credentials: Option<Credentials>,
    /// The endpoint by which edges reach this csi-cloud from outside.
    pub advertise: Option<Endpoint>,
    /// The state of the CSIDriver objects; none without Kubernetes.
    pub kubernetes: Option<Arc<Published>>,
    /// Looks at Kubernetes; none without it.
    pub doctor: Option<Doctor>,
    /// The files and endpoints of the configuration; none in tests.
    pub installation: Option<Installation>,
}

impl Program for AdminState {
    const NAME: &'static str = "csi-cloud";

    fn socket(admin: Option<PathBuf>, config: Option<PathBuf>) -> (PathBuf, Vec<PathBuf>) {
        let SocketPlace { path, tried } = Places::cloud().socket(admin, config);
        (path, tried)
    }

    fn check_leads(&self) -> Result<(), Refusal> {
        match self.links.leading().check() {
            Err(NotLeading::Follows(leader)) => Err(Refusal::conflict(format!(
                "this csi-cloud follows {leader}, which leads and has the links of all nodes; ask \
                 {leader} (`csi-cloud replicas` shows who leads)"
            ))),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::because(&error)
    }
}

/// Numbers of calls in flight by stage, for each driver that has any.
pub(super) type InFlight = HashMap<DriverName, BTreeMap<Stage, usize>>;

impl AdminState {
    /// The nodes that have a link.
    pub(super) fn linked(&self) -> HashSet<NodeName> {
        self.links.linked().into_iter().collect()
    }

    /// Counts the calls in flight.
    pub(super) fn in_flight(&self) -> InFlight {
        let mut in_flight = InFlight::new();
        for (_, call) in self.calls.running() {
            let stages = in_flight.entry(call.driver.clone()).or_default();
            *stages.entry(call.progress().stage).or_default() += 1;
        }
        in_flight
    }
}

/// The nodes that name a driver, as far as is known.
pub(super) fn nodes_with(of: &DriverState) -> impl Iterator<Item = &NodeName> {
    of.nodes().iter().filter(|(_, at)| at.gone.is_none()).map(|(node, _)| node)
}

/// The number of a driver's nodes that are linked.
pub(super) fn count_linked(of: &DriverState, linked: &HashSet<NodeName>) -> usize {
    nodes_with(of).filter(|node| linked.contains(*node)).count()
}
