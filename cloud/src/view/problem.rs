//! What is wrong, as one row: what, since when, where, and what to do next.
//!
//! What is wrong in the same way at many places is one row with their number.

use std::collections::BTreeMap;

use proto::admin::view::{Problem, Severity, Target};

/// The places that a row names.
const NAMED: usize = 3;

/// What is wrong at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Faults of the same sort are one row.
    pub(super) sort: Sort,
    /// Where: what is shown, and its page.
    pub(super) place: (String, Target),
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
    pub(super) all: Option<Target>,
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
        other.since.cmp(&one.since).then_with(|| one.place.0.cmp(&other.place.0))
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
mod tests {
    use super::*;

    /// A fault at a node.
    fn fault(severity: Severity, many: &str, at: &str, since: u64) -> Fault {
        Fault {
            sort: Sort { severity, many: many.into(), all: Some(Target::Calls) },
            place: (at.into(), Target::Node(at.parse().unwrap())),
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
        let named: Vec<_> = away.places.iter().map(|place| place.0.as_str()).collect();
        assert_eq!(named, ["n4", "n3", "n2"]);
        assert_eq!(away.all, Some(Target::Calls));
        assert_eq!(rows[0].all, None, "all places are named");
    }
}
