//! The owner of a volume under any order of steps: the cloud's decisions, and the nodes' reactions.
//! Links lose messages and nodes are killed. The rules of both sides are the real ones.

#![expect(clippy::unwrap_used, reason = "a test's own functions, which clippy takes for others")]

use std::collections::VecDeque;

use cloud::lease::decide::{LeaseReport, LeaseVerdict, Moment, Step, decide};
use cloud::state::record::LeaseRecord;
use edge_direct::lease::record as lease;
use edge_direct::lease::record::{Lease, Wish};
use proptest::prelude::*;
use proto::control::lease::{LeaseAction, Outcome};
use proto::names::NodeName;

const NODES: usize = 3;

/// The possible steps; the number is the node.
#[derive(Clone, Copy, Debug)]
enum LeaseEvent {
    /// A pod wants the volume.
    Publish(usize),
    /// Its pod is gone, and so is its guest.
    Unpublish(usize),
    /// The node tells the cloud how it stands.
    State(usize),
    /// The cloud hears the node's next message.
    Hear(usize),
    /// The node hears the cloud's next answer.
    Answer(usize),
    /// The node waits for its answer no more.
    TimeOut(usize),
    /// The link is lost, with all that is on it; the node may have been killed, too.
    Cut(usize),
    Link(usize),
    /// csi-cloud was killed.
    KillCloud,
    Attach(usize),
    Detach(usize),
    /// An operator takes the volume from a node that is away.
    Break(usize),
}

fn event() -> impl Strategy<Value = LeaseEvent> {
    let at = || 0..NODES;
    prop_oneof![
        4 => at().prop_map(LeaseEvent::Publish),
        3 => at().prop_map(LeaseEvent::Unpublish),
        3 => at().prop_map(LeaseEvent::State),
        8 => at().prop_map(LeaseEvent::Hear),
        8 => at().prop_map(LeaseEvent::Answer),
        1 => at().prop_map(LeaseEvent::TimeOut),
        1 => at().prop_map(LeaseEvent::Cut),
        4 => at().prop_map(LeaseEvent::Link),
        1 => Just(LeaseEvent::KillCloud),
        1 => at().prop_map(LeaseEvent::Attach),
        1 => at().prop_map(LeaseEvent::Detach),
        1 => at().prop_map(LeaseEvent::Break),
    ]
}

#[derive(Default)]
struct Node {
    /// Durable.
    lease: Option<Lease>,
    /// There is a record of it, and maybe a guest. Durable.
    recorded: bool,
    linked: bool,
    /// On the way to the cloud, and to the node.
    up: VecDeque<(u64, LeaseAction)>,
    down: VecDeque<(u64, Outcome)>,
    /// The expected answer: its number, whether a pod wants the volume, and the lease at that time.
    waits: Option<(u64, bool, Lease)>,
    next: u64,
    /// The leases that the cloud has confirmed on this link.
    confirmed: Option<Lease>,
    /// It keeps no MACs, like an older csi-edge.
    is_older: bool,
    /// An operator has said that nobody there uses it any more.
    excused: bool,
}

impl Node {
    fn send(&mut self, step: LeaseAction, for_pod: bool, lease: Lease) {
        if !self.linked {
            return;
        }
        self.next += 1;
        self.up.push_back((self.next, step));
        self.waits = Some((self.next, for_pod, lease));
    }

    /// The right to the volume is taken while it waits.
    fn is_free(&self) -> bool {
        self.waits.is_none()
    }

    fn settle(&mut self) {
        self.lease = lease::settled(self.lease.take(), self.recorded);
    }

    fn publish(&mut self) {
        self.settle();
        match lease::wish(self.lease.as_ref()) {
            Wish::Has(lease) => {
                self.lease = Some(lease.clone());
                // With a link, no pod has it before the cloud has confirmed that.
                match lease::statement(&lease, "p")
                    .filter(|_| self.linked && self.confirmed != self.lease)
                {
                    Some((lease, step)) => self.send(step, true, lease),
                    None => self.recorded = true,
                }
            }
            Wish::Fenced(_) => {}
            Wish::Ask => {
                self.lease = Some(Lease::Unsettled);
                self.send(LeaseAction::Ask { pod: "p".into() }, true, Lease::Unsettled);
            }
        }
    }

    fn state(&mut self) {
        self.settle();
        let Some((lease, step)) =
            self.lease.as_ref().and_then(|lease| lease::statement(lease, "p"))
        else {
            return;
        };
        if self.linked {
            self.lease = Some(lease.clone());
            self.send(step, false, lease);
        }
    }

    fn answer(&mut self) {
        let Some((number, answer)) = self.down.pop_front() else { return };
        let Some((_, for_pod, lease)) = self.waits.take_if(|(waits, ..)| *waits == number) else {
            return;
        };
        self.lease = lease::answered(lease, &answer);
        if matches!(answer, Outcome::Held { .. }) {
            self.confirmed = self.lease.clone();
        }
        self.recorded |= for_pod && matches!(self.lease, Some(Lease::Held { .. }));
        if !for_pod {
            return;
        }
        self.settle();
    }

    fn cut(&mut self) {
        (self.linked, self.waits, self.confirmed) = (false, None, None);
        self.up.clear();
        self.down.clear();
    }

    /// Whether a guest may use the volume here, without anybody being asked.
    fn has(&self) -> bool {
        matches!(self.lease, Some(Lease::Held { .. } | Lease::LetGo { .. })) || self.recorded
    }
}

#[derive(Default)]
struct World {
    nodes: [Node; NODES],
    own: LeaseRecord,
    epoch: u64,
}

impl World {
    fn step(&mut self, at: usize, step: Step<'_>) -> LeaseVerdict {
        self.epoch += 1;
        let (after, verdict) = decide(
            std::mem::take(&mut self.own),
            &name(at),
            step,
            Moment { epoch: self.epoch, now: 1 },
        );
        self.own = after;
        verdict
    }

    fn hear(&mut self, at: usize) {
        let Some((number, said)) = self.nodes[at].up.pop_front() else { return };
        let verdict = match &said {
            LeaseAction::Ask { pod } => self.step(at, Step::Ask(pod)),
            LeaseAction::Hold { epoch, pod, mac } => {
                let proven = *mac == Some(mac_of(at, *epoch));
                self.step(at, Step::Hold(LeaseReport { epoch: *epoch, pod, proven }))
            }
            LeaseAction::Release => self.step(at, Step::Release),
        };
        let why = String::new();
        let answer = match verdict {
            LeaseVerdict::Held(epoch) => {
                let mac = Some(mac_of(at, epoch)).filter(|_| !self.nodes[at].is_older);
                Outcome::Held { epoch, mac }
            }
            LeaseVerdict::HeldByWord(epoch) => Outcome::Held { epoch, mac: None },
            LeaseVerdict::Contested(_) => Outcome::NotNow { why },
            LeaseVerdict::Done => Outcome::Released,
            LeaseVerdict::HeldElsewhere(_) => Outcome::HeldElsewhere { why },
            LeaseVerdict::Fenced(_) => Outcome::Fenced { why },
        };
        self.nodes[at].down.push_back((number, answer));
    }

    fn happens(&mut self, event: LeaseEvent) {
        match event {
            LeaseEvent::Publish(at) if self.nodes[at].is_free() => self.nodes[at].publish(),
            LeaseEvent::Unpublish(at) if self.nodes[at].is_free() => {
                self.nodes[at].recorded = false;
                self.nodes[at].settle();
            }
            LeaseEvent::State(at) if self.nodes[at].is_free() => self.nodes[at].state(),
            LeaseEvent::Hear(at) => self.hear(at),
            LeaseEvent::Answer(at) => self.nodes[at].answer(),
            LeaseEvent::TimeOut(at) => self.nodes[at].waits = None,
            LeaseEvent::Cut(at) => self.nodes[at].cut(),
            LeaseEvent::Link(at) => {
                self.nodes[at].cut();
                self.nodes[at].linked = true;
            }
            LeaseEvent::KillCloud => self.nodes.iter_mut().for_each(Node::cut),
            LeaseEvent::Attach(at) => drop(self.step(at, Step::Attach(name(at).as_str()))),
            LeaseEvent::Detach(at) => drop(self.step(at, Step::Detach(name(at).as_str()))),
            LeaseEvent::Break(at) if !self.nodes[at].linked => self.take_from(at),
            _ => {}
        }
        for node in self.nodes.iter_mut().filter(|node| !node.has()) {
            node.excused = false;
        }
    }

    fn take_from(&mut self, at: usize) {
        let done = self.step(at, Step::Break) == LeaseVerdict::Done;
        self.nodes[at].excused |= done && self.nodes[at].has();
    }

    /// The nodes that may use the volume, without those that an operator has declared gone.
    fn users(&self) -> Vec<usize> {
        (0..NODES).filter(|at| self.nodes[*at].has() && !self.nodes[*at].excused).collect()
    }

    fn holder(&self) -> Option<NodeName> {
        self.own.holder.as_ref().map(|owner| owner.node.clone())
    }

    /// All is linked again, all pods go, and all is heard.
    fn ends(&mut self) {
        for at in 0..NODES {
            self.happens(LeaseEvent::Link(at));
            self.happens(LeaseEvent::Detach(at));
            // The lease comes first, because it may be fenced.
            for ended in [LeaseEvent::State(at), LeaseEvent::Unpublish(at), LeaseEvent::State(at)] {
                self.happens(ended);
                self.happens(LeaseEvent::Hear(at));
                self.happens(LeaseEvent::Answer(at));
            }
        }
    }
}

/// What stands for the cloud's MAC.
fn mac_of(at: usize, epoch: u64) -> String {
    format!("{at} has {epoch}")
}

fn name(at: usize) -> NodeName {
    format!("n{at}").parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_two_nodes_have_a_volume_but_by_an_operators_word(
        events in proptest::collection::vec(event(), 0..200),
        older in any::<[bool; NODES]>(),
    ) {
        let mut world = World::default();
        for (node, is_older) in world.nodes.iter_mut().zip(older) {
            node.is_older = is_older;
        }
        for (number, event) in events.iter().enumerate() {
            let before = world.nodes.each_ref().map(|node| node.recorded);
            world.happens(*event);
            let newly = |at: &usize| world.nodes[*at].recorded && !before[*at];
            for at in (0..NODES).filter(newly).filter(|at| world.nodes[*at].linked) {
                let after = &events[..=number];
                prop_assert_eq!(world.holder(), Some(name(at)), "a pod has it, after {:?}", after);
            }
            let users = world.users();
            prop_assert!(users.len() <= 1, "{users:?} after {:?}", &events[..=number]);
            let holds = |at: &usize| world.holder() == Some(name(*at));
            let taken = (0..NODES).find(|at| world.nodes[*at].excused && holds(at));
            prop_assert_eq!(taken, None, "it has what was taken from it, after \
            {:?}", &events[..=number]);
            if let Some(at) = users.first() {
                prop_assert_eq!(world.holder(), Some(name(*at)), "after {:?}", &events[..=number]);
            }
        }
        world.ends();
        prop_assert_eq!(&world.own.holder, &None, "nobody has it, and it is nobody's to give");
        prop_assert!(world.nodes.iter().all(|node| node.lease.is_none()));
    }
}

/// Cases that a proptest may miss: the three ways by which a volume moves from one node to another.
#[test]
fn a_volume_goes_from_one_node_to_another() {
    use LeaseEvent::{Answer, Break, Cut, Hear, Link, Publish, State, Unpublish};
    let took = |events: &[LeaseEvent]| {
        let mut world = World::default();
        [Link(0), Link(1)].iter().chain(events).for_each(|event| world.happens(*event));
        world.users()
    };
    let first = [Publish(0), Hear(0), Answer(0)];
    let second = [Publish(1), Hear(1), Answer(1)];
    let all = |parts: &[&[LeaseEvent]]| parts.concat();
    assert_eq!(took(&all(&[&first, &second])), [0]);
    assert_eq!(took(&all(&[&first, &[Unpublish(0), State(0), Hear(0)], &second])), [1]);
    assert_eq!(took(&all(&[&first, &[Cut(0), Unpublish(0)], &second])), [0]);
    assert_eq!(took(&all(&[&first, &[Cut(0), Break(0)], &second])), [1]);
    // Fenced when it is back, and an ordinary node when it has let go.
    let back = [Link(0), State(0), Hear(0), Answer(0), Publish(0)];
    assert_eq!(took(&all(&[&first, &[Cut(0), Break(0)], &second, &back])), [1]);
}
