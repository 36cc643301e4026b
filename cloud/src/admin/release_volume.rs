//! `csi-cloud volume release`: takes a direct volume from a node that does not release it.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::leases::{Hold, LeaseHolder, hold};
use crate::lease::decide::{LeaseVerdict, Step};
use crate::lease::holder_link::HolderLink;
use crate::lease::step;
use crate::state::record::LeaseRecord;

/// Take a direct volume from a node that does not release it, so another node can have it.
///
/// Only you can know that no guest at that node still writes to the volume. First power the
/// machine off, or end the guest and cut the machine from the storage. If two guests write, the
/// volume's data is destroyed. The node is told only when it links again. Keep it off the
/// storage until `csi-edge direct list` there says that the volume is fenced, or does not have
/// it. A node that was removed (`node remove`), or whose csi-edge does not say what it has, is
/// not told at all: unpublish the volume there first.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseVolume {
    /// Its driver
    pub driver: DriverName,
    /// Its id
    pub id: String,
    /// The node that has it, as `csi-cloud leases` says
    #[arg(long, value_name = "NODE")]
    pub node: NodeName,
    /// Do it, and not only say what it would do
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

impl Command<AdminState> for ReleaseVolume {
    const NAME: &'static str = "volume release";
    const PATH: &'static str = "/volume/release";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        if !self.yes {
            return admin.preview_release(&self);
        }
        let Self { driver, id, node, .. } = self;
        let key = Id::Volume(id.clone());
        let links = admin.links.clone();
        let of = driver.clone();
        let from = node.clone();
        let written = admin.store.write(move |txn| {
            // Ordered with the store's changes: a node that links later learns of this one, and a
            // node that linked before is seen here.
            let removed = txn.node(&from).is_some_and(|node| node.removed.is_some());
            let standing = HolderLink::of(&from, removed, &links);
            let hold = check_release(txn.lease(&of, &key), &from, &standing)?;
            match step::step(txn, &of, &key, &from, Step::Break) {
                LeaseVerdict::Done => Ok((hold, standing)),
                LeaseVerdict::Held(_)
                | LeaseVerdict::HeldByWord(_)
                | LeaseVerdict::Contested(_)
                | LeaseVerdict::HeldElsewhere(_)
                | LeaseVerdict::Fenced(_) => Err(Refusal::failed("it has become another's")),
            }
        });
        let (hold, standing) = written.await??;
        let before = description(&hold);
        let after = remaining_duty(&hold, &node, &standing);
        Ok(Done::logged(format!(
            "{id} of {driver} is taken from {node}{before}; any node can have it{after}"
        )))
    }
}

impl AdminState {
    /// Says what the release would do.
    fn preview_release(&self, request: &ReleaseVolume) -> Result<Done, Refusal> {
        let ReleaseVolume { driver, id, node, .. } = request;
        let removed = self.store.read(|state| state.is_removed(node));
        let standing = HolderLink::of(node, removed, &self.links);
        let key = Id::Volume(id.clone());
        let hold = self.store.read(|state| {
            let lease = state.driver(driver).and_then(|driver| driver.lease(&key));
            check_release(lease, node, &standing)
        })?;
        let text = format!(
            "{id} of {driver} would be taken from {node}{}, and any node could have it. {} \
             Give --yes to do it",
            description(&hold),
            precondition(&hold, node, &standing)
        );
        Ok(Done { done: false, text })
    }
}

/// The node's relation to the volume, if the operator may take it.
fn check_release(
    lease: Option<&LeaseRecord>,
    node: &NodeName,
    standing: &HolderLink,
) -> Result<Hold, Refusal> {
    let nobody =
        || Refusal::unknown("nobody has it that is known; `csi-cloud leases` shows what is had");
    let lease = lease.ok_or_else(nobody)?;
    let Some(hold) = hold(lease, node) else {
        let other = LeaseHolder::from(lease).holder_node.ok_or_else(nobody)?;
        return Err(Refusal::conflict(format!("{other} has it, and not {node}")));
    };
    // No guest has a volume that is only attached. A claim is a word that an operator may refute.
    if *standing == HolderLink::Linked && matches!(hold, Hold::Pod(_)) {
        return Err(Refusal::conflict(format!(
            "{node} is linked: delete the pod there, and it lets go when the volume is \
             unpublished. If `csi-edge direct list` there does not have the volume, it does not \
             know that it has it, since its state directory was lost or this csi-cloud's store is \
             an older copy: stop csi-edge there, give this again, and start it"
        )));
    }
    Ok(hold)
}

fn description(hold: &Hold) -> String {
    match hold {
        Hold::Attached => ", where it is attached and not published".into(),
        Hold::Claimed => ", which says that it has it and does not prove it".into(),
        Hold::Pod(pod) if pod.is_empty() => ", where a pod has it".into(),
        Hold::Pod(pod) => format!(", where pod {pod} has it"),
    }
}

/// The operator's duty before the release, and if the node is told.
fn precondition(hold: &Hold, node: &NodeName, standing: &HolderLink) -> String {
    if *hold == Hold::Attached {
        return format!(
            "Nothing is detached by this: it only forgets that it is attached to {node}, so see \
             with the driver that it is not."
        );
    }
    let promise = format!(
        "That guest must have ended, and no other may begin at {node}: if one still writes while \
         another does, the volume's data is destroyed."
    );
    let duty = match standing {
        HolderLink::Removed => format!(
            "{node} was removed, so it is NOT told: its csi-edge goes on handing the volume to \
             pods there. Power the machine off for good, or unpublish the volume there and see \
             that no pod gets it again; before `csi-cloud node admit`, too."
        ),
        HolderLink::Away | HolderLink::Linked => {
            "Power the machine off, or end the guest and cut the machine \
             from the storage. It must stay off the storage until it has linked again, and \
             `csi-edge direct list` there says that the volume is fenced, or does not have it."
                .into()
        }
    };
    format!("{promise} {duty}")
}

/// The operator's duty after the release.
fn remaining_duty(hold: &Hold, node: &NodeName, standing: &HolderLink) -> String {
    match (hold, standing) {
        (Hold::Attached, _) => String::new(),
        (Hold::Pod(_) | Hold::Claimed, HolderLink::Removed) => {
            format!("; {node} is not told, so see to it that no pod there has it again")
        }
        (Hold::Pod(_) | Hold::Claimed, HolderLink::Away | HolderLink::Linked) => format!(
            "; keep {node} off its storage until it has linked, and `csi-edge direct list` there \
             says that it is fenced, or does not have it"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::record::{Attached, Holder};

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn attached(lease: LeaseRecord, at: &str) -> LeaseRecord {
        let attached = Attached { node: node(at), id: "i".into(), since: 1 };
        LeaseRecord { attached: Some(attached), ..lease }
    }

    #[test]
    fn only_who_cannot_let_go_by_itself_is_taken_from_and_what_is_promised_is_said() {
        let owner =
            Holder { node: node("n1"), epoch: 1, pod: "p".into(), since: 1, unproven: false };
        let held = LeaseRecord { holder: Some(owner), ..LeaseRecord::default() };
        let refused = check_release(Some(&held), &node("n1"), &HolderLink::Linked).unwrap_err();
        assert!(refused.text.contains("n1 is linked") && refused.text.contains("stop csi-edge"));
        for (standing, told) in [
            (HolderLink::Away, "direct list` there says that the volume is fenced"),
            (HolderLink::Removed, "n1 was removed, so it is NOT told"),
        ] {
            let hold = check_release(Some(&held), &node("n1"), &standing).unwrap();
            let text = precondition(&hold, &node("n1"), &standing);
            assert!(text.contains(told) && text.contains("data is destroyed"), "{text}");
            let refused = check_release(Some(&held), &node("n2"), &standing).unwrap_err();
            assert_eq!(refused.status, 409, "{}", refused.text);
        }
        // What is only attached can be taken from a linked node, and from another than its owner.
        for lease in [attached(LeaseRecord::default(), "n2"), attached(held, "n2")] {
            let hold = check_release(Some(&lease), &node("n2"), &HolderLink::Linked).unwrap();
            let text = precondition(&hold, &node("n2"), &HolderLink::Linked);
            assert!(text.contains("Nothing is detached"), "{text}");
        }
    }
}
