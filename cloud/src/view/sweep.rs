//! Looks for volumes in trouble, a part of the homes at a time: there may be a million.
//!
//! A driver whose homes have not changed since its last whole look is not looked at again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::state::condition::HomeCondition;
use crate::state::known::State;
use crate::state::store::writer::Store;

/// Homes that are looked at in one step.
const STEP: usize = 5_000;
/// Volumes in trouble that are kept of a driver.
const KEPT: usize = 1_000;

/// A volume in trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TroubledHome {
    /// Its driver.
    pub(super) driver: DriverName,
    /// Its id.
    pub(super) id: Id,
    /// Its home node.
    pub(super) node: NodeName,
    /// What is wrong.
    pub(super) condition: HomeCondition,
}

/// The look so far.
#[derive(Default)]
pub(super) struct Sweep {
    looks: BTreeMap<DriverName, Look>,
}

/// The look at one driver's homes.
#[derive(Default)]
struct Look {
    /// Where the next step begins; none at the beginning.
    after: Option<Id>,
    /// The number of the driver's changes when this look began.
    begun: u64,
    /// That of the last whole look.
    whole: Option<u64>,
    found: Vec<TroubledHome>,
    /// What the last whole look found.
    last: Vec<TroubledHome>,
}

impl Sweep {
    /// Looks at some more.
    pub(super) fn step(&mut self, store: &Store, drivers: &BTreeSet<DriverName>) {
        self.looks.retain(|driver, _| drivers.contains(driver));
        for driver in drivers {
            let look = self.looks.entry(driver.clone()).or_default();
            store.read(|state| look.step(state, driver));
        }
    }

    /// What is in trouble, as the last whole looks found it.
    pub(super) fn found(&self) -> impl Iterator<Item = &TroubledHome> {
        self.looks.values().flat_map(|look| &look.last)
    }
}

impl Look {
    fn step(&mut self, state: &State, driver: &DriverName) {
        let Some(of) = state.driver(driver) else {
            return *self = Self::default();
        };
        if self.after.is_none() {
            // A removed node changes no home at once, but some soon: they are marked.
            if self.whole == Some(of.changes()) {
                return;
            }
            self.begun = of.changes();
            self.found.clear();
        }
        let found = &mut self.found;
        self.after = slice(of.homes(), self.after.as_ref(), STEP, |id, home| {
            let condition = HomeCondition::of(state, home);
            if condition != HomeCondition::Ok && found.len() < KEPT {
                found.push(TroubledHome {
                    driver: driver.clone(),
                    id: id.clone(),
                    node: home.node.clone(),
                    condition,
                });
            }
        });
        if self.after.is_none() {
            self.whole = Some(self.begun);
            self.last = std::mem::take(&mut self.found);
        }
    }
}

/// Looks at so many records after this one. Returns the last of them, if there may be more.
pub(super) fn slice<T>(
    records: &BTreeMap<Id, T>,
    after: Option<&Id>,
    most: usize,
    mut look: impl FnMut(&Id, &T),
) -> Option<Id> {
    let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
    let mut last = None;
    for (place, (id, record)) in (1..).zip(records.range::<Id, _>(range).take(most)) {
        look(id, record);
        last = (place == most).then(|| id.clone());
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::record::{Change, Home};

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    fn home(number: usize, absent: bool) -> Change {
        let home = Home { absent, ..Home::at("n1".parse().unwrap(), 1) };
        Change::Home(driver(), Id::Volume(format!("v{number:06}")), Some(home))
    }

    #[test]
    fn all_homes_are_looked_at_step_by_step() {
        let all = (0..STEP + 10).map(|number| home(number, number == 3 || number == STEP + 1));
        let state = State::of(all);
        let mut look = Look::default();
        look.step(&state, &driver());
        assert!(look.last.is_empty(), "the look is not whole yet");
        look.step(&state, &driver());
        let found: Vec<_> = look.last.iter().map(|found| found.id.text().to_owned()).collect();
        assert_eq!(found, ["v000003".to_owned(), format!("v{:06}", STEP + 1)]);
        look.step(&state, &driver());
        assert!(look.found.is_empty() && look.after.is_none(), "nothing has changed");
        assert_eq!(look.last.len(), 2);
        let mended = State::of((0..STEP).map(|number| home(number, false)));
        for _ in 0..2 {
            look.step(&mended, &driver());
        }
        assert!(look.last.is_empty());
        look.step(&State::default(), &driver());
        assert!(look.whole.is_none());
    }

    #[test]
    fn what_is_kept_of_a_disaster_has_an_end() {
        let state = State::of((0..KEPT + 10).map(|number| home(number, true)));
        let mut look = Look::default();
        look.step(&state, &driver());
        assert_eq!(look.last.len(), KEPT);
    }
}
