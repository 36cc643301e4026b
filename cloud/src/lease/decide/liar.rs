//! One node lies: it asks, releases, replays its old MACs and invents epochs, at any moment.
//!
//! The honest nodes, the operator and the copies of the store are those of `copies.rs`. As there,
//! nobody is granted the volume after a copy was restored, until all honest nodes have reported.

use proptest::prelude::*;

use crate::lease::decide::copies::{Grant, Lease, LeaseEvent, NODES, Way, World, event, name};
use crate::lease::decide::*;

/// The node that lies.
const LIAR: usize = NODES - 1;

/// What the liar does.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// It asks like an honest node.
    Ask,
    Release,
    /// It states a lease that it was once granted, with its MAC.
    Replay(usize),
    /// It states an epoch that it invents; a MAC that proves another lease proves nothing.
    Invent(u64),
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    Honest(LeaseEvent),
    Lie(Lie),
    /// The store is lost altogether, with its key.
    Lose,
}

fn lie() -> impl Strategy<Value = Lie> {
    prop_oneof![
        3 => Just(Lie::Ask),
        3 => Just(Lie::Release),
        4 => any::<usize>().prop_map(Lie::Replay),
        2 => (0..60_u64).prop_map(Lie::Invent),
        2 => any::<u64>().prop_map(Lie::Invent),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => event().prop_map(Happening::Honest),
        1 => lie().prop_map(Happening::Lie),
    ]
}

#[derive(Default)]
struct Lies {
    world: World,
    /// The grants that the liar has MACs of.
    proofs: Vec<Grant>,
}

impl Lies {
    fn new(older: [bool; 2]) -> Self {
        let mut world = World::default();
        world.clock = true;
        for (at, is_older) in older.into_iter().enumerate() {
            world.nodes[at].is_older = is_older;
        }
        Self { world, proofs: Vec::new() }
    }

    fn happens(&mut self, happening: Happening) {
        match happening {
            Happening::Honest(event) if !is_of_liar(event) => self.world.happens(event),
            Happening::Honest(_) => {}
            Happening::Lie(lie) => self.lie(lie),
            Happening::Lose => {
                self.world.happens(LeaseEvent::PutBack);
                self.world.record = LeaseRecord::default();
                self.world.key += 1;
            }
        }
        // Only honest nodes are waited for.
        self.world.nodes[LIAR].unreported = false;
    }

    fn lie(&mut self, lie: Lie) {
        let of = |index: usize, proofs: &[Grant]| proofs.get(index % proofs.len().max(1)).copied();
        let verdict = match lie {
            Lie::Ask if self.world.is_recovering() => return,
            Lie::Ask => self.world.step(LIAR, Step::Ask("p")),
            Lie::Release => self.world.step(LIAR, Step::Release),
            Lie::Replay(index) => match of(index, &self.proofs) {
                Some(grant) => self.world.hold(LIAR, grant),
                None => return,
            },
            Lie::Invent(epoch) => {
                let report = LeaseReport { epoch, pod: "p", proven: false };
                self.world.step(LIAR, Step::Hold(report))
            }
        };
        if let Some(grant) = self.world.granted(LIAR, &verdict) {
            self.proofs.push(grant);
        }
    }

    /// The honest nodes that may use the volume without anybody being asked.
    fn users(&self) -> Vec<usize> {
        let uses = |at: &usize| self.world.nodes[*at].has() && !self.world.nodes[*at].excused;
        (0..LIAR).filter(uses).collect()
    }

    fn holder(&self) -> Option<NodeName> {
        self.world.record.holder.as_ref().map(|holder| holder.node.clone())
    }

    /// All link, it is detached from all, an operator takes from the liar what it has or claims,
    /// and all report again.
    fn settles(&mut self) {
        self.all_link();
        (0..NODES).for_each(|at| self.world.happens(LeaseEvent::Detach(at)));
        let record = &self.world.record;
        let claims = record.claims.iter().any(|claim| claim.node == name(LIAR));
        if claims || self.holder() == Some(name(LIAR)) {
            self.world.step(LIAR, Step::Break);
        }
        // A store that was lost does not know whom an operator took it from.
        for at in (0..LIAR).filter(|at| self.world.nodes[*at].excused).collect::<Vec<_>>() {
            self.world.step(at, Step::Break);
        }
        self.all_link();
        self.all_link();
    }

    fn all_link(&mut self) {
        (0..LIAR)
            .for_each(|at| self.happens(Happening::Honest(LeaseEvent::Link(at, Way::Answered))));
    }

    /// All honest nodes unpublish and detach it. An older copy may name one that had released it
    /// before; the operator sees that at the node.
    fn ends(&mut self) {
        for _ in 0..2 {
            for at in 0..LIAR {
                self.world.happens(LeaseEvent::Unpublish(at, Way::Answered));
                self.world.happens(LeaseEvent::Detach(at));
            }
        }
        let has_nothing = |at: &usize| self.world.nodes[*at].lease == Lease::None;
        let named = (0..LIAR).filter(has_nothing).find(|at| self.holder() == Some(name(*at)));
        if let Some(at) = named {
            self.world.step(at, Step::Break);
        }
    }
}

fn is_put_back(happening: Happening) -> bool {
    matches!(happening, Happening::Honest(LeaseEvent::PutBack))
}

fn is_of_liar(event: LeaseEvent) -> bool {
    matches!(
        event,
        LeaseEvent::Publish(LIAR, _)
            | LeaseEvent::Unpublish(LIAR, _)
            | LeaseEvent::Cut(LIAR)
            | LeaseEvent::Link(LIAR, _)
            | LeaseEvent::Attach(LIAR)
            | LeaseEvent::Detach(LIAR)
    )
}

/// No two honest nodes have it, and none loses it without an operator's word.
fn check_safe(lies: &Lies) -> Result<(), TestCaseError> {
    let users = lies.users();
    prop_assert!(users.len() <= 1, "{users:?} have it; {:?}", lies.world.record);
    prop_assert_eq!(lies.world.wronged, None, "{:?}", &lies.world.record);
    Ok(())
}

/// An honest node that has it, and has reported since a copy was restored, has it by the record.
fn check_held(lies: &Lies) -> Result<(), TestCaseError> {
    for at in lies.users().into_iter().filter(|at| !lies.world.nodes[*at].unreported) {
        prop_assert_eq!(lies.holder(), Some(name(at)), "{:?}", &lies.world.record);
    }
    Ok(())
}

/// In the end the honest holder has it, and when it has released it another honest node can.
fn check_live(mut lies: Lies) -> Result<(), TestCaseError> {
    lies.settles();
    if let [at] = lies.users()[..] {
        prop_assert_eq!(lies.holder(), Some(name(at)), "{:?}", &lies.world.record);
    }
    lies.ends();
    lies.world.happens(LeaseEvent::Publish(0, Way::Answered));
    prop_assert!(matches!(lies.world.nodes[0].lease, Lease::Held(_)), "{:?}", lies.world.record);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// With MACs: also when older copies of the store are put back.
    #[test]
    fn a_liar_never_gets_what_an_honest_node_holds(
        happenings in proptest::collection::vec(happening(), 0..200),
    ) {
        let mut lies = Lies::new([false, false]);
        for happening in happenings {
            lies.happens(happening);
            check_safe(&lies)?;
            check_held(&lies)?;
        }
        check_live(lies)?;
    }

    /// Without MACs: where the record names the holder.
    #[test]
    fn an_older_edge_keeps_what_the_record_names_it_for(
        happenings in proptest::collection::vec(happening(), 0..200),
        older in any::<[bool; 2]>(),
    ) {
        let mut lies = Lies::new(older);
        for happening in happenings.into_iter().filter(|happening| !is_put_back(*happening)) {
            lies.happens(happening);
            check_safe(&lies)?;
            check_held(&lies)?;
        }
        check_live(lies)?;
    }

    /// After the key was lost nobody can prove anything. Then an honest node may not have it by the
    /// record, but no other honest node gets it, and the operator's word ends that.
    #[test]
    fn a_lost_key_gives_no_honest_nodes_volume_to_another(
        before in proptest::collection::vec(happening(), 0..60),
        after in proptest::collection::vec(happening(), 0..100),
        older in any::<[bool; 2]>(),
    ) {
        let mut lies = Lies::new(older);
        let lost = before.into_iter().chain([Happening::Lose]).chain(after);
        for happening in lost.filter(|happening| !is_put_back(*happening)) {
            lies.happens(happening);
            check_safe(&lies)?;
        }
        check_live(lies)?;
    }
}
