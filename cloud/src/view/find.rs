//! Finds claims, volumes and nodes by what somebody remembers of their names.
//!
//! Nodes and ids are found by an index. Claims are looked for among all records, some at a time, so
//! that others come to the store in between.

use std::mem::discriminant;
use std::ops::Bound;
use std::time::Duration;

use proto::admin::view::{Found, Hit, PageTarget, Snapshot};
use proto::csi::Id;
use proto::csi::status::code_name;
use proto::host::plain;
use proto::names::DriverName;
use tokio::time::Instant;

use super::sweep::slice;
use crate::admin::admin_state::AdminState;
use crate::explain::subject::Namespaced;
use crate::state::driver_state::DriverState;
use crate::state::record::Claim;

/// Hits of each kind that are shown.
const MOST: usize = 30;
/// Records that are looked at while the store is locked.
const SLICE: usize = 1000;
/// How long records are looked at.
const PATIENCE: Duration = Duration::from_secs(2);

/// Looks for a text.
pub(super) async fn find(state: &AdminState, snapshot: &Snapshot, text: &str) -> Found {
    let mut search = Search { state, text, found: Found::default() };
    if text.is_empty() {
        return search.found;
    }
    for node in snapshot.nodes.iter().filter(|node| node.name.as_str().contains(text)) {
        let target = PageTarget::Node(node.name.clone());
        let (label, state) = (node.name.to_string(), Some(node.state));
        search.add(Hit { target, label, state, detail: String::new() });
    }
    search.ids();
    for (_, call) in state.calls.running() {
        let progress = call.progress();
        let detail = format!("{} is in flight", call.rpc);
        search.claim(progress.claim.as_deref().unwrap_or_default(), &detail);
        search.volume(&call.driver, &progress.subject, &detail);
    }
    search.claims().await;
    // After the records, which know where the same thing is now.
    search.ended();
    if text.parse::<Namespaced>().is_ok() {
        search.claim(text, "as explain finds it");
    }
    search.found
}

/// A search, and what it has found.
struct Search<'a> {
    state: &'a AdminState,
    text: &'a str,
    found: Found,
}

impl Search<'_> {
    fn add(&mut self, hit: Hit) {
        let is_same_kind = |other: &&Hit| discriminant(&other.target) == discriminant(&hit.target);
        let hits = &mut self.found.hits;
        if hits.iter().filter(is_same_kind).count() >= MOST {
            self.found.is_cut = true;
        } else if !hits.iter().any(|other| other.target == hit.target) {
            hits.push(hit);
        }
    }

    /// Adds a volume, or the name under which one is to be made, if its id begins with the text.
    fn volume(&mut self, driver: &DriverName, id: &str, detail: &str) {
        if !id.is_empty() && id.starts_with(self.text) {
            self.add(volume_hit(driver, id, detail.to_owned()));
        }
    }

    /// Adds `NAMESPACE/NAME`, if it has the text.
    fn claim(&mut self, claim: &str, detail: &str) {
        let Some((namespace, name)) = claim.split_once('/') else { return };
        if is_claim(namespace, name, self.text) {
            let target = PageTarget::Claim { namespace: namespace.into(), name: name.into() };
            self.add(Hit { target, label: plain(claim), state: None, detail: detail.into() });
        }
    }

    /// Adds volumes whose ids begin with the text.
    fn ids(&mut self) {
        let from = Id::Volume(self.text.to_owned());
        self.state.store.read(|known| {
            for (driver, of) in known.drivers() {
                let homes = of.homes().range::<Id, _>((Bound::Included(&from), Bound::Unbounded));
                let text = self.text;
                let begins = |id: &Id| matches!(id, Id::Volume(id) if id.starts_with(text));
                for (id, home) in homes.take_while(|(id, _)| begins(id)).take(MOST + 1) {
                    self.volume(driver, id.text(), &format!("at node {}", home.node));
                }
            }
        });
    }

    /// Adds subjects and claims of calls that ended: what was never made has no other record.
    fn ended(&mut self) {
        let latest = self.state.calls.ended.latest(|call| {
            let claim = call.claim.as_deref().and_then(|claim| claim.split_once('/'));
            call.subject.starts_with(self.text)
                || claim.is_some_and(|(namespace, name)| is_claim(namespace, name, self.text))
        });
        for call in latest.iter().take(10 * MOST) {
            let detail = format!("its last {} ended with {}", call.rpc, code_name(call.code));
            self.claim(call.claim.as_deref().unwrap_or_default(), &detail);
            self.volume(&call.driver, &call.subject, "");
        }
    }

    /// Adds claims of the records, and volumes by their PersistentVolumes.
    async fn claims(&mut self) {
        let state = self.state;
        let end = Instant::now() + PATIENCE;
        let looks = [Self::intents, Self::homes];
        for (driver, look) in state.policies.keys().flat_map(|of| looks.map(|look| (of, look))) {
            let mut after = None;
            loop {
                after = state
                    .store
                    .read(|known| look(self, driver, known.driver(driver)?, after.as_ref()));
                if after.is_none() {
                    break;
                }
                if Instant::now() > end {
                    self.found.is_cut = true;
                    return;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Looks at some intents after this one. Returns the last of them, if there are more.
    fn intents(&mut self, of: &DriverName, known: &DriverState, after: Option<&Id>) -> Option<Id> {
        slice(known.intents(), after, SLICE, |id, intent| {
            let claim = intent.claim.as_deref().filter(|_| intent.made.is_none());
            self.record(of, id, claim, || format!("its create was sent to node {}", intent.node));
        })
    }

    /// The same of homes.
    fn homes(&mut self, of: &DriverName, known: &DriverState, after: Option<&Id>) -> Option<Id> {
        slice(known.homes(), after, SLICE, |id, home| {
            self.record(of, id, home.claim.as_deref(), || format!("at node {}", home.node));
        })
    }

    fn record(
        &mut self,
        driver: &DriverName,
        id: &Id,
        claim: Option<&Claim>,
        detail: impl Fn() -> String,
    ) {
        let Some(Claim { namespace, name, volume }) = claim else { return };
        if !name.is_empty() && is_claim(namespace, name, self.text) {
            self.claim(&format!("{namespace}/{name}"), &detail());
        } else if !volume.is_empty() && volume.starts_with(self.text) {
            let detail = format!("PersistentVolume {}", plain(volume));
            self.add(volume_hit(driver, id.text(), detail));
        }
    }
}

fn volume_hit(driver: &DriverName, id: &str, detail: String) -> Hit {
    let target = PageTarget::Volume { driver: driver.clone(), id: id.to_owned() };
    Hit { target, label: plain(id), state: None, detail }
}

fn is_claim(namespace: &str, name: &str, text: &str) -> bool {
    match text.split_once('/') {
        Some((space, part)) => namespace == space && name.starts_with(part),
        None => name.starts_with(text),
    }
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
                narrowed: None,
                machine: None,
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

    fn node(name: &str) -> PageTarget {
        PageTarget::Node(name.parse().unwrap())
    }

    fn volume_of(id: &str) -> PageTarget {
        PageTarget::Volume { driver: "d.example".parse().unwrap(), id: id.into() }
    }

    fn claim_of(namespace: &str, name: &str) -> PageTarget {
        PageTarget::Claim { namespace: namespace.into(), name: name.into() }
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
