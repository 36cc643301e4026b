//! What goes wrong with several clouds and their store; the seed decides it before a run begins.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::clouds::{Laid, MEMBERS, Replicas, stall};
use crate::dice::Dice;
use crate::keys::REPLICAS;
use crate::net::Away;
use crate::wire::{Mishap, Way};

/// How long edges are with the successor, and then with the cloud before.
const LURED: Duration = Duration::from_secs(3);

/// A trouble, and for how long it lasts.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The lease of a cloud ends early. Of these, the leader's comes first.
    LeaseEnds,
    /// The store forgets its history.
    Compacts,
    /// A member of the store is cut off.
    MemberCut(usize),
    /// The store takes no changes.
    Full,
    /// The leader stands still.
    LeaderPaused,
    /// Any cloud does.
    Paused(usize),
    /// The leader cannot reach the store, though edges and callers reach it.
    LeaderApart,
    /// A cloud cannot reach one member of the store, though the others reach both.
    MemberApart(usize, usize),
    /// The leader cannot reach the store, and its lease ends early. So it does not know.
    LeaderForgotten,
    /// A cloud is killed.
    Killed(usize),
    /// A cloud is told to stop.
    Stopped(usize),
}

/// When it happens, what, and for how long.
pub(crate) type Event = (Duration, What, Duration);

/// What goes wrong.
#[derive(Clone, Copy)]
pub(crate) struct What(Trouble);

/// Draws the troubles of a run.
pub(crate) fn draw(dice: &mut Dice, span: Duration) -> Vec<Event> {
    let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let mut events = Vec::new();
    for _ in 0..dice.between(2, 25) {
        let at = dice.time(0, span);
        let cloud = dice.below(REPLICAS.len());
        let member = dice.below(MEMBERS);
        let what = dice.pick(&[
            Trouble::LeaseEnds,
            Trouble::Compacts,
            Trouble::MemberCut(member),
            Trouble::Full,
            Trouble::LeaderPaused,
            Trouble::LeaderPaused,
            Trouble::Paused(cloud),
            Trouble::LeaderApart,
            Trouble::MemberApart(cloud, member),
            Trouble::LeaderForgotten,
            Trouble::LeaderForgotten,
            Trouble::Killed(cloud),
            Trouble::Stopped(cloud),
        ]);
        events.push((at, What(what), dice.time(500, 30_000)));
    }
    events.sort_by_key(|(at, ..)| *at);
    events
}

/// Lets them happen.
pub(crate) async fn run(replicas: Arc<Replicas>, events: Vec<Event>) {
    let began = Instant::now();
    for (at, what, time) in events {
        tokio::time::sleep_until(began + at).await;
        replicas.suffer(what, time);
    }
}

impl Replicas {
    fn suffer(self: &Arc<Self>, What(what): What, time: Duration) {
        self.trace.say(format_args!("trouble: {what:?} for {time:?}"));
        let leader = self.leader_or_any();
        let counted = match what {
            Trouble::LeaseEnds => {
                self.end_lease();
                "a lease ended early"
            }
            Trouble::Compacts => {
                self.etcd.compact();
                "etcd: compacted"
            }
            Trouble::MemberCut(member) => {
                self.etcd.cut(member, true);
                self.later(time, move |replicas| replicas.etcd.cut(member, false));
                "etcd: a member was cut off"
            }
            Trouble::Full => {
                self.etcd.fill(true);
                self.later(time, |replicas| replicas.etcd.fill(false));
                "etcd: full"
            }
            Trouble::LeaderPaused => {
                self.pause(leader, time);
                "a cloud stood still"
            }
            Trouble::Paused(at) => {
                self.pause(at, time);
                "a cloud stood still"
            }
            Trouble::LeaderApart => {
                self.part(leader, time);
                "a leader could not reach etcd"
            }
            Trouble::MemberApart(at, member) => {
                self.part_from(at, member, time);
                "a cloud could not reach a member of etcd"
            }
            Trouble::LeaderForgotten => {
                self.part(leader, time);
                self.end_lease();
                self.lure(leader);
                "a leader was forgotten by etcd"
            }
            Trouble::Killed(at) => {
                self.kill(at);
                self.later(time, move |replicas| replicas.start(at));
                "a cloud was killed"
            }
            Trouble::Stopped(at) => {
                let replicas = self.clone();
                self.tasks.spawn_until_stop("stop", async move {
                    replicas.stop(at).await;
                    tokio::time::sleep(time).await;
                    replicas.start(at);
                });
                "a cloud was told to stop"
            }
        };
        self.count(counted);
    }

    fn later(self: &Arc<Self>, after: Duration, act: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let replicas = self.clone();
        self.tasks.spawn_until_stop("later", async move {
            tokio::time::sleep(after).await;
            act(&replicas);
        });
    }

    /// Ends the leader's lease.
    fn end_lease(&self) {
        let key = format!("{}/leader", super::etcd::PREFIX);
        if let Some(lease) = self.etcd.lease_of(key.as_bytes()) {
            self.etcd.end_lease(lease);
            self.lease_ends.send_replace(());
        }
    }

    /// Edges go to the successor of a cloud that does not know that it is deposed, and back to it.
    fn lure(self: &Arc<Self>, old: usize) {
        let nodes = self.shape.nodes;
        let replicas = self.clone();
        self.tasks.spawn_until_stop("lure", async move {
            let (was, others) = REPLICAS.iter().enumerate().partition(|(at, _)| *at == old);
            let address = |of: Vec<(usize, &&'static str)>| -> Vec<&'static str> {
                of.into_iter().map(|(_, address)| *address).collect()
            };
            for endpoints in [address(was), address(others)] {
                for node in 0..nodes {
                    replicas.net.cut_off(node, &endpoints, Away::Refused, LURED);
                    replicas.net.suffer(node, Way::Up, Mishap::Cut);
                }
                tokio::time::sleep(LURED).await;
            }
        });
    }

    /// A cloud and the store do not reach each other for a while.
    fn part(&self, at: usize, time: Duration) {
        let mut state = self.lock();
        if let Some(apart) = state.apart.get_mut(at) {
            *apart = Instant::now() + time;
        }
        stall(state.wires.iter().filter(|laid| laid.at == at && laid.member.is_some()), time);
    }

    /// A cloud and one member of the store do not reach each other for a while.
    fn part_from(&self, at: usize, member: usize, time: Duration) {
        let mut state = self.lock();
        let parted = state.parted.get_mut(at).and_then(|parted| parted.get_mut(member));
        if let Some(parted) = parted {
            *parted = Instant::now() + time;
        }
        let between = |laid: &&Laid| laid.at == at && laid.member == Some(member);
        stall(state.wires.iter().filter(between), time);
    }
}
