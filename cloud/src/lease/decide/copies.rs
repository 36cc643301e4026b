//! Restores older copies of the store at any moment, with nodes that follow the edge's rules and
//! links that lose messages.
//!
//! `tests/integration/tests/direct/ownership.rs` uses the edge's own lease rules.

use proptest::prelude::*;

use crate::lease::decide::*;

pub(super) const NODES: usize = 3;

/// A lease as a node keeps it: its epoch, and the key of its MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) epoch: u64,
    key: Option<u32>,
}

/// The state of the lease at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lease {
    #[default]
    None,
    Held(Grant),
    LetGo(Grant),
    InDoubt,
    Fenced,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Lost,
    Unanswered,
    Answered,
}

/// An event; the number is the node.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeaseEvent {
    Publish(usize, Way),
    Unpublish(usize, Way),
    Cut(usize),
    /// The node links and reports its lease.
    Link(usize, Way),
    Attach(usize),
    Detach(usize),
    Break(usize),
    /// A copy of the store is made.
    Copy,
    /// The copy is restored.
    PutBack,
}

pub(super) fn event() -> impl Strategy<Value = LeaseEvent> {
    let at = || 0..NODES;
    let way =
        || prop_oneof![1 => Just(Way::Lost), 1 => Just(Way::Unanswered), 6 => Just(Way::Answered)];
    prop_oneof![
        6 => (at(), way()).prop_map(|(at, way)| LeaseEvent::Publish(at, way)),
        5 => (at(), way()).prop_map(|(at, way)| LeaseEvent::Unpublish(at, way)),
        2 => at().prop_map(LeaseEvent::Cut),
        5 => (at(), way()).prop_map(|(at, way)| LeaseEvent::Link(at, way)),
        1 => at().prop_map(LeaseEvent::Attach),
        1 => at().prop_map(LeaseEvent::Detach),
        2 => at().prop_map(LeaseEvent::Break),
        1 => Just(LeaseEvent::Copy),
        1 => Just(LeaseEvent::PutBack),
    ]
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Node {
    pub(super) lease: Lease,
    linked: bool,
    /// An operator has said that nobody there uses it.
    pub(super) excused: bool,
    /// It has not reported since the copy was restored.
    pub(super) unreported: bool,
    /// It keeps no MACs, like an older csi-edge.
    pub(super) is_older: bool,
}

impl Node {
    pub(super) fn has(self) -> bool {
        matches!(self.lease, Lease::Held(_) | Lease::LetGo(_) | Lease::Fenced)
    }
}

#[derive(Default)]
pub(super) struct World {
    pub(super) nodes: [Node; NODES],
    pub(super) record: LeaseRecord,
    epoch: u64,
    copy: (LeaseRecord, u64),
    /// The key of MACs; another one after the store was lost.
    pub(super) key: u32,
    /// True if the clock continues when a copy is restored. Otherwise only the nodes' reports keep
    /// epochs apart.
    pub(super) clock: bool,
    now: u64,
    /// A node that lost its lease without an operator's revocation.
    pub(super) wronged: Option<usize>,
}

impl World {
    pub(super) fn step(&mut self, at: usize, step: Step<'_>) -> LeaseVerdict {
        self.now += 1;
        let reported = match step {
            Step::Hold(report) if report.proven => report.epoch,
            _ => 0,
        };
        let clock = if self.clock { self.now } else { 0 };
        let epoch = clock.max(self.epoch + 1).max(reported + 1);
        let before = self.record.clone();
        let (after, verdict) = decide(before.clone(), &name(at), step, Moment { epoch, now: 1 });
        if after != before {
            self.epoch = epoch;
        }
        self.record = after;
        verdict
    }

    /// A node reports its lease, with its MAC if it has one.
    pub(super) fn hold(&mut self, at: usize, grant: Grant) -> LeaseVerdict {
        let proven = grant.key == Some(self.key);
        self.step(at, Step::Hold(LeaseReport { epoch: grant.epoch, pod: "p", proven }))
    }

    /// What a node keeps after an answer.
    pub(super) fn granted(&self, at: usize, verdict: &LeaseVerdict) -> Option<Grant> {
        let key = Some(self.key).filter(|_| !self.nodes[at].is_older);
        match verdict {
            LeaseVerdict::Held(epoch) => Some(Grant { epoch: *epoch, key }),
            LeaseVerdict::HeldByWord(epoch) => Some(Grant { epoch: *epoch, key: None }),
            _ => None,
        }
    }

    /// True if a node has not reported since the copy was restored. Pods must not start before.
    pub(super) fn is_recovering(&self) -> bool {
        self.nodes.iter().any(|node| node.unreported)
    }

    /// A pod wants the volume.
    pub(super) fn publish(&mut self, at: usize, way: Way) {
        match self.nodes[at].lease {
            Lease::LetGo(grant) => self.nodes[at].lease = Lease::Held(grant),
            Lease::None | Lease::InDoubt if self.nodes[at].linked => {
                if self.is_recovering() {
                    return;
                }
                self.nodes[at].lease = Lease::InDoubt;
                if way == Way::Lost {
                    return;
                }
                let verdict = self.step(at, Step::Ask("p"));
                let Some(grant) = self.granted(at, &verdict) else { return };
                if way == Way::Answered {
                    self.nodes[at].lease = Lease::Held(grant);
                }
            }
            _ => {}
        }
    }

    fn unpublish(&mut self, at: usize, way: Way) {
        match self.nodes[at].lease {
            Lease::Held(grant) => self.nodes[at].lease = Lease::LetGo(grant),
            Lease::Fenced => self.nodes[at].lease = Lease::InDoubt,
            _ => {}
        }
        self.state(at, way);
    }

    fn state(&mut self, at: usize, way: Way) {
        if !self.nodes[at].linked {
            return;
        }
        match self.nodes[at].lease {
            Lease::Held(grant) if way != Way::Lost => {
                let verdict = self.hold(at, grant);
                self.nodes[at].unreported = false;
                let fenced = matches!(verdict, LeaseVerdict::Fenced(_));
                if fenced && !self.nodes[at].excused {
                    self.wronged = Some(at);
                }
                self.nodes[at].lease = match verdict {
                    LeaseVerdict::Fenced(_) if way == Way::Answered => Lease::Fenced,
                    _ if way != Way::Answered => Lease::Held(grant),
                    verdict => Lease::Held(self.granted(at, &verdict).unwrap_or(grant)),
                };
            }
            Lease::LetGo(_) | Lease::InDoubt => {
                self.nodes[at].lease = Lease::InDoubt;
                if way != Way::Lost {
                    self.step(at, Step::Release);
                }
                if way == Way::Answered {
                    self.nodes[at].lease = Lease::None;
                }
            }
            _ => {}
        }
    }

    pub(super) fn happens(&mut self, event: LeaseEvent) {
        match event {
            LeaseEvent::Publish(at, way) => self.publish(at, way),
            LeaseEvent::Unpublish(at, way) => self.unpublish(at, way),
            LeaseEvent::Cut(at) => self.nodes[at].linked = false,
            LeaseEvent::Link(at, way) => {
                self.nodes[at].linked = true;
                self.state(at, way);
            }
            LeaseEvent::Attach(at) => drop(self.step(at, Step::Attach(name(at).as_str()))),
            LeaseEvent::Detach(at) => drop(self.step(at, Step::Detach(name(at).as_str()))),
            // Only of an absent node, and only after all nodes have linked: otherwise the wrong
            // node might lose it.
            LeaseEvent::Break(at) if !self.nodes[at].linked => {
                let has = self.record.holder.as_ref().is_some_and(|holder| holder.node == name(at));
                if has && self.step(at, Step::Break) == LeaseVerdict::Done {
                    self.nodes[at].excused = self.nodes[at].has();
                }
            }
            LeaseEvent::Break(_) => {}
            LeaseEvent::Copy => self.copy = (self.record.clone(), self.epoch),
            LeaseEvent::PutBack => {
                (self.record, self.epoch) = self.copy.clone();
                for node in &mut self.nodes {
                    node.linked = false;
                    node.unreported = true;
                }
            }
        }
        for node in self.nodes.iter_mut().filter(|node| !node.has()) {
            node.excused = false;
            node.unreported = false;
        }
    }
}

pub(super) fn name(at: usize) -> NodeName {
    format!("n{at}").parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_two_nodes_have_a_volume_though_older_copies_of_the_store_are_put_back(
        clock in any::<bool>(),
        events in proptest::collection::vec(event(), 0..200),
    ) {
        let mut world = World { clock, ..World::default() };
        for (number, event) in events.iter().enumerate() {
            world.happens(*event);
            let users = (0..NODES).filter(|at| world.nodes[*at].has() && !world.nodes[*at].excused);
            let users: Vec<_> = users.collect();
            prop_assert!(users.len() <= 1, "{users:?} after {:?}", &events[..=number]);
            prop_assert_eq!(world.wronged, None, "after {:?}", &events[..=number]);
        }
    }
}

/// The cases that proptest may miss.
#[test]
fn the_later_owner_has_it_whoever_is_heard_first() {
    use LeaseEvent::{Break, Copy, Cut, Link, Publish, PutBack, Unpublish};
    use Way::Answered;
    let all = [Link(0, Answered), Link(1, Answered), Publish(0, Answered), Copy];
    let let_go = [Unpublish(0, Answered), Publish(1, Answered), PutBack];
    let taken = [Cut(0), Break(0), Publish(1, Answered), PutBack];
    for (moved, second) in [(&let_go[..], Lease::None), (&taken[..], Lease::Fenced)] {
        for (order, clock) in [([0, 1, 0, 1], false), ([0, 1, 0, 1], true), ([1, 0, 0, 1], false)] {
            let mut world = World { clock, ..World::default() };
            let links = order.map(|at| Link(at, Answered));
            all.iter().chain(moved).chain(&links).for_each(|event| world.happens(*event));
            assert!(matches!(world.nodes[1].lease, Lease::Held(_)), "{:?}", world.nodes);
            assert_eq!(world.nodes[0].lease, second);
            assert_eq!(
                world.record.holder.as_ref().map(|holder| holder.node.clone()),
                Some(name(1))
            );
        }
    }
}
