//! What is wrong, as one row: what, since when, where, and what to do next.
//!
//! What is wrong in the same way at many places is one row with their number.

use std::collections::BTreeMap;

/// The places that a row names.
const NAMED: usize = 3;

/// How bad it is. The worse comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// Something does not work.
    Fault,
    /// Something will not work for long, or works in part.
    Warning,
}

impl Severity {
    /// Its word, also in the style sheet.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Warning => "warning",
        }
    }
}

/// Where something is wrong: what is shown, and its page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its name.
    pub(super) label: String,
    /// The address of its page.
    pub(super) href: String,
}

/// What is wrong at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Faults of the same sort are one row.
    pub(super) sort: Sort,
    /// Where.
    pub(super) place: Place,
    /// What, for this place alone.
    pub(super) text: String,
    /// What to do next.
    pub(super) next: String,
    /// Since when, in ms since 1970, as far as is known.
    pub(super) since: Option<u64>,
}

/// A sort of faults.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sort {
    /// How bad it is.
    pub(super) severity: Severity,
    /// What it is: `{}` stands for the number of places.
    pub(super) many: String,
    /// The list of all places, if there is one.
    pub(super) all: Option<String>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// How bad it is.
    pub(super) severity: Severity,
    /// What is wrong.
    pub(super) text: String,
    /// What to do next; empty if there is nothing to do.
    pub(super) next: String,
    /// Since when the oldest of them is there.
    pub(super) since: Option<u64>,
    /// Since when the newest of them is there.
    pub(super) latest: Option<u64>,
    /// How many places it has.
    pub(super) count: usize,
    /// The first places.
    pub(super) places: Vec<Place>,
    /// The list of all places, if there are more than are named.
    pub(super) all: Option<String>,
}

impl Problem {
    /// Whether it is the same row as before, apart from ages in its words.
    pub(super) fn is_same(&self, before: &Self) -> bool {
        let words = |of: &Self| (of.severity, of.next.clone(), of.count, of.places.clone());
        words(self) == words(before)
            && near(self.since, before.since)
            && near(self.latest, before.latest)
    }
}

/// Whether two moments are the same; each look computes them anew, and misses by some ms.
pub(super) fn near(one: Option<u64>, other: Option<u64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.abs_diff(other) < 2000,
        (one, other) => one == other,
    }
}

/// Makes the rows: the worst first, and then the newest.
pub(super) fn rows(faults: Vec<Fault>) -> Vec<Problem> {
    let mut sorts: BTreeMap<Sort, Vec<Fault>> = BTreeMap::new();
    for fault in faults {
        sorts.entry(fault.sort.clone()).or_default().push(fault);
    }
    let mut rows: Vec<_> = sorts.into_iter().filter_map(|(sort, all)| row(sort, all)).collect();
    rows.sort_by_key(|row| (row.severity, std::cmp::Reverse(row.latest)));
    rows
}

fn row(sort: Sort, mut faults: Vec<Fault>) -> Option<Problem> {
    // The newest first: it is what somebody looks for.
    faults.sort_by(|one, other| {
        other.since.cmp(&one.since).then_with(|| one.place.label.cmp(&other.place.label))
    });
    let count = faults.len();
    let first = faults.first()?;
    let text = match count {
        1 => first.text.clone(),
        _ => sort.many.replace("{}", &count.to_string()),
    };
    Some(Problem {
        severity: sort.severity,
        text,
        next: first.next.clone(),
        since: faults.iter().filter_map(|fault| fault.since).min(),
        latest: faults.iter().filter_map(|fault| fault.since).max(),
        count,
        places: faults.iter().take(NAMED).map(|fault| fault.place.clone()).collect(),
        all: sort.all.filter(|_| count > NAMED),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A fault at a node.
    pub(in crate::page) fn fault(severity: Severity, many: &str, at: &str, since: u64) -> Fault {
        Fault {
            sort: Sort { severity, many: many.into(), all: Some(format!("/nodes?{many}")) },
            place: Place { label: at.into(), href: format!("/node/{at}") },
            text: format!("{at} is alone"),
            next: "look there".into(),
            since: Some(since),
        }
    }

    #[test]
    fn the_same_at_many_places_is_one_row_and_the_worst_and_newest_come_first() {
        let mut faults: Vec<_> = (0..5)
            .map(|n| fault(Severity::Fault, "{} nodes are away", &format!("n{n}"), n * 10_000))
            .collect();
        faults.push(fault(Severity::Warning, "{} nodes are apart", "w", 90_000));
        faults.push(fault(Severity::Fault, "{} nodes are down", "d", 70_000));
        let rows = rows(faults);
        let texts: Vec<_> = rows.iter().map(|row| row.text.as_str()).collect();
        assert_eq!(texts, ["d is alone", "5 nodes are away", "w is alone"]);
        let away = &rows[1];
        assert_eq!((away.since, away.latest), (Some(0), Some(40_000)));
        let named: Vec<_> = away.places.iter().map(|place| place.label.as_str()).collect();
        assert_eq!(named, ["n4", "n3", "n2"]);
        assert_eq!(away.all.as_deref(), Some("/nodes?{} nodes are away"));
        assert_eq!(rows[0].all, None, "all places are named");
    }

    #[test]
    fn a_row_whose_age_alone_differs_is_the_same() {
        let row = |since, text: &str| {
            let mut row = rows(vec![fault(Severity::Fault, "x", "n1", since)]).remove(0);
            row.text = text.into();
            row
        };
        assert!(row(10_000, "for 5s").is_same(&row(10_900, "for 6s")));
        assert!(!row(10_000, "for 5s").is_same(&row(30_000, "for 5s")));
        assert!(near(None, None) && !near(None, Some(1)));
    }
}
