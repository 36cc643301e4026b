//! The model as the checker sees it.

use stateright::{Model, Property};

use crate::bounds::Fault;
use crate::calls::Outcome;
use crate::properties;
use crate::state::State;
use crate::system::{Action, System};

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.bounds)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::EndLease);
        (0..self.bounds.replicas).for_each(|replica| self.of_replica(replica, actions));
        for txn in &state.txns {
            let either = [true, false];
            actions.extend(either.map(|is_answered| Action::Commit(*txn, is_answered)));
            actions.extend(either.map(|is_done| Action::Refuse(*txn, is_done)));
        }
        for call in &state.calls {
            actions.extend([
                Action::Deliver(*call, Outcome::Done, true),
                Action::Deliver(*call, Outcome::Done, false),
                Action::Deliver(*call, Outcome::Full, true),
                Action::Deliver(*call, Outcome::Full, false),
            ]);
        }
        for edge in 0..self.bounds.edges {
            if self.bounds.leases {
                actions.push(Action::AskNoMore(edge));
            }
            if self.bounds.fault == Fault::FenceForgotten {
                actions.push(Action::RestartEdge(edge));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        if !self.act(&mut state, action) {
            return None;
        }
        state.normalize(&self.bounds);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = properties::all();
        if self.bounds.names > 0 {
            all.extend(properties::of_names());
        }
        if self.bounds.leases {
            all.extend(properties::of_leases());
        }
        all
    }
}
