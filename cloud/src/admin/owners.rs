//! Whose the volumes are that one guest owns, for operators; and the one thing that only an operator can do about them:
//! take one from a node that does not let go.

use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::admin::Insight;
use crate::admin::change::{Refused, done};
use crate::admin::look::{Look, Records, from};
use crate::admin::shown::{AskOwners, Done, Holder, OwnerShown, Page, Place, ReleaseVolume};
use crate::lease::decide::{Step, Verdict};
use crate::lease::standing::Standing;
use crate::lease::step;
use crate::state::known::{OfDriver, State};
use crate::state::record::Ownership;

/// What a node has of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Has {
    /// This pod has it there; empty if it is not known which.
    Pod(Box<str>),
    /// It is attached there, and no pod has it.
    Attached,
}

impl Insight {
    /// Volumes that one guest owns, by driver and id.
    pub(super) fn owners(&self, ask: &AskOwners) -> Page<OwnerShown, Place> {
        let mut page = Page { items: Vec::new(), next: None };
        page.next = self.store.read(|state| {
            let looked = Look { driver: ask.driver.as_ref(), after: ask.after.as_ref() };
            looked.over(
                state,
                |of, after| -> Records<'_, Ownership> { Box::new(of.owners().range(from(after))) },
                |driver, id, own| {
                    if ask.node.as_ref().is_none_or(|node| has(own, node).is_some()) {
                        page.items.push(shown(driver, id, own));
                    }
                },
            )
        });
        for item in &mut page.items {
            item.linked = item.holder.holder_node.as_ref().map(|node| self.links.now(node).is_some());
        }
        page
    }

    /// Takes a volume from a node that does not let go.
    pub(super) async fn release_volume(&self, ask: ReleaseVolume) -> Result<Done, Refused> {
        let ReleaseVolume { driver, id, node, yes } = ask;
        let key = Id::Volume(id.clone());
        if !yes {
            let standing = Standing::of(&node, self.store.read(|state| state.is_removed(&node)), &self.links);
            let has = self.store.read(|state| {
                let own = state.driver(&driver).and_then(|driver| driver.owner(&key));
                may_be_taken(own, &node, &standing)
            })?;
            let text = format!(
                "{id} of {driver} would be taken from {node}{}, and any node could have it. {} Give --yes to do it",
                at(&has),
                meant(&has, &node, &standing)
            );
            return Ok(Done { done: false, text });
        }
        let (links, of, from) = (self.links.clone(), driver.clone(), node.clone());
        let written = self.store.write(move |txn| {
            // In the order of the store's changes: a node that links after this learns of it, and one that linked before is
            // seen here.
            let removed = txn.node(&from).is_some_and(|node| node.removed.is_some());
            let standing = Standing::of(&from, removed, &links);
            let has = may_be_taken(txn.owner(&of, &key), &from, &standing)?;
            match step::step(txn, &of, &key, &from, Step::Break) {
                Verdict::Done => Ok((has, standing)),
                _ => Err(Refused::failed("it has become another's")),
            }
        });
        let (has, standing) = written.await??;
        let after = match (&has, standing) {
            (Has::Attached, _) => String::new(),
            (_, Standing::Removed | Standing::Mute(_)) => {
                format!("; {node} is not told, so see to it that no pod there has it again")
            }
            _ => format!(
                "; keep {node} off its storage until it has linked, and `csi-edge direct list` there says that it is \
                 fenced, or does not have it"
            ),
        };
        Ok(done(format!("{id} of {driver} is taken from {node}{}; any node can have it{after}", at(&has))))
    }
}

/// What a node has of a volume, if anything.
fn has(own: &Ownership, node: &NodeName) -> Option<Has> {
    let owner = own.owner.as_ref().filter(|owner| owner.node == *node);
    let attached = || own.attached.as_ref().filter(|attached| attached.node == *node);
    owner.map(|owner| Has::Pod(owner.pod.clone())).or_else(|| attached().map(|_| Has::Attached))
}

/// What the node that the operator names has, if it does not let go by itself.
fn may_be_taken(own: Option<&Ownership>, node: &NodeName, standing: &Standing) -> Result<Has, Refused> {
    let nobodys = || Refused::unknown("nobody has it that is known; `csi-cloud owners` shows what is had");
    let own = own.ok_or_else(nobodys)?;
    let Some(has) = has(own, node) else {
        let other = Holder::from(own).holder_node.ok_or_else(nobodys)?;
        return Err(Refused::conflict(format!("{other} has it, and not {node}")));
    };
    // What is attached only, no guest has.
    if *standing == Standing::Linked && has != Has::Attached {
        return Err(Refused::conflict(format!(
            "{node} is linked: delete the pod there, and it lets go when the volume is unpublished. If `csi-edge direct \
             list` there does not have the volume, it does not know that it has it, since its state directory was lost or \
             this csi-cloud's store is an older copy: stop csi-edge there, give this again, and start it"
        )));
    }
    Ok(has)
}

fn at(has: &Has) -> String {
    match has {
        Has::Attached => ", where it is attached and not published".into(),
        Has::Pod(pod) if pod.is_empty() => ", where a pod has it".into(),
        Has::Pod(pod) => format!(", where pod {pod} has it"),
    }
}

/// What an operator promises, and who is told.
fn meant(has: &Has, node: &NodeName, standing: &Standing) -> String {
    if *has == Has::Attached {
        return format!(
            "Nothing is detached by this: it only forgets that it is attached to {node}, so see with the driver that it is \
             not."
        );
    }
    let promise = format!(
        "That guest must have ended, and no other may begin at {node}: if one still writes while another does, the \
         volume's data is destroyed."
    );
    let told = match standing {
        Standing::Removed => format!(
            "{node} was removed, so it is NOT told: its csi-edge goes on handing the volume to pods there. Power the machine \
             off for good, or unpublish the volume there and see that no pod gets it again; before `csi-cloud node admit`, \
             too."
        ),
        Standing::Mute(version) => format!(
            "The csi-edge at {node}, {version}, does not say what it has, and is NOT told: look there that the volume is \
             unpublished, and see that no pod gets it again."
        ),
        Standing::Away | Standing::Linked => "Power the machine off, or end the guest and cut the machine from the storage. \
             It must stay off the storage until it has linked again, and `csi-edge direct list` there says that the volume is \
             fenced, or does not have it."
            .into(),
    };
    format!("{promise} {told}")
}

fn shown(driver: &DriverName, id: &Id, own: &Ownership) -> OwnerShown {
    OwnerShown {
        id: id.text().into(),
        driver: driver.clone(),
        holder: Holder::from(own),
        linked: None,
        broken: own.broken.iter().map(|broken| broken.epoch).max(),
        taken_from: own.broken.iter().map(|broken| broken.node.clone()).collect(),
    }
}

/// In words, that removing a node takes nothing from it.
pub(super) fn still_held(state: &State, node: &NodeName) -> String {
    let here = |of: &OfDriver| -> (usize, usize) {
        let had = of.owners().values().filter_map(|own| has(own, node));
        had.fold((0, 0), |(held, attached), has| match has {
            Has::Pod(_) => (held + 1, attached),
            Has::Attached => (held, attached + 1),
        })
    };
    let sum = |(a, b): (usize, usize), (c, d): (usize, usize)| (a + c, b + d);
    let (held, attached) = state.drivers().values().map(|of| here(of)).fold((0, 0), sum);
    let mut text = String::new();
    if held > 0 {
        text = format!(
            ", and {held} volumes that one guest owns stay its own, since a guest may write to them, and it is not told \
             when they are taken from it: `csi-cloud owners --node {node}`, `csi-cloud volume release`"
        );
    }
    if attached > 0 {
        text += &format!(", and {attached} direct volumes stay attached to it until they are detached");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::record::{Attached, Owner};

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn attached(own: Ownership, at: &str) -> Ownership {
        Ownership { attached: Some(Attached { node: node(at), id: "i".into(), since: 1 }), ..own }
    }

    #[test]
    fn only_who_cannot_let_go_by_itself_is_taken_from_and_what_is_promised_is_said() {
        let owner = Owner { node: node("n1"), epoch: 1, pod: "p".into(), since: 1 };
        let held = Ownership { owner: Some(owner), ..Ownership::default() };
        let refused = may_be_taken(Some(&held), &node("n1"), &Standing::Linked).unwrap_err();
        assert!(refused.text.contains("n1 is linked") && refused.text.contains("stop csi-edge"));
        let mute = Standing::Mute("0.1.0".into());
        for (standing, told) in [
            (Standing::Away, "direct list` there says that the volume is fenced"),
            (Standing::Removed, "n1 was removed, so it is NOT told"),
            (mute, "csi-edge at n1, 0.1.0, does not say what it has, and is NOT told"),
        ] {
            let has = may_be_taken(Some(&held), &node("n1"), &standing).unwrap();
            let text = meant(&has, &node("n1"), &standing);
            assert!(text.contains(told) && text.contains("data is destroyed"), "{text}");
            assert!(may_be_taken(Some(&held), &node("n2"), &standing).is_err());
        }
        // What is attached only can be taken from a node that is linked, and from another than its owner.
        for own in [attached(Ownership::default(), "n2"), attached(held, "n2")] {
            let has = may_be_taken(Some(&own), &node("n2"), &Standing::Linked).unwrap();
            assert!(meant(&has, &node("n2"), &Standing::Linked).contains("Nothing is detached"));
        }
    }
}
