//! What happens between callers, leaders and nodes: jobs, calls to nodes, the lease.

use crate::bounds::{Bounds, Fault};
use crate::edge::{Call, Op, Use};
use crate::etcd::{EdgeId, Record};
use crate::replica::{Job, Kind, Leading, LeaseJob, Replica, Step, Witness};
use crate::state::{Stage, State};

/// What a node does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its driver does it.
    Done,
    /// Its driver refuses a create for good.
    Full,
}

impl State {
    /// A caller calls a leader, or one that does not know that it is none.
    pub fn call(&mut self, replica: usize, name: usize) -> bool {
        if self.leaders().any(|leading| leading.jobs[name].is_some_and(|job| job.awaited)) {
            return false;
        }
        let Some(leading) = self.replicas[replica].leading_mut() else { return false };
        let slot = &mut leading.jobs[name];
        if slot.is_some_and(|job| matches!(job.step, Step::Write(_))) {
            return false;
        }
        let (kind, stage) = match self.callers[name] {
            Stage::Gone | Stage::Creating => (Kind::Create, Stage::Creating),
            Stage::Made | Stage::Deleting => (Kind::Delete, Stage::Deleting),
        };
        self.callers[name] = stage;
        *slot = Some(Job { kind, awaited: true, step: Step::Begin });
        true
    }

    /// A caller waits no more. Its job goes on.
    pub fn leave(&mut self, replica: usize, name: usize) -> bool {
        let Some(job) = self.job(replica, name).filter(|job| job.awaited) else { return false };
        job.awaited = false;
        true
    }

    fn job(&mut self, replica: usize, name: usize) -> Option<&mut Job> {
        self.replicas[replica].leading_mut()?.jobs[name].as_mut()
    }

    /// A leader begins a job. If any node will do, it is `choice`.
    pub fn begin(&mut self, replica: usize, name: usize, choice: EdgeId) -> bool {
        let Some(leading) = self.replicas[replica].leading_mut() else { return false };
        let record = leading.memory.names[name];
        let Some(job) = leading.jobs[name].as_mut().filter(|job| job.step == Step::Begin) else {
            return false;
        };
        job.step = match (job.kind, record) {
            (Kind::Create, Record::None) => Step::Write(Record::Intent(choice)),
            (_, Record::Home(edge)) | (Kind::Create, Record::Intent(edge)) => Step::Send(edge),
            // It asks all nodes, one after another.
            (Kind::Delete, Record::None | Record::Intent(_)) => Step::Send(0),
        };
        let is_free = (job.kind, record) == (Kind::Create, Record::None);
        self.write_next(replica);
        choice == 0 || is_free
    }

    /// A leader tells an edge its epoch. An edge that knows a later one does not listen.
    pub fn tell(&mut self, bounds: &Bounds, replica: usize, edge: EdgeId) -> bool {
        let Some(leading) = self.replicas[replica].leading_mut() else { return false };
        let at = &mut self.edges[usize::from(edge)];
        if leading.has_told(edge) || (at.fence > leading.epoch && bounds.fault.fences()) {
            return false;
        }
        leading.told |= 1 << edge;
        at.link = leading.epoch;
        if bounds.fault != Fault::EpochNotTold {
            at.fence = leading.epoch.max(at.fence);
        }
        true
    }

    /// A leader sends what it decided. A pause before that is as a call that takes long.
    pub fn send_call(&mut self, replica: usize, name: usize) -> bool {
        let Some(leading) = self.replicas[replica].leading() else { return false };
        let Some(mut job) = leading.jobs[name] else { return false };
        let Step::Send(edge) = job.step else { return false };
        if !leading.has_told(edge) {
            return false;
        }
        let call = Call { epoch: leading.epoch, edge, op: job.kind.op(name) };
        job.step = Step::Sent(edge);
        self.send(call);
        self.set_job(replica, name, job);
        true
    }

    fn set_job(&mut self, replica: usize, name: usize, job: Job) {
        if let Some(leading) = self.replicas[replica].leading_mut() {
            leading.jobs[name] = Some(job);
        }
    }

    /// A call arrives at its node. Its leader gets the answer or not.
    pub fn deliver(
        &mut self,
        bounds: &Bounds,
        call: Call,
        outcome: Outcome,
        is_answered: bool,
    ) -> bool {
        let is_create = matches!(call.op, Op::Create(_));
        let waits = |replica: &Replica| replica.leading().is_some_and(|it| it.waits_for(call));
        let waiting = self.replicas.iter().position(waits);
        if !self.passes(&call) && bounds.fault != Fault::NoFence {
            self.calls.remove(&call);
            if let Some(replica) = waiting {
                self.replicas[replica] = Replica::Deposed(Witness::Edge);
            }
            return is_answered && outcome == Outcome::Done;
        }
        let has_it = matches!(call.op, Op::Create(name) if self.edge(&call).volumes[name]);
        if outcome == Outcome::Full && (!is_create || has_it) {
            return false;
        }
        self.calls.remove(&call);
        if outcome == Outcome::Done {
            self.edges[usize::from(call.edge)].run(call);
        }
        match waiting.filter(|_| is_answered) {
            Some(replica) => self.hear(bounds, replica, call, outcome),
            // Whether an answer comes matters to those who wait only.
            None => return !is_answered,
        }
        true
    }

    /// A leader gets a node's answer.
    fn hear(&mut self, bounds: &Bounds, replica: usize, call: Call, outcome: Outcome) {
        let (Op::Create(name) | Op::Delete(name)) = call.op else { return };
        let Some(leading) = self.replicas[replica].leading_mut() else { return };
        let Some(job) = leading.jobs[name].as_mut() else { return };
        let record = leading.memory.names[name];
        let home = Record::Home(call.edge);
        job.step = match (job.kind, outcome) {
            (Kind::Create, Outcome::Done) if record == home => Step::Answer(true),
            (Kind::Create, Outcome::Done) => Step::Write(home),
            (Kind::Create, Outcome::Full) if record == home => Step::Answer(false),
            (Kind::Create, Outcome::Full) => Step::Write(Record::None),
            (Kind::Delete, _) if record == home => Step::Write(Record::None),
            (Kind::Delete, _) if call.edge + 1 < bounds.edges => Step::Send(call.edge + 1),
            (Kind::Delete, _) => Step::Answer(true),
        };
        self.write_next(replica);
    }

    /// A leader's link was lost with the call on it, or with its answer. It sends the call again.
    pub fn lose(&mut self, replica: usize, name: usize) -> bool {
        let Some(leading) = self.replicas[replica].leading() else { return false };
        let Some(mut job) = leading.jobs[name] else { return false };
        let Step::Sent(edge) = job.step else { return false };
        let call = Call { epoch: leading.epoch, edge, op: job.kind.op(name) };
        // While it is on its way, to send it again changes nothing.
        if self.calls.contains(&call) {
            return false;
        }
        job.step = Step::Send(edge);
        self.set_job(replica, name, job);
        true
    }

    /// A leader answers its caller.
    pub fn answer(&mut self, replica: usize, name: usize) -> bool {
        let Some(job) = self.job(replica, name).copied() else { return false };
        let Step::Answer(is_ok) = job.step else { return false };
        if let Some(leading) = self.replicas[replica].leading_mut() {
            leading.jobs[name] = None;
        }
        if is_ok && job.awaited {
            self.answer_ok(name);
        }
        true
    }

    /// A leader that this node's newest link leads to, and that has no job for the lease.
    fn linked(&mut self, replica: usize, edge: EdgeId) -> Option<&mut Leading> {
        let link = self.edges[usize::from(edge)].link;
        let is_linked = |leading: &&mut Leading| {
            leading.has_told(edge) && leading.epoch == link && leading.lease_job.is_none()
        };
        self.replicas[replica].leading_mut().filter(is_linked)
    }

    /// A node asks for the lease.
    pub fn ask(&mut self, replica: usize, edge: EdgeId) -> bool {
        if self.edges[usize::from(edge)].lease != Use::Free {
            return false;
        }
        let Some(leading) = self.linked(replica, edge) else { return false };
        let epoch = leading.epoch;
        match leading.memory.lease {
            None => leading.lease_job = Some(LeaseJob { edge, asks: true }),
            Some(holder) if holder == edge => self.send(Call { epoch, edge, op: Op::Grant }),
            Some(_) => return false,
        }
        self.edges[usize::from(edge)].lease = Use::Wanted;
        self.write_next(replica);
        true
    }

    /// A node waits for the lease no more.
    pub fn ask_no_more(&mut self, edge: EdgeId) -> bool {
        let lease = &mut self.edges[usize::from(edge)].lease;
        let wanted = *lease == Use::Wanted;
        if wanted {
            *lease = Use::Free;
        }
        wanted
    }

    /// A node does not use the volume any more, and tells a leader.
    pub fn release(&mut self, replica: usize, edge: EdgeId) -> bool {
        if !matches!(self.edges[usize::from(edge)].lease, Use::Held | Use::Released) {
            return false;
        }
        let Some(leading) = self.linked(replica, edge) else { return false };
        let epoch = leading.epoch;
        let is_holder = leading.memory.lease == Some(edge);
        if is_holder {
            leading.lease_job = Some(LeaseJob { edge, asks: false });
        }
        self.edges[usize::from(edge)].lease = Use::Released;
        if is_holder {
            self.write_next(replica);
        } else {
            self.confirm_release(epoch, edge);
        }
        true
    }

    /// An edge is started again. All that it must keep is durable, but with
    /// [`Fault::FenceForgotten`].
    pub fn restart_edge(&mut self, edge: EdgeId) -> bool {
        let fence = &mut self.edges[usize::from(edge)].fence;
        std::mem::take(fence) > 0
    }
}
