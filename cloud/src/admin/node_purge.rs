//! `csi-cloud node purge`: forgets what a removed node ever said.
//!
//! The node stays removed, since its certificate may still be valid. The lease of a volume that
//! lives elsewhere, or that any node can reach, stays too. A guest may still write to that volume.
//! Its unproven claims to leases go.
//! All that a shared driver made there stays: its volumes belong to no node.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::leases::{Hold, hold};
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::policy::Scope;
use crate::state::record::{Home, LeaseRecord};
use crate::state::txn::Txn;

/// The most records that one commit forgets, so that other changes need not wait for long.
const AT_ONCE: usize = 1000;

/// Forget all that a removed node ever said. It stays removed; leases of volumes that live
/// elsewhere stay.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PurgeNode {
    /// Its name
    pub node: NodeName,
    /// Purge; the number must equal the count of volumes and snapshots that are forgotten
    #[arg(long, value_name = "NUMBER")]
    #[serde(default)]
    pub forget: Option<usize>,
}

impl Command<AdminState> for PurgeNode {
    const NAME: &'static str = "node purge";
    const PATH: &'static str = "/node/purge";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { node, forget } = self;
        let records = admin.purged(&node)?;
        let is_home = |record: &&Record| matches!(record, Record::Home(..));
        let homes = records.iter().filter(is_home).count();
        let leases = admin.store.read(|state| leases_kept(state, &node));
        if forget.is_none() {
            let text = format!(
                "{node} would be forgotten: {homes} volumes and snapshots whose data is there, and \
                 {} other records; {leases} leases of volumes that live elsewhere stay. A delete \
                 of such a volume is OK from then on, as if its data were gone. Give --forget \
                 {homes} to do it; nothing undoes it",
                records.len() - homes
            );
            return Ok(Done { done: false, text });
        }
        if forget != Some(homes) {
            return Err(Refusal::conflict(format!(
                "{node} has {homes} volumes and snapshots; give --forget {homes} to forget them"
            )));
        }
        let count = records.len();
        for records in records.chunks(AT_ONCE) {
            let records = records.to_vec();
            let at = node.clone();
            let write = move |txn: &mut Txn<'_>| {
                // Admitted meanwhile: what is left is its own again.
                let is_removed = txn.is_removed(&at);
                for record in records.iter().filter(|_| is_removed) {
                    forget_record(txn, &at, record);
                }
                is_removed
            };
            if !admin.store.write(write).await? {
                return Err(Refusal::conflict(format!("{node} was admitted again meanwhile")));
            }
        }
        for front in admin.fronts.values() {
            front.lists().forget(&node);
        }
        Ok(Done::logged(format!(
            "{node} is forgotten: {homes} volumes and snapshots, and {} other records; it stays \
             removed, and {leases} leases of volumes that live elsewhere stay",
            count - homes
        )))
    }
}

/// A record that a purge forgets.
#[derive(Clone)]
enum Record {
    /// The home of something at the node.
    Home(DriverName, Id),
    /// The ended home of something that was at the node.
    EndedHome(DriverName, Id),
    /// A create that was sent to the node.
    Intent(DriverName, Id),
    /// The node's claim to something that has its home elsewhere.
    Claim(DriverName, Id),
    /// The node's unproven claim to the lease of a direct volume.
    LeaseClaim(DriverName, Id),
    /// An election of the node.
    Elected(DriverName),
    /// A driver at the node. These come last: until then the node is shown with its drivers, so a
    /// purge that broke off can be begun again.
    Driver(DriverName),
}

impl AdminState {
    /// The records that a purge forgets, drivers at the end.
    fn purged(&self, node: &NodeName) -> Result<Vec<Record>, Refusal> {
        let removed = self.store.read(|state| Some(state.node(node)?.removed.is_some()));
        match removed {
            None => return Err(Refusal::unknown(format!("{node} never linked"))),
            Some(false) => {
                return Err(Refusal::conflict(format!(
                    "{node} is not removed, and only a removed node is forgotten: `csi-cloud node \
                     remove {node}`"
                )));
            }
            Some(true) => {}
        }
        let drivers: Vec<_> = self.store.read(|state| state.drivers().keys().cloned().collect());
        let mut records = Vec::new();
        let mut at = Vec::new();
        for driver in drivers {
            let scope = self.links.scope(&driver);
            self.store.read(|state| {
                let Some(of) = state.driver(&driver) else { return };
                // Without any node left, the profile still says which scope the driver has.
                let pinned = || of.profile().map(|_| of.info().scope());
                if scope.or_else(pinned) != Some(Scope::Shared) {
                    records.extend(of_volumes(&driver, of, node));
                }
                records.extend(of_leases(&driver, of, node));
                if of.elected() == Some(node) {
                    records.push(Record::Elected(driver.clone()));
                }
                if of.at(node).is_some() {
                    at.push(Record::Driver(driver.clone()));
                }
            });
        }
        records.extend(at);
        Ok(records)
    }
}

/// The homes, creates and claims of a node whose driver has its volumes on single nodes.
fn of_volumes(driver: &DriverName, of: &DriverState, node: &NodeName) -> Vec<Record> {
    let homes = of.homes_of(node).map(|(id, _)| Record::Home(driver.clone(), id.clone()));
    let intents = of.intents().iter().filter(|(_, intent)| intent.node == *node);
    let intents = intents.map(|(name, _)| Record::Intent(driver.clone(), name.clone()));
    let ended = of.ended().all().iter().filter(|(_, home)| home.node == *node);
    let ended = ended.map(|(id, _)| Record::EndedHome(driver.clone(), id.clone()));
    let claimed = of.homes().iter().filter(|(_, home)| home.conflicts.contains(node));
    let claims = claimed.map(|(id, _)| Record::Claim(driver.clone(), id.clone()));
    homes.chain(ended).chain(intents).chain(claims).collect()
}

/// The node's claims to leases, of shared drivers too.
fn of_leases<'a>(
    driver: &'a DriverName,
    of: &'a DriverState,
    node: &'a NodeName,
) -> impl Iterator<Item = Record> + use<'a> {
    let claims = |lease: &LeaseRecord| lease.claims.iter().any(|claim| claim.node == *node);
    let claimed = of.leases().iter().filter(move |(_, lease)| claims(lease));
    claimed.map(|(id, _)| Record::LeaseClaim(driver.clone(), id.clone()))
}

fn forget_record(txn: &mut Txn<'_>, node: &NodeName, record: &Record) {
    match record {
        Record::Home(driver, id) => {
            if txn.home(driver, id).is_some_and(|home| home.node == *node) {
                txn.set_home(driver, id, None);
                end_lease(txn, node, driver, id);
            }
        }
        Record::EndedHome(driver, id) => {
            if txn.ended_home(driver, id).is_some_and(|home| home.node == *node) {
                txn.forget_ended(driver, id);
            }
        }
        Record::Intent(driver, name) => {
            if txn.intent(driver, name).is_some_and(|intent| intent.node == *node) {
                txn.set_intent(driver, name, None);
            }
        }
        Record::Claim(driver, id) => {
            if let Some(home) = txn.home(driver, id).cloned() {
                let conflicts = home.conflicts.iter().filter(|other| *other != node);
                let conflicts = conflicts.cloned().collect();
                txn.set_home(driver, id, Some(Home { conflicts, ..home }));
            }
        }
        Record::LeaseClaim(driver, id) => {
            if let Some(mut lease) = txn.lease(driver, id).cloned() {
                lease.claims.retain(|claim| claim.node != *node);
                let is_left = lease != LeaseRecord::default();
                txn.set_lease(driver, id, is_left.then_some(lease));
            }
        }
        Record::Elected(driver) => {
            if txn.elected(driver).is_some_and(|elected| elected.node == *node) {
                txn.set_elected(driver, None);
            }
        }
        Record::Driver(driver) => txn.set_at(driver, node, None),
    }
}

/// Ends the lease of a volume whose data was at the node. It stays if another node holds it, claims
/// it, or has it attached, because a guest may run there.
fn end_lease(txn: &mut Txn<'_>, node: &NodeName, driver: &DriverName, id: &Id) {
    let Some(lease) = txn.lease(driver, id) else { return };
    let holder = lease.holder.as_ref().map(|holder| &holder.node);
    let attached = lease.attached.as_ref().map(|attached| &attached.node);
    let claims = lease.claims.iter().map(|claim| &claim.node);
    if holder.into_iter().chain(attached).chain(claims).all(|other| other == node) {
        txn.set_lease(driver, id, None);
    }
}

/// The leases that a purge keeps: those of volumes with their data elsewhere.
fn leases_kept(state: &State, node: &NodeName) -> usize {
    let kept = |of: &DriverState| {
        let held = |lease| matches!(hold(lease, node), Some(Hold::Pod(_) | Hold::Attached));
        let leases = of.leases().iter().filter(|(_, lease)| held(lease));
        leases.filter(|(id, _)| of.home(id).is_none_or(|home| home.node != *node)).count()
    };
    state.drivers().values().map(kept).sum()
}
