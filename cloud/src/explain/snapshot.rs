//! VolumeSnapshots: their class, content and source, and the calls about them.

use proto::csi::Id;
use proto::names::DriverName;

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::claim::missing;
use super::explainer::Explainer;
use super::finalizers::{kept, kept_by};
use super::pod::not_visible;
use super::subject::Namespaced;
use crate::kubernetes::objects::{Objects, Seen};
use crate::kubernetes::snapshot_facts::{ContentFacts, SnapshotFacts};
use crate::state::default_name::snapshot_for;

impl Explainer<'_> {
    /// A VolumeSnapshot by itself.
    pub(super) async fn snapshot(&self, snapshot: &Namespaced) -> Explanation {
        let mut chain = Chain::default();
        let object = format!("snapshot {snapshot}");
        match self.objects {
            None => chain.judge(Some(not_visible(&object, "this csi-cloud knows no Kubernetes"))),
            Some(objects) => match objects.snapshot(&snapshot.namespace, &snapshot.name).await {
                Ok(Some(facts)) => {
                    self.follow_snapshot(&mut chain, objects, snapshot, &facts).await;
                }
                Ok(None) => chain.judge(Some(missing(&object))),
                Err(why) => chain.judge(Some(not_visible(&object, &why))),
            },
        }
        chain.end(|| Verdict::fine(format!("nothing is wrong with snapshot {snapshot}")))
    }

    async fn follow_snapshot(
        &self,
        chain: &mut Chain,
        objects: &Objects,
        snapshot: &Namespaced,
        facts: &SnapshotFacts,
    ) {
        chain.step(format!("snapshot {snapshot}"), state(facts), found(facts));
        let content = match &facts.content {
            Some(name) => content(chain, objects, name).await,
            None => Ok(None),
        };
        let class = match &facts.class {
            Some(name) => class(chain, objects, name).await,
            None => Ok(None),
        };
        let waits = !facts.is_ready || facts.ending.is_some();
        if waits && content == Ok(None) {
            chain.judge(without_class(snapshot, facts, &class));
        }
        if waits && let Some(name) = &facts.claim {
            let claim = Namespaced { namespace: snapshot.namespace.clone(), name: name.clone() };
            self.follow_source(chain, objects, &claim).await;
        }
        let content = content.ok().flatten();
        let of_content = content.as_ref().map(|content| &content.driver);
        let driver = of_content.or_else(|| class.as_ref().ok()?.as_ref());
        if let Some(driver) = driver.and_then(|name| name.parse::<DriverName>().ok())
            && self.has_front(chain, &driver)
        {
            let name = snapshot_for(&facts.uid);
            match content.as_ref().and_then(|content| content.snapshot.clone()) {
                Some(id) => drop(self.follow_home(chain, &driver, &Id::Snapshot(id))),
                None => {
                    let failed = self.follow_calls(chain, &driver, &[&name]);
                    chain.judge(failed);
                }
            }
        }
        if waits {
            let of_content = content.as_ref().and_then(|content| content.error.as_ref());
            let error = facts.error.as_ref().or(of_content);
            chain.judge_weakly(error.map(|why| failed(snapshot, why)));
            if let (Some(content), Some(name)) = (&content, &facts.content) {
                let object = format!("VolumeSnapshotContent {name}");
                chain.judge_weakly(kept(&object, content.ending.as_ref()));
            }
            chain.judge_weakly(kept(&format!("snapshot {snapshot}"), facts.ending.as_ref()));
            chain.judge_weakly(idle(snapshot, facts, content.as_ref()));
        }
    }

    /// Follows the chain from the source's claim to its node. Nothing new of the claim is explained
    /// once its volume is there.
    async fn follow_source(&self, chain: &mut Chain, objects: &Objects, claim: &Namespaced) {
        match objects.claim(&claim.namespace, &claim.name).await {
            // Its snapshot is deleted without it.
            Ok(None) => chain.step(format!("claim {claim}"), "missing", ""),
            _ => drop(self.follow_claim(chain, claim).await),
        }
    }
}

async fn content(chain: &mut Chain, objects: &Objects, name: &str) -> Seen<ContentFacts> {
    let content = objects.snapshot_content(name).await;
    let object = format!("content {name}");
    match &content {
        Ok(Some(facts)) => {
            let state = match facts {
                ContentFacts { ending: Some(_), .. } => "Terminating",
                ContentFacts { is_ready: true, .. } => "ready",
                _ => "not ready",
            };
            let id = facts.snapshot.as_ref().map(|id| format!("snapshot {id}"));
            let of = facts.volume.as_ref().map(|id| format!("of volume {id}"));
            let kept = facts.ending.as_deref().map(kept_by);
            let found: Vec<_> = id.into_iter().chain(of).chain(kept).collect();
            chain.step(object, state, format!("driver {} {}", facts.driver, found.join(" ")));
        }
        Ok(None) => chain.step(object, "missing", ""),
        Err(why) => chain.not_visible(object, why),
    }
    content
}

async fn class(chain: &mut Chain, objects: &Objects, name: &str) -> Seen<String> {
    let class = objects.snapshot_class(name).await;
    let object = format!("VolumeSnapshotClass {name}");
    match &class {
        Ok(Some(driver)) => chain.step(object, "there", format!("driver {driver}")),
        Ok(None) => chain.step(object, "missing", ""),
        Err(why) => chain.not_visible(object, why),
    }
    class
}

fn state(facts: &SnapshotFacts) -> &'static str {
    match facts {
        SnapshotFacts { ending: Some(_), .. } => "Terminating",
        SnapshotFacts { is_ready: true, .. } => "ready",
        _ => "not ready",
    }
}

fn found(facts: &SnapshotFacts) -> String {
    let claim = facts.claim.as_ref().map(|claim| format!("of claim {claim}"));
    let class = facts.class.as_ref().map(|class| format!("class {class}"));
    let kept = facts.ending.as_deref().map(kept_by);
    claim.into_iter().chain(class).chain(kept).collect::<Vec<_>>().join(", ")
}

fn without_class(
    snapshot: &Namespaced,
    facts: &SnapshotFacts,
    class: &Seen<String>,
) -> Option<Verdict> {
    let (Some(name), Ok(None)) = (&facts.class, class) else { return None };
    Some(Verdict::of(
        Cause::NoClass,
        format!("snapshot {snapshot} names VolumeSnapshotClass {name}, which is not there"),
        "make that class, or make the snapshot again with another one",
    ))
}

fn failed(snapshot: &Namespaced, why: &str) -> Verdict {
    Verdict::of(
        Cause::CallFailed,
        format!("snapshot {snapshot}: {why}"),
        "mend that; it is tried again by itself",
    )
}

/// Nothing is seen to be wrong, and it cannot be used.
fn idle(snapshot: &Namespaced, facts: &SnapshotFacts, content: Option<&ContentFacts>) -> Verdict {
    let (what, who) = match content {
        _ if facts.ending.is_some() => ("no DeleteSnapshot", "external-snapshotter"),
        None => ("no content, so no CreateSnapshot,", "snapshot-controller"),
        Some(_) => ("no CreateSnapshot", "external-snapshotter"),
    };
    Verdict::of(
        Cause::NoCall,
        format!("{what} for snapshot {snapshot} is known to csi-cloud"),
        format!("look whether {who} runs, and at its log"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Namespaced {
        "shop/today".parse().unwrap()
    }

    #[test]
    fn a_class_that_is_not_there_is_a_cause_and_one_that_cannot_be_seen_is_none() {
        let named = SnapshotFacts { class: Some("daily".into()), ..SnapshotFacts::default() };
        let cause = |facts: &SnapshotFacts, class: &Seen<String>| {
            without_class(&snapshot(), facts, class).map(|verdict| verdict.cause)
        };
        assert_eq!(cause(&named, &Ok(None)), Some(Cause::NoClass));
        assert_eq!(cause(&named, &Ok(Some("d.example".into()))), None);
        assert_eq!(cause(&named, &Err("no right".into())), None);
        assert_eq!(cause(&SnapshotFacts::default(), &Ok(None)), None);
    }

    #[test]
    fn an_idle_snapshot_names_the_sidecar_that_is_to_act() {
        let waits = SnapshotFacts::default();
        let ends = SnapshotFacts { ending: Some(Vec::new()), ..waits.clone() };
        let content = ContentFacts::default();
        let next = |facts: &SnapshotFacts, content| idle(&snapshot(), facts, content).next;
        assert!(next(&waits, None).contains("snapshot-controller"));
        assert!(next(&waits, Some(&content)).contains("external-snapshotter"));
        assert!(next(&ends, Some(&content)).contains("external-snapshotter"));
        assert_eq!(
            failed(&snapshot(), "no").sentence(),
            "snapshot shop/today: no; mend that; it is tried again by itself"
        );
    }
}
