//! What an operator does about a node that lied.

use cloud::state::txn::Txn;
use proto::names::{DriverName, NodeName};

/// Forgets what a removed node said: its homes, and the leases that it holds or claims. An operator
/// does it with `csi-cloud node purge` and `volume release`.
pub(super) fn forget(txn: &mut Txn<'_>, driver: &DriverName, node: &NodeName) {
    let Some(of) = txn.state().driver(driver) else { return };
    let leases = of.leases().clone();
    let homes: Vec<_> = of.homes_of(node).map(|(id, _)| id.clone()).collect();
    for id in homes {
        txn.set_home(driver, &id, None);
    }
    for (id, mut record) in leases {
        record.holder.take_if(|holder| holder.node == *node);
        record.claims.retain(|claim| claim.node != *node);
        txn.set_lease(driver, &id, Some(record));
    }
}
