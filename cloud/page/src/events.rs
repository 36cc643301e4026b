//! What has changed, as events for browsers. An event is made once, and sent to all who watch.
//!
//! The last events are kept, so a page that was drawn a moment ago misses none. Who is too far
//! behind is told to load the page anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use proto::admin::view::{FleetChange, NodeCell, NodeState, Snapshot};
use serde::Serialize;

use crate::views::link::encode;
use crate::views::overview;

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
pub(crate) struct PageChange {
    /// New content by the ids of elements.
    pub(crate) regions: BTreeMap<&'static str, String>,
    /// The states of nodes by their names.
    pub(crate) squares: BTreeMap<String, &'static str>,
    /// Whether the map is to be loaded anew.
    pub(crate) reload: bool,
    /// The names about which pages are old, as in their `data-about`.
    pub(crate) about: BTreeSet<String>,
    /// A sentence for those who do not see it.
    pub(crate) news: String,
}

impl PageChange {
    /// Makes a browser load everything anew.
    pub(crate) fn of_everything() -> Self {
        Self { reload: true, about: [ALL.to_owned()].into(), ..Self::default() }
    }

    /// What a line of csi-cloud's stream changes on the page.
    pub(crate) fn between(before: &Snapshot, now: &Snapshot, sent: &FleetChange) -> Self {
        let mut is_other_fleet = !sent.gone.is_empty();
        let mut moved = Vec::new();
        for node in &sent.nodes {
            match before.node(node.name.as_str()) {
                None => is_other_fleet = true,
                Some(then) if then.state != node.state => moved.push(node),
                Some(_) => {}
            }
        }
        let reload = is_other_fleet || moved.len() > SQUARES;
        let squares = moved.iter().filter(|_| !reload);
        let squares = squares.map(|node| (node.name.to_string(), node.state.name()));
        let changed = [
            ("counts", is_other_fleet || !moved.is_empty()),
            ("wrong", sent.problems.is_some()),
            ("flight", sent.in_flight.is_some() || sent.drivers.is_some()),
            ("replicas", sent.several.is_some()),
        ];
        let regions = changed.into_iter().filter(|(_, is_changed)| *is_changed);
        let regions = regions.filter_map(|(id, _)| Some((id, overview::region(id, now)?)));
        Self {
            regions: regions.map(|(id, markup)| (id, markup.into_string())).collect(),
            squares: squares.collect(),
            reload,
            about: about(is_other_fleet, &moved, &sent.subjects),
            news: news(before, now),
        }
    }
}

/// The names about which pages are old.
fn about(is_other_fleet: bool, moved: &[&NodeCell], names: &BTreeSet<String>) -> BTreeSet<String> {
    let nodes = moved.iter().map(|node| node.name.as_str());
    let mut about: BTreeSet<_> =
        nodes.chain(names.iter().map(|name| &**name)).map(encode).collect();
    about.extend((!moved.is_empty()).then(|| NODES.to_owned()));
    about.extend((!names.is_empty()).then(|| CALLS.to_owned()));
    if is_other_fleet || about.len() > NAMES { [ALL.to_owned()].into() } else { about }
}

/// The states whose numbers have changed, in words.
fn news(before: &Snapshot, now: &Snapshot) -> String {
    let [then, counts] = [before, now].map(Snapshot::counts);
    let worse = NodeState::ALL.into_iter().filter(|state| *state != NodeState::Linked);
    let changed = worse.filter(|state| then.get(state) != counts.get(state));
    let words = changed.map(|state| {
        format!("{} {}", counts.get(&state).copied().unwrap_or_default(), state.label())
    });
    let words: Vec<_> = words.collect();
    if words.is_empty() { String::new() } else { format!("Nodes now: {}.", words.join(", ")) }
}

/// The last events, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feed {
    last: u64,
    recent: VecDeque<Bytes>,
}

impl Feed {
    /// The number of the last event.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Adds an event, unless nothing has changed. `epoch` tells this csi-page from the one before.
    pub(crate) fn add(&mut self, epoch: &str, change: &PageChange) {
        if *change == PageChange::default() {
            return;
        }
        self.last += 1;
        self.recent.push_back(event(epoch, self.last, change));
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }

    /// The events after this one; if they are no longer kept, one that loads everything anew.
    pub(crate) fn after(&self, number: Option<u64>, epoch: &str) -> Vec<Bytes> {
        let missed = number.and_then(|number| usize::try_from(self.last.checked_sub(number)?).ok());
        match missed.and_then(|missed| self.recent.len().checked_sub(missed)) {
            Some(from) => self.recent.iter().skip(from).cloned().collect(),
            None => vec![event(epoch, self.last, &PageChange::of_everything())],
        }
    }
}

fn event(epoch: &str, number: u64, change: &PageChange) -> Bytes {
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
    fn between(before: &Snapshot, now: &Snapshot) -> PageChange {
        let sent = FleetChange::between(before, now, BTreeSet::new(), false);
        PageChange::between(before, now, &sent)
    }

    fn regions(change: &PageChange) -> Vec<&'static str> {
        change.regions.keys().copied().collect()
    }

    #[test]
    fn only_what_has_changed_is_sent() {
        let before = fleet(&[("a", NodeState::Linked), ("b", NodeState::Linked)]);
        assert!(between(&before, &before) == PageChange::default());
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
        let calls = PageChange::between(&now, &now, &sent);
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
            feed.add("e", &PageChange { reload: true, ..PageChange::default() });
        }
        let last = feed.last();
        let after = |number| feed.after(Some(number), "e");
        assert_eq!(after(last), Vec::<Bytes>::new());
        let missed = after(last - 2);
        assert_eq!(missed.len(), 2);
        let event = String::from_utf8(missed[1].to_vec()).unwrap();
        assert!(event.starts_with(&format!("id: e-{last}\ndata: {{")), "{event}");
        assert!(event.contains("\"reload\":true") && event.ends_with("}\n\n"), "{event}");
        // It names an event that is kept no more, one that another csi-page sent, or none.
        for anew in [after(1), after(last + 1), feed.after(None, "e")] {
            assert_eq!(anew.len(), 1);
            assert!(String::from_utf8_lossy(&anew[0]).contains("\"about\":[\"*\"]"), "{anew:?}");
        }
    }

    #[test]
    fn a_text_with_line_ends_stays_one_event() {
        let change = PageChange { news: "a\n\ndata: b".into(), ..PageChange::default() };
        let event = String::from_utf8(event("e", 1, &change).to_vec()).unwrap();
        assert_eq!(event.matches("\n\n").count(), 1, "{event:?}");
    }
}
