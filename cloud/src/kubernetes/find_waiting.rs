//! Finds what waits for nodes that are away.
//!
//! Nothing is watched for it, so a cluster whose nodes are all linked is asked nothing. While nodes
//! are away, the pods of a few of them are listed in each round, and all attachments and snapshots
//! once a minute. A list also finds what began to wait while csi-cloud was away. Snapshots are
//! listed while a CreateSnapshot takes long, too, and attachments while an attach or detach does.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;

use crate::kubernetes::api::ApiError;
use crate::kubernetes::events::{About, Notice};
use crate::kubernetes::keeper::{Away, Keeper};
use crate::kubernetes::notice_limiter;
use crate::kubernetes::objects::Objects;
use crate::kubernetes::poll_schedule::NodesAway;
use crate::kubernetes::slow_calls::SlowCall;
use crate::kubernetes::snapshot_facts::{ContentFacts, SnapshotKind};
use crate::kubernetes::waits;
use crate::kubernetes::waits::{AwaitedOperation, WaitingAttachment, WaitingPod};
use crate::state::clock;

/// The pods of a node that are looked at in one round.
const PODS: usize = 10;
/// Pods of one node in a list; a kubelet has fewer.
const PAGE: u32 = 500;
/// The attachments with a slow call that are told in one look; others are in the next one.
const ATTACHES: usize = 10;

impl Keeper {
    /// What is told of the objects that wait for nodes which are away.
    ///
    /// # Errors
    /// The API server is away. Other failures are tried again later.
    pub(super) async fn waiting_objects(&mut self) -> Result<Vec<Notice>, Away> {
        let away = self.nodes_away();
        let begun = Instant::now();
        let mut notices = Vec::new();
        for node in self.schedule.turns(&away, begun) {
            let pods = self.waiting_pods(&node, begun).await?;
            notices.extend(self.notices_of_pods(&node, pods).await);
        }
        let is_away = !away.is_empty();
        if is_away {
            notices.extend(self.growing_claims());
        }
        let attaching = self.slow_attaches();
        let taking = self.slow_snapshots();
        let of_attachments = is_away || !attaching.is_empty();
        let of_snapshots = is_away || !taking.is_empty();
        if !(of_attachments || of_snapshots) || !self.schedule.is_due(begun) {
            return Ok(notices);
        }
        if of_attachments {
            notices.extend(self.waiting_attachments(begun, &attaching).await?);
        }
        if of_snapshots {
            notices.extend(self.waiting_snapshots(begun, &taking).await?);
        }
        self.schedule.polled(begun, Instant::now());
        Ok(notices)
    }

    /// The nodes that any driver has been missing for its grace. Removed ones are not waited for.
    fn nodes_away(&self) -> NodesAway {
        let graces = self.facts.policies.values().map(|policy| policy.grace);
        let Some(shortest) = graces.min() else { return NodesAway::new() };
        self.facts.store.read(|state| {
            let nodes = state.nodes().iter().filter(|(_, node)| node.removed.is_none());
            let away = |node: &NodeName| {
                let away = self.facts.links.away(node)?;
                Some((node.clone(), away)).filter(|_| away >= shortest)
            };
            nodes.filter_map(|(node, _)| away(node)).collect()
        })
    }

    /// How long a node has been away, if that is longer than the driver's grace and the driver has
    /// a front.
    fn away_for(&self, driver: &DriverName, node: &NodeName) -> Option<Duration> {
        let policy = self.facts.policies.get(driver)?;
        if self.facts.store.read(|state| state.is_removed(node)) {
            return None;
        }
        self.facts.links.away(node).filter(|away| *away >= policy.grace)
    }

    /// The pods at a node that wait.
    async fn waiting_pods(
        &mut self,
        node: &NodeName,
        now: Instant,
    ) -> Result<Vec<WaitingPod>, Away> {
        let what = "Pod list";
        if !self.retries.may(what, now) {
            return Ok(Vec::new());
        }
        let api: Api<Pod> = Api::all(self.server.client.clone());
        // Any version will do, so the API server answers from its cache.
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let listed = self.server.ask(what, api.list(&of_node.match_any().limit(PAGE))).await;
        let listed = self.settled(what, listed)?;
        let pods = listed.into_iter().flat_map(|listed| listed.items);
        let now = clock::now();
        Ok(pods.filter_map(|pod| waits::pod(&pod, now)).collect())
    }

    /// What is told of pods that wait, as far as they have volumes of ours.
    async fn notices_of_pods(&mut self, node: &NodeName, pods: Vec<WaitingPod>) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut looked = 0;
        for WaitingPod { pod, claims, wanted } in pods {
            let namespace = pod.namespace.clone();
            let about = About::Pod(pod, node.clone());
            let notice = waits::notice(about, node, Duration::ZERO, wanted);
            if looked == PODS || !self.limiter.is_news(&notice, Instant::now()) {
                continue;
            }
            looked += 1;
            match self.driver_of(&namespace, &claims).await {
                Ok(Some(driver)) => {
                    let away = self.away_for(&driver, node);
                    let notice = away.map(|away| waits::notice(notice.about, node, away, wanted));
                    notices.extend(notice);
                }
                // It has none of ours.
                Ok(None) => self.limiter.keep(&notice, Instant::now(), notice_limiter::AGAIN),
                Err(_) => {}
            }
        }
        notices
    }

    /// The first driver with a front among those of some claims.
    async fn driver_of(
        &self,
        namespace: &str,
        claims: &[String],
    ) -> Result<Option<DriverName>, String> {
        let objects = Objects { server: self.server.clone() };
        for claim in claims {
            let claim = objects.claim(namespace, claim).await?;
            let Some(volume) = claim.and_then(|claim| claim.volume) else { continue };
            let volume = objects.persistent_volume(&volume).await?;
            let named = volume.and_then(|volume| volume.volume);
            let driver = named.and_then(|(driver, _)| driver.parse::<DriverName>().ok());
            if let Some(driver) = driver.filter(|name| self.facts.policies.contains_key(name)) {
                return Ok(Some(driver));
            }
        }
        Ok(None)
    }

    /// What is told of claims whose volumes are to grow.
    fn growing_claims(&self) -> Vec<Notice> {
        let now = clock::now();
        let mut notices = Vec::new();
        for (call, _) in self.facts.calls.ended.failing() {
            let growing = self.facts.store.read(|state| waits::growing(state, &call, now));
            let Some((node, claimants)) = growing else { continue };
            let Some(away) = self.away_for(&call.driver, &node) else { continue };
            let notice = |about| waits::notice(about, &node, away, AwaitedOperation::Expand);
            notices.extend(claimants.into_iter().map(notice));
        }
        notices
    }

    /// What is told of attachments that wait. `slow` are the calls about some that take long.
    async fn waiting_attachments(
        &mut self,
        now: Instant,
        slow: &[SlowCall],
    ) -> Result<Vec<Notice>, Away> {
        let what = "VolumeAttachment list";
        if !self.retries.may(what, now) {
            return Ok(Vec::new());
        }
        let api: Api<VolumeAttachment> = Api::all(self.server.client.clone());
        let listed = self.server.list(what, &api, |object| waits::attachment(&object)).await;
        let mut notices = Vec::new();
        let mut reported = 0;
        for of in self.settled(what, listed)?.unwrap_or_default() {
            let Some(call) = slow.iter().find(|call| call.carries_out(&of)) else {
                notices.extend(self.notice_of_attachment(of));
                continue;
            };
            let notice = call.notice(of.about.clone());
            if reported < ATTACHES && self.limiter.is_news(&notice, now) {
                reported += 1;
                notices.push(notice);
                notices.extend(self.notices_of_users(&of, call).await?);
            }
        }
        Ok(notices)
    }

    /// What is told of an attachment, if its node is away.
    fn notice_of_attachment(&self, of: WaitingAttachment) -> Option<Notice> {
        let node = self.facts.store.read(|state| waits::carried_out_at(state, &of.driver, of.node));
        let away = self.away_for(&of.driver, &node)?;
        Some(waits::notice(of.about, &node, away, of.wanted))
    }

    /// What is told of the pods that wait for an attachment while its call takes long.
    async fn notices_of_users(
        &mut self,
        of: &WaitingAttachment,
        call: &SlowCall,
    ) -> Result<Vec<Notice>, Away> {
        let Some(volume) = of.volume.as_ref().filter(|_| of.wanted == AwaitedOperation::Attach)
        else {
            return Ok(Vec::new());
        };
        let objects = Objects { server: self.server.clone() };
        let volume = objects.persistent_volume(volume).await.ok().flatten();
        let Some((namespace, claim)) = volume.and_then(|volume| volume.claim) else {
            return Ok(Vec::new());
        };
        let pods = self.waiting_pods(&of.node, Instant::now()).await?.into_iter();
        let users = pods.filter(|of| {
            of.wanted == AwaitedOperation::Mount
                && of.pod.namespace == namespace
                && of.claims.contains(&claim)
        });
        let node = of.node.clone();
        Ok(users.map(|of| call.notice(About::Pod(of.pod, node.clone()))).collect())
    }

    /// What is told of snapshots that wait. `slow` are calls that take long, by name.
    async fn waiting_snapshots(
        &mut self,
        now: Instant,
        slow: &HashMap<String, SlowCall>,
    ) -> Result<Vec<Notice>, Away> {
        let what = "VolumeSnapshotContent list";
        if !self.retries.may(what, now) {
            return Ok(Vec::new());
        }
        let resource = SnapshotKind::Content.resource();
        let api: Api<DynamicObject> = Api::all_with(self.server.client.clone(), &resource);
        let waiting = |object: DynamicObject| waits::snapshot(ContentFacts::of(&object));
        let listed = match self.server.list(what, &api, waiting).await {
            // The cluster has no snapshots.
            Err(ApiError::Missing) => return Ok(Vec::new()),
            listed => listed,
        };
        let waiting = self.settled(what, listed)?.unwrap_or_default();
        let notice = |of: waits::WaitingSnapshot| {
            if let Some(call) = slow.get(&of.name) {
                return Some(call.notice(of.about));
            }
            let node = self.facts.store.read(|state| waits::home(state, &of.driver, &of.id))?;
            let away = self.away_for(&of.driver, &node)?;
            Some(waits::notice(of.about, &node, away, of.wanted))
        };
        Ok(waiting.into_iter().filter_map(notice).collect())
    }
}
