//! Each step that may come next.

use crate::bounds::{Bounds, Fault};
use crate::calls::Outcome;
use crate::edge::Call;
use crate::etcd::{EdgeId, Txn};
use crate::state::State;

/// Several csi-clouds, their store, and their nodes.
#[derive(Clone, Debug)]
pub struct System {
    /// How much of each there is.
    pub bounds: Bounds,
}

/// A step. Replicas are named by their place in the state before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "State has a function of the same name for each")]
pub enum Action {
    Elect(usize),
    EndLease,
    Watch(usize),
    Restart(usize),
    Commit(Txn, bool),
    Refuse(Txn, bool),
    ReadBack(usize),
    Call(usize, usize),
    Leave(usize, usize),
    Begin(usize, usize, EdgeId),
    Tell(usize, EdgeId),
    SendCall(usize, usize),
    Deliver(Call, Outcome, bool),
    Lose(usize, usize),
    Answer(usize, usize),
    Ask(usize, EdgeId),
    AskNoMore(EdgeId),
    Release(usize, EdgeId),
    RestartEdge(EdgeId),
}

impl System {
    /// The steps that concern a replica.
    pub fn of_replica(&self, replica: usize, actions: &mut Vec<Action>) {
        actions.extend([
            Action::Elect(replica),
            Action::Restart(replica),
            Action::ReadBack(replica),
        ]);
        if self.bounds.fault == Fault::StaleMemory {
            actions.push(Action::Watch(replica));
        }
        for name in 0..self.bounds.names {
            actions.extend([
                Action::Call(replica, name),
                Action::Leave(replica, name),
                Action::SendCall(replica, name),
                Action::Lose(replica, name),
                Action::Answer(replica, name),
            ]);
            actions.extend((0..self.bounds.edges).map(|edge| Action::Begin(replica, name, edge)));
        }
        for edge in 0..self.bounds.edges {
            actions.push(Action::Tell(replica, edge));
            if self.bounds.leases {
                actions.extend([Action::Ask(replica, edge), Action::Release(replica, edge)]);
            }
        }
    }

    /// Does a step. True if it was possible.
    pub fn act(&self, state: &mut State, action: Action) -> bool {
        let bounds = &self.bounds;
        match action {
            Action::Elect(replica) => state.elect(bounds, replica),
            Action::EndLease => state.end_lease(),
            Action::Watch(replica) => state.watch(replica),
            Action::Restart(replica) => state.restart(replica),
            Action::Commit(txn, is_answered) => state.commit(bounds, txn, is_answered),
            Action::Refuse(txn, is_done) => state.refuse(bounds, txn, is_done),
            Action::ReadBack(replica) => state.read_back(bounds, replica),
            Action::Call(replica, name) => state.call(replica, name),
            Action::Leave(replica, name) => state.leave(replica, name),
            Action::Begin(replica, name, edge) => state.begin(replica, name, edge),
            Action::Tell(replica, edge) => state.tell(bounds, replica, edge),
            Action::SendCall(replica, name) => state.send_call(replica, name),
            Action::Deliver(call, outcome, is_answered) => {
                state.deliver(bounds, call, outcome, is_answered)
            }
            Action::Lose(replica, name) => state.lose(replica, name),
            Action::Answer(replica, name) => state.answer(replica, name),
            Action::Ask(replica, edge) => state.ask(replica, edge),
            Action::AskNoMore(edge) => state.ask_no_more(edge),
            Action::Release(replica, edge) => state.release(replica, edge),
            Action::RestartEdge(edge) => state.restart_edge(edge),
        }
    }
}
