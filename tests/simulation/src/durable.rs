//! The rules of the cloud's store: what must be durable before each step. When all is calm, each
//! home is right, each thing has a home, and a lost home is found by asking the nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use cloud::state::known::State;
use cloud::state::policy::Scope;
use cloud::state::record::Change;
use prost::Message;
use proto::csi::{CreateSnapshotRequest, CreateVolumeRequest};
use proto::csi::{Id, Method};
use tonic::Code;

use super::disk::Noted;
use super::fleet::Fleet;
use super::keys::{LIAR, name};
use super::model::World;
use super::model::api::Objects;
use super::record::{Called, Ending, is_open};
use super::shape::driver_name;
use drivers::testdriver::Received;

/// The creating RPCs.
const CREATES: [&str; 2] = ["CreateVolume", "CreateSnapshot"];
/// How long nodes may take to link again.
pub(super) const LINK: u64 = 900;

/// Promise 1: an intent is durable before its create is sent, a home before its create is answered.
pub fn written_first(world: &World) -> Vec<String> {
    let noted = world.fleet.noted();
    [intents_first(world, &noted), homes_first(world, &noted)].concat()
}

fn intents_first(world: &World, noted: &[Noted]) -> Vec<String> {
    let mut wrong = Vec::new();
    let shared = world.fleet.shape().scope == Scope::Shared;
    for (node, driver) in world.fleet.drivers.iter().enumerate() {
        for run in driver.calls().iter().filter(|run| CREATES.contains(&run.method())) {
            let Some(made) = made_by(run) else { continue };
            let intended = |(at, change): &Noted| {
                matches!(change, Change::Intent(_, id, Some(intent))
                    // Any node of a shared driver finds existing objects.
                    if *at <= run.at && *id == made
                        && (intent.node.as_str() == name(node) || shared && intent.made.is_some()))
            };
            if !noted.iter().any(intended) {
                let at = world.trace.at(run.at);
                wrong.push(format!("{made:?} came to {} at {at} without an intent", name(node)));
            }
        }
    }
    wrong
}

fn homes_first(world: &World, noted: &[Noted]) -> Vec<String> {
    let mut wrong = Vec::new();
    let answered = world.record.all().into_iter().enumerate();
    for (number, called) in
        answered.filter(|(_, called)| CREATES.contains(&called.method) && is_ok(called))
    {
        let home = |(at, change): &Noted| {
            matches!(change, Change::Home(_, id, Some(home))
                if called.ended.as_ref().is_some_and(|(ended, _)| at <= ended)
                    && is_made_by(id, called.method)
                    && home.name.as_deref() == Some(called.key.as_str()))
        };
        if !noted.iter().any(home) {
            wrong.push(format!(
                "#{number} {} {} was answered OK before its home was durable",
                called.method, called.key
            ));
        }
    }
    wrong
}

/// True if the store knew what a create had made when it came to a driver.
pub(super) fn is_made(world: &World, run: &Received) -> bool {
    let Some(name) = made_by(run) else { return false };
    world.fleet.read_noted(|noted| {
        let until = noted.iter().take_while(|(at, _)| *at <= run.at);
        let of_name = until.filter_map(|(_, change)| match change {
            Change::Intent(_, of, intent) if *of == name => Some(intent),
            _ => None,
        });
        of_name.last().is_some_and(|intent| intent.as_ref().is_some_and(|of| of.made.is_some()))
    })
}

pub(super) fn made_by(run: &Received) -> Option<Id> {
    let (method, name) = match run.method() {
        "CreateVolume" => {
            (Method::CreateVolume, CreateVolumeRequest::decode(run.message.clone()).ok()?.name)
        }
        "CreateSnapshot" => {
            (Method::CreateSnapshot, CreateSnapshotRequest::decode(run.message.clone()).ok()?.name)
        }
        _ => return None,
    };
    Some(Id::Name(method, name))
}

fn is_made_by(id: &Id, method: &str) -> bool {
    matches!((id, method), (Id::Volume(_), "CreateVolume") | (Id::Snapshot(_), "CreateSnapshot"))
}

fn is_ok(called: &Called) -> bool {
    matches!(&called.ended, Some((_, Ending::Answer(Code::Ok, _))))
}

/// Where things are, and under which names they were made.
type Things = BTreeMap<Id, (usize, String)>;

fn at_drivers(fleet: &Fleet) -> Things {
    let mut things = Things::new();
    for (node, driver) in fleet.storages() {
        let volumes = driver.named_volumes().into_iter();
        things
            .extend(volumes.map(|(name, volume, _)| (Id::Volume(volume.volume_id), (node, name))));
        let snapshots = driver.snapshots().into_iter();
        things.extend(
            snapshots.map(|(name, snapshot)| (Id::Snapshot(snapshot.snapshot_id), (node, name))),
        );
    }
    things
}

/// Whether the store is right when all is calm.
pub fn right(world: &World) -> Vec<String> {
    let Some(store) = world.fleet.store() else { return vec!["there is no cloud".into()] };
    let things = at_drivers(&world.fleet);
    let mut wrong = store.read(|state| homes(world, state, &things));
    wrong.extend(store.read(|state| intents(world, state)));
    wrong
}

fn homes(world: &World, state: &State, things: &Things) -> Vec<String> {
    let driver = driver_name().ok().and_then(|name| state.driver(&name));
    let Some(driver) = driver else { return vec!["the store knows no driver".into()] };
    let shared = world.fleet.shape().scope == Scope::Shared;
    let mut wrong = Vec::new();
    // What only a liar claims is its own.
    let is_a_lie = |id: &Id, node: &str| node == LIAR && !things.contains_key(id);
    let homes = driver.homes().iter();
    for (id, home) in homes.filter(|(id, home)| !is_a_lie(id, home.node.as_str())) {
        let right = things.get(id).is_some_and(|(node, called)| {
            (shared || home.node.as_str() == name(*node))
                && home.name.as_deref().is_none_or(|name| name == called)
                && !home.absent
                && home.conflicts.iter().all(|node| node.as_str() == LIAR)
        });
        if !right {
            let there = things.get(id);
            wrong.push(format!(
                "the store has {id:?} at {} as {:?}; it is {there:?}",
                home.node, home.name
            ));
        }
    }
    // No record can know an object whose create was not answered. An object from before csi-cloud
    // is discovered by its first call.
    for (id, (node, called)) in things.iter().filter(|(id, _)| driver.home(id).is_none()) {
        let told = world.record.all().iter().any(|call| call.key == *called && is_ok(call));
        if told {
            wrong.push(format!("{id:?} of {called} at {} has no home", name(*node)));
        }
    }
    wrong
}

/// An open intent has an outcome that no caller knows.
fn intents(world: &World, state: &State) -> Vec<String> {
    let driver = driver_name().ok().and_then(|name| state.driver(&name));
    let mut wrong = Vec::new();
    let intents = driver.into_iter().flat_map(|driver| driver.intents());
    for (id, intent) in intents.filter(|(_, intent)| intent.node.as_str() != LIAR) {
        let Id::Name(method, called) = id else { continue };
        if is_of_liars(world, *method, called) {
            continue;
        }
        if let Some(made) = &intent.made {
            let made: String = (**made).into();
            let made =
                if *method == Method::CreateVolume { Id::Volume(made) } else { Id::Snapshot(made) };
            if driver.is_none_or(|driver| driver.home(&made).is_none()) {
                wrong.push(format!("{id:?} made {made:?}, which has no home"));
            }
            continue;
        }
        let calls = world.record.all();
        let mut calls =
            calls.iter().filter(|call| call.method == method.name() && call.key == *called);
        let not_told = |call: &Called| match &call.ended {
            // Codes after which an object may exist.
            Some((_, Ending::Answer(code, _))) => {
                is_open(*code) || matches!(code, Code::Unknown | Code::Internal)
            }
            _ => true,
        };
        if !calls.clone().any(not_told) || calls.any(is_ok) {
            wrong.push(format!(
                "the intent of {id:?} at {} is open, and its outcome was told",
                intent.node
            ));
        }
    }
    wrong
}

/// Whether a create is a snapshot of the liar's volume: after its removal any node may be asked.
fn is_of_liars(world: &World, method: Method, name: &str) -> bool {
    let of_liars = |objects: &Objects| {
        let mut snapshots = objects.snapshots.iter().filter(|of| of.name == name);
        snapshots.any(|of| objects.is_at_liar(of.claim))
    };
    method == Method::CreateSnapshot && world.api.read(of_liars)
}

/// Lists all nodes, loses the store, and lists again: all objects are found.
pub async fn rebuilt(world: &World) -> Vec<String> {
    let fleet = &world.fleet;
    // A store in etcd that is lost takes the epochs along: docs/how-to/high-availability.md says
    // what to do then.
    if fleet.shape().scope == Scope::Shared || fleet.replicas.is_some() {
        return Vec::new();
    }
    // An older store may have homes of what was deleted since.
    let there: BTreeMap<_, _> =
        at_drivers(fleet).into_iter().map(|(id, (node, _))| (id, name(node).to_owned())).collect();
    let mut before = homes_of(fleet);
    before.retain(|id, _| there.contains_key(id));
    fleet.lose_store();
    if let Err(error) = fleet.start_cloud() {
        return vec![format!("the cloud does not start: {error:#}")];
    }
    fleet.all_linked(LINK).await;
    // For ten minutes after a store began empty, no node is believed alone.
    tokio::time::sleep(Duration::from_secs(660)).await;
    let Some(front) = fleet.serving() else { return vec!["there is no cloud".into()] };
    let mut wrong: Vec<_> = front
        .lists()
        .rebuild()
        .await
        .into_iter()
        .filter_map(|(node, said)| {
            Some(format!("{node} was not asked by the rebuild: {}", said.err()?))
        })
        .collect();
    let found = homes_of(fleet);
    for (id, node) in before.iter().filter(|(id, node)| found.get(id) != Some(node)) {
        wrong.push(format!("{id:?} lived at {node}, and the rebuild found {:?}", found.get(id)));
    }
    if found != there {
        wrong.push(format!("the rebuild found {found:?}; there is {there:?}"));
    }
    wrong
}

fn homes_of(fleet: &Fleet) -> BTreeMap<Id, String> {
    let homes = |state: &State| {
        let driver = state.driver(&driver_name().ok()?)?;
        let homes = driver.homes().iter().filter(|(_, home)| home.node.as_str() != LIAR);
        Some(homes.map(|(id, home)| (id.clone(), home.node.to_string())).collect())
    };
    fleet.store().and_then(|store| store.read(homes)).unwrap_or_default()
}
