//! The state of the task that writes to Kubernetes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use kube::Resource;
use kube::runtime::events::{Recorder, Reporter};
use proto::host::chain;
use proto::names::{DriverName, NodeName};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use crate::kubernetes::api::{ApiError, Server};
use crate::kubernetes::csidriver::CsiDriverSettings;
use crate::kubernetes::events::Notice;
use crate::kubernetes::managed_fields::MANAGER;
use crate::kubernetes::mirror::Mirror;
use crate::kubernetes::notice_limiter::NoticeLimiter;
use crate::kubernetes::published::Published;
use crate::kubernetes::retry::Retries;
use crate::kubernetes::settings::Kubernetes;
use crate::nodes::links::Links;
use crate::state::policy::Policy;
use crate::state::store::writer::Store;
use crate::telemetry::calls::Calls;

/// The facts to publish in Kubernetes.
pub struct KeeperSources {
    /// The store.
    pub store: Store,
    /// All links.
    pub links: Arc<Links>,
    /// Counts the requests to the API server.
    pub calls: Arc<Calls>,
    /// The policies of the drivers that have a front.
    pub policies: BTreeMap<DriverName, Policy>,
    /// The operator's settings for their CSIDriver objects.
    pub csidrivers: BTreeMap<DriverName, CsiDriverSettings>,
}

/// Carries out the work in Kubernetes.
pub(super) struct Keeper {
    pub(super) settings: Kubernetes,
    pub(super) facts: KeeperSources,
    pub(super) server: Arc<Server>,
    pub(super) mirror: Arc<Mirror>,
    pub(super) published: Arc<Published>,
    pub(super) recorder: Recorder,
    pub(super) retries: Retries,
    /// Until when a driver at a node waits for the node's kubelet.
    pub(super) missing: HashMap<(NodeName, DriverName), Instant>,
    pub(super) limiter: NoticeLimiter,
    pub(super) scan: Scan,
    /// Notices about volumes that were not published yet.
    pub(super) left: VecDeque<Notice>,
    /// How many Events may still be tried in this round.
    pub(super) turns: usize,
}

/// The last scan of the volumes.
#[derive(Default)]
pub(super) struct Scan {
    /// Changes of the drivers' records at that time.
    pub(super) seen: u64,
    /// Removed nodes at that time.
    pub(super) removed: usize,
    /// The earliest and the latest time of the next scan.
    pub(super) next: Option<(Instant, Instant)>,
}

/// The API server is away: everything else waits too.
pub(super) struct Away;

impl Keeper {
    pub(super) fn new(
        settings: Kubernetes,
        facts: KeeperSources,
        server: Arc<Server>,
        mirror: Arc<Mirror>,
        published: Arc<Published>,
    ) -> Self {
        let recorder = Recorder::new(server.client.clone(), Reporter::from(MANAGER));
        Self {
            settings,
            facts,
            server,
            mirror,
            published,
            recorder,
            retries: Retries::default(),
            missing: HashMap::new(),
            limiter: NoticeLimiter::default(),
            scan: Scan::default(),
            left: VecDeque::new(),
            turns: 0,
        }
    }

    /// Takes a request's outcome; none if it failed. A failure is logged once and retried later.
    ///
    /// # Errors
    /// The outcome is [`ApiError::Away`].
    pub(super) fn settled<T>(
        &mut self,
        about: &str,
        answered: Result<T, ApiError>,
    ) -> Result<Option<T>, Away> {
        match answered {
            Ok(answer) => {
                self.retries.done(about);
                Ok(Some(answer))
            }
            Err(ApiError::Away(_)) => Err(Away),
            Err(error) => {
                if self.retries.failed(about, Instant::now()) {
                    warn!(
                        about,
                        error = chain(&error),
                        "not done in Kubernetes; it is tried again, later and later"
                    );
                }
                Ok(None)
            }
        }
    }
}

/// An object as server-side apply takes it.
pub(super) fn applied<K: Resource<DynamicType = ()>>(
    metadata: Value,
    spec: Option<Value>,
) -> Value {
    let mut object = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": metadata,
    });
    if let (Some(object), Some(spec)) = (object.as_object_mut(), spec) {
        object.insert("spec".into(), spec);
    }
    object
}
