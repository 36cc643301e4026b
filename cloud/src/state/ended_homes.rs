//! The last homes of what a driver deleted. They say where a repeated delete or detach goes.
//!
//! Without them a repeated delete goes to all nodes, and waits for those that are away. Nothing
//! else goes by them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::csi::Id;

use crate::state::record::EndedHome;

/// How long one is kept: the sidecars have repeated a call by then, or never will.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most that are kept of a driver. Each has the size of its id, so this is about 2 MiB.
const MAX_ENDED: usize = 10_000;

/// The ended homes of one driver.
#[derive(Default)]
pub struct EndedHomes {
    homes: BTreeMap<Id, EndedHome>,
    /// The same by the time of their end.
    by_end: BTreeSet<(u64, Id)>,
}

impl EndedHomes {
    /// The last home of an id, however old.
    pub(super) fn get(&self, id: &Id) -> Option<&EndedHome> {
        self.homes.get(id)
    }

    /// The last home of an id that ended less than seven days before `now`, in ms since 1970.
    pub fn at(&self, id: &Id, now: u64) -> Option<&EndedHome> {
        self.get(id).filter(|home| !is_over(home.ended, now))
    }

    /// All of them, by id.
    pub fn all(&self) -> &BTreeMap<Id, EndedHome> {
        &self.homes
    }

    /// Those that are dropped when another one is kept at `now`, beside so many that the same
    /// commit keeps: a few that are over, and the oldest if there are too many.
    pub(super) fn surplus(&self, more: usize, now: u64) -> impl Iterator<Item = &Id> {
        let excess = (self.homes.len() + more + 1).saturating_sub(MAX_ENDED);
        let oldest = self.by_end.iter().enumerate();
        let dropped = oldest.take_while(move |(place, (ended, _))| {
            *place < excess || (*place < excess + 2 && is_over(*ended, now))
        });
        dropped.map(|(_, (_, id))| id)
    }

    pub(super) fn set(&mut self, id: Id, home: Option<EndedHome>) {
        let before = match home {
            Some(home) => {
                self.by_end.insert((home.ended, id.clone()));
                let ended = home.ended;
                self.homes.insert(id.clone(), home).filter(|before| before.ended != ended)
            }
            None => self.homes.remove(&id),
        };
        if let Some(before) = before {
            self.by_end.remove(&(before.ended, id));
        }
    }
}

fn is_over(ended: u64, now: u64) -> bool {
    let kept = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
    ended.saturating_add(kept) <= now
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proto::host::tasks::Tasks;
    use proto::names::{DriverName, NodeName};

    use super::*;
    use crate::state::record::Home;
    use crate::state::store::memory::Memory;
    use crate::state::store::writer::Store;
    use crate::state::txn::Txn;

    const DAY: u64 = 24 * 3600 * 1000;

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    fn node() -> NodeName {
        "n1".parse().unwrap()
    }

    fn volume(number: usize) -> Id {
        Id::Volume(format!("v{number:05}"))
    }

    fn ended(ended: u64) -> EndedHome {
        EndedHome { node: node(), ended, confirmed: true }
    }

    /// Ends the homes of these volumes, each in its own millisecond.
    fn end(txn: &mut Txn<'_>, numbers: Range<usize>) {
        for number in numbers {
            txn.end_home(&driver(), &volume(number), ended(number as u64));
        }
    }

    fn count(store: &Store) -> usize {
        store.read(|state| {
            let of = state.driver(&driver()).unwrap().ended();
            assert_eq!(of.all().len(), of.by_end.len());
            of.all().len()
        })
    }

    #[test]
    fn one_counts_for_seven_days() {
        let mut homes = EndedHomes::default();
        homes.set(volume(1), Some(ended(DAY)));
        assert!(homes.at(&volume(1), 8 * DAY - 1).is_some());
        assert!(homes.at(&volume(1), 8 * DAY).is_none());
        homes.set(volume(1), Some(ended(2 * DAY)));
        assert!(homes.at(&volume(1), 8 * DAY).is_some() && homes.by_end.len() == 1);
        homes.set(volume(1), None);
        assert!(homes.all().is_empty() && homes.by_end.is_empty());
    }

    #[tokio::test]
    async fn the_oldest_go_if_there_are_too_many_or_they_are_over() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        for numbers in [0..MAX_ENDED / 2, MAX_ENDED / 2..MAX_ENDED] {
            store.write(|txn| end(txn, numbers)).await.unwrap();
        }
        assert_eq!(count(&store), MAX_ENDED);
        for number in MAX_ENDED..MAX_ENDED + 3 {
            store.write(move |txn| end(txn, number..number + 1)).await.unwrap();
        }
        assert_eq!(count(&store), MAX_ENDED);
        let has = |number| {
            store.read(|state| {
                state.driver(&driver()).unwrap().ended().get(&volume(number)).is_some()
            })
        };
        assert!(!has(2) && has(3) && has(MAX_ENDED + 2));
        store.write(|txn| txn.end_home(&driver(), &volume(3), ended(20 * DAY))).await.unwrap();
        assert!(has(3) && !has(4) && !has(5), "two that are over go with each that is kept");
    }

    #[tokio::test]
    async fn a_confirmed_home_ends_it_and_a_found_one_does_not() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        store.write(|txn| txn.end_home(&driver(), &volume(1), ended(1))).await.unwrap();
        let found = Home::at(node(), 2);
        store.write(|txn| txn.set_home(&driver(), &volume(1), Some(found))).await.unwrap();
        assert_eq!(count(&store), 1);
        let adopted = Home { adopted: true, ..Home::at(node(), 2) };
        store.write(|txn| txn.set_home(&driver(), &volume(1), Some(adopted))).await.unwrap();
        assert_eq!(count(&store), 0);
    }
}
