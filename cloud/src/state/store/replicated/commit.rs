//! Makes changes durable in etcd, as the replica that leads, or while none does.
//!
//! Each transaction proves that the leader's key is still this replica's, and that it follows the
//! last commit. So a deposed leader commits nothing. A transaction whose answer is lost is read
//! back before anything depends on it; a late first attempt fails by its compare.
//!
//! More changes than a transaction may have are made in several. What sets a record comes before
//! what removes one, so a failure between them leaves too much known, and never too little.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::cluster::{Cluster, Work};
use super::lease::Lease;
use super::position::Position;
use crate::etcd::api::{RequestOp, TxnRequest};
use crate::etcd::error::EtcdError;
use crate::etcd::request;
use crate::etcd::request::ranges;
use crate::state::record::Change;
use crate::state::store::backend::StoreError;
use crate::state::store::codec;
use crate::state::store::codec::Row;
use crate::state::store::format;
use crate::state::store::format::{Needs, OLDEST};
use crate::state::store::table::Table;

/// The most changes of a transaction; etcd takes 128 operations.
pub(in crate::state::store) const MOST: usize = 100;
/// The most bytes of a transaction; etcd takes 1.5 MiB.
const BYTES: usize = 1 << 20;
/// The wait before a lost transaction is tried again; it doubles up to the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The number of attempts for a transaction that no lease limits.
const TRIES: u32 = 30;

/// The right to commit.
pub(super) struct CommitRight {
    pub(super) lease: Arc<Lease>,
    /// The lease of the leader's key.
    pub(super) id: i64,
    /// The revision at which the leader's key was created.
    pub(super) created: i64,
}

/// Makes changes durable.
pub(in crate::state::store) struct Committer {
    cluster: Arc<Cluster>,
    /// None while no replica leads.
    right: Option<CommitRight>,
    position: Position,
    needs: Needs,
    /// The lowest format that commits state.
    least: u64,
}

/// Changes of one transaction, as they are and as they are stored.
#[derive(Default)]
struct Step {
    changes: Vec<Change>,
    rows: Vec<Row>,
    bytes: usize,
}

impl Committer {
    /// Commits after this position.
    pub(super) fn new(
        cluster: Arc<Cluster>,
        right: Option<CommitRight>,
        (position, needs): (Position, Needs),
    ) -> Self {
        Self { cluster, right, position, needs, least: OLDEST }
    }

    /// The same, whose commits state at least this format.
    pub(super) fn stating(self, least: u64) -> Self {
        Self { least, ..self }
    }

    /// The last commit.
    pub(super) fn position(&self) -> &Position {
        &self.position
    }

    /// Commits no change, only the format. It proves that this replica leads.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if etcd refused it, and nothing was changed. Otherwise another one
    /// may lead or have the store, and the commit may have been made.
    pub(in crate::state::store) async fn seal(&mut self) -> Result<(), StoreError> {
        self.step(&Step::default()).await
    }

    /// Makes changes durable, and says which were. Without an error, all are.
    pub(in crate::state::store) async fn commit(
        &mut self,
        changes: Vec<Change>,
    ) -> (Vec<Change>, Result<(), StoreError>) {
        let mut durable = Vec::with_capacity(changes.len());
        for step in steps(changes) {
            let begun = Instant::now();
            let outcome = self.step(&step).await;
            if let Some(commits) = &self.cluster.commits {
                commits.ended(step.changes.len(), begun.elapsed(), outcome.is_ok());
            }
            if let Err(error) = outcome {
                return (durable, Err(error));
            }
            durable.extend(step.changes);
        }
        (durable, Ok(()))
    }

    async fn step(&mut self, step: &Step) -> Result<(), StoreError> {
        let needed = step.changes.iter().map(format::needed).max().unwrap_or(OLDEST);
        // It is raised with the change that needs it, and lowered with the commit after.
        let needed = self.needs.format(self.position.format).max(needed);
        let next = self.position.next(needed.max(self.least));
        let keys = &self.cluster.keys;
        let put = |row: &Row| match &row.value {
            Some(value) => request::put(&keys.record(row), value.clone(), 0),
            None => request::delete(&keys.record(row)),
        };
        let mut success: Vec<RequestOp> = step.rows.iter().map(put).collect();
        success.push(next.put(&keys.commit()));
        let created = self.right.as_ref().map_or(0, |right| right.created);
        let leads = request::is_created_at(&keys.leader(), created);
        let compare = vec![leads, self.position.is_last(&keys.commit())];
        self.send(TxnRequest { compare, success, ..TxnRequest::default() }, &next).await?;
        for (change, row) in step.changes.iter().zip(&step.rows) {
            self.needs.note(change, row);
        }
        self.cluster.commit.send_replace(next.number);
        self.position = next;
        Ok(())
    }

    /// Sends a transaction until it is known whether it was done.
    async fn send(&self, request: TxnRequest, next: &Position) -> Result<(), StoreError> {
        let mut pause = PAUSE;
        let mut is_first = true;
        for _ in 0..TRIES {
            let mut refusal = None;
            match self.cluster.client.txn(request.clone()).await {
                Ok(answer) if answer.succeeded => return self.done(),
                // An attempt of before may have been done. Otherwise another one leads.
                Ok(_) if is_first => return Err(self.taken_over()),
                Ok(_) => {}
                Err(error) => {
                    self.cluster.set_trouble(Work::Commit, &error);
                    // Once an answer was lost, a refusal says nothing of the attempt before.
                    if is_first && error.is_refusal() {
                        return Err(StoreError::Refused(Arc::new(error)));
                    }
                    refusal = Some(error).filter(|error| is_first && error.is_settled());
                }
            }
            is_first = false;
            match (self.is_done(next).await, refusal) {
                (Ok(Some(true)), _) => return self.done(),
                (Ok(Some(false)), Some(refusal)) => {
                    return Err(StoreError::Refused(Arc::new(refusal)));
                }
                (Ok(Some(false)), None) => {}
                (Ok(None), _) => return Err(self.taken_over()),
                (Err(error), _) => self.cluster.set_trouble(Work::Commit, &error),
            }
            if !self.may_try_again() {
                return Err(self.taken_over());
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
        Err(self.taken_over())
    }

    fn done(&self) -> Result<(), StoreError> {
        self.cluster.clear_trouble(Work::Commit);
        Ok(())
    }

    /// Reads back whether the transaction was done; none if another replica leads.
    async fn is_done(&self, next: &Position) -> Result<Option<bool>, EtcdError> {
        self.cluster.read_back();
        let keys = &self.cluster.keys;
        let read = request::read([request::get(&keys.leader()), request::get(&keys.commit())]);
        let [leader, commit] = ranges(self.cluster.client.txn(read).await?);
        let created = leader.first().map_or(0, |leader| leader.create_revision);
        if created != self.right.as_ref().map_or(0, |right| right.created) {
            return Ok(None);
        }
        match commit.first() {
            commit if next.is(commit) => Ok(Some(true)),
            commit if self.position.is(commit) => Ok(Some(false)),
            // Somebody else changed the store under this replica's key.
            _ => Ok(None),
        }
    }

    fn may_try_again(&self) -> bool {
        self.right.as_ref().is_none_or(|right| right.lease.is_held(right.id))
    }

    /// The error of a commit that another one may have prevented. This replica does not lead from
    /// now on: its callers are told after that.
    fn taken_over(&self) -> StoreError {
        match self.right {
            Some(_) => {
                self.cluster.leadership().depose();
                StoreError::Deposed
            }
            None => StoreError::Busy,
        }
    }
}

/// The transactions for some changes. The last change of a key counts.
fn steps(changes: Vec<Change>) -> Vec<Step> {
    let mut seen = HashSet::with_capacity(changes.len());
    let encoded = changes.into_iter().rev().map(|change| (codec::encode(&change), change));
    let mut last: Vec<_> =
        encoded.filter(|(row, _)| seen.insert((row.table, row.key.clone()))).collect();
    last.reverse();
    last.sort_by_key(|(row, _)| order(row));
    let mut steps = Vec::new();
    let mut step = Step::default();
    for (row, change) in last {
        let bytes = row.key.len() + row.value.as_ref().map_or(0, Vec::len);
        let is_full = step.rows.len() == MOST || step.bytes + bytes > BYTES;
        if is_full && !step.rows.is_empty() {
            steps.push(std::mem::take(&mut step));
        }
        step.bytes += bytes;
        step.rows.push(row);
        step.changes.push(change);
    }
    if !step.rows.is_empty() {
        steps.push(step);
    }
    steps
}

/// Epochs first: none may be given out again. Then records that are set, then those removed.
fn order(row: &Row) -> u8 {
    match (row.table, &row.value) {
        (Table::Epochs, _) => 0,
        (_, Some(_)) => 1,
        (_, None) => 2,
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::Id;

    use super::*;
    use crate::state::record::Home;

    fn volume(id: impl ToString, home: Option<&str>) -> Change {
        let home = home.map(|node| Home::at(node.parse().unwrap(), 7));
        Change::Home("d".parse().unwrap(), Id::Volume(id.to_string()), home)
    }

    fn sizes(steps: &[Step]) -> Vec<usize> {
        steps.iter().map(|step| step.rows.len()).collect()
    }

    #[test]
    fn a_few_changes_are_one_transaction() {
        let steps = steps((0..MOST).map(|n| volume(n, Some("n1"))).collect());
        assert_eq!(steps.len(), 1);
        assert!(super::steps(Vec::new()).is_empty());
    }

    #[test]
    fn the_last_change_of_a_key_is_the_only_one() {
        let changes =
            vec![volume("v", Some("n1")), volume("w", Some("n1")), volume("v", Some("n2"))];
        let steps = steps(changes.clone());
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].changes, changes[1..]);
    }

    #[test]
    fn what_is_removed_comes_after_all_that_is_set() {
        let mut changes: Vec<_> = (0..250).map(|n| volume(n, None)).collect();
        changes.extend((250..400).map(|n| volume(n, Some("n1"))));
        changes.push(Change::Epoch(7));
        let steps = steps(changes.clone());
        assert_eq!(sizes(&steps), [100, 100, 100, 100, 1]);
        assert_eq!(steps[0].changes[0], Change::Epoch(7));
        let order: Vec<_> = steps.iter().flat_map(|step| &step.rows).map(order).collect();
        assert!(order.is_sorted());
    }

    #[test]
    fn large_records_have_transactions_of_their_own() {
        let large = |id: u8| {
            let mut home = Home::at("n1".parse().unwrap(), 7);
            home.entry = vec![id; BYTES - 1000].into();
            Change::Home("d".parse().unwrap(), Id::Volume(id.to_string()), Some(home))
        };
        let steps = steps(vec![large(1), large(2), volume("v", Some("n1"))]);
        assert_eq!(sizes(&steps), [1, 2]);
    }
}
