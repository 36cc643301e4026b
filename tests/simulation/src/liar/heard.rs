//! Which calls may come to the liar: its own, questions to all nodes, and deletes of what has no
//! home. No other, and no secrets but with its own.

use std::time::Duration;

use bytes::Bytes;
use cloud::state::policy::Scope;
use cloud::state::record::Change;
use proto::csi::{Id, Key, Method, Segments};
use tokio::time::Instant;

use crate::check::{ENDS, had_no_home};
use crate::homes::Homes;
use crate::keys::{LIAR, NODES};
use crate::model::World;
use crate::model::repeater::NEVER;
use crate::record::SECRET;
use crate::shape::driver_name;
use drivers::testdriver::TOPOLOGY_KEY;

/// The questions of csi-cloud itself that go to all nodes.
const QUESTIONS: [&str; 4] =
    ["ListVolumes", "ListSnapshots", "ValidateVolumeCapabilities", "GetVolumeGroupSnapshot"];
/// How long before its create a node must have been set apart.
const MARGIN: u64 = 1_000;

/// How long after its last end a driver may count as down: it fails three times, and then must not
/// fail for 30 s.
const UNSTEADY: Duration = Duration::from_secs(60);

/// A call that came to the liar.
pub(super) struct HeardCall {
    pub(super) method: Method,
    /// The unframed request.
    pub(super) message: Bytes,
    /// The number of the caller's call; none for a question of csi-cloud itself.
    pub(super) number: Option<usize>,
}

impl HeardCall {
    /// Whether the call is the liar's own, to be answered as it likes.
    ///
    /// # Errors
    /// Why it should not have come.
    pub(super) fn judge(&self, world: &World) -> Result<bool, String> {
        let shape = world.fleet.shape();
        if shape.liar.is_none_or(|liar| !liar.is_allowed) {
            return Err("the operator's `nodes` do not name it".into());
        }
        if shape.scope == Scope::Shared {
            return Err("the operator's `controllers` do not name it".into());
        }
        let is_own = self.is_own(world)?;
        let has_secrets = self.message.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
        if has_secrets && !is_own {
            return Err("it goes to several nodes and has secrets".into());
        }
        if has_secrets && self.is_of_nobody() && world.fleet.known() > 0 {
            return Err("nobody has it but by the liar's word, and it has secrets".into());
        }
        Ok(is_own)
    }

    /// Whether it is about an id that nobody ever had.
    fn is_of_nobody(&self) -> bool {
        match self.method.key(&self.message) {
            Ok(Key::Home(id) | Key::Delete(id)) => id.text().starts_with(NEVER),
            _ => false,
        }
    }

    fn is_own(&self, world: &World) -> Result<bool, String> {
        let Some(number) = self.number else {
            let is_question = QUESTIONS.contains(&self.method.name());
            return if is_question { Ok(false) } else { Err("csi-cloud asks nobody this".into()) };
        };
        match self.method.key(&self.message).map_err(|error| error.to_string())? {
            Key::Create { name, topology, .. } => {
                check_create(world, &name, &topology)?;
                world.liar.add_name(&name);
                Ok(true)
            }
            Key::Snapshot { volumes, .. } => {
                volumes.iter().try_for_each(|id| check_not_honest(world, id))?;
                Ok(true)
            }
            Key::Home(id) | Key::Delete(id) => {
                // Every node is told the end of what has no home; the only node decides it.
                let is_to_all =
                    ENDS.contains(&self.method.name()) && was_to_all(world, &id, number);
                let is_liars = || was_ever_liars(world, &id) || world.fleet.known() == 0;
                match check_not_honest(world, &id) {
                    Ok(()) => Ok(!is_to_all || is_liars()),
                    Err(_) if is_to_all => Ok(false),
                    Err(why) => Err(why),
                }
            }
            Key::All | Key::Capacity(_) => Ok(false),
            Key::Local | Key::Node(_) => Err("no cloud sends this".into()),
        }
    }
}

/// Checks that no honest node has this.
fn check_not_honest(world: &World, id: &Id) -> Result<(), String> {
    for (node, driver) in world.fleet.storages() {
        let is_there = match id {
            Id::Volume(id) => driver.volumes().iter().any(|volume| volume.volume_id == *id),
            Id::Snapshot(id) => driver.snapshots().iter().any(|(_, of)| of.snapshot_id == *id),
            Id::Group(_) | Id::Name(..) => false,
        };
        if is_there {
            return Err(format!("{id:?} is at n{}", node + 1));
        }
    }
    Ok(())
}

/// Whether the home of an id was the liar ever.
fn was_ever_liars(world: &World, id: &Id) -> bool {
    world.fleet.read_noted(|noted| Homes::of(noted).was_ever(id, LIAR))
}

/// Whether the end of an id may have gone to all nodes.
fn was_to_all(world: &World, id: &Id, number: usize) -> bool {
    let call = world.record.all().into_iter().nth(number);
    call.is_some_and(|call| had_no_home(world, id, call.sent))
}

/// Checks a create of this name and topology.
///
/// A node that no cloud knew has no place yet that the liar could not claim. So only nodes that
/// were known count (docs/security/README.md, "What nothing stops"). A node is passed over
/// while its driver is down, or when it is away for longer than its grace
/// (docs/design/nodes-and-drivers.md), whoever is next.
fn check_create(world: &World, name: &str, topology: &[Segments]) -> Result<(), String> {
    // An earlier attempt may have made it there, whatever the caller wants by now.
    if world.liar.has_name(name) {
        return Ok(());
    }
    let Some(intended) = intended(world, name) else { return Err("there is no intent".into()) };
    let wanted = topology.iter().filter_map(|segments| segments.get(TOPOLOGY_KEY));
    for wanted in wanted.take_while(|wanted| *wanted != LIAR) {
        if was_known(world, wanted, intended)
            && was_steady(world, wanted, intended)
            && was_linked(world, wanted, intended)
        {
            return Err(format!("{name} is for {wanted}"));
        }
    }
    check_apart(world, name)
}

/// When the liar's last intent of this name became durable, at its first attempt. Later ones go to
/// the same node, whoever is there by then.
fn intended(world: &World, name: &str) -> Option<Instant> {
    world.fleet.read_noted(|noted| {
        let of_name = noted.iter().filter_map(|(at, change)| match change {
            Change::Intent(_, Id::Name(_, of), intent) if of == name => Some((*at, intent)),
            _ => None,
        });
        let mut first = None;
        let mut last = None;
        for (at, intent) in of_name {
            let placed = intent.as_ref().filter(|intent| intent.node.as_str() == LIAR);
            first = placed.map(|intent| match first {
                Some((since, first)) if since == intent.since => (since, first),
                _ => (intent.since, at),
            });
            last = first.or(last);
        }
        last.map(|(_, at)| at)
    })
}

/// Whether the driver of an honest node was known at a moment, with its segment.
fn was_known(world: &World, node: &str, moment: Instant) -> bool {
    NODES.contains(&node)
        && world.fleet.read_noted(|noted| {
            let before = noted.iter().take_while(|(at, _)| *at < moment);
            let mut changes = before.map(|(_, change)| change);
            changes.any(|change| match change {
                Change::NodeDriver(_, of, Some(at)) => {
                    of.as_str() == node && at.segments.iter().any(|it| it.0 == TOPOLOGY_KEY)
                }
                _ => false,
            })
        })
}

/// Whether the driver of a node cannot have counted as down at a moment.
fn was_steady(world: &World, node: &str, moment: Instant) -> bool {
    let moments = |what: &str| world.trace.moments(&format!("the driver of {node} {what}"));
    let Some(killed) = last(moments("is killed"), moment) else { return true };
    last(moments("starts"), moment) > Some(killed) && moment.duration_since(killed) > UNSTEADY
}

/// Whether a node had a link at a moment. One that its edge lets go counts as none, also while the
/// edge has another one.
fn was_linked(world: &World, node: &str, moment: Instant) -> bool {
    let moments = |what: &str| world.trace.moments_at(node, what);
    let lost = [
        moments("unlinked"),
        moments("the edge lets this link go"),
        world.trace.moments("the cloud is killed"),
    ];
    last(moments("links: linked"), moment) > last(lost.into_iter().flatten(), moment)
}

/// The last of these moments, up to one.
fn last(moments: impl IntoIterator<Item = Instant>, until: Instant) -> Option<Instant> {
    moments.into_iter().filter(|at| *at <= until).max()
}

/// A node that is set apart gets nothing new.
fn check_apart(world: &World, name: &str) -> Result<(), String> {
    let Some(store) = world.fleet.store() else { return Ok(()) };
    let (Ok(driver), Ok(liar)) = (driver_name(), LIAR.parse()) else { return Ok(()) };
    let name = Id::Name(Method::CreateVolume, name.to_owned());
    store.read(|state| {
        let since = state.driver(&driver).and_then(|of| of.intent(&name)).map(|of| of.since);
        match (state.apart().why(&liar, &driver), since) {
            (Some(apart), Some(since)) if apart.since + MARGIN < since => {
                Err(format!("it was set apart before that, as {}", apart.reason))
            }
            _ => Ok(()),
        }
    })
}
