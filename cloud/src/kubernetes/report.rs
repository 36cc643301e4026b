//! Publishes Events. They are about claims that wait, calls that wait for a driver or a node,
//! volumes that are lost or claimed twice, and volumes that were colocated with their source. Pods
//! get one for direct volumes that no runtime took. Nodes get one when they are set apart, a driver
//! is down there, or their certificate is no good.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::runtime::events::{Event, EventType};
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::kubernetes::api::ApiError;
use crate::kubernetes::claims;
use crate::kubernetes::claims::Reason;
use crate::kubernetes::events;
use crate::kubernetes::events::{About, Notice};
use crate::kubernetes::keeper::{Away, Keeper, Scan};
use crate::kubernetes::mirror::KnownNode;
use crate::kubernetes::notice_limiter;
use crate::nodes::cordon;
use crate::nodes::driver_health::DriverHealth;
use crate::nodes::link_history::CertificateFault;
use crate::state::known::State;

/// The shortest time between two scans of the volumes, when some have changed.
const SCAN: Duration = Duration::from_secs(5);
/// The longest time between two scans, since lasting trouble is reported again.
const ANYWAY: Duration = Duration::from_secs(600);
/// A scan is followed by a pause of at least this many times its duration.
const SHARE: u32 = 20;
/// The pause after a refused Event.
const REFUSED: Duration = Duration::from_secs(300);
/// The name of Events among the retries.
const EVENTS: &str = "Events";
/// The name of Events of pods there. They need another right, and must not delay the others.
const POD_EVENTS: &str = "Events of pods";

impl Keeper {
    /// Reports as much as this round allows; the next round goes on.
    ///
    /// # Errors
    /// The API server is away. Other failures are tried again later.
    pub(super) async fn report(&mut self) -> Result<(), Away> {
        for notice in self.waiting_claims() {
            self.publish_event(notice).await?;
        }
        for notice in self.slow_calls() {
            self.publish_event(notice).await?;
        }
        for notice in self.refused_calls() {
            self.publish_event(notice).await?;
        }
        for notice in self.nodes_set_apart() {
            self.publish_event(notice).await?;
        }
        for notice in self.drivers_down() {
            self.publish_event(notice).await?;
        }
        for notice in self.certificate_faults() {
            self.publish_event(notice).await?;
        }
        self.notify_pods().await?;
        if self.left.is_empty() {
            let found = self.scan_volumes().await;
            let now = Instant::now();
            let news = found.into_iter().filter(|notice| self.limiter.is_news(notice, now));
            self.left = news.take(notice_limiter::MEMORY).collect();
        }
        if self.left.len() < notice_limiter::MEMORY {
            let colocated = self.facts.store.colocated().take();
            self.left.extend(colocated.iter().map(events::colocated));
        }
        while self.may_publish()
            && let Some(notice) = self.left.front().cloned()
        {
            self.publish_event(notice).await?;
            self.left.pop_front();
        }
        Ok(())
    }

    /// Tells pods that direct volumes of theirs were not taken, each once.
    async fn notify_pods(&mut self) -> Result<(), Away> {
        for unnotified in self.facts.store.not_taken().unnotified() {
            if self.turns == 0 || !self.retries.may(POD_EVENTS, Instant::now()) {
                return Ok(());
            }
            self.turns -= 1;
            let notice = events::not_taken(&unnotified);
            let about = &notice.about;
            let answered = self.create_event(&notice).await;
            let is_final = matches!(answered, Err(ApiError::Missing | ApiError::Refused(_)));
            if matches!(answered, Err(ApiError::Missing)) {
                debug!(?about, "no such pod runs at the node that speaks of it");
            } else if self.settled(POD_EVENTS, answered)?.is_some() {
                warn!(?about, reason = notice.reason, note = notice.note, "told in Kubernetes");
            } else if !is_final {
                return Ok(());
            }
            self.facts.store.not_taken().set_notified(&unnotified);
        }
        Ok(())
    }

    /// True if this round may publish one more Event, and Events do not wait for a retry.
    fn may_publish(&self) -> bool {
        self.turns > 0 && self.retries.may(EVENTS, Instant::now())
    }

    /// The claims that wait for a node.
    fn waiting_claims(&self) -> Vec<Notice> {
        let pending = self.mirror.objects().claims.items().clone();
        let notices = pending.iter().map(|(key, claim)| self.waiting_claim(key, claim));
        notices.flatten().collect()
    }

    /// The nodes of the cluster that are set apart for a driver.
    fn nodes_set_apart(&self) -> Vec<Notice> {
        let objects = self.mirror.objects();
        let known = objects.nodes.items();
        self.facts.store.read(|state| {
            let nodes = state.apart().nodes();
            let notice = |node: &NodeName| {
                let uid = &known.get(node.as_str())?.uid;
                Some(events::set_apart(node, uid, state.apart()))
            };
            nodes.filter_map(notice).collect()
        })
    }

    /// The nodes of the cluster at which a driver has been down for its grace.
    fn drivers_down(&self) -> Vec<Notice> {
        let objects = self.mirror.objects();
        let known = objects.nodes.items();
        let linked = self.facts.links.linked();
        self.facts.store.read(|state| {
            let notice = |node: &NodeName| {
                let uid = &known.get(node.as_str())?.uid;
                let down: Vec<_> = self.down_at(state, node).collect();
                (!down.is_empty()).then(|| events::drivers_down(node, uid, &down))
            };
            linked.iter().filter_map(notice).collect()
        })
    }

    /// The nodes of the cluster whose certificate has ended or is shared.
    fn certificate_faults(&self) -> Vec<Notice> {
        let objects = self.mirror.objects();
        let notice = |(name, node): (&String, &KnownNode)| {
            let fault = cordon::certificate_fault(&self.facts.links, &name.parse().ok()?)?;
            Some(events::certificate(name, &node.uid, &fault))
        };
        objects.nodes.items().iter().filter_map(notice).collect()
    }

    /// The drivers that have been down at a node for their grace.
    fn down_at(
        &self,
        state: &State,
        node: &NodeName,
    ) -> impl Iterator<Item = (&DriverName, DriverHealth)> {
        self.facts.policies.iter().filter_map(move |(driver, policy)| {
            state.driver(driver)?.at(node).filter(|at| at.gone.is_none())?;
            let health = self.facts.links.driver_health(node, driver)?;
            let is_down = health.down().is_some_and(|down| down >= policy.grace);
            is_down.then_some((driver, health))
        })
    }

    fn waiting_claim(&self, key: &str, claim: &claims::Pending) -> Option<Notice> {
        let policy = self.facts.policies.get(&claim.driver)?;
        let away = |node: &_| self.facts.links.away(node);
        let health = |node: &_| self.facts.links.driver_health(node, &claim.driver);
        let reason = self
            .facts
            .store
            .read(|state| claims::reason(claim, state, away, health, policy.grace))?;
        let reason = match reason {
            Reason::Away(node, away) => match cordon::certificate_fault(&self.facts.links, &node) {
                Some(CertificateFault::Ended(_)) => Reason::Ended(node),
                _ => Reason::Away(node, away),
            },
            other => other,
        };
        Some(events::waiting(key, &claim.uid, &reason))
    }

    /// Trouble of all volumes, if it is time for a scan.
    async fn scan_volumes(&mut self) -> Vec<Notice> {
        let begun = Instant::now();
        let drivers: Vec<_> = self.facts.policies.keys().cloned().collect();
        let (seen, removed) = self.facts.store.read(|state| {
            let known = drivers.iter().filter_map(|driver| state.driver(driver));
            let seen = known.map(|of| of.changes()).sum();
            (seen, state.nodes().values().filter(|node| node.removed.is_some()).count())
        });
        let changed = (seen, removed) != (self.scan.seen, self.scan.removed);
        if let Some((earliest, latest)) = self.scan.next
            && begun < if changed { earliest } else { latest }
        {
            return Vec::new();
        }
        let mut notices = Vec::new();
        for driver in &drivers {
            let mut after = None;
            loop {
                let (some, next) =
                    self.facts.store.read(|state| events::trouble(state, driver, after));
                notices.extend(some);
                after = next;
                if after.is_none() {
                    break;
                }
                // Calls come in between.
                tokio::task::yield_now().await;
            }
        }
        let end = Instant::now();
        let earliest = end + SCAN.max(end.saturating_duration_since(begun) * SHARE);
        self.scan = Scan { seen, removed, next: Some((earliest, end + ANYWAY)) };
        notices
    }

    /// Publishes an Event, unless the same was told within the hour or this round may not.
    ///
    /// # Errors
    /// The API server is away. An Event that is refused is no error.
    pub(super) async fn publish_event(&mut self, notice: Notice) -> Result<(), Away> {
        if !self.may_publish() || !self.limiter.is_news(&notice, Instant::now()) {
            return Ok(());
        }
        self.turns -= 1;
        let about = &notice.about;
        let reason = notice.reason;
        match self.create_event(&notice).await {
            Err(ApiError::Away(_)) => return Err(Away),
            Err(ApiError::Missing) => {
                debug!(?about, reason, "nobody is there to be told");
                self.limiter.keep(&notice, Instant::now(), notice_limiter::AGAIN);
            }
            answered => {
                let published = self.settled(EVENTS, answered)?.is_some();
                let note = &notice.note;
                match notice.type_ {
                    EventType::Warning if published => {
                        warn!(?about, reason, note, "told in Kubernetes");
                    }
                    EventType::Normal if published => {
                        info!(?about, reason, note, "told in Kubernetes");
                    }
                    EventType::Warning | EventType::Normal => {}
                }
                // A refused Event does not delay the others.
                let again = if published { notice_limiter::AGAIN } else { REFUSED };
                self.limiter.keep(&notice, Instant::now(), again);
            }
        }
        Ok(())
    }

    async fn create_event(&self, notice: &Notice) -> Result<(), ApiError> {
        let reference = notice.about.reference(Some(self.uid(&notice.about).await?));
        let event = Event {
            type_: notice.type_,
            reason: notice.reason.into(),
            note: Some(events::cut(&notice.note)),
            action: "Watching".into(),
            secondary: None,
        };
        self.server.ask("Event create", self.recorder.publish(&event, &reference)).await
    }

    /// The uid of an object, by which its Events are found.
    ///
    /// A claim with another uid is another claim.
    async fn uid(&self, about: &About) -> Result<String, ApiError> {
        let client = self.server.client.clone();
        let (uid, expected) = match about {
            About::Node { uid, .. } => (Some(uid.clone()), None),
            About::Pod(pod, node) => {
                let api: Api<Pod> = Api::namespaced(client, &pod.namespace);
                let found = self.server.ask("Pod get", api.get(&pod.name)).await?;
                (uid_at(&found, node), Some(pod.uid.clone()))
            }
            About::Volume(name) => {
                let api: Api<PersistentVolume> = Api::all(client);
                let getting = api.get_metadata(name);
                let found = self.server.ask("PersistentVolume get", getting).await?;
                (found.metadata.uid, None)
            }
            About::Claim { namespace, name, uid } => {
                let api: Api<PersistentVolumeClaim> = Api::namespaced(client, namespace);
                let getting = api.get_metadata(name);
                let found = self.server.ask("PersistentVolumeClaim get", getting).await?;
                (found.metadata.uid, uid.clone())
            }
        };
        uid.filter(|uid| expected.is_none_or(|expected| expected == *uid)).ok_or(ApiError::Missing)
    }
}

/// The uid of a pod, if it runs at this node. An edge speaks for its own node only.
fn uid_at(pod: &Pod, node: &NodeName) -> Option<String> {
    let at = pod.spec.as_ref()?.node_name.as_deref();
    pod.metadata.uid.clone().filter(|_| at == Some(node.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_its_own_nodes_alone() {
        let pod = |at: Option<&str>| -> Pod {
            let pod = serde_json::json!({
                "metadata": {"name": "p", "uid": "u"},
                "spec": {"nodeName": at, "containers": []},
            });
            serde_json::from_value(pod).unwrap()
        };
        let node: NodeName = "n1".parse().unwrap();
        assert_eq!(uid_at(&pod(Some("n1")), &node), Some("u".to_owned()));
        for elsewhere in [Some("n2"), Some(""), None] {
            assert_eq!(uid_at(&pod(elsewhere), &node), None, "{elsewhere:?}");
        }
        assert_eq!(uid_at(&Pod::default(), &node), None);
    }
}
