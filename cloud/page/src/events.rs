//! What has changed, as events for browsers. An event is made once, and sent to all who watch.
//!
//! The last events are kept, so a page that was drawn a moment ago misses none. Who is too far
//! behind is told to load the page anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use proto::admin::view::{FleetChange, NodeCell, NodeState, Snapshot};
use serde::Serialize;

use crate::views::{link, overview};

/// The events that are kept.
const KEPT: usize = 64;
/// If more nodes change at once, the map is loaded anew.
const SQUARES: usize = 1_000;
/// If more names change at once, all pages are old.
const NAMES: usize = 300;

/// Any node has changed: the lists are old.
pub(crate) const NODES: &str = "~nodes";
/// Calls have changed: their list is old.
pub(crate) const CALLS: &str = "~calls";
/// Everything has changed.
const ALL: &str = "*";

/// What has changed.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    /// New content by the ids of elements.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) regions: BTreeMap<&'static str, String>,
    /// The states of nodes by their names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) squares: BTreeMap<String, &'static str>,
    /// Whether the map is to be loaded anew.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) reload: bool,
    /// The names about which pages are old, as in their `data-about`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) about: BTreeSet<String>,
    /// A sentence for those who do not see it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) news: String,
}

impl Change {
    /// Makes a browser load everything anew.
    pub(crate) fn of_everything() -> Self {
        Self { reload: true, about: BTreeSet::from([ALL.to_owned()]), ..Self::default() }
    }

    /// What a line of csi-page's stream changes on the page.
    pub(crate) fn between(before: &Snapshot, now: &Snapshot, sent: &FleetChange) -> Self {
        let mut change = Self::default();
        let mut regions = BTreeSet::new();
        change.note_nodes(before, sent, &mut regions);
        if sent.problems.is_some() {
            regions.insert("wrong");
        }
        if sent.in_flight.is_some() || sent.drivers.is_some() {
            regions.insert("flight");
        }
        if sent.several.is_some() {
            regions.insert("replicas");
        }
        let names = &sent.subjects;
        if !names.is_empty() {
            change.about.insert(CALLS.into());
            change.about.extend(names.iter().map(|name| link::encode(name)));
        }
        if change.about.len() > NAMES {
            change.about = BTreeSet::from([ALL.to_owned()]);
        }
        change.news = news(before, now);
        if !regions.is_empty() {
            let all = overview::regions(now).into_iter().filter(|(id, _)| regions.contains(id));
            change.regions = all.map(|(id, markup)| (id, markup.into_string())).collect();
        }
        change
    }

    fn note_nodes(
        &mut self,
        before: &Snapshot,
        sent: &FleetChange,
        regions: &mut BTreeSet<&'static str>,
    ) {
        let mut moved = Vec::new();
        for node in &sent.nodes {
            match before.node(node.name.as_str()) {
                None => self.reload = true,
                Some(then) if then.state != node.state => moved.push(node),
                Some(_) => {}
            }
        }
        if self.reload || !sent.gone.is_empty() {
            self.reload = true;
            regions.insert("counts");
            self.about.insert(ALL.into());
            return;
        }
        if moved.is_empty() {
            return;
        }
        regions.insert("counts");
        self.reload = moved.len() > SQUARES;
        self.about.insert(NODES.into());
        self.about.extend(moved.iter().map(|node| link::encode(node.name.as_str())));
        if !self.reload {
            let square = |node: &&NodeCell| (node.name.to_string(), node.state.name());
            self.squares.extend(moved.iter().map(square));
        }
    }

    /// Whether nothing has changed.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The states whose numbers have changed, in words.
fn news(before: &Snapshot, now: &Snapshot) -> String {
    let [then, counts] = [before, now].map(Snapshot::counts);
    let count =
        |counts: &BTreeMap<NodeState, usize>, state| counts.get(&state).copied().unwrap_or(0);
    let worse = NodeState::ALL.into_iter().filter(|state| *state != NodeState::Linked);
    let changed = worse.filter(|state| count(&then, *state) != count(&counts, *state));
    let words: Vec<_> =
        changed.map(|state| format!("{} {}", count(&counts, state), state.label())).collect();
    if words.is_empty() { String::new() } else { format!("Nodes now: {}.", words.join(", ")) }
}

/// The last events, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feed {
    /// The number of the last event.
    last: u64,
    recent: VecDeque<Bytes>,
}

impl Feed {
    /// The number of the last event.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Adds an event. `epoch` tells this csi-page from the one before.
    pub(crate) fn add(&mut self, epoch: &str, change: &Change) {
        self.last += 1;
        self.recent.push_back(event(epoch, self.last, change));
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }

    /// The events after this one; none if they are no longer kept.
    pub(crate) fn after(&self, number: u64) -> Option<Vec<Bytes>> {
        let missed = usize::try_from(self.last.checked_sub(number)?).ok()?;
        let from = self.recent.len().checked_sub(missed)?;
        Some(self.recent.iter().skip(from).cloned().collect())
    }

    /// What tells a browser to load everything anew.
    pub(crate) fn anew(&self, epoch: &str) -> Bytes {
        event(epoch, self.last, &Change::of_everything())
    }
}

fn event(epoch: &str, number: u64, change: &Change) -> Bytes {
    // JSON has no raw line ends. It is only texts and numbers, so it can be written.
    let json = serde_json::to_string(change).unwrap_or_default();
    format!("id: {epoch}-{number}\ndata: {json}\n\n").into()
}

#[cfg(test)]
mod tests {
    use proto::admin::view::Several;

    use super::*;
    use crate::views::tests::{fleet, problem};

    /// As csi-cloud would send it.
    fn between(before: &Snapshot, now: &Snapshot) -> Change {
        let sent = FleetChange::between(before, now, BTreeSet::new(), false);
        Change::between(before, now, &sent)
    }

    fn regions(change: &Change) -> Vec<&'static str> {
        change.regions.keys().copied().collect()
    }

    #[test]
    fn only_what_has_changed_is_sent() {
        let before = fleet(&[("a", NodeState::Linked), ("b", NodeState::Linked)]);
        assert!(between(&before, &before).is_empty());
        let now = fleet(&[("a", NodeState::Linked), ("b", NodeState::Away)]);
        let change = between(&before, &now);
        assert_eq!(change.squares, [("b".to_owned(), "away")].into());
        assert_eq!(regions(&change), ["counts"]);
        assert_eq!(change.about, [NODES.to_owned(), "b".to_owned()].into());
        assert_eq!(change.news, "Nodes now: 1 away.");
        assert!(!change.reload);
        let mut wrong = now.clone();
        wrong.problems = vec![problem("b", 1)];
        assert_eq!(regions(&between(&now, &wrong)), ["wrong"]);
        let mut led = now.clone();
        led.several = Some(Several::default());
        assert_eq!(regions(&between(&now, &led)), ["replicas"]);
        let sent = FleetChange { subjects: ["v 1".to_owned()].into(), ..FleetChange::default() };
        let calls = Change::between(&now, &now, &sent);
        assert_eq!(calls.about, [CALLS.to_owned(), "v%201".to_owned()].into());
    }

    #[test]
    fn a_fleet_that_is_another_one_is_loaded_anew() {
        let before = fleet(&[("a", NodeState::Linked)]);
        let now = fleet(&[("a", NodeState::Linked), ("b", NodeState::Linked)]);
        for (before, now) in [(&before, &now), (&now, &before)] {
            let change = between(before, now);
            assert!(change.reload && change.squares.is_empty() && change.about.contains("*"));
        }
        let names: Vec<_> = (0..=SQUARES).map(|n| format!("n{n:05}")).collect();
        let all =
            |state| fleet(&names.iter().map(|name| (name.as_str(), state)).collect::<Vec<_>>());
        let change = between(&all(NodeState::Linked), &all(NodeState::Away));
        assert!(change.reload && change.squares.is_empty());
        assert_eq!(change.about, ["*".to_owned()].into());
    }

    #[test]
    fn who_is_a_little_behind_gets_what_was_missed_and_others_load_anew() {
        let mut feed = Feed::default();
        for _ in 0..KEPT + 6 {
            feed.add("e", &Change { reload: true, ..Change::default() });
        }
        let last = feed.last();
        assert_eq!(feed.after(last), Some(Vec::new()));
        let missed = feed.after(last - 2).unwrap();
        assert_eq!(missed.len(), 2);
        assert_eq!(missed[1], format!("id: e-{last}\ndata: {{\"reload\":true}}\n\n"));
        assert_eq!(feed.after(1), None, "it is no longer kept");
        assert_eq!(feed.after(last + 1), None, "it is of another csi-page");
        assert!(feed.anew("e").starts_with(format!("id: e-{last}\n").as_bytes()));
    }

    #[test]
    fn a_text_with_line_ends_stays_one_event() {
        let change = Change { news: "a\n\ndata: b".into(), ..Change::default() };
        let event = String::from_utf8(event("e", 1, &change).to_vec()).unwrap();
        assert_eq!(event.matches("\n\n").count(), 1, "{event:?}");
    }
}
