//! Pods: their claims, the scheduler, and the way of their volumes to the node.

use std::collections::BTreeSet;
use std::time::Duration;

use proto::admin::cells::age;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::claim::{ClaimVolume, POD, follow_attachment, missing};
use super::commands;
use super::explainer::Explainer;
use super::node::{Need, unregistered};
use super::subject::Namespaced;
use crate::kubernetes::object_facts::{AttachmentFacts, PodFacts};
use crate::kubernetes::objects::{Objects, Seen};
use crate::state::clock;
use crate::telemetry::calls::LONG;

/// Nodes that are named in a sentence.
const SHOWN: usize = 5;

impl Explainer<'_> {
    /// A pod, with all its claims.
    pub(super) async fn pod(&self, pod: &Namespaced) -> Explanation {
        let mut chain = Chain::default();
        let object = format!("pod {pod}");
        match self.objects {
            None => chain.judge(Some(not_visible(&object, "this csi-cloud knows no Kubernetes"))),
            Some(objects) => match objects.pod(&pod.namespace, &pod.name).await {
                Ok(Some(facts)) => self.follow_pod(&mut chain, objects, pod, &facts).await,
                Ok(None) => chain.judge(Some(missing(&object))),
                Err(why) => chain.judge(Some(not_visible(&object, &why))),
            },
        }
        chain.end(|| Verdict::fine(format!("nothing is wrong with the volumes of pod {pod}")))
    }

    async fn follow_pod(
        &self,
        chain: &mut Chain,
        objects: &Objects,
        pod: &Namespaced,
        facts: &PodFacts,
    ) {
        chain.step(format!("pod {pod}"), state(facts), found(facts));
        let mut volumes = Vec::new();
        for name in &facts.claims {
            let claim = Namespaced { namespace: pod.namespace.clone(), name: name.clone() };
            volumes.extend(self.follow_claim(chain, &claim).await);
        }
        let Some(node) = &facts.node else {
            let without_room = self.without_room(chain.drivers());
            chain.judge(unscheduled(pod, facts, chain.drivers(), &without_room));
            self.follow_warning(chain, objects, POD, pod, None).await;
            return;
        };
        let node: Option<NodeName> = node.parse().ok();
        if let Some(node) = &node {
            let not_taken = self.store.not_taken().of_pod(node, &pod.namespace, &pod.name);
            chain.judge(self::not_taken(pod, node, &not_taken));
        }
        for volume in &volumes {
            if let Some(node) = &node {
                self.follow_use(chain, objects, volume, node, facts).await;
            }
        }
        let is_fine = facts.is_ready && !facts.is_ending;
        if is_fine {
            chain.drop_weak();
        } else if !volumes.is_empty() {
            self.follow_warning(chain, objects, POD, pod, node.as_ref()).await;
            let found = node.and_then(|node| mounting(pod, &node, facts, clock::now()));
            chain.judge_weakly(found);
        }
    }

    /// Follows the way of a volume to the node of its pod.
    async fn follow_use(
        &self,
        chain: &mut Chain,
        objects: &Objects,
        volume: &ClaimVolume,
        node: &NodeName,
        pod: &PodFacts,
    ) {
        let ClaimVolume { driver, node: home, .. } = volume;
        if home.as_ref() != Some(node) {
            self.follow_node(chain, node, Some(driver), Need::Use);
        }
        self.follow_lease(chain, volume, node);
        let attachment = follow_attachment(chain, objects, volume, node).await;
        let registered = objects.registered(node, driver).await;
        if let Err(why) = &registered {
            chain.not_visible(format!("CSINode {node}"), why);
        }
        chain.judge(unusable(&registered, &attachment, volume, node, pod));
    }

    /// The lease of a direct volume, which one node has at a time.
    fn follow_lease(&self, chain: &mut Chain, volume: &ClaimVolume, node: &NodeName) {
        let ClaimVolume { driver, id, .. } = volume;
        let (holder, claims) = self.store.read(|state| {
            let lease = state.driver(driver).and_then(|of| of.lease(&Id::Volume(id.clone())));
            let holder = lease.and_then(|lease| lease.holder.as_ref()).map(|of| of.node.clone());
            let claims = lease.into_iter().flat_map(|lease| &lease.claims);
            (holder, claims.map(|claim| claim.node.clone()).collect::<Vec<_>>())
        });
        if let Some(holder) = &holder {
            chain.step(format!("lease of {id}"), "held", format!("by node {holder}"));
        }
        chain.judge(owned(holder.as_ref(), &claims, driver, id, node));
    }
}

/// Whether another node has a direct volume, or says so.
fn owned(
    holder: Option<&NodeName>,
    claims: &[NodeName],
    driver: &DriverName,
    id: &str,
    node: &NodeName,
) -> Option<Verdict> {
    if holder == Some(node) {
        return None;
    }
    let (other, how) = match (holder, claims.first()) {
        (Some(holder), _) => (holder, "has"),
        (None, Some(claimant)) => (claimant, "says without a proof that it has"),
        (None, None) => return None,
    };
    let release = commands::release(driver, id, other);
    let verdict = Verdict::of(
        Cause::OwnedElsewhere,
        format!("node {other} {how} direct volume {id}, so node {node} does not get it"),
        format!(
            "end the pod at node {other}; if that node is off for good, `{release}` says what \
             taking the volume from it means"
        ),
    );
    Some(verdict.at(other))
}

fn state(facts: &PodFacts) -> String {
    match facts {
        PodFacts { is_ending: true, .. } => "Terminating".into(),
        PodFacts { is_ready: true, .. } => "Ready".into(),
        PodFacts { phase, .. } => phase.clone(),
    }
}

fn found(facts: &PodFacts) -> String {
    match (&facts.node, &facts.unschedulable) {
        (Some(node), _) => format!("at node {node}"),
        (None, Some(why)) => format!("no node: {why}"),
        (None, None) => "no node yet".into(),
    }
}

/// What was asked about cannot be seen.
pub(super) fn not_visible(object: &str, why: &str) -> Verdict {
    Verdict::of(
        Cause::NotVisible,
        format!("{object} cannot be seen: {why}"),
        "ask about its claim, volume or node",
    )
}

/// `drivers` are those of its claims, and `without_room` the nodes that can make no volume of these
/// now.
fn unscheduled(
    pod: &Namespaced,
    facts: &PodFacts,
    drivers: &BTreeSet<DriverName>,
    without_room: &BTreeSet<NodeName>,
) -> Option<Verdict> {
    let why = facts.unschedulable.as_ref()?;
    let mut next = "look at the pod's node selector, taints and the size of its claims".to_owned();
    if !without_room.is_empty() {
        let named = without_room.iter().take(SHOWN).map(ToString::to_string);
        let named = named.collect::<Vec<_>>().join(", ");
        let explain = drivers.iter().map(|name| format!("`csi-cloud explain driver {name}`"));
        let explain = explain.collect::<Vec<_>>().join(" and ");
        let count = without_room.len();
        next =
            format!("nodes that can make no volume now: {named} ({count} in all); see {explain}");
    }
    let text = format!("the scheduler finds no node for pod {pod}: {why}");
    Some(Verdict::of(Cause::Unschedulable, text, next))
}

fn not_taken(pod: &Namespaced, node: &NodeName, volumes: &[String]) -> Option<Verdict> {
    let (first, more) = volumes.split_first()?;
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    let verdict = Verdict::of(
        Cause::NotTaken,
        format!(
            "the runtime at node {node} did not take {first}{more} as a device, so pod {pod} has \
             a read-only directory in its place"
        ),
        "run `csi-edge direct check` there and set what it says, then delete the pod",
    );
    Some(verdict.at(node))
}

/// What keeps a pod from a volume at its node. external-attacher fails without the driver in the
/// CSINode, so that counts first.
fn unusable(
    registered: &Seen<bool>,
    attachment: &Seen<AttachmentFacts>,
    volume: &ClaimVolume,
    node: &NodeName,
    pod: &PodFacts,
) -> Option<Verdict> {
    let unregistered = unregistered(registered, &volume.driver, node);
    unregistered.or_else(|| unattached(attachment, &volume.id, node, pod))
}

fn unattached(
    attachment: &Seen<AttachmentFacts>,
    id: &str,
    node: &NodeName,
    pod: &PodFacts,
) -> Option<Verdict> {
    let Ok(Some(facts)) = attachment else { return None };
    if facts.is_attached || pod.is_ending {
        return None;
    }
    let why = facts.error.as_deref().unwrap_or("external-attacher has not said why");
    let verdict = Verdict::of(
        Cause::NotAttached,
        format!("volume {id} is not attached at node {node}: {why}"),
        "`csi-cloud calls` shows whether the call runs",
    );
    Some(verdict.at(node))
}

/// The kubelet has begun none of the pod's containers for long, and has not said why. It mounts all
/// volumes first, and warns only after its own deadline.
fn mounting(pod: &Namespaced, node: &NodeName, facts: &PodFacts, now: u64) -> Option<Verdict> {
    let lasts = facts.scheduled_at.map(|at| Duration::from_millis(now.saturating_sub(at)));
    if !facts.is_creating || facts.is_ending || lasts.is_some_and(|lasts| lasts <= LONG) {
        return None;
    }
    let after = lasts.map(|lasts| format!(" {} after the pod was scheduled", age(lasts)));
    let after = after.unwrap_or_default();
    let verdict = Verdict::of(
        Cause::NotMounted,
        format!(
            "the volumes of pod {pod} are not mounted at node {node}{after}, and its kubelet has \
             not said why"
        ),
        "`csi-edge calls` there shows whether a driver is still at it",
    );
    Some(verdict.at(node))
}

#[cfg(test)]
mod tests {
    use super::super::commands::check_commands;
    use super::*;

    /// A volume of this driver and id.
    fn volume() -> ClaimVolume {
        ClaimVolume { driver: "d.example".parse().unwrap(), id: "v1".into(), node: None }
    }

    fn not_attached() -> Seen<AttachmentFacts> {
        let error = Some("no NodeID for driver d.example".to_owned());
        Ok(Some(AttachmentFacts { is_attached: false, error, ending: None }))
    }

    #[test]
    fn a_driver_that_the_kubelet_lacks_counts_before_the_attachment_that_fails_without_it() {
        let node: NodeName = "n1".parse().unwrap();
        let cause = |registered: &Seen<bool>| {
            let pod = PodFacts::default();
            let verdict = unusable(registered, &not_attached(), &volume(), &node, &pod)?;
            assert_eq!(verdict.node.as_ref(), Some(&node));
            Some(verdict.cause)
        };
        assert_eq!(cause(&Ok(Some(false))), Some(Cause::NotRegistered));
        assert_eq!(cause(&Ok(None)), Some(Cause::NotRegistered));
        assert_eq!(cause(&Ok(Some(true))), Some(Cause::NotAttached));
        assert_eq!(cause(&Err("no right".into())), Some(Cause::NotAttached));
    }

    #[test]
    fn containers_that_do_not_begin_are_a_cause_after_a_while() {
        let node: NodeName = "n1".parse().unwrap();
        let pod: Namespaced = "shop/web".parse().unwrap();
        let creating = PodFacts { is_creating: true, ..PodFacts::default() };
        let scheduled = PodFacts { scheduled_at: Some(10_000), ..creating.clone() };
        let verdict = |facts: &PodFacts, now| mounting(&pod, &node, facts, now);
        assert_eq!(verdict(&scheduled, 30_000), None);
        let hangs = verdict(&scheduled, 40_000).unwrap();
        assert_eq!((hangs.cause, hangs.node.as_ref()), (Cause::NotMounted, Some(&node)));
        assert_eq!(
            hangs.text,
            "the volumes of pod shop/web are not mounted at node n1 30s after the pod was \
             scheduled, and its kubelet has not said why"
        );
        assert!(hangs.next.contains("`csi-edge calls`"), "{hangs:?}");
        let untimed = verdict(&creating, 0).unwrap();
        assert!(untimed.text.contains("at node n1, and its kubelet"), "{untimed:?}");
        assert_eq!(verdict(&PodFacts { is_creating: false, ..scheduled.clone() }, 40_000), None);
        assert_eq!(verdict(&PodFacts { is_ending: true, ..scheduled }, 40_000), None);
    }

    #[test]
    fn only_an_attachment_that_is_waited_for_is_a_cause() {
        let node: NodeName = "n1".parse().unwrap();
        let facts = |is_attached| {
            let error = Some("node n1 has no link".to_owned());
            Ok(Some(AttachmentFacts { is_attached, error, ending: None }))
        };
        let running = PodFacts::default();
        let ending = PodFacts { is_ending: true, ..PodFacts::default() };
        let verdict = unattached(&facts(false), "v1", &node, &running).unwrap();
        assert!(verdict.text.ends_with("node n1 has no link"), "{verdict:?}");
        assert_eq!(verdict.node, Some(node.clone()));
        assert_eq!(unattached(&facts(true), "v1", &node, &running), None);
        assert_eq!(unattached(&facts(false), "v1", &node, &ending), None);
        assert_eq!(unattached(&Ok(None), "v1", &node, &running), None);
        assert_eq!(unattached(&Err("no right".into()), "v1", &node, &running), None);
    }

    #[test]
    fn a_direct_volume_is_another_nodes_until_it_lets_it_go() {
        let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        let driver: DriverName = "d.example".parse().unwrap();
        let other = |holder, claims: &[NodeName]| {
            let verdict = owned(holder, claims, &driver, "v1", &n1)?;
            assert_eq!(check_commands(&verdict), 1);
            assert!(verdict.next.contains("release d.example v1 --node n2`"), "{verdict:?}");
            verdict.node
        };
        assert_eq!(other(None, &[]), None);
        assert_eq!(other(Some(&n1), std::slice::from_ref(&n2)), None);
        assert_eq!(other(Some(&n2), &[]), Some(n2.clone()));
        assert_eq!(other(None, std::slice::from_ref(&n2)), Some(n2.clone()));
    }

    #[test]
    fn a_pod_without_a_node_is_told_which_nodes_have_no_room() {
        let pod: Namespaced = "shop/web".parse().unwrap();
        let facts = PodFacts { unschedulable: Some("0/3".into()), ..PodFacts::default() };
        let nodes = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
        let drivers = ["d.example", "e.example"].map(|name| name.parse().unwrap()).into();
        let verdict = |nodes| unscheduled(&pod, &facts, &drivers, &nodes).unwrap();
        let named = verdict(nodes(&["n3"]));
        assert!(named.next.contains("now: n3 (1 in all)"), "{named:?}");
        assert_eq!(check_commands(&named), 2);
        assert!(!verdict(nodes(&[])).next.contains("in all"));
        assert_eq!(unscheduled(&pod, &PodFacts::default(), &drivers, &nodes(&["n3"])), None);
    }

    #[test]
    fn a_volume_that_was_not_taken_names_node_and_pod() {
        let node: NodeName = "n1".parse().unwrap();
        let pod: Namespaced = "shop/web".parse().unwrap();
        assert_eq!(not_taken(&pod, &node, &[]), None);
        let two = ["v1 of d".to_owned(), "v2 of d".to_owned()];
        let said = not_taken(&pod, &node, &two).unwrap().sentence();
        assert!(said.contains("v1 of d and 1 more") && said.contains("node n1"), "{said}");
    }

    #[test]
    fn a_csinode_that_cannot_be_seen_is_no_cause() {
        let node: NodeName = "n1".parse().unwrap();
        let driver: DriverName = "d.example".parse().unwrap();
        let cause = |seen: Seen<bool>| unregistered(&seen, &driver, &node).map(|of| of.cause);
        assert_eq!(cause(Ok(Some(true))), None);
        assert_eq!(cause(Err("no right".into())), None);
        assert_eq!(cause(Ok(Some(false))), Some(Cause::NotRegistered));
        assert_eq!(cause(Ok(None)), Some(Cause::NotRegistered));
    }
}
