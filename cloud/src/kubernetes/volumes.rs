//! Where Kubernetes lets a volume be used: the node affinity of its PersistentVolume.
//!
//! No index of the API server has the ids of volumes, so all PersistentVolumes are read, page by
//! page. What was read is used for a minute, since whoever asks for one asks for many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume};
use kube::Api;
use kube::api::ListParams;
use proto::csi::Segments;
use proto::host::chain;
use proto::host::tasks::Tasks;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use crate::kubernetes::api::{ApiError, Server};
use crate::kubernetes::settings::Kubernetes;
use crate::nodes::links::AskAffinity;
use crate::state::affinity::Affinity;
use crate::telemetry::calls::Calls;

/// The number of PersistentVolumes in one answer of the API server.
const PAGE: u32 = 500;
/// How long what was read is used.
const FRESH: Duration = Duration::from_secs(60);

/// The node affinities of volumes, by driver and volume id.
type ByVolume = HashMap<(String, String), Affinity>;

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

/// The way to look up a volume's node affinity. Whoever asks waits until all volumes are read.
///
/// # Errors
/// The kubeconfig or the pod's environment cannot be read or used.
pub async fn affinities(
    settings: &Kubernetes,
    calls: Arc<Calls>,
    tasks: Tasks,
) -> anyhow::Result<AskAffinity> {
    let server = Server::new(&settings.api, calls).await?;
    let lookup = Arc::new(Lookup { server, tasks, last: Mutex::default() });
    Ok(Arc::new(move |driver, volume| {
        let volumes = lookup.volumes();
        Box::pin(async move { affinity(volumes, &(driver.to_string(), volume)).await })
    }))
}

async fn affinity(
    mut volumes: watch::Receiver<Option<ByVolume>>,
    volume: &(String, String),
) -> Option<Affinity> {
    let volumes = volumes.wait_for(Option::is_some).await.ok()?;
    volumes.as_ref()?.get(volume).cloned()
}

impl Lookup {
    /// What was read last, or is being read.
    fn volumes(self: &Arc<Self>) -> watch::Receiver<Option<ByVolume>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reading) = last.as_ref().filter(|reading| reading.is_usable()) {
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
                    warn!(error, "Kubernetes does not say where volumes may be used");
                }
            }
        });
        volumes
    }
}

impl Reading {
    fn is_usable(&self) -> bool {
        let is_read = self.volumes.borrow().is_some();
        if is_read { self.begun.elapsed() < FRESH } else { self.volumes.has_changed().is_ok() }
    }
}

async fn read(server: &Server) -> Result<ByVolume, ApiError> {
    let api = Api::<PersistentVolume>::all(server.client.clone());
    let mut read = ByVolume::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = server.ask("list persistentvolumes", api.list(&page)).await?;
        read.extend(listed.items.into_iter().filter_map(of));
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(read),
        }
    }
}

/// A volume of a CSI driver, with its node affinity.
fn of(volume: PersistentVolume) -> Option<((String, String), Affinity)> {
    let spec = volume.spec?;
    let csi = spec.csi?;
    let terms = spec.node_affinity?.required?.node_selector_terms;
    let terms = terms.iter().map(single_values).collect();
    Some(((csi.driver, csi.volume_handle), Affinity::new(terms)))
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
    use serde_json::{Value, json};

    use super::*;

    fn condition(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({ "key": key, "operator": operator, "values": values })
    }

    fn volume(affinity: Value) -> Option<((String, String), Affinity)> {
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
        let expected = (("d.example".to_owned(), "v".to_owned()), Affinity::new(vec![segments]));
        assert_eq!(read, Some(expected));
        assert_eq!(volume(json!(null)), None);
    }
}
