//! Tests of `csi-cloud node purge`.

use std::sync::Arc;

use proto::admin::command::Command;
use proto::csi::Id;
use proto::host::tasks::Tasks;
use proto::names::DriverName;

use super::{driver, filled, node, remove, state, states, volume};
use crate::admin::node_purge::PurgeNode;
use crate::lease::answer;
use crate::nodes::links::Links;
use crate::state::policy::{Policy, Scope};
use crate::state::record::{Holder, Home, LeaseClaim, LeaseRecord, NodeDriver};
use crate::state::usage::Usage;

fn purge(forget: Option<usize>) -> PurgeNode {
    PurgeNode { node: node("n1"), forget }
}

#[tokio::test]
async fn only_a_removed_node_is_forgotten_and_only_with_the_number_of_its_volumes() {
    let admin = filled(&Tasks::default(), 3).await;
    assert_eq!(purge(Some(3)).carry_out(&admin).await.unwrap_err().status, 409, "not removed");
    remove(true).carry_out(&admin).await.unwrap();
    let said = purge(None).carry_out(&admin).await.unwrap();
    assert!(!said.done && said.text.contains("--forget 3"), "{}", said.text);
    assert_eq!(purge(Some(2)).carry_out(&admin).await.unwrap_err().status, 409);
    assert_eq!(states(&admin).len(), 4, "something was forgotten");
    assert!(purge(Some(3)).carry_out(&admin).await.unwrap().done);
    assert_eq!(states(&admin), [state("w", "ok")]);
    admin.store.read(|state| {
        let of = state.driver(&driver()).unwrap();
        assert_eq!((of.intents().len(), of.nodes().len()), (0, 1));
        assert_eq!(state.usage(&node("n1")), Usage::default());
        assert!(state.is_removed(&node("n1")), "its certificate may still be valid");
    });
    let again = purge(Some(0)).carry_out(&admin).await.unwrap();
    assert!(again.done && again.text.contains("0 other records"), "{}", again.text);
    let unknown = PurgeNode { node: node("n9"), forget: None };
    assert_eq!(unknown.carry_out(&admin).await.unwrap_err().status, 404);
}

/// A lease of a guest at this node.
fn held(at: &str) -> LeaseRecord {
    let holder = Holder { node: node(at), epoch: 1, pod: "p".into(), since: 1, unproven: false };
    LeaseRecord { holder: Some(holder), ..LeaseRecord::default() }
}

#[tokio::test]
async fn a_purge_leaves_the_leases_that_guard_data_elsewhere() {
    let admin = filled(&Tasks::default(), 2).await;
    let written = admin.store.write(|txn| {
        // Its own volume, another's guest in its volume, its guest in another's volume.
        for (id, at) in [("v0000", "n1"), ("v0001", "n2"), ("w", "n1")] {
            txn.set_lease(&driver(), &volume(id), Some(held(at)));
        }
        let home = txn.home(&driver(), &volume("w")).cloned().unwrap();
        let conflicts = vec![node("n1")];
        txn.set_home(&driver(), &volume("w"), Some(Home { conflicts, ..home }));
        txn.elect(&driver(), node("n1"), 1);
    });
    written.await.unwrap();
    remove(true).carry_out(&admin).await.unwrap();
    let done = purge(Some(2)).carry_out(&admin).await.unwrap();
    assert!(done.text.contains("1 leases of volumes that live elsewhere stay"), "{}", done.text);
    admin.store.read(|state| {
        let of = state.driver(&driver()).unwrap();
        let left: Vec<_> = of.leases().keys().map(Id::text).collect();
        assert_eq!(left, ["v0001", "w"]);
        assert!(of.home(&volume("w")).unwrap().conflicts.is_empty(), "its claim was kept");
        assert_eq!(of.elected(), None);
    });
}

#[tokio::test]
async fn a_purge_forgets_unproven_claims_to_leases() {
    let admin = filled(&Tasks::default(), 0).await;
    let claim = |at: &str| LeaseClaim { node: node(at), epoch: 1, since: 1 };
    let claimed = |of: &[&str]| {
        let claims = of.iter().map(|at| claim(at)).collect();
        LeaseRecord { claims, ..LeaseRecord::default() }
    };
    let records = [
        ("one", claimed(&["n1"])),
        ("two", claimed(&["n1", "n2"])),
        ("held", LeaseRecord { holder: held("n2").holder, ..claimed(&["n1"]) }),
    ];
    let written = admin.store.write(move |txn| {
        for (id, record) in records {
            txn.set_lease(&driver(), &volume(id), Some(record));
        }
    });
    written.await.unwrap();
    remove(true).carry_out(&admin).await.unwrap();
    let done = purge(Some(0)).carry_out(&admin).await.unwrap();
    assert!(done.text.contains("0 leases of volumes that live elsewhere stay"), "{}", done.text);
    admin.store.read(|state| {
        let of = state.driver(&driver()).unwrap();
        let left: Vec<_> =
            of.leases().iter().map(|(id, lease)| (id.text(), lease.nodes())).collect();
        assert_eq!(left, [("held", vec![node("n2")]), ("two", vec![node("n2")])]);
    });
}

#[tokio::test]
async fn a_purge_leaves_what_a_shared_driver_made_at_the_node() {
    let tasks = Tasks::default();
    let mut admin = filled(&tasks, 2).await;
    let policy = Policy { scope: Some(Scope::Shared), ..Policy::new(None) };
    let links = Links::new(admin.store.clone(), tasks.clone(), answer::answer);
    admin.links = Arc::new(links.scoped(&[(driver(), policy)].into()));
    remove(true).carry_out(&admin).await.unwrap();
    assert!(purge(Some(0)).carry_out(&admin).await.unwrap().done);
    admin.store.read(|state| {
        let of = state.driver(&driver()).unwrap();
        assert_eq!((of.homes().len(), of.intents().len(), of.nodes().len()), (4, 2, 1));
    });
}

#[tokio::test]
async fn a_driver_that_only_a_purged_node_had_is_forgotten() {
    let admin = filled(&Tasks::default(), 0).await;
    let written = admin.store.write(|txn| {
        for number in 0..50 {
            let invented = format!("invented-{number}.example").parse().unwrap();
            txn.set_at(&invented, &node("n1"), Some(NodeDriver::default()));
        }
    });
    written.await.unwrap();
    remove(true).carry_out(&admin).await.unwrap();
    assert!(purge(Some(0)).carry_out(&admin).await.unwrap().done);
    assert_eq!(admin.store.read(|state| state.drivers().len()), 1);
}

#[tokio::test]
async fn a_driver_that_no_node_has_any_more_is_not_shown() {
    let admin = filled(&Tasks::default(), 0).await;
    let left: DriverName = "left.example".parse().unwrap();
    let shown = || admin.drivers().iter().any(|of| of.name == left);
    for gone in [None, Some(7)] {
        let at = Some(NodeDriver { gone, ..NodeDriver::default() });
        let named = left.clone();
        admin.store.write(move |txn| txn.set_at(&named, &node("n1"), at)).await.unwrap();
        assert_eq!(shown(), gone.is_none());
    }
}
