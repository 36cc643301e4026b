//! The rules that hold for every run, whatever faults it had.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use cloud::state::policy::Scope;
use cloud::state::record::Change;
use prost::Message;
use proto::csi::{CreateSnapshotRequest, CreateVolumeRequest, Id, Topology, TopologyRequirement};
use tokio::time::Instant;
use tonic::Code;

use super::chaos::METHODS;
use super::deposed;
use super::durable;
use super::homes::Homes;
use super::keys::{LIAR, name};
use super::model::World;
use super::model::api::{ApiVolume, Objects};
use super::model::client::GRACE;
use super::pinned;
use super::record::{Called, Ending, is_open};
use super::runs::{Run, runs};
use super::two_nodes;
use drivers::testdriver::{Outcome, TOPOLOGY_KEY, TestDriver};

/// How long a request may be on its way to a driver when no lane stands still.
const TRANSIT: Duration = Duration::from_millis(300);
/// For so long a shared driver's call waits for its node's next link.
const SHARED_HOLD: Duration = Duration::from_secs(30);
/// How long a call may take to its edge: a link that is silent for longer has ended.
const ON_ITS_WAY: Duration = Duration::from_secs(15);

/// Further results of a run.
#[derive(Default)]
pub struct Seen {
    /// The violations.
    pub wrong: Vec<String>,
    /// Volumes that Kubernetes itself forgot.
    pub orphans: u64,
}

/// Checks a run that is over.
pub fn check(world: &World, stalls: bool) -> Seen {
    let mut seen = Seen::default();
    let runs = runs(world);
    for (number, called) in world.record.all().iter().enumerate() {
        answered_in_time(number, called, world, &mut seen.wrong);
        true_to_the_driver(number, called, &runs, world, &mut seen.wrong);
    }
    run_once(&runs, world, stalls, &mut seen.wrong);
    run_to_its_end(&runs, world, &mut seen.wrong);
    if world.fleet.shape().scope == Scope::Shared {
        seen.wrong.extend(two_nodes::at_once(&runs, &world.record.all()));
    }
    seen.wrong.extend(durable::written_first(world));
    seen.wrong.extend(deposed::stale(world));
    seen.wrong.extend(pinned::pinned(world));
    seen.wrong.extend(pinned::freed(world));
    seen.wrong.extend(world.found.all().1);
    world.api.read(|objects| {
        volumes(world, objects, &mut seen);
        snapshots(world, objects, &mut seen);
        seen.wrong
            .extend(unsettled(objects).into_iter().map(|text| format!("never settled: {text}")));
    });
    let is_single = |_: &(usize, &TestDriver)| !world.fleet.shape().are_doubled;
    for (node, driver) in world.fleet.drivers.iter().enumerate().filter(is_single) {
        let overlaps = driver.overlaps().into_iter();
        seen.wrong.extend(overlaps.map(|text| format!("two at once at {}: {text}", name(node))));
    }
    seen
}

fn answered_in_time(number: usize, called: &Called, world: &World, wrong: &mut Vec<String>) {
    let (Some((at, ending)), Some(deadline)) = (&called.ended, called.deadline) else {
        return;
    };
    let late = match ending {
        Ending::Late => true,
        Ending::Answer(..) => *at > deadline + GRACE,
        Ending::Cancelled | Ending::Broken => false,
    };
    if late {
        wrong.push(format!(
            "#{number} {} {} was not answered by its deadline, {}",
            called.method,
            called.key,
            world.trace.at(deadline)
        ));
    }
    // Promise 3: a caller whose link was lost is held until its deadline, unless the cloud goes
    // away meanwhile.
    let stops = world.fleet.cloud_stops();
    let stopping = || stops.iter().any(|(told, ended)| told <= at && at <= ended);
    // A shared driver's call may go to another node after a while, so it is held for no longer.
    let is_shared = world.fleet.shape().scope == Scope::Shared;
    let is_held = is_shared && *at >= called.sent + SHARED_HOLD;
    if let Ending::Answer(Code::Unavailable, text) = ending
        && text.contains("was lost during the call")
        && *at < deadline
        && !is_held
        && !stopping()
    {
        wrong.push(format!("#{number} {} {} was not held: {text}", called.method, called.key));
    }
    if called.method == "Probe" && matches!(ending, Ending::Answer(code, _) if *code != Code::Ok) {
        wrong.push(format!("#{number} Probe was answered {ending:?}"));
    }
}

/// True if a driver was asked for a caller's volume in the topology of its own node alone.
fn is_narrowed(run: &Run, called: &Called) -> bool {
    let read = |message: &Bytes| CreateVolumeRequest::decode(message.clone()).ok();
    let (Some(mut got), Some(mut asked)) = (read(&run.received.message), read(&called.message))
    else {
        return false;
    };
    let own = Topology { segments: [(TOPOLOGY_KEY.to_owned(), name(run.node).to_owned())].into() };
    let narrowed = TopologyRequirement { requisite: vec![own.clone()], preferred: vec![own] };
    called.method == "CreateVolume"
        && asked.accessibility_requirements.take().is_some()
        && got.accessibility_requirements.take() == Some(narrowed)
        && got == asked
}

/// An OK or a final code is the driver's own answer to this request while its caller waited.
/// Nothing of the same key was open then.
fn true_to_the_driver(
    number: usize,
    called: &Called,
    runs: &[Run],
    world: &World,
    wrong: &mut Vec<String>,
) {
    let Some((answered, Ending::Answer(code, text))) = &called.ended else {
        return;
    };
    if is_open(*code) || !METHODS.contains(&called.method) || world.liar.is_own(number) {
        return;
    }
    let what =
        || format!("#{number} {} {} was answered {code:?} ({text})", called.method, called.key);
    let same = |run: &&Run| {
        let message = &run.received.message;
        let is_as_it_came = *message == called.message || *message == called.bare;
        run.received.method() == called.method && (is_as_it_came || is_narrowed(run, called))
    };
    // CreateVolume for one name may differ in its topology, so the name counts, not the bytes.
    let numbers = |run: &Run| run.number.and_then(|number| world.record.all().get(number).cloned());
    let of_key = |run: &&Run| {
        run.received.method() == called.method
            && numbers(run).is_some_and(|other| other.key == called.key)
    };
    let word = runs.iter().filter(same).find(|run| {
        let said = run.received.ended.filter(|(_, said)| *said == Some(*code));
        said.is_some_and(|(at, _)| called.sent <= at && at <= *answered)
    });
    let Some(word) = word else {
        let before = |run: &&Run| of_key(run) && run.received.at <= *answered;
        if is_our_own_word(
            called,
            (*code, text),
            &runs.iter().filter(before).collect::<Vec<_>>(),
            world,
        ) {
            return;
        }
        return wrong.push(format!("{}, and no driver said so meanwhile", what()));
    };
    if *code == Code::Ok {
        return;
    }
    for run in runs.iter().filter(of_key).filter(|run| run.received.at <= *answered) {
        let running = run.ended().is_none_or(|at| at > *answered);
        let open_since =
            run.received.outcome == Outcome::Dropped && run.received.at > word.received.at;
        if running || open_since {
            wrong.push(format!(
                "{}, a final code, while the outcome of the run of {} at {} was open",
                what(),
                world.trace.at(run.received.at),
                name(run.node)
            ));
        }
    }
}

/// The cloud's own final answers, given without a driver. Nothing can be made at the requested
/// topology, if nothing ever was; and an id that no node has is gone.
fn is_our_own_word(
    called: &Called,
    (code, text): (Code, &str),
    of_key: &[&Run],
    world: &World,
) -> bool {
    let made_nothing = |run: &&Run| {
        matches!(run.received.ended, Some((_, Some(code))) if code != Code::Ok && !is_open(code))
            && run.received.outcome == Outcome::Finished
    };
    let is_gone = || {
        !world.fleet.storages().any(|(_, driver)| {
            driver.volumes().iter().any(|volume| volume.volume_id == called.key)
                || driver.snapshots().iter().any(|(_, snapshot)| snapshot.snapshot_id == called.key)
        })
    };
    match (called.method, code) {
        _ if is_about_liars(world, called) => true,
        // A liar may say that it uses what no honest node has any more.
        ("DeleteVolume", Code::FailedPrecondition) if is_gone() => text.contains(LIAR_HAS_IT),
        ("ControllerUnpublishVolume", Code::Ok) => world.fleet.shape().liar.is_some() && is_gone(),
        ("CreateVolume", Code::ResourceExhausted) => {
            let is_refused = text.contains("no known node is at") || text.contains(LIAR_IS_FULL);
            is_refused && of_key.iter().all(made_nothing)
        }
        ("ControllerPublishVolume" | "DeleteVolume", Code::FailedPrecondition)
            if text.contains(LIAR_HAS_IT) =>
        {
            leased_without_home(world, &called.key)
        }
        ("DeleteVolume" | "DeleteSnapshot", Code::Ok) => is_gone(),
        _ => false,
    }
}

/// Whether a call is about a volume or snapshot that was the liar's.
fn is_about_liars(world: &World, called: &Called) -> bool {
    let source = || CreateSnapshotRequest::decode(called.message.clone()).ok();
    let id = match called.method {
        "CreateVolume" => return false,
        "CreateSnapshot" => Id::Volume(source().unwrap_or_default().source_volume_id),
        _ => existing(called),
    };
    world.fleet.read_noted(|noted| Homes::of(noted).was_ever(&id, LIAR))
}

/// What a call is about that makes nothing.
fn existing(called: &Called) -> Id {
    match called.method {
        "DeleteSnapshot" => Id::Snapshot(called.key.clone()),
        _ => Id::Volume(called.key.clone()),
    }
}

/// Whether the liar got the lease of a volume, or claimed it, before the cloud knew where it is
/// (docs/security/claims.md, "Leases and metadata").
fn leased_without_home(world: &World, id: &str) -> bool {
    let id = Id::Volume(id.to_owned());
    world.fleet.read_noted(|noted| {
        let homes = Homes::of(noted);
        noted.iter().any(|(at, change)| match change {
            Change::Lease(_, of, Some(lease)) if *of == id => {
                let holder = lease.holder.iter().map(|holder| &holder.node);
                let mut nodes = holder.chain(lease.claims.iter().map(|claim| &claim.node));
                nodes.any(|node| node.as_str() == LIAR) && homes.at(&id, *at).is_none()
            }
            _ => false,
        })
    })
}

/// What is said of a direct volume whose lease the liar got.
const LIAR_HAS_IT: &str = "owned by another: node liar";
/// What is said of a create that only the liar could carry out.
const LIAR_IS_FULL: &str = "node liar is over a quota";

/// Calls that go to every node if their id has no home.
pub(super) const ENDS: [&str; 3] = ["DeleteVolume", "ControllerUnpublishVolume", "DeleteSnapshot"];

/// The time of a node for a call that goes to all nodes (`nodes/question.rs` of the cloud).
const FAN_OUT: Duration = Duration::from_secs(60);

/// Whether the next leader, to which the relay passes a call on, may send it to another node. It
/// may have elected another node of a shared driver, and any node answers calls that only read. A
/// create stays at its node until its outcome is known or it is too late for it to begin there.
/// After that any node of a shared driver can repeat the create.
fn may_move(called: &Called, first: &Run, second: &Run, world: &World) -> bool {
    let is_shared = world.fleet.shape().scope == Scope::Shared;
    match called.method {
        "CreateVolume" | "CreateSnapshot" => {
            let apart = second.received.at.saturating_duration_since(first.received.at);
            let begins_no_more = apart + ON_ITS_WAY >= SHARED_HOLD;
            is_shared && (begins_no_more || durable::is_made(world, &second.received))
        }
        method => is_shared || !METHODS.contains(&method),
    }
}

/// A call runs at one node only, once, and not after its deadline.
fn run_once(runs: &[Run], world: &World, stalls: bool, wrong: &mut Vec<String>) {
    let calls = world.record.all();
    let ends = world.fleet.edge_ends();
    let mut by_number = BTreeMap::<usize, Vec<&Run>>::new();
    for run in runs {
        if let Some(number) = run.number {
            by_number.entry(number).or_default().push(run);
        }
    }
    for (number, mut runs) in by_number {
        // They come by node.
        runs.sort_by_key(|run| run.received.at);
        let Some(called) = calls.get(number) else { continue };
        let what = || format!("#{number} {} {}", called.method, called.key);
        for run in &runs {
            let zero = called.deadline == Some(called.sent);
            let latest = called.deadline.map(|deadline| deadline + slack(called, world, stalls));
            if zero || latest.is_some_and(|latest| run.received.at > latest) {
                let at = world.trace.at(run.received.at);
                wrong.push(format!("{} came to the driver at {at}, after its deadline", what()));
            }
        }
        for pair in runs.windows(2) {
            let [first, second] = pair else { continue };
            if first.node != second.node {
                let may_move = may_move(called, first, second, world);
                let is_moved = may_move && first.cloud() != second.cloud();
                if ENDS.contains(&called.method) || is_moved {
                    continue;
                }
                wrong.push(format!(
                    "{} went to {} and {}",
                    what(),
                    name(first.node),
                    name(second.node)
                ));
            }
            // The last leader may have made durable that it is gone, and then answered nothing. The
            // next one knows no home of it, and asks each node. A node that could not be told makes
            // the answer UNAVAILABLE, and the relay sends such a call again: to all of them.
            let is_relayed_end = first.cloud().is_some() && ENDS.contains(&called.method);
            let has_other_leader = first.cloud() != second.cloud();
            if is_relayed_end
                && (has_other_leader || had_no_home(world, &existing(called), called.sent))
            {
                continue;
            }
            // A reading call may run again, and an answer without a code proves nothing.
            let told = first.received.ended.filter(|(_, code)| code.is_some());
            let Some((ended, _)) = told.filter(|_| METHODS.contains(&called.method)) else {
                continue;
            };
            let again = second.received.at;
            // Two csi-edges on one machine do not know of each other's calls.
            let are_doubled = world.fleet.shape().are_doubled;
            let forgotten = are_doubled
                || ends
                    .iter()
                    .any(|(node, at)| *node == first.node && ended <= *at && *at <= again);
            if !forgotten {
                let at = world.trace.at(again);
                wrong.push(format!("{} had been carried out and was again, at {at}", what()));
            }
        }
    }
}

/// How long after its caller's deadline a call may come to a driver. Each node has a minute for the
/// end of what nobody is known to have, whatever time the caller has left when the node links.
fn slack(called: &Called, world: &World, stalls: bool) -> Duration {
    let slack = if stalls { Duration::from_secs(120) } else { TRANSIT };
    let is_to_all =
        ENDS.contains(&called.method) && had_no_home(world, &existing(called), called.sent);
    if is_to_all { slack + FAN_OUT } else { slack }
}

/// Whether an id had no home when a call about it was sent, or later.
pub(super) fn had_no_home(world: &World, id: &Id, sent: Instant) -> bool {
    world.fleet.read_noted(|noted| Homes::of(noted).was_none_since(id, sent))
}

/// A run ends with its answer. Before it, only the driver's or the edge's own end may end it, and
/// the deadline of the call that began it, but never a create's.
fn run_to_its_end(runs: &[Run], world: &World, wrong: &mut Vec<String>) {
    let ends: Vec<_> = world.fleet.drivers.iter().map(TestDriver::ends).collect();
    let calls = world.record.all();
    for run in runs {
        let method = run.received.method();
        let at = world.trace.at(run.received.at);
        let begun_by = run.number.and_then(|number| calls.get(number));
        // The cloud may ask a question of its own on behalf of a reading call.
        let changes = begun_by.filter(|called| METHODS.contains(&called.method));
        let asked_until = changes.and_then(|called| called.deadline);
        match run.given_until() {
            Some(_) if method.starts_with("Create") => {
                wrong.push(format!("a {method} at {} has a deadline, at {at}", name(run.node)));
            }
            // Its caller would have waited for longer.
            Some(given) if asked_until.is_some_and(|asked| given + TRANSIT < asked) => {
                wrong.push(format!("a run of {method} at {} has too little time", name(run.node)));
            }
            Some(_) | None => {}
        }
        let Some(ended) = run.ended().filter(|_| run.received.outcome == Outcome::Dropped) else {
            continue;
        };
        let with_connection = ends.get(run.node).is_some_and(|ends| ends.contains(&ended));
        // A driver that is killed drops all at once, its connections' tasks too.
        let killed =
            world.fleet.driver_ends().iter().any(|(node, at)| *node == run.node && *at == ended);
        let is_over = run.given_until().is_some_and(|given| ended >= given);
        if !with_connection && !killed && !is_over {
            let at = world.trace.at(ended);
            wrong.push(format!("a run of {method} at {} was given up at {at}", name(run.node)));
        }
    }
}

fn volumes(world: &World, objects: &Objects, seen: &mut Seen) {
    let mut found = BTreeMap::<String, usize>::new();
    let shared = world.fleet.shape().scope == Scope::Shared;
    for (node, driver) in world.fleet.storages() {
        for (called, volume, published) in driver.named_volumes() {
            if let Some(other) = found.insert(called.clone(), node) {
                seen.wrong.push(format!(
                    "{called} exists at {} and at {}",
                    name(other),
                    name(node)
                ));
            }
            let claim = objects.claims.iter().find(|claim| claim.name == called);
            let owned = claim.and_then(|claim| claim.volume.as_ref());
            let is_it =
                |owned: &&ApiVolume| owned.id == volume.volume_id && (shared || owned.node == node);
            let owned = owned.filter(is_it).filter(|_| claim.is_none_or(|claim| !claim.at_liar));
            match owned.filter(|owned| !owned.gone) {
                Some(owned) if owned.size > volume.capacity_bytes => {
                    seen.wrong.push(format!("{called} is smaller than its claim was told"));
                }
                Some(_) => {
                    let at = objects.claims.iter().position(|claim| claim.name == called);
                    let wanted =
                        objects.attachments.iter().any(|of| Some(of.claim) == at && of.attached);
                    if wanted == published.is_empty() {
                        seen.wrong.push(format!(
                            "{called}: attached {wanted}, published to {published:?}"
                        ));
                    }
                }
                None if claim.is_some_and(|claim| claim.forgotten) => seen.orphans += 1,
                None => {
                    seen.wrong.push(format!(
                        "{called} ({}) at {} is nobody's",
                        volume.volume_id,
                        name(node)
                    ));
                }
            }
        }
    }
    for claim in &objects.claims {
        let lives = claim.volume.as_ref().is_some_and(|volume| !volume.gone);
        if lives && !claim.at_liar && !found.contains_key(&claim.name) {
            seen.wrong.push(format!(
                "{} is lost: its claim has a volume and no driver has it",
                claim.name
            ));
        }
    }
}

fn snapshots(world: &World, objects: &Objects, seen: &mut Seen) {
    let mut found = BTreeMap::<String, usize>::new();
    for (node, driver) in world.fleet.storages() {
        for (called, snapshot) in driver.snapshots() {
            if let Some(other) = found.insert(called.clone(), node) {
                seen.wrong.push(format!(
                    "{called} exists at {} and at {}",
                    name(other),
                    name(node)
                ));
            }
            let owned = objects.snapshots.iter().find(|of| of.name == called && !of.gone);
            if owned.is_none_or(|of| of.id.as_ref() != Some(&snapshot.snapshot_id)) {
                let id = snapshot.snapshot_id;
                seen.wrong.push(format!("{called} ({id}) at {} is nobody's", name(node)));
            }
        }
    }
    let honest = objects.snapshots.iter().filter(|of| !objects.is_at_liar(of.claim));
    for of in honest.filter(|of| of.id.is_some() && !of.gone) {
        if !found.contains_key(&of.name) {
            seen.wrong.push(format!("{} is lost", of.name));
        }
    }
}

/// The objects that are not settled yet.
pub fn unsettled(objects: &Objects) -> Vec<String> {
    let claims = objects.claims.iter().filter(|claim| !claim.at_liar).filter(|claim| {
        let volume = claim.volume.as_ref();
        match claim.deleted {
            true => !claim.settled && !volume.is_some_and(|of| of.gone),
            false => volume.is_none_or(|volume| volume.size < claim.size),
        }
    });
    let attachments = objects.attachments.iter().filter(|of| !objects.is_at_liar(of.claim));
    let attachments = attachments.filter(|of| !of.gone && (of.deleting || !of.attached));
    let snapshots = objects.snapshots.iter().filter(|of| !objects.is_at_liar(of.claim));
    let snapshots = snapshots.filter(|of| !of.gone && (of.deleting || !of.ready));
    let claims = claims.map(|claim| format!("{} (deleted: {})", claim.name, claim.deleted));
    let attachments =
        attachments.map(|of| format!("attachment of claim {}: {}", of.claim, of.error));
    let snapshots = snapshots.map(|of| format!("{} (deleted: {})", of.name, of.deleting));
    claims.chain(attachments).chain(snapshots).collect()
}
