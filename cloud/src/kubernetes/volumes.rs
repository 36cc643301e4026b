//! Reads PersistentVolumes: the node affinity of a volume, if it has ended, and if its node
//! expansion takes a secret.
//!
//! No index of the API server has the ids of volumes, so all PersistentVolumes are read, page by
//! page. The result is used for a minute, since callers ask for many volumes in a row.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume};
use kube::Api;
use parking_lot::Mutex;
use proto::csi::Segments;
use proto::host::chain;
use proto::host::tasks::Tasks;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use crate::kubernetes::api::{ApiError, Server};
use crate::kubernetes::settings::Kubernetes;
use crate::nodes::links::AskKubernetes;
use crate::state::affinity::{Affinity, Age, VolumeAnswer, VolumeFacts};
use crate::telemetry::calls::Calls;

/// The lifetime of a reading.
const FRESH: Duration = Duration::from_secs(60);

/// The lifetime of a reading that lacks the volume, if the caller asks again then.
const JUST_READ: Duration = Duration::from_secs(1);

/// The known volumes, by driver and volume id. Several may have one id.
type ByVolume = HashMap<(String, String), Vec<VolumeFacts>>;

/// Looks up volumes in Kubernetes.
struct Lookup {
    server: Server,
    tasks: Tasks,
    last: Mutex<Option<Reading>>,
}

/// One time that all volumes are read.
struct Reading {
    begun: Instant,
    /// None until all are read. Closed without a value if that fails.
    volumes: watch::Receiver<Option<ByVolume>>,
}

/// A function that looks up a volume. Callers wait until all volumes are read.
///
/// # Errors
/// The kubeconfig or the pod's environment cannot be read or used.
pub async fn lookup(
    settings: &Kubernetes,
    calls: Arc<Calls>,
    tasks: Tasks,
) -> anyhow::Result<AskKubernetes> {
    let server = Server::new(&settings.api, calls).await?;
    let lookup = Arc::new(Lookup { server, tasks, last: Mutex::default() });
    Ok(Arc::new(move |driver, volume, age| {
        let lookup = lookup.clone();
        Box::pin(async move { lookup.answer((driver.to_string(), volume), age).await })
    }))
}

async fn find(
    mut volumes: watch::Receiver<Option<ByVolume>>,
    volume: &(String, String),
) -> VolumeAnswer {
    let Ok(volumes) = volumes.wait_for(Option::is_some).await else { return VolumeAnswer::Silent };
    let found = volumes.as_ref().and_then(|volumes| volumes.get(volume)).cloned();
    found.map_or(VolumeAnswer::Unknown, VolumeAnswer::Known)
}

impl Lookup {
    async fn answer(self: &Arc<Self>, volume: (String, String), age: Age) -> VolumeAnswer {
        if age == Age::Now {
            return self.answer_now(&volume).await;
        }
        let answer = find(self.volumes(FRESH), &volume).await;
        match age {
            Age::MinuteIfKnown if answer == VolumeAnswer::Unknown => {
                find(self.volumes(JUST_READ), &volume).await
            }
            Age::Now | Age::MinuteIfKnown | Age::Minute => answer,
        }
    }

    /// The answer of a reading that begins now. Callers that come during an earlier one share the
    /// next one.
    async fn answer_now(self: &Arc<Self>, volume: &(String, String)) -> VolumeAnswer {
        let asked = Instant::now();
        let running = self.last.lock().as_ref().map(|reading| reading.volumes.clone());
        if let Some(mut running) = running {
            // Its failure is an end too.
            let _ = running.wait_for(Option::is_some).await;
        }
        find(self.volumes(asked.elapsed()), volume).await
    }

    /// The last reading if it is younger than this, else a new one.
    fn volumes(self: &Arc<Self>, within: Duration) -> watch::Receiver<Option<ByVolume>> {
        let mut last = self.last.lock();
        if let Some(reading) = last.as_ref().filter(|reading| reading.is_usable(within)) {
            return reading.volumes.clone();
        }
        let (done, volumes) = watch::channel(None);
        *last = Some(Reading { begun: Instant::now(), volumes: volumes.clone() });
        let lookup = self.clone();
        self.tasks.spawn_until_stop("volumes", async move {
            match read(&lookup.server).await {
                Ok(volumes) => drop(done.send(Some(volumes))),
                Err(error) => {
                    let error = chain(&error);
                    warn!(error, "Kubernetes does not say what its volumes are");
                }
            }
        });
        volumes
    }
}

impl Reading {
    fn is_usable(&self, within: Duration) -> bool {
        let is_read = self.volumes.borrow().is_some();
        if is_read { self.begun.elapsed() < within } else { self.volumes.has_changed().is_ok() }
    }
}

async fn read(server: &Server) -> Result<ByVolume, ApiError> {
    let api = Api::<PersistentVolume>::all(server.client.clone());
    let read = server.list("list persistentvolumes", &api, of).await?;
    let mut volumes = ByVolume::new();
    for (id, facts) in read {
        volumes.entry(id).or_default().push(facts);
    }
    Ok(volumes)
}

/// A volume of a CSI driver.
fn of(volume: PersistentVolume) -> Option<((String, String), VolumeFacts)> {
    let phase = volume.status.and_then(|status| status.phase);
    let is_ended = volume.metadata.deletion_timestamp.is_some()
        || matches!(phase.as_deref(), Some("Released" | "Failed"));
    let name = volume.metadata.name.unwrap_or_default();
    let spec = volume.spec?;
    let csi = spec.csi?;
    let required = spec.node_affinity.and_then(|affinity| affinity.required);
    let affinity = required.map(|required| {
        Affinity::new(required.node_selector_terms.iter().map(single_values).collect())
    });
    let expands_with_secret = csi.node_expand_secret_ref.is_some();
    let facts = VolumeFacts { name, affinity, is_ended, expands_with_secret };
    Some(((csi.driver, csi.volume_handle), facts))
}

/// The labels of a term that have exactly one allowed value.
fn single_values(term: &NodeSelectorTerm) -> Segments {
    let conditions = term.match_expressions.iter().flatten();
    let single = conditions.filter(|condition| condition.operator == "In");
    let single = single.filter_map(|condition| match condition.values.as_deref() {
        Some([value]) => Some((condition.key.clone(), value.clone())),
        _ => None,
    });
    single.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A lookup of one volume. The API server answers each list with the next of these names of
    /// its PersistentVolumes.
    fn lookup<const N: usize>(lists: [&[&str]; N]) -> Arc<Lookup> {
        let persistent_volume = |name: &&str| {
            let csi = json!({ "driver": "d.example", "volumeHandle": "v" });
            json!({ "metadata": { "name": name }, "spec": { "csi": csi } })
        };
        let lists = lists.map(|names| names.iter().map(persistent_volume).collect::<Vec<_>>());
        let lists = Arc::new(Mutex::new(VecDeque::from(lists)));
        let service = tower::service_fn(move |_: Request<Body>| {
            let items = lists.lock().pop_front().expect("one list more than expected");
            let list = json!({ "apiVersion": "v1", "kind": "PersistentVolumeList",
                "metadata": {}, "items": items });
            let answer = Response::new(Body::from(list.to_string().into_bytes()));
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let server = Server::with(Client::new(service, "edge-csi"), Arc::default());
        Arc::new(Lookup { server, tasks: Tasks::default(), last: Mutex::default() })
    }

    /// The names of the volume's PersistentVolumes in an answer of this age.
    async fn names(lookup: &Arc<Lookup>, age: Age) -> Vec<String> {
        match lookup.answer(("d.example".into(), "v".into()), age).await {
            VolumeAnswer::Known(volumes) => volumes.into_iter().map(|of| of.name).collect(),
            VolumeAnswer::Unknown => Vec::new(),
            VolumeAnswer::Silent => panic!("it says nothing"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_must_be_new_is_of_no_reading_that_began_before_the_question() {
        let lookup = lookup([&["old"], &["old", "new"], &["new"], &["last"]]);
        assert_eq!(names(&lookup, Age::Minute).await, ["old"]);
        assert_eq!(names(&lookup, Age::MinuteIfKnown).await, ["old"], "it is remembered");
        assert_eq!(names(&lookup, Age::Now).await, ["old", "new"]);
        tokio::time::advance(FRESH).await;
        // The reading of the first one has begun when the second one asks.
        let (running, next) = tokio::join!(names(&lookup, Age::Minute), names(&lookup, Age::Now));
        assert_eq!((running, next), (vec!["new".to_owned()], vec!["last".to_owned()]));
    }

    fn condition(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({ "key": key, "operator": operator, "values": values })
    }

    fn volume(affinity: Value) -> Option<((String, String), VolumeFacts)> {
        let spec = json!({
            "csi": { "driver": "d.example", "volumeHandle": "v" },
            "nodeAffinity": affinity,
        });
        of(serde_json::from_value(json!({ "metadata": { "name": "pv" }, "spec": spec })).unwrap())
    }

    #[test]
    fn of_a_volume_only_what_admits_one_value_is_read() {
        let node = condition("topology.edge-csi.io/node", "In", &["n1"]);
        let zones = condition("zone", "In", &["a", "b"]);
        let not = condition("rack", "NotIn", &["1"]);
        let terms = json!([{ "matchExpressions": [node, zones, not] }]);
        let read = volume(json!({ "required": { "nodeSelectorTerms": terms } }));
        let segments = [("topology.edge-csi.io/node".to_owned(), "n1".to_owned())].into();
        let facts =
            |affinity| VolumeFacts { name: "pv".into(), affinity, ..VolumeFacts::default() };
        let id = ("d.example".to_owned(), "v".to_owned());
        assert_eq!(read, Some((id.clone(), facts(Some(Affinity::new(vec![segments]))))));
        assert_eq!(volume(json!(null)), Some((id, facts(None))));
    }

    #[test]
    fn a_secret_for_the_expansion_on_a_node_is_known() {
        let csi = json!({
            "driver": "d.example",
            "volumeHandle": "v",
            "nodeExpandSecretRef": { "name": "s", "namespace": "n" },
        });
        let volume = json!({ "metadata": { "name": "pv" }, "spec": { "csi": csi } });
        let (_, facts) = of(serde_json::from_value(volume).unwrap()).unwrap();
        assert!(facts.expands_with_secret && facts.affinity.is_none());
    }

    #[test]
    fn a_volume_has_ended_if_it_is_released_or_failed_or_being_deleted() {
        let is_ended = |phase: &str, deleted: Value| {
            let spec = json!({ "csi": { "driver": "d.example", "volumeHandle": "v" } });
            let metadata = json!({ "name": "pv", "deletionTimestamp": deleted });
            let status = json!({ "phase": phase });
            let volume = json!({ "metadata": metadata, "spec": spec, "status": status });
            of(serde_json::from_value(volume).unwrap()).unwrap().1.is_ended
        };
        assert!(is_ended("Released", json!(null)) && is_ended("Failed", json!(null)));
        assert!(is_ended("Bound", json!("2026-01-01T00:00:00Z")));
        for phase in ["Bound", "Available", "Pending", ""] {
            assert!(!is_ended(phase, json!(null)), "{phase}");
        }
    }
}
