//! Claims and PersistentVolumes.

use proto::csi::{Id, Method, Resource};
use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::commands::word;
use super::explainer::Explainer;
use super::finalizers::{kept, kept_by};
use super::node::Need;
use super::subject::Namespaced;
use crate::kubernetes::object_facts::{AttachmentFacts, ClaimFacts, ClassFacts};
use crate::kubernetes::objects::{Objects, Seen};
use crate::state::default_name::{prime_claim_for, volume_for};

/// The way to the sidecars' pods.
const SIDECARS: &str = "`kubectl -n edge-csi get pods`, and the log of the driver's \
                        external-provisioner";

/// An object that has warnings, and what of it is over.
pub(super) struct Warned {
    kind: &'static str,
    /// Its name in a sentence.
    word: &'static str,
    /// The reason of warnings that do not count any more.
    over: Option<&'static str>,
}

/// A claim that waits for its volume.
const PENDING: Warned = Warned { kind: "PersistentVolumeClaim", word: "claim", over: None };
/// A claim that has its volume: that a create failed before is over.
const BOUND: Warned = Warned { over: Some("ProvisioningFailed"), ..PENDING };
/// A pod.
pub(super) const POD: Warned = Warned { kind: "Pod", word: "pod", over: None };

/// A claim's volume.
pub(super) struct ClaimVolume {
    /// Its driver.
    pub(super) driver: DriverName,
    /// Its id.
    pub(super) id: String,
    /// The node that has it.
    pub(super) node: Option<NodeName>,
}

impl Explainer<'_> {
    /// A claim by itself.
    pub(super) async fn claim(&self, claim: &Namespaced) -> Explanation {
        let mut chain = Chain::default();
        self.follow_claim(&mut chain, claim).await;
        chain.end(|| Verdict::fine(format!("nothing is wrong with claim {claim}")))
    }

    /// A PersistentVolume by itself.
    pub(super) async fn persistent_volume(&self, name: &str) -> Explanation {
        let mut chain = Chain::default();
        self.follow_persistent_volume(&mut chain, name).await;
        chain.end(|| Verdict::fine(format!("nothing is wrong with PersistentVolume {name}")))
    }

    /// Follows the chain from a claim to its node. Returns its volume, if it has one of ours.
    pub(super) async fn follow_claim(
        &self,
        chain: &mut Chain,
        claim: &Namespaced,
    ) -> Option<ClaimVolume> {
        let Some(objects) = self.objects else {
            return self.follow_known_claim(chain, claim).await;
        };
        let object = format!("claim {claim}");
        let facts = match objects.claim(&claim.namespace, &claim.name).await {
            Ok(Some(facts)) => facts,
            Ok(None) => {
                chain.judge(Some(missing(&object)));
                return None;
            }
            Err(why) => {
                chain.not_visible(object, &why);
                return self.follow_known_claim(chain, claim).await;
            }
        };
        chain.step(&object, &facts.phase, bound_to(&facts));
        if let Some(volume) = &facts.volume {
            let volume = self.follow_persistent_volume(chain, volume).await;
            let home = volume.as_ref().and_then(|volume| volume.node.as_ref());
            self.follow_warning(chain, objects, BOUND, claim, home).await;
            chain.judge_weakly(kept(&object, facts.ending.as_ref()));
            return volume;
        }
        let class = self.class(chain, objects, &facts).await;
        let node = self.follow_create(chain, claim, &facts, &class).await;
        self.follow_warning(chain, objects, PENDING, claim, node.as_ref()).await;
        chain.judge_weakly(kept(&object, facts.ending.as_ref()));
        chain.judge_weakly(idle(claim, &facts, &class));
        None
    }

    /// A claim of which only csi-cloud's own records are seen.
    async fn follow_known_claim(
        &self,
        chain: &mut Chain,
        claim: &Namespaced,
    ) -> Option<ClaimVolume> {
        if let Some((driver, id)) = self.volume_of(claim).await {
            let node = self.follow_volume(chain, &driver, &id);
            return Some(ClaimVolume { driver, id, node });
        }
        if let Some((driver, node, name)) = self.create_of(claim).await {
            chain.step(format!("create of {name}"), "sent", format!("to node {node}"));
            self.follow_node(chain, &node, Some(&driver), Need::Use);
            let failed = self.follow_calls(chain, &driver, &[&name]);
            chain.judge(failed);
            return None;
        }
        chain.judge(Some(Verdict::of(
            Cause::NotVisible,
            format!("csi-cloud has no record of claim {claim}, and does not see Kubernetes"),
            format!(
                "`kubectl -n {} describe pvc {}` shows what its provisioner said",
                claim.namespace, claim.name
            ),
        )));
        None
    }

    /// Follows the chain from a PersistentVolume to its node. Returns its volume, if it is ours.
    pub(super) async fn follow_persistent_volume(
        &self,
        chain: &mut Chain,
        name: &str,
    ) -> Option<ClaimVolume> {
        let object = format!("PersistentVolume {name}");
        let mut ending = None;
        let seen = match self.objects {
            Some(objects) => objects.persistent_volume(name).await,
            None => Err("this csi-cloud knows no Kubernetes".into()),
        };
        let mut is_released = false;
        let (driver, id) = match seen {
            Ok(Some(facts)) => {
                is_released = facts.phase == "Released";
                let claim = facts.claim.map(|(space, name)| format!("of claim {space}/{name}"));
                let state = if facts.ending.is_some() { "Terminating" } else { &facts.phase };
                let kept = facts.ending.as_deref().map(kept_by);
                let found: Vec<_> = claim.into_iter().chain(kept).collect();
                chain.step(&object, state, found.join(", "));
                ending = facts.ending;
                let (driver, id) = facts.volume?;
                (driver.parse::<DriverName>().ok()?, id)
            }
            Ok(None) => {
                chain.judge(Some(missing(&object)));
                return None;
            }
            Err(why) => {
                chain.not_visible(&object, &why);
                let known = self.volume_named(name).await;
                if known.is_none() {
                    chain.judge(Some(Verdict::of(
                        Cause::NotVisible,
                        format!("csi-cloud has no record of {object}, and does not see it"),
                        format!("`kubectl describe pv {}` shows it", word(name)),
                    )));
                }
                known?
            }
        };
        if !self.has_front(chain, &driver) {
            return None;
        }
        let node = self.follow_volume(chain, &driver, &id);
        let volume = ClaimVolume { driver, id, node };
        if is_released && let (Some(objects), Some(node)) = (self.objects, &volume.node) {
            let attachment = follow_attachment(chain, objects, &volume, node).await;
            chain.judge(not_unstaged(name, node, &attachment));
        }
        chain.judge_weakly(kept(&object, ending.as_ref()));
        Some(volume)
    }

    /// The class of a claim.
    async fn class(
        &self,
        chain: &mut Chain,
        objects: &Objects,
        facts: &ClaimFacts,
    ) -> Seen<ClassFacts> {
        let Some(name) = &facts.class else { return Ok(None) };
        let class = objects.class(name).await;
        let object = format!("StorageClass {name}");
        match &class {
            Ok(Some(class)) => chain.step(object, "there", format!("driver {}", class.provisioner)),
            Ok(None) => chain.step(object, "missing", ""),
            Err(why) => chain.not_visible(object, why),
        }
        class
    }

    /// The create for a claim that has no volume yet. Returns its node.
    async fn follow_create(
        &self,
        chain: &mut Chain,
        claim: &Namespaced,
        facts: &ClaimFacts,
        class: &Seen<ClassFacts>,
    ) -> Option<NodeName> {
        chain.judge(without_class(claim, facts, class));
        let of_class = class.as_ref().ok().and_then(Option::as_ref).map(|class| &class.provisioner);
        let driver = facts.provisioner.as_ref().or(of_class)?.parse::<DriverName>().ok()?;
        if !self.has_front(chain, &driver) {
            return None;
        }
        let name = volume_for(&facts.uid);
        let sent = self.store.read(|state| {
            let id = Id::Name(Method::creating(Resource::Volume), name.clone());
            Some(state.driver(&driver)?.intent(&id)?.node.clone())
        });
        // A provisioner may have been told to name volumes otherwise.
        let (name, sent) = match sent {
            Some(node) => (name, Some(node)),
            None => match self.create_of(claim).await.filter(|(of, ..)| *of == driver) {
                Some((_, node, other)) => (other, Some(node)),
                None => (name, None),
            },
        };
        let selected = facts.selected_node.as_ref().and_then(|node| node.parse().ok());
        match (&sent, &selected) {
            (Some(node), _) => {
                chain.step(format!("create of {name}"), "sent", format!("to node {node}"));
                self.follow_node(chain, node, Some(&driver), Need::Use);
            }
            (None, Some(node)) => {
                chain.step("scheduler", "chose", format!("node {node}"));
                self.follow_node(chain, node, Some(&driver), Need::NewVolumes);
            }
            (None, None) => {}
        }
        let failed = self.follow_calls(chain, &driver, &[&name]);
        chain.judge(failed);
        sent.or(selected)
    }

    /// The newest warning of Kubernetes about an object. It is the cause if there is no other.
    /// `node` is the object's, if it has one.
    pub(super) async fn follow_warning(
        &self,
        chain: &mut Chain,
        objects: &Objects,
        of: Warned,
        object: &Namespaced,
        node: Option<&NodeName>,
    ) {
        if chain.is_judged() {
            return;
        }
        let kind = of.kind;
        match objects.warning(kind, &object.namespace, &object.name).await {
            Ok(Some(warning)) => {
                chain.step(format!("Event of {kind} {object}"), "Warning", &warning);
                chain.judge(failed(&of, object, node, &warning));
            }
            Ok(None) => {}
            Err(why) => chain.not_visible(format!("Events of {kind} {object}"), &why),
        }
    }
}

fn bound_to(facts: &ClaimFacts) -> String {
    let ending = facts.ending.as_deref().map(kept_by);
    let class = facts.class.as_ref().map(|class| format!("class {class}"));
    let selected = facts.selected_node.as_ref().map(|node| format!("selected node {node}"));
    let found = ending.into_iter().chain(class).chain(selected);
    found.collect::<Vec<_>>().join(", ")
}

/// There is no such object.
pub(super) fn missing(object: &str) -> Verdict {
    Verdict::of(
        Cause::NotFound,
        format!("there is no {object}"),
        "look at the name and the namespace",
    )
}

fn without_class(
    claim: &Namespaced,
    facts: &ClaimFacts,
    class: &Seen<ClassFacts>,
) -> Option<Verdict> {
    match (&facts.class, class) {
        (None, _) if facts.provisioner.is_none() => Some(Verdict::of(
            Cause::NoClass,
            format!("claim {claim} has no StorageClass, and no default one was there"),
            "make the claim again with storageClassName",
        )),
        (Some(name), Ok(None)) => Some(Verdict::of(
            Cause::NoClass,
            format!("claim {claim} names StorageClass {name}, which is not there"),
            "make that class, or make the claim again with another one",
        )),
        _ => None,
    }
}

/// Nothing is seen to be wrong, and there is no volume.
fn idle(claim: &Namespaced, facts: &ClaimFacts, class: &Seen<ClassFacts>) -> Verdict {
    if let Some(populator) = &facts.populator {
        return Verdict::of(
            Cause::NoCall,
            format!("claim {claim} waits for {populator}, whose populator makes the volume"),
            format!(
                "look at that object, at the claim {} which its populator makes, and at the \
                 controller that fills claims from its kind",
                prime_claim_for(&facts.uid)
            ),
        );
    }
    let waits_for_pod = matches!(class, Ok(Some(class)) if class.waits_for_pod);
    if waits_for_pod && facts.selected_node.is_none() {
        return Verdict::of(
            Cause::NoPod,
            format!("claim {claim} waits for a pod: none uses it, or the scheduler finds no node"),
            "make a pod that uses it; csi-cloud explain pod says why one waits",
        );
    }
    Verdict::of(
        Cause::NoCall,
        format!("no CreateVolume for claim {claim} is known to csi-cloud"),
        format!("look whether its provisioner runs: {SIDECARS}"),
    )
}

/// The VolumeAttachment of a volume at a node.
pub(super) async fn follow_attachment(
    chain: &mut Chain,
    objects: &Objects,
    volume: &ClaimVolume,
    node: &NodeName,
) -> Seen<AttachmentFacts> {
    let ClaimVolume { driver, id, .. } = volume;
    let attachment = objects.attachment(driver, id, node.as_str()).await;
    let object = format!("VolumeAttachment of {id} at node {node}");
    match &attachment {
        Ok(Some(facts)) => {
            let state = if facts.is_attached { "attached" } else { "not attached" };
            let kept = facts.ending.as_deref().map(kept_by);
            let found: Vec<_> = kept.into_iter().chain(facts.error.clone()).collect();
            chain.step(&object, state, found.join(": "));
        }
        // Many drivers need none.
        Ok(None) => {}
        Err(why) => chain.not_visible(&object, why),
    }
    attachment
}

/// Whether a released volume stays at its node. Kubernetes detaches it once it is unstaged there. A
/// kubelet makes no Event of a NodeUnstageVolume that fails.
fn not_unstaged(
    volume: &str,
    node: &NodeName,
    attachment: &Seen<AttachmentFacts>,
) -> Option<Verdict> {
    let facts = attachment.as_ref().ok()?.as_ref()?;
    if !facts.is_attached || facts.ending.is_some() {
        return None;
    }
    let verdict = Verdict::of(
        Cause::NotUnstaged,
        format!(
            "PersistentVolume {volume} is released, but node {node} has not unstaged it, so it is \
             neither detached nor deleted"
        ),
        "`csi-edge calls --ended` at the node has the driver's answer to NodeUnstageVolume; for \
         \"is still published\" after a power cut see docs/how-to/kubeedge.md",
    );
    Some(verdict.at(node))
}

/// What a warning of Kubernetes says of an object, which is at this node.
fn failed(
    of: &Warned,
    object: &Namespaced,
    node: Option<&NodeName>,
    warning: &str,
) -> Option<Verdict> {
    let cause = match warning.split(':').next() {
        reason if reason == of.over => return None,
        Some("ProvisioningFailed" | "VolumeResizeFailed" | "VolumeModifyFailed") => {
            Cause::CallFailed
        }
        Some("FailedScheduling") => Cause::Unschedulable,
        Some("FailedAttachVolume") => Cause::NotAttached,
        Some("FailedMount" | "FailedMapVolume" | "FileSystemResizeFailed") => Cause::NotMounted,
        _ => return None,
    };
    let what = of.word;
    let next = "mend that; it is tried again by itself";
    let verdict = match node {
        Some(node) => {
            let text = format!("{what} {object}, node {node}: {warning}");
            Verdict::of(cause, text, next).at(node)
        }
        None => Verdict::of(cause, format!("{what} {object}: {warning}"), next),
    };
    Some(verdict)
}

#[cfg(test)]
mod tests {
    use super::super::commands::check_commands;
    use super::*;

    fn claim() -> Namespaced {
        "shop/data".parse().unwrap()
    }

    fn pending(class: Option<&str>, selected: Option<&str>) -> ClaimFacts {
        ClaimFacts {
            phase: "Pending".into(),
            class: class.map(str::to_owned),
            selected_node: selected.map(str::to_owned),
            ..ClaimFacts::default()
        }
    }

    fn class(waits_for_pod: bool) -> Seen<ClassFacts> {
        let provisioner = "d.example".into();
        Ok(Some(ClassFacts { provisioner, waits_for_pod, expands: false, has_secrets: false }))
    }

    #[test]
    fn a_claim_without_a_class_is_told_so() {
        let cause = |facts: &ClaimFacts, class: &Seen<ClassFacts>| {
            without_class(&claim(), facts, class).map(|verdict| verdict.cause)
        };
        assert_eq!(cause(&pending(None, None), &Ok(None)), Some(Cause::NoClass));
        assert_eq!(cause(&pending(Some("c"), None), &Ok(None)), Some(Cause::NoClass));
        assert_eq!(cause(&pending(Some("c"), None), &class(true)), None);
        assert_eq!(cause(&pending(Some("c"), None), &Err("forbidden".into())), None);
    }

    #[test]
    fn an_idle_claim_waits_for_a_pod_or_for_its_sidecar() {
        let cause = |facts: &ClaimFacts, waits| {
            let verdict = idle(&claim(), facts, &class(waits));
            check_commands(&verdict);
            verdict.cause
        };
        assert_eq!(cause(&pending(Some("c"), None), true), Cause::NoPod);
        assert_eq!(cause(&pending(Some("c"), Some("n1")), true), Cause::NoCall);
        assert_eq!(cause(&pending(Some("c"), None), false), Cause::NoCall);
        let populator = Some("VirtualDisk web".to_owned());
        let filled = idle(&claim(), &ClaimFacts { populator, ..pending(None, None) }, &class(true));
        assert!(filled.text.contains("VirtualDisk web"), "{}", filled.text);
        assert!(filled.next.contains("the claim prime-"), "{}", filled.next);
    }

    #[test]
    fn a_released_volume_that_stays_attached_is_not_unstaged() {
        let node: NodeName = "n1".parse().unwrap();
        let verdict = |is_attached, is_ending: bool| {
            let ending = is_ending.then(Vec::new);
            let facts = AttachmentFacts { is_attached, error: None, ending };
            not_unstaged("pv-1", &node, &Ok(Some(facts)))
        };
        let stays = verdict(true, false).unwrap();
        assert_eq!((stays.cause, stays.node.as_ref()), (Cause::NotUnstaged, Some(&node)));
        assert!(stays.next.contains("`csi-edge calls --ended`"), "{stays:?}");
        assert_eq!(verdict(true, true), None, "it is being detached");
        assert_eq!(verdict(false, false), None);
        assert_eq!(not_unstaged("pv-1", &node, &Ok(None)), None);
        assert_eq!(not_unstaged("pv-1", &node, &Err("forbidden".into())), None);
    }

    #[test]
    fn a_warning_about_storage_is_a_cause_and_others_are_not() {
        let cause = |of, warning: &str| failed(of, &claim(), None, warning).map(|of| of.cause);
        let create = "ProvisioningFailed: rpc error";
        assert_eq!(cause(&BOUND, create), None, "it was tried again, and was made");
        assert_eq!(cause(&PENDING, create), Some(Cause::CallFailed));
        assert_eq!(cause(&POD, "FailedMount: no"), Some(Cause::NotMounted));
        assert_eq!(cause(&POD, "BackOff: restarting"), None);
    }

    #[test]
    fn a_warning_names_the_node_where_it_is_known() {
        let node: NodeName = "n1".parse().unwrap();
        let at = failed(&POD, &claim(), Some(&node), "FailedMount: wrong fs type").unwrap();
        assert_eq!(at.text, "pod shop/data, node n1: FailedMount: wrong fs type");
        assert_eq!(at.node, Some(node));
        let nowhere = failed(&POD, &claim(), None, "FailedMount: wrong fs type").unwrap();
        assert_eq!(nowhere.text, "pod shop/data: FailedMount: wrong fs type");
        assert_eq!(nowhere.node, None);
    }
}
