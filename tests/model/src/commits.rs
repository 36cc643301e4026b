//! What happens between replicas and the store: elections, commits, and reads of what came of them.

use crate::bounds::{Bounds, Fault};
use crate::edge::{Call, Op, Use};
use crate::etcd::{Change, Record, Txn, Verdict};
use crate::replica::{Kind, Leading, Replica, Step, Witness};
use crate::state::{Stage, State};

impl State {
    /// A follower gets the leader key, and reads the store. True if that is possible.
    pub fn elect(&mut self, bounds: &Bounds, replica: usize) -> bool {
        let Replica::Follower(seen) = &self.replicas[replica] else { return false };
        if self.etcd.leader.is_some() || self.etcd.elections == bounds.elections {
            return false;
        }
        let stale = seen.clone().filter(|_| bounds.fault == Fault::StaleMemory);
        let memory = stale.unwrap_or_else(|| self.etcd.records.clone());
        self.etcd.elections += 1;
        let epoch = self.etcd.elections;
        self.etcd.leader = Some(epoch);
        self.replicas[replica] = Replica::Leader(Leading::new(epoch, self.etcd.number, memory));
        true
    }

    /// The lease of the leader key ends, whether or not the leader could have prolonged it.
    pub fn end_lease(&mut self) -> bool {
        self.etcd.leader.take().is_some()
    }

    /// A follower looks at the store.
    pub fn watch(&mut self, replica: usize) -> bool {
        let records = self.etcd.records.clone();
        match &mut self.replicas[replica] {
            Replica::Follower(seen) => {
                *seen = Some(records);
                true
            }
            Replica::Leader(_) | Replica::Deposed(_) => false,
        }
    }

    /// A replica that does not lead is started again. One that leads would be as one that is
    /// paused.
    pub fn restart(&mut self, replica: usize) -> bool {
        let leads = |leading: &Leading| Some(leading.epoch) == self.etcd.leader;
        let may = match &self.replicas[replica] {
            Replica::Follower(_) => false,
            Replica::Leader(leading) => !leads(leading),
            Replica::Deposed(_) => true,
        };
        if may {
            self.replicas[replica] = Replica::Follower(None);
        }
        may
    }

    /// A commit arrives at the store. Its leader gets the answer or not.
    pub fn commit(&mut self, bounds: &Bounds, txn: Txn, is_answered: bool) -> bool {
        let compares = self.etcd.compares(txn, bounds.fault != Fault::NoCompare);
        if compares {
            self.etcd.commit(txn);
        }
        let waits = |replica: &Replica| replica.leading().and_then(Leading::txn) == Some(txn);
        match self.replicas.iter().position(waits).filter(|_| is_answered) {
            Some(replica) if compares => self.written(replica),
            // The refusal brings what `read_back` reads.
            Some(replica) => self.judge(bounds, replica, txn),
            None => return compares && !is_answered,
        }
        true
    }

    /// The store is full. It refuses a commit, and may have done it before.
    ///
    /// No other attempt is on its way, so what the leader reads now stays so. Once it has sent the
    /// commit again, a refusal tells it nothing, as an answer that is lost.
    pub fn refuse(&mut self, bounds: &Bounds, txn: Txn, is_done: bool) -> bool {
        let waits = |leading: &Leading| leading.txn() == Some(txn) && !leading.again;
        let waits = |replica: &Replica| replica.leading().is_some_and(waits);
        let Some(replica) = self.replicas.iter().position(waits) else { return false };
        let compares = self.etcd.compares(txn, bounds.fault != Fault::NoCompare);
        if is_done && !compares {
            return false;
        }
        if is_done {
            self.etcd.commit(txn);
        }
        self.txns.remove(&txn);
        if bounds.fault == Fault::FullIsNotDone || self.etcd.judge(txn) == Verdict::NotDone {
            self.give_up(replica);
        } else {
            self.judge(bounds, replica, txn);
        }
        true
    }

    /// A leader has no answer to its commit for too long, and reads what came of it.
    pub fn read_back(&mut self, bounds: &Bounds, replica: usize) -> bool {
        let Some(txn) = self.replicas[replica].leading().and_then(Leading::txn) else {
            return false;
        };
        if bounds.fault == Fault::NoReadBack {
            self.written(replica);
        } else {
            self.judge(bounds, replica, txn);
        }
        true
    }

    fn judge(&mut self, bounds: &Bounds, replica: usize, txn: Txn) {
        match self.etcd.judge(txn) {
            Verdict::Done => self.written(replica),
            Verdict::NotDone if bounds.fault == Fault::AnotherCommit => self.give_up(replica),
            Verdict::NotDone => self.send_again(replica),
            Verdict::Deposed => {
                if bounds.fault == Fault::DeposedAnswers {
                    self.answer_all(replica);
                }
                self.replicas[replica] = Replica::Deposed(Witness::Store);
            }
        }
    }

    /// A leader sends its commit again. It is still among `txns`.
    fn send_again(&mut self, replica: usize) {
        if let Some(leading) = self.replicas[replica].leading_mut() {
            leading.again = true;
        }
    }

    /// A leader begins anew with what it could not commit.
    fn give_up(&mut self, replica: usize) {
        let Some(leading) = self.replicas[replica].leading_mut() else { return };
        leading.again = false;
        match leading.writing.take() {
            Some(Change::Name(name, _)) => {
                if let Some(job) = &mut leading.jobs[name] {
                    job.step = Step::Begin;
                }
            }
            // The node tells it again.
            Some(Change::Lease(_)) => leading.lease_job = None,
            None => {}
        }
        self.write_next(replica);
    }

    fn answer_all(&mut self, replica: usize) {
        let Some(leading) = self.replicas[replica].leading() else { return };
        let awaited: Vec<usize> = (0..leading.jobs.len())
            .filter(|name| leading.jobs[*name].is_some_and(|job| job.awaited))
            .collect();
        awaited.into_iter().for_each(|name| self.answer_ok(name));
    }

    /// The caller of a name gets OK.
    pub fn answer_ok(&mut self, name: usize) {
        let stage = &mut self.callers[name];
        *stage = match *stage {
            Stage::Creating => Stage::Made,
            Stage::Deleting => Stage::Gone,
            Stage::Gone | Stage::Made => *stage,
        };
    }

    /// Puts the leader's next commit on its way, if it has one.
    pub fn write_next(&mut self, replica: usize) {
        let Some(leading) = self.replicas[replica].leading_mut() else { return };
        leading.write_next();
        let txn = leading.txn();
        self.txns.extend(txn);
    }

    /// A leader knows that its commit is done.
    fn written(&mut self, replica: usize) {
        let Some(leading) = self.replicas[replica].leading_mut() else { return };
        let Some(change) = leading.writing.take() else { return };
        leading.again = false;
        leading.memory.apply(change);
        leading.number += 1;
        match change {
            Change::Name(name, record) => {
                if let Some(job) = &mut leading.jobs[name] {
                    job.step = after(job.kind, record);
                }
            }
            Change::Lease(holder) => {
                let epoch = leading.epoch;
                let job = leading.lease_job.take();
                match (holder, job) {
                    (Some(edge), _) => self.send(Call { epoch, edge, op: Op::Grant }),
                    (None, Some(job)) => self.confirm_release(epoch, job.edge),
                    (None, None) => {}
                }
            }
        }
        self.write_next(replica);
    }

    /// A node hears that its release was heard, if its link is that of this leader.
    pub fn confirm_release(&mut self, epoch: crate::etcd::Epoch, edge: crate::etcd::EdgeId) {
        let edge = &mut self.edges[usize::from(edge)];
        if edge.link == epoch && edge.lease == Use::Released {
            edge.lease = Use::Free;
        }
    }
}

/// How a job goes on when this is durable.
fn after(kind: Kind, record: Record) -> Step {
    match (kind, record) {
        (_, Record::Intent(edge)) => Step::Send(edge),
        (Kind::Create, Record::Home(_)) | (Kind::Delete, _) => Step::Answer(true),
        (Kind::Create, Record::None) => Step::Answer(false),
    }
}
