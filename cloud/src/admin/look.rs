//! Lists for operators: nodes, volumes, creates. Each answer is a page that looks at a bounded part of the state,
//! so that neither the store nor memory notices how much there is.

use std::ops::Bound;

use prost::Message;
use proto::csi;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::admin::Insight;
use crate::admin::shown::{
    AskIntents, AskNodes, AskVolumes, Holder, IntentShown, NodeShown, Page, Place, VolumeShown, id, kind,
};
use crate::state::known::{OfDriver, State};
use crate::state::record::{Home, Intent};

/// What one answer looks at, at most.
const PAGE: usize = 1000;

impl Insight {
    /// Nodes by name.
    pub(super) fn nodes(&self, ask: &AskNodes) -> Page<NodeShown, String> {
        let from = ask.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut items: Vec<_> = self.store.read(|state| {
            let nodes = state.nodes().range((from, Bound::Unbounded)).take(PAGE);
            let drivers = state.drivers();
            nodes
                .map(|(name, node)| {
                    let has = |of: &OfDriver| of.at(name).is_some_and(|at| at.gone.is_none());
                    let here = || drivers.iter().filter(|(_, of)| has(of));
                    NodeShown {
                        name: name.clone(),
                        state: if node.removed.is_some() { "removed" } else { "away" }.into(),
                        linked_s: None,
                        away_s: None,
                        transport: None,
                        address: None,
                        version: None,
                        drivers: here().map(|(driver, _)| (*driver).clone()).collect(),
                        volumes: drivers.values().map(|of| of.load(name)).sum(),
                        since_ms: node.since,
                        removed_ms: node.removed,
                    }
                })
                .collect()
        });
        items.iter_mut().for_each(|node| self.with_link(node));
        let next = items.last().filter(|_| items.len() == PAGE).map(|node| node.name.to_string());
        Page { items, next }
    }

    fn with_link(&self, node: &mut NodeShown) {
        let Some(link) = self.links.now(&node.name) else {
            node.away_s = self.links.away(&node.name).map(|away| away.as_secs());
            return;
        };
        if node.state == "away" {
            node.state = "linked".into();
        }
        node.linked_s = Some(link.begun.elapsed().as_secs());
        node.transport = Some(link.peer.transport).filter(|name| !name.is_empty()).map(Into::into);
        node.address = link.peer.address.map(|address| address.to_string());
        node.version = Some(link.peer.version.to_string());
    }

    /// Volumes, by driver and id; with snapshots and groups if they are asked for.
    pub(super) fn volumes(&self, ask: &AskVolumes) -> Page<VolumeShown, Place> {
        self.store.read(|state| {
            let looked = Look { driver: ask.driver.as_ref(), after: ask.after.as_ref() };
            let mut page = Page { items: Vec::new(), next: None };
            page.next = looked.over(
                state,
                |of, after| match &ask.node {
                    Some(node) => at_node(of, node, after),
                    None => Box::new(of.homes().range(from(after)).map(|(id, home)| (id, &**home))),
                },
                |driver, id, home| {
                    if ask.all || matches!(id, Id::Volume(_)) {
                        page.items.push(volume(state, driver, id, home));
                    }
                },
            );
            page
        })
    }

    /// Creates, by driver, method and name; those whose outcome is known only if they are asked for.
    pub(super) fn intents(&self, ask: &AskIntents) -> Page<IntentShown, Place> {
        self.store.read(|state| {
            let looked = Look { driver: ask.driver.as_ref(), after: ask.after.as_ref() };
            let mut page = Page { items: Vec::new(), next: None };
            page.next = looked.over(
                state,
                |of, after| Box::new(of.intents().range(from(after))),
                |driver, name, found| {
                    if ask.all || found.made.is_none() {
                        page.items.push(intent(driver, name, found));
                    }
                },
            );
            page
        })
    }
}

/// Records of a driver, in order of their ids.
pub(super) type Records<'s, R> = Box<dyn Iterator<Item = (&'s Id, &'s R)> + 's>;

/// All after an id.
pub(super) fn from(after: Option<Id>) -> (Bound<Id>, Bound<Id>) {
    (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

/// What lives on a node, after an id.
fn at_node<'s>(of: &'s OfDriver, node: &NodeName, after: Option<Id>) -> Records<'s, Home> {
    let ids: Vec<_> = of.homes_of(node).map(|(id, _)| id).collect();
    let ids = ids.into_iter().skip_while(move |id| after.as_ref().is_some_and(|after| *id <= after));
    Box::new(ids.filter_map(|id| Some((id, of.home(id)?))))
}

/// Where a look begins, and whom it is for.
pub(super) struct Look<'a> {
    pub(super) driver: Option<&'a DriverName>,
    pub(super) after: Option<&'a Place>,
}

impl Look<'_> {
    /// Shows a page's worth of records; gives back where the next page begins, if there is more.
    pub(super) fn over<'s, R: 's>(
        &self,
        state: &'s State,
        records: impl Fn(&'s OfDriver, Option<Id>) -> Records<'s, R>,
        mut each: impl FnMut(&DriverName, &'s Id, &'s R),
    ) -> Option<Place> {
        let mut left = PAGE;
        for (driver, of) in state.drivers() {
            let after = self.after.filter(|after| after.driver >= *driver);
            let another = self.driver.is_some_and(|wanted| wanted != driver);
            if another || after.is_some_and(|after| after.driver > *driver) {
                continue;
            }
            let after = after.and_then(|after| id(&after.kind, &after.id));
            for (id, record) in records(of, after) {
                each(driver, id, record);
                left -= 1;
                if left == 0 {
                    let (kind, id) = (kind(id).to_owned(), id.text().to_owned());
                    return Some(Place { driver: driver.clone(), kind, id });
                }
            }
        }
        None
    }
}

fn volume(state: &State, driver: &DriverName, id: &Id, home: &Home) -> VolumeShown {
    let (capacity_bytes, published) = known(id, home);
    let lost = home.lost || state.is_removed(&home.node);
    let condition = match () {
        () if lost => "lost",
        () if !home.rivals.is_empty() => "claimed",
        () if home.absent => "absent",
        () => "ok",
    };
    let claim = home.claim.as_ref();
    let said = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    VolumeShown {
        kind: kind(id).into(),
        id: id.text().into(),
        driver: driver.clone(),
        node: home.node.clone(),
        name: home.name.as_deref().map(str::to_owned),
        capacity_bytes,
        published,
        claim_namespace: claim.and_then(|claim| said(&claim.namespace)),
        claim_name: claim.and_then(|claim| said(&claim.name)),
        persistent_volume: claim.and_then(|claim| said(&claim.volume)),
        since_ms: home.since,
        state: condition.into(),
        claimed_by: home.rivals.clone(),
        holder: state.driver(driver).and_then(|of| of.owner(id)).map(Holder::from).unwrap_or_default(),
    }
}

/// What its entry says: its size and where it is published.
fn known(id: &Id, home: &Home) -> (Option<i64>, Vec<String>) {
    let size = |bytes: i64| Some(bytes).filter(|bytes| *bytes > 0);
    match id {
        Id::Volume(_) => {
            let entry = csi::list_volumes_response::Entry::decode(home.entry.clone()).unwrap_or_default();
            let published = entry.status.map(|status| status.published_node_ids).unwrap_or_default();
            (entry.volume.and_then(|volume| size(volume.capacity_bytes)), published)
        }
        Id::Snapshot(_) => {
            let entry = csi::list_snapshots_response::Entry::decode(home.entry.clone()).unwrap_or_default();
            (entry.snapshot.and_then(|snapshot| size(snapshot.size_bytes)), Vec::new())
        }
        Id::Group(_) | Id::Name(..) => (None, Vec::new()),
    }
}

fn intent(driver: &DriverName, name: &Id, intent: &Intent) -> IntentShown {
    let claim = intent.claim.as_ref();
    let said = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    IntentShown {
        method: kind(name).into(),
        name: name.text().into(),
        driver: driver.clone(),
        node: intent.node.clone(),
        claim_namespace: claim.and_then(|claim| said(&claim.namespace)),
        claim_name: claim.and_then(|claim| said(&claim.name)),
        since_ms: intent.since,
        made: intent.made.as_deref().map(str::to_owned),
    }
}
