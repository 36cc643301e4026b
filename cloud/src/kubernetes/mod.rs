//! What csi-cloud does in Kubernetes: it keeps a CSIDriver object for each of its drivers, publishes what nodes have
//! whose kubelet does not, and tells of trouble in Events. Nothing that serves calls ever waits for it, and without
//! Kubernetes everything else works.
//!
//! All is server-side apply under one field manager. Only the one annotation that all drivers of a node share is applied
//! with force, at the version that was read; what somebody else says is never changed. What the API has is
//! known from watches; what is to be done is decided by pure functions (`object`, `node`, `claims`, `events`).
//! There is one task that carries it out, one request after another. One installation for each cluster: two would
//! take each other's nodes for what they published themselves.
//!
//! What its role needs, which is what `deploy/` gives it:
//!
//! | group | resource | verbs | why |
//! |---|---|---|---|
//! | storage.k8s.io | csidrivers | get, list, watch, create, patch | the object of each driver |
//! | storage.k8s.io | csinodes | get, list, watch, create, patch | entries of nodes without a kubelet that makes them |
//! | (core) | nodes | get, list, watch, patch | labels of segments, the annotation with ids |
//! | (core) | persistentvolumeclaims | get, list, watch | claims that wait for a node that is away |
//! | (core) | persistentvolumes | get | whose volume is lost |
//! | events.k8s.io | events | create, patch | Events |

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::kube::api::PartialObjectMeta;
use ::kube::runtime::WatchStreamExt;
use ::kube::runtime::events::{Recorder, Reporter};
use ::kube::runtime::watcher;
use ::kube::runtime::watcher::Event;
use ::kube::{Api, Resource};
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;
use tracing::warn;

use self::api::{ApiError, Server};
use self::events::{Notice, Told};
use self::mirror::{Mirror, Objects};
use self::owner::MANAGER;
use self::publish::TURN;
use self::retry::Retries;
use self::tell::Scan;
use crate::kubernetes::settings::Kubernetes;
use crate::nodes::links::Links;
use crate::state::policy::Policy;
use crate::state::store::writer::Store;
use crate::telemetry::calls::Calls;

pub use self::object::{ObjectSettings, Token};

pub mod api;
pub mod claims;
pub mod events;
pub mod labels;
pub mod mirror;
pub mod node;
pub mod object;
pub mod owner;
pub mod publish;
pub mod retry;
pub mod settings;
pub mod tell;

/// How long nothing is looked at when nothing changed.
const REST: Duration = Duration::from_secs(5);
/// How long it takes at least from one look to the next.
const BREATH: Duration = Duration::from_millis(500);
/// How long an API server that does not answer is left alone, at most.
const OUTAGE: Duration = Duration::from_secs(10);
/// Objects that a list asks for at a time.
const PAGE: u32 = 500;

/// What csi-cloud knows, and has, of that which Kubernetes is told.
pub struct Facts {
    /// What is durable.
    pub store: Store,
    /// All links.
    pub links: Arc<Links>,
    /// Where requests to the API server are counted.
    pub calls: Arc<Calls>,
    /// The drivers that have a front, and what the operator wants of them.
    pub policies: BTreeMap<DriverName, Policy>,
    /// What the operator says of their CSIDriver objects.
    pub objects: BTreeMap<DriverName, ObjectSettings>,
}

/// How things stand in Kubernetes, for operators.
#[derive(Default)]
pub struct Published {
    csidrivers: Mutex<BTreeMap<DriverName, String>>,
}

impl Published {
    /// How a driver's CSIDriver object stands: `ours`, `not yet`, or why it is left as it is. None if the driver has no
    /// front.
    pub fn csidriver(&self, driver: &DriverName) -> Option<String> {
        self.csidrivers.lock().unwrap_or_else(PoisonError::into_inner).get(driver).cloned()
    }

    /// Keeps how it stands; whether that is news.
    fn set(&self, driver: &DriverName, stands: &str) -> bool {
        let mut csidrivers = self.csidrivers.lock().unwrap_or_else(PoisonError::into_inner);
        csidrivers.insert(driver.clone(), stands.to_owned()).as_deref() != Some(stands)
    }
}

/// Begins what there is to do in Kubernetes, if there is one. The API server need not answer yet.
///
/// # Errors
/// What says where the API server is cannot be read, or not be used.
pub async fn start(
    settings: Kubernetes,
    facts: Facts,
    published: Arc<Published>,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let server = Arc::new(Server::new(&settings.api, facts.calls.clone()).await?);
    let mirror = Arc::new(Mirror::default());
    for driver in facts.policies.keys() {
        published.set(driver, "not yet");
    }
    watch_all(&server, &mirror, tasks);
    let recorder = Recorder::new(server.client.clone(), Reporter::from(MANAGER));
    let (retries, missing, told, scan) = Default::default();
    let (left, turns) = Default::default();
    let keeper = Keeper {
        settings,
        facts,
        server,
        mirror,
        published,
        recorder,
        retries,
        missing,
        told,
        scan,
        left,
        turns,
    };
    tasks.spawn_until_stop("kubernetes", keeper.keep());
    Ok(())
}

type Metadata = PartialObjectMeta<PersistentVolumeClaim>;

fn watch_all(server: &Arc<Server>, mirror: &Arc<Mirror>, tasks: &Tasks) {
    let client = || server.client.clone();
    let pages = || watcher::Config::default().page_size(PAGE);
    let both = || (server.clone(), mirror.clone());
    let drivers = ::kube::runtime::watcher(Api::<CSIDriver>::all(client()), pages());
    let take = |objects: &mut Objects, event| objects.drivers.take(event, mirror::driver);
    tasks.spawn_until_stop("watch", follow("CSIDriver watch", both(), drivers, take));
    let csinodes = ::kube::runtime::watcher(Api::<CSINode>::all(client()), pages());
    let take = |objects: &mut Objects, event| objects.csinodes.take(event, mirror::csinode);
    tasks.spawn_until_stop("watch", follow("CSINode watch", both(), csinodes, take));
    let nodes = ::kube::runtime::watcher(Api::<PartialObjectMeta<Node>>::all(client()), pages());
    let take = |objects: &mut Objects, event| objects.nodes.take(event, mirror::node);
    tasks.spawn_until_stop("watch", follow("Node watch", both(), nodes, take));
    let claims = ::kube::runtime::watcher(Api::<Metadata>::all(client()), pages());
    let take = |objects: &mut Objects, event| objects.claims.take(event, claims::claim);
    tasks.spawn_until_stop("watch", follow("PersistentVolumeClaim watch", both(), claims, take));
}

/// Follows a watch for ever; what fails is tried again, later and later.
async fn follow<K: Send + 'static>(
    what: &'static str,
    (server, mirror): (Arc<Server>, Arc<Mirror>),
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    take: impl Fn(&mut Objects, Event<K>) -> bool + Send + Sync,
) {
    let answers = events.filter(|event| {
        let begins = matches!(event, Ok(Event::Init));
        if begins {
            mirror.change(|objects| take(objects, Event::Init));
        }
        // It comes before anybody was asked, so it is no answer, and no reason to begin the waits anew.
        std::future::ready(!begins)
    });
    let mut answers = std::pin::pin!(answers.default_backoff());
    while let Some(event) = answers.next().await {
        match event {
            Ok(event) => {
                server.watched(what);
                mirror.change(|objects| take(objects, event));
            }
            Err(error) => server.watch_failed(what, error),
        }
    }
}

/// Carries out what is to be done in Kubernetes.
struct Keeper {
    settings: Kubernetes,
    /// What csi-cloud knows, and has.
    facts: Facts,
    server: Arc<Server>,
    mirror: Arc<Mirror>,
    published: Arc<Published>,
    recorder: Recorder,
    retries: Retries,
    /// Until when a driver at a node waits for the node's kubelet.
    missing: HashMap<(NodeName, DriverName), Instant>,
    told: Told,
    scan: Scan,
    /// What is wrong with volumes and was not told yet.
    left: VecDeque<Notice>,
    /// How many Events may still be tried before all else is looked at again.
    turns: usize,
}

/// The API server is away: all else waits too.
struct Away;

impl Keeper {
    async fn keep(mut self) {
        // Those that start together do not come together.
        tokio::time::sleep(BREATH.mul_f64(rand::random_range(0.0..1.0))).await;
        let mut outage = Duration::ZERO;
        loop {
            let rest = match self.look().await {
                Ok(()) => {
                    outage = Duration::ZERO;
                    REST
                }
                Err(Away) => {
                    outage = (outage * 2).clamp(Duration::from_secs(1), OUTAGE);
                    outage.mul_f64(rand::random_range(0.75..1.25))
                }
            };
            tokio::time::sleep(BREATH).await;
            tokio::select! {
                biased;
                () = tokio::time::sleep(rest) => {}
                () = self.mirror.changed() => {}
                () = self.server.back() => {}
            }
        }
    }

    async fn look(&mut self) -> Result<(), Away> {
        self.turns = TURN;
        if self.mirror.has_drivers() {
            self.keep_objects().await?;
        }
        if self.mirror.has_nodes() {
            self.keep_nodes().await?;
        }
        self.tell().await
    }

    /// Takes what came of a request about something: whether it went well. A failure is told once, and tried again
    /// later.
    fn settled<T>(&mut self, about: &str, answered: Result<T, ApiError>) -> Result<Option<T>, Away> {
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
fn applied<K: Resource<DynamicType = ()>>(
    metadata: serde_json::Value,
    spec: Option<serde_json::Value>,
) -> serde_json::Value {
    let mut object = serde_json::json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata,
    });
    if let (Some(object), Some(spec)) = (object.as_object_mut(), spec) {
        object.insert("spec".into(), spec);
    }
    object
}

#[cfg(test)]
mod tests {
    use ::kube::core::Status;
    use futures_util::stream;

    use super::*;

    fn failed(code: u16) -> watcher::Error {
        let status = Status { code, ..Status::default() };
        watcher::Error::InitialListFailed(::kube::Error::Api(Box::new(status)))
    }

    /// How often a list is begun within ten minutes that always fails like this, as kube's watcher begins it.
    async fn lists(server: &Arc<Server>, code: u16) -> usize {
        let (mut begun, mut begins) = (0, true);
        let events = stream::poll_fn(|_| {
            begins = !begins;
            begun += usize::from(!begins);
            let event = if begins { Err(failed(code)) } else { Ok(Event::<()>::Init) };
            std::task::Poll::Ready(Some(event))
        });
        let take = |objects: &mut Objects, event| {
            assert!(matches!(event, Event::Init));
            objects.claims.take(event, |()| (String::new(), None))
        };
        let following = follow("x watch", (server.clone(), Arc::default()), events, take);
        assert!(tokio::time::timeout(Duration::from_secs(600), following).await.is_err());
        begun
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_is_tried_later_and_later_and_is_no_answer() {
        let server = Arc::new(Server::nowhere());
        let times = lists(&server, 503).await;
        assert!(times < 40, "{times} lists in ten minutes");
        assert!(server.is_away(), "the beginning of a list counts as an answer");
        let server = Arc::new(Server::nowhere());
        let times = lists(&server, 403).await;
        assert!(times < 40, "{times} lists in ten minutes");
        assert_eq!(server.told(), ["x watch"]);
        server.watched("x watch");
        assert!(server.told().is_empty(), "it would not be told again");
    }
}
