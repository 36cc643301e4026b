//! Whose the volumes are that one guest owns, for operators; and the one thing that only an operator can do about them:
//! take one from a node that is away.

use proto::identity::{DriverName, NodeName};
use proto::rpc::Id;

use super::Insight;
use super::change::{Refused, done};
use super::look::{Look, Records, from};
use super::shown::{AskOwners, Done, Holder, OwnerShown, Page, Place, ReleaseVolume};
use crate::make::text;
use crate::own::decide::Step;
use crate::own::{self, decide::Verdict};
use crate::store::{OfDriver, Owner, Ownership, State};

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
                    let at = own.owner.as_ref().map(|owner| &owner.node);
                    if ask.node.as_ref().is_none_or(|node| at == Some(node)) {
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

    /// Takes a volume from a node that is away.
    pub(super) async fn release_volume(&self, ask: ReleaseVolume) -> Result<Done, Refused> {
        let ReleaseVolume { driver, id, node, yes } = ask;
        let key = Id::Volume(id.clone());
        if !yes {
            let owner = self.store.read(|state| {
                let own = state.driver(&driver).and_then(|driver| driver.owner(&key));
                may_be_taken(own, &node, self.is_away(state, &node)).map(|owner| pod(&owner))
            });
            let text = format!(
                "{id} of {driver} would be taken from {node}{}, and any node could have it. That guest must be off, or \
                 cut from the storage: if it still writes while another does, the volume's data is destroyed. When \
                 {node} links again it is told. Give --yes to do it",
                owner?
            );
            return Ok(Done { done: false, text });
        }
        let (links, of, at) = (self.links.clone(), driver.clone(), node.clone());
        let written = self.store.write(move |txn| {
            // In the order of the store's changes: a node that links after this learns of it, and one that linked before is
            // seen here.
            let away = links.now(&at).is_none() || txn.node(&at).is_some_and(|node| node.removed.is_some());
            let owner = may_be_taken(txn.owner(&of, &key), &at, away)?;
            match own::step(txn, &of, &key, &at, Step::Break) {
                Verdict::Done => Ok(pod(&owner)),
                _ => Err(Refused::failed("it has become another's")),
            }
        });
        let pod = written.await??;
        Ok(done(format!("{id} of {driver} is taken from {node}{pod}; any node can have it")))
    }

    fn is_away(&self, state: &State, node: &NodeName) -> bool {
        self.links.now(node).is_none() || state.is_removed(node)
    }
}

/// The owner, if it is the node that the operator names and cannot let go by itself.
fn may_be_taken(own: Option<&Ownership>, node: &NodeName, away: bool) -> Result<Owner, Refused> {
    let owner = own.and_then(|own| own.owner.clone());
    let nobodys = || Refused::unknown("nobody has it that is known; `csi-cloud owners` shows what is had");
    let owner = owner.ok_or_else(nobodys)?;
    if owner.node != *node {
        return Err(Refused::conflict(format!("{} has it, and not {node}", owner.node)));
    }
    // What is attached only, no guest has.
    if !away && owner.held.is_some() {
        return Err(Refused::conflict(format!(
            "{node} is linked: delete the pod there, and it lets go when the volume is unpublished. A node whose csi-edge \
             has lost its state directory does not know that it has it: stop csi-edge there first"
        )));
    }
    Ok(owner)
}

fn pod(owner: &Owner) -> String {
    match owner.held.as_deref() {
        None => ", where it is attached and not published".into(),
        Some("") => ", where a pod has it".into(),
        Some(pod) => format!(", where pod {pod} has it"),
    }
}

fn shown(driver: &DriverName, id: &Id, own: &Ownership) -> OwnerShown {
    let holder = own.owner.as_ref().map(Holder::from).unwrap_or_default();
    OwnerShown { id: text(id).into(), driver: driver.clone(), holder, linked: None, broken: own.broken }
}

/// In words, that removing a node takes nothing from it.
pub(super) fn still_held(state: &State, node: &NodeName) -> String {
    let here = |of: &&OfDriver| {
        of.owners().values().filter(|own| own.owner.as_ref().is_some_and(|owner| owner.node == *node)).count()
    };
    match state.drivers().values().map(here).sum::<usize>() {
        0 => String::new(),
        held => format!(
            ", and {held} volumes that one guest owns stay its own, since a guest may write to them: `csi-cloud owners \
             --node {node}`, `csi-cloud volume release`"
        ),
    }
}
