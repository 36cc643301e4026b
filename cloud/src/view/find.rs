//! Finds claims, volumes and nodes by what somebody remembers of their names.
//!
//! Nodes and ids are found by an index. Claims are looked for among all records, some at a time, so
//! that others come to the store in between.

use std::mem::discriminant;
use std::ops::Bound;
use std::time::Duration;

use proto::admin::view::{Found, Hit, Snapshot, Target};
use proto::csi::Id;
use proto::csi::status::code_name;
use proto::host::plain;
use proto::names::DriverName;
use tokio::time::Instant;

use crate::admin::admin_state::AdminState;
use crate::explain::subject::Namespaced;
use crate::state::record::Claim;
use crate::telemetry::ended::EndedCall;

/// Hits of each kind that are shown.
const MOST: usize = 30;
/// Records that are looked at while the store is locked.
const SLICE: usize = 1000;
/// How long records are looked at.
const PATIENCE: Duration = Duration::from_secs(2);

fn add(found: &mut Found, hit: Hit) {
    let is_same_kind = |other: &&Hit| discriminant(&other.target) == discriminant(&hit.target);
    if found.hits.iter().filter(is_same_kind).count() >= MOST {
        found.is_cut = true;
    } else if !found.hits.iter().any(|other| other.target == hit.target) {
        found.hits.push(hit);
    }
}

/// Looks for a text.
pub(super) async fn find(state: &AdminState, snapshot: &Snapshot, text: &str) -> Found {
    let mut found = Found::default();
    if text.is_empty() {
        return found;
    }
    for node in snapshot.nodes.iter().filter(|node| node.name.as_str().contains(text)) {
        let target = Target::Node(node.name.clone());
        let (label, state) = (node.name.to_string(), Some(node.state));
        add(&mut found, Hit { target, label, state, detail: String::new() });
    }
    ids(state, text, &mut found);
    in_flight(state, text, &mut found);
    claims(state, text, &mut found).await;
    // After the records, which know where the same thing is now.
    ended(state, text, &mut found);
    if let Ok(claim) = text.parse::<Namespaced>() {
        let hit = claim_hit(&claim.namespace, &claim.name, "as explain finds it".into());
        add(&mut found, hit);
    }
    found
}

/// Volumes whose ids begin with the text.
fn ids(state: &AdminState, text: &str, found: &mut Found) {
    let from = Id::Volume(text.to_owned());
    state.store.read(|known| {
        for (driver, of) in known.drivers() {
            let homes = of.homes().range::<Id, _>((Bound::Included(&from), Bound::Unbounded));
            let begins = |id: &Id| matches!(id, Id::Volume(id) if id.starts_with(text));
            for (id, home) in homes.take_while(|(id, _)| begins(id)).take(MOST + 1) {
                add(found, volume(driver, id.text(), format!("at node {}", home.node)));
            }
        }
    });
}

fn volume(driver: &DriverName, id: &str, detail: String) -> Hit {
    let target = Target::Volume { driver: driver.clone(), id: id.to_owned() };
    Hit { target, label: plain(id), state: None, detail }
}

/// Names of calls in flight, and the claims that they are for.
fn in_flight(state: &AdminState, text: &str, found: &mut Found) {
    for (_, call) in state.calls.running() {
        let progress = call.progress();
        let claim = progress.claim.as_deref().and_then(|claim| claim.split_once('/'));
        if let Some((namespace, name)) = claim.filter(|claim| is_claim(*claim, text)) {
            add(found, claim_hit(namespace, name, format!("{} is in flight", call.rpc)));
        }
        if !progress.subject.is_empty() && progress.subject.starts_with(text) {
            add(
                found,
                volume(&call.driver, &progress.subject, format!("{} is in flight", call.rpc)),
            );
        }
    }
}

/// Subjects and claims of calls that ended: what was never made has no other record.
fn ended(state: &AdminState, text: &str, found: &mut Found) {
    let is_of = |call: &EndedCall| claim_of(call).is_some_and(|claim| is_claim(claim, text));
    let latest = state.calls.ended.latest(|call| call.subject.starts_with(text) || is_of(call));
    for call in latest.iter().take(10 * MOST) {
        if let Some((namespace, name)) = claim_of(call).filter(|claim| is_claim(*claim, text)) {
            let detail = format!("its last {} ended with {}", call.rpc, code_name(call.code));
            add(found, claim_hit(namespace, name, detail));
        }
        if !call.subject.is_empty() && call.subject.starts_with(text) {
            add(found, volume(&call.driver, &call.subject, String::new()));
        }
    }
}

fn claim_of(call: &EndedCall) -> Option<(&str, &str)> {
    call.claim.as_deref()?.split_once('/')
}

fn is_claim((namespace, name): (&str, &str), text: &str) -> bool {
    match text.split_once('/') {
        Some((space, part)) => namespace == space && name.starts_with(part),
        None => name.starts_with(text),
    }
}

fn claim_hit(namespace: &str, name: &str, detail: String) -> Hit {
    let label = plain(&format!("{namespace}/{name}"));
    let target = Target::Claim { namespace: namespace.to_owned(), name: name.to_owned() };
    Hit { target, label, state: None, detail }
}

/// Claims of the records, and volumes by their PersistentVolumes.
async fn claims(state: &AdminState, text: &str, found: &mut Found) {
    let end = Instant::now() + PATIENCE;
    let drivers: Vec<_> = state.policies.keys().cloned().collect();
    for driver in drivers {
        for kind in [Kind::Intents, Kind::Homes] {
            let mut after = None;
            loop {
                after = slice(state, &driver, kind, after.as_ref(), text, found);
                if after.is_none() {
                    break;
                }
                if Instant::now() > end {
                    found.is_cut = true;
                    return;
                }
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Which records are looked at.
#[derive(Clone, Copy)]
enum Kind {
    Intents,
    Homes,
}

/// Looks at some records after this one. Returns the last of them, if there are more.
fn slice(
    state: &AdminState,
    driver: &DriverName,
    kind: Kind,
    after: Option<&Id>,
    text: &str,
    found: &mut Found,
) -> Option<Id> {
    let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
    let mut last = None;
    let mut looked = 0;
    state.store.read(|known| {
        let Some(of) = known.driver(driver) else { return };
        let mut look = |id: &Id, claim: Option<&Claim>, node: String| {
            looked += 1;
            if looked == SLICE {
                last = Some(id.clone());
            }
            let Some(claim) = claim else { return };
            if !claim.name.is_empty() && is_claim((&claim.namespace, &claim.name), text) {
                add(found, claim_hit(&claim.namespace, &claim.name, node));
            } else if !claim.volume.is_empty() && claim.volume.starts_with(text) {
                add(
                    found,
                    volume(driver, id.text(), format!("PersistentVolume {}", plain(&claim.volume))),
                );
            }
        };
        match kind {
            Kind::Intents => {
                for (id, intent) in of.intents().range::<Id, _>(range).take(SLICE) {
                    let node = format!("its create was sent to node {}", intent.node);
                    look(id, intent.claim.as_deref().filter(|_| intent.made.is_none()), node);
                }
            }
            Kind::Homes => {
                for (id, home) in of.homes().range::<Id, _>(range).take(SLICE) {
                    look(id, home.claim.as_deref(), format!("at node {}", home.node));
                }
            }
        }
    });
    last
}

#[cfg(test)]
mod tests {
    use proto::admin::view::{NodeCell, NodeState};
    use proto::csi::Method;
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::admin::tests::{admin_state, refuse};
    use crate::state::record::{Home, Intent};

    fn claim(name: &str, volume: &str) -> Option<Box<Claim>> {
        let [namespace, name, volume] = ["shop", name, volume].map(Into::into);
        Some(Box::new(Claim { namespace, name, volume }))
    }

    async fn filled(tasks: &Tasks) -> AdminState {
        let state = admin_state(tasks);
        let written = state.store.write(|txn| {
            let driver: DriverName = "d.example".parse().unwrap();
            for number in 0..SLICE + 50 {
                let id = Id::Volume(format!("vol-{number:05}"));
                let claim = claim(&format!("data-{number}"), &format!("pv-{number}"));
                let home = Home { claim, ..Home::at("n1".parse().unwrap(), 1) };
                txn.set_home(&driver, &id, Some(home));
            }
            let stuck = Intent {
                node: "n2".parse().unwrap(),
                since: 1,
                until: 0,
                made: None,
                claim: claim("stuck", "pvc-7"),
                attempts: None,
                direct: None,
            };
            let name = Id::Name(Method::CreateVolume, "pvc-7".into());
            txn.set_intent(&driver, &name, Some(stuck));
        });
        written.await.unwrap();
        refuse(&state, "shop/refused", "pvc-8", "n2");
        // This one has a home since.
        refuse(&state, "shop/data-1049", "pvc-9", "n2");
        state
    }

    fn fleet() -> Snapshot {
        let node = |name: &str| NodeCell {
            name: name.parse().unwrap(),
            state: NodeState::Linked,
            since: None,
            drivers: Vec::new(),
            volumes: 0,
            ends: None,
        };
        Snapshot { nodes: vec![node("n1.shop.example"), node("n2")], ..Snapshot::default() }
    }

    fn node(name: &str) -> Target {
        Target::Node(name.parse().unwrap())
    }

    fn volume_of(id: &str) -> Target {
        Target::Volume { driver: "d.example".parse().unwrap(), id: id.into() }
    }

    fn claim_of(namespace: &str, name: &str) -> Target {
        Target::Claim { namespace: namespace.into(), name: name.into() }
    }

    #[tokio::test]
    async fn each_thing_is_found_by_what_is_remembered_of_it() {
        let tasks = Tasks::default();
        let state = filled(&tasks).await;
        for (text, target) in [
            ("n2", node("n2")),
            ("n1.shop", node("n1.shop.example")),
            ("vol-00007", volume_of("vol-00007")),
            ("data-1049", claim_of("shop", "data-1049")),
            ("shop/data-1049", claim_of("shop", "data-1049")),
            ("stuck", claim_of("shop", "stuck")),
            ("refused", claim_of("shop", "refused")),
            ("shop/refused", claim_of("shop", "refused")),
            ("pvc-8", volume_of("pvc-8")),
            ("other/claim", claim_of("other", "claim")),
            ("pv-1049", volume_of("vol-01049")),
        ] {
            let found = find(&state, &fleet(), text).await;
            let targets: Vec<_> = found.hits.iter().map(|hit| &hit.target).collect();
            assert_eq!(targets, [&target], "{text}: {found:?}");
        }
        let detail = async |text: &str| find(&state, &fleet(), text).await.hits[0].detail.clone();
        assert_eq!(detail("refused").await, "its last CreateVolume ended with UNAVAILABLE");
        assert_eq!(detail("data-1049").await, "at node n1");
        assert!(find(&state, &fleet(), "nothing").await.hits.is_empty());
        assert!(find(&state, &fleet(), "").await.hits.is_empty());
    }

    #[tokio::test]
    async fn hits_have_an_end() {
        let tasks = Tasks::default();
        let state = filled(&tasks).await;
        let found = find(&state, &Snapshot::default(), "vol-").await;
        assert_eq!((found.hits.len(), found.is_cut), (MOST, true));
    }
}
