//! What an operator does about a node that lies, and about what only its node says that it has.

use cloud::state::clock::now;
use cloud::state::ingest;
use cloud::state::profile;
use cloud::state::record::{Home, Node, Profile};
use cloud::state::txn::Txn;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use super::fleet::Fleet;
use super::shape::driver_name;

/// Removes and purges a node, as `csi-cloud node remove` and `node purge` do. Returns false if no
/// cloud can do it.
pub(super) async fn remove(fleet: &Fleet, node: &str) -> bool {
    let (Some((store, links)), Ok(node)) = (fleet.cloud(), node.parse::<NodeName>()) else {
        return false;
    };
    let Ok(driver) = driver_name() else { return false };
    let at = node.clone();
    let removed = store.write(move |txn| {
        let known = txn.node(&at).cloned().unwrap_or_else(|| Node { since: 1, ..Node::default() });
        txn.set_node(&at, Some(Node { removed: Some(now()), ..known }));
    });
    let is_removed = removed.await.is_ok();
    links.end_removed(&node);
    let purged = store.write(move |txn| purge(txn, &driver, &node));
    purged.await.is_ok() && is_removed
}

/// Makes what a node's driver says the driver's profile, as `csi-cloud driver profile` does.
/// Returns false if no cloud can do it.
pub(super) async fn set_profile(fleet: &Fleet, from: &str) -> bool {
    let (Some((store, _)), Ok(from)) = (fleet.cloud(), from.parse::<NodeName>()) else {
        return false;
    };
    let Ok(driver) = driver_name() else { return false };
    let answers = store.read(|state| {
        let at = state.driver(&driver)?.at(&from)?;
        at.has_spoken().then(|| at.answers.clone())
    });
    let Some(answers) = answers else { return false };
    let of = driver.clone();
    let is_set = store.write(move |txn| {
        txn.set_profile(&of, Some(Profile { answers, since: now(), from: vec![from] }));
    });
    let is_set = is_set.await.is_ok();
    profile::check(&store, &driver);
    is_set
}

/// Says where a volume is that was there before csi-cloud, as `csi-cloud volume adopt` does.
/// Returns false if no cloud can do it yet.
pub(super) async fn adopt(fleet: &Fleet, volume: &str, node: &str) -> bool {
    let (Some((store, _)), Ok(node)) = (fleet.cloud(), node.parse::<NodeName>()) else {
        return false;
    };
    let Ok(driver) = driver_name() else { return false };
    let id = Id::Volume(volume.into());
    let is_there =
        store.read(|state| state.driver(&driver).is_some_and(|of| of.at(&node).is_some()));
    if !is_there {
        return false;
    }
    let home = ingest::adopted(&store, &driver, &id, &node).await;
    if home.as_ref().is_ok_and(|home| *home != node) {
        // Another node's claim was kept: `csi-cloud volume forget --force`.
        let _ = store.write(move |txn| txn.set_home(&driver, &id, None)).await;
    }
    home.is_ok_and(|home| home == node)
}

/// Forgets what a removed node said: its homes, creates, claims and record, and the leases that it
/// holds or claims.
fn purge(txn: &mut Txn<'_>, driver: &DriverName, node: &NodeName) {
    let Some(of) = txn.state().driver(driver) else { return };
    let leases = of.leases().clone();
    let homes: Vec<_> = of.homes().iter().map(|(id, home)| (id.clone(), home.clone())).collect();
    let intents = of.intents().iter().filter(|(_, intent)| intent.node == *node);
    let intents: Vec<_> = intents.map(|(name, _)| name.clone()).collect();
    for name in intents {
        txn.set_intent(driver, &name, None);
    }
    for (id, mut home) in homes {
        if home.node == *node {
            txn.set_home(driver, &id, None);
        } else if home.conflicts.contains(node) {
            home.conflicts.retain(|other| other != node);
            txn.set_home(driver, &id, Some(Home { ..*home }));
        }
    }
    for (id, mut record) in leases {
        record.holder.take_if(|holder| holder.node == *node);
        record.claims.retain(|claim| claim.node != *node);
        txn.set_lease(driver, &id, Some(record));
    }
    txn.set_at(driver, node, None);
}
