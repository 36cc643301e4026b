//! What ginkgo reports of a run, and the comparison of two ways to call one driver.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use harness::ginkgo::{self, Spec};

/// How much of a reason is shown, in characters.
const REASON: usize = 240;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It passed.
    Passed,
    /// It failed, with the begin of the reason.
    Failed(String),
    /// The suite skipped it by itself, for a reason.
    Skipped(String),
}

/// The tests of one driver, by their names without the driver's.
pub(super) type Ends = BTreeMap<String, End>;

/// How a spec ended; none if it was not chosen.
fn end(spec: &Spec) -> Option<End> {
    let reason = spec.reason(REASON);
    match spec.state.as_str() {
        "passed" => Some(End::Passed),
        "skipped" | "pending" if reason.is_empty() => None,
        "skipped" => Some(End::Skipped(reason)),
        state => Some(End::Failed(format!("{state}: {reason}"))),
    }
}

/// The tests of a driver that a report has.
///
/// # Errors
/// The report cannot be read, or the run was broken off.
pub(super) fn read(path: &Path, driver: &str) -> anyhow::Result<Ends> {
    let json =
        std::fs::read(path).with_context(|| format!("there is no report {}", path.display()))?;
    let specs = ginkgo::read(&json).with_context(|| path.display().to_string())?;
    if let Some(setup) = specs.iter().find(|spec| spec.is_failed_setup()) {
        bail!("no test ran, because {} {}: {}", setup.kind, setup.state, setup.reason(REASON));
    }
    Ok(of(specs, driver))
}

fn of(specs: Vec<Spec>, driver: &str) -> Ends {
    let mark = format!("[Driver: {driver}] ");
    let mut ends = Ends::new();
    for spec in specs.iter().filter(|spec| spec.is_test()) {
        let name = spec.name();
        let Some((_, test)) = name.split_once(&mark) else { continue };
        if let Some(end) = end(spec) {
            ends.insert(test.to_owned(), end.without(driver));
        }
    }
    ends
}

impl End {
    /// The same with a reason that is equal for all drivers.
    fn without(self, driver: &str) -> Self {
        let plain = |reason: String| reason.replace(driver, "DRIVER");
        match self {
            Self::Passed => Self::Passed,
            Self::Failed(reason) => Self::Failed(plain(reason)),
            Self::Skipped(reason) => Self::Skipped(plain(reason)),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Skipped(_) => "skipped",
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Passed => "",
            Self::Failed(reason) | Self::Skipped(reason) => reason,
        }
    }
}

/// Whether a test passed.
pub(super) fn has_passed(ends: &Ends) -> bool {
    ends.values().any(|end| *end == End::Passed)
}

/// One line of numbers, and one for each reason of the suite to skip.
pub(super) fn summary(ends: &Ends) -> String {
    let count = |word: &str| ends.values().filter(|end| end.word() == word).count();
    let mut text = format!(
        "{} passed, {} failed, {} skipped by the suite\n",
        count("passed"),
        count("failed"),
        count("skipped")
    );
    let mut reasons = BTreeMap::<&str, usize>::new();
    for end in ends.values().filter(|end| end.word() == "skipped") {
        *reasons.entry(end.reason()).or_default() += 1;
    }
    for (reason, count) in reasons {
        let _ = writeln!(text, "  {count:4} skipped: {reason}");
    }
    text
}

/// The tests that end differently, a line each, and how many of them end worse with us. Such a test
/// passes without us alone, or fails with us alone.
pub(super) fn compare(with_us: &Ends, without_us: &Ends) -> (String, usize) {
    let mut text = String::new();
    let mut worse = 0;
    let names: BTreeSet<_> = with_us.keys().chain(without_us.keys()).collect();
    for name in names {
        let word = |ends: &Ends| ends.get(name).map_or("not run", End::word);
        let ours = word(with_us);
        let theirs = word(without_us);
        if ours == theirs && ours != "failed" {
            continue;
        }
        let fails_with_us_alone = ours == "failed" && theirs != "failed";
        worse += usize::from(theirs == "passed" || fails_with_us_alone);
        let _ = writeln!(text, "  {theirs:7} | {ours:7} | {name}");
        for ends in [without_us, with_us] {
            if let Some(End::Failed(reason)) = ends.get(name) {
                let _ = writeln!(text, "          |         |   {reason}");
            }
        }
    }
    (text, worse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(driver: &str, test: &str, state: &str, said: &str) -> serde_json::Value {
        let driver = format!("[sig-storage] External Storage [Driver: {driver}]");
        serde_json::json!({
            "ContainerHierarchyTexts": [driver, "volumes"], "LeafNodeType": "It",
            "LeafNodeText": test, "State": state, "Failure": {"Message": said},
        })
    }

    fn ends(specs: Vec<serde_json::Value>, driver: &str) -> Ends {
        let suites = serde_json::json!([{"SpecReports": specs}]);
        of(ginkgo::read(suites.to_string().as_bytes()).unwrap(), driver)
    }

    #[test]
    fn tests_are_told_apart_by_driver_and_those_that_were_not_chosen_are_left_out() {
        let specs = vec![
            spec("a.io", "store", "passed", ""),
            spec("a.io", "grow", "skipped", "Driver a.io cannot\n more"),
            spec("a.io", "other", "skipped", ""),
            spec("b.io", "store", "timedout", "too late"),
        ];
        let of_a = ends(specs.clone(), "a.io");
        assert_eq!(of_a.len(), 2);
        assert_eq!(of_a["volumes store"], End::Passed);
        assert_eq!(of_a["volumes grow"], End::Skipped("Driver DRIVER cannot more".to_owned()));
        let late = End::Failed("timedout: too late".to_owned());
        assert_eq!(ends(specs, "b.io")["volumes store"], late);
        assert!(summary(&of_a).starts_with("1 passed, 0 failed, 1 skipped"));
    }

    #[test]
    fn only_what_ends_worse_with_us_counts_against_us() {
        let passed = || [("t".to_owned(), End::Passed)].into();
        let failed = || Ends::from([("t".to_owned(), End::Failed("why".to_owned()))]);
        let skipped = || Ends::from([("t".to_owned(), End::Skipped("why".to_owned()))]);
        assert_eq!(compare(&passed(), &passed()), (String::new(), 0));
        assert_eq!(compare(&skipped(), &skipped()), (String::new(), 0));
        assert_eq!(compare(&failed(), &failed()).1, 0);
        assert!(compare(&failed(), &failed()).0.contains("failed  | failed  | t"));
        assert_eq!(compare(&passed(), &failed()).1, 0);
        assert_eq!(compare(&failed(), &passed()).1, 1);
        assert_eq!(compare(&skipped(), &passed()).1, 1);
        assert_eq!(compare(&Ends::new(), &passed()).1, 1);
        assert_eq!(compare(&failed(), &skipped()).1, 1);
        assert_eq!(compare(&failed(), &Ends::new()).1, 1);
    }
}
