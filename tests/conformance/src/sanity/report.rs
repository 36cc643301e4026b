//! The results of csi-sanity, from its JSON report, and the differences of two runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::ensure;
use harness::ginkgo;

/// How much of a spec's reason is shown, in characters.
const REASON: usize = 160;

/// How a spec ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecState {
    /// The driver does what the spec asks.
    Passed,
    /// It does not, or the spec could not be run to its end.
    Failed,
    /// The driver says that it cannot do this.
    Skipped,
    /// The suite itself has switched the spec off.
    Pending,
}

/// One spec of the suite.
#[derive(Clone, Debug)]
pub struct Spec {
    /// All its texts, from the outermost container.
    pub name: String,
    /// How it ended.
    pub state: SpecState,
    /// Why it failed or was skipped; one line.
    pub reason: String,
}

/// How many specs ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// See [`SpecState::Passed`].
    pub passed: usize,
    /// See [`SpecState::Failed`].
    pub failed: usize,
    /// See [`SpecState::Skipped`].
    pub skipped: usize,
    /// See [`SpecState::Pending`].
    pub pending: usize,
}

/// All specs of a run.
#[derive(Debug)]
pub struct Report {
    /// In the order in which they ran.
    pub specs: Vec<Spec>,
}

impl Report {
    /// Reads the file that `--ginkgo.json-report` names.
    ///
    /// # Errors
    /// It is no such report, or one without specs.
    pub fn parse(json: &[u8]) -> anyhow::Result<Self> {
        let reports = ginkgo::read(json)?;
        let specs: Vec<Spec> =
            reports.iter().filter(|report| counts(report)).map(Spec::of).collect();
        ensure!(!specs.is_empty(), "csi-sanity ran no spec");
        Ok(Self { specs })
    }

    /// Those of its specs that `keep` wants.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(&Spec) -> bool) -> Self {
        Self { specs: self.specs.iter().filter(|spec| keep(spec)).cloned().collect() }
    }

    /// Its specs and another run's.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.specs.extend(other.specs);
        self
    }

    /// The number of specs by their end.
    pub fn counts(&self) -> Counts {
        let count = |state| self.specs.iter().filter(|spec| spec.state == state).count();
        Counts {
            passed: count(SpecState::Passed),
            failed: count(SpecState::Failed),
            skipped: count(SpecState::Skipped),
            pending: count(SpecState::Pending),
        }
    }

    /// A line for each spec that failed, then for each that was skipped; by name, since the suite
    /// has no order.
    pub fn details(&self) -> Vec<String> {
        let lines = |state, word| {
            let specs = self.specs.iter().filter(|spec| spec.state == state);
            let mut lines: Vec<_> =
                specs.map(|spec| format!("{word}: {}: {}", spec.name, spec.reason)).collect();
            lines.sort();
            lines
        };
        [lines(SpecState::Failed, "failed"), lines(SpecState::Skipped, "skipped")].concat()
    }

    /// A line for each spec that ended otherwise than in `direct`, or is in only one of the two.
    /// One that failed there and passes here has none: csi-cloud refuses some bad requests first.
    pub fn differences(&self, direct: &Self) -> Vec<String> {
        let here = self.by_name();
        let there = direct.by_name();
        let names: BTreeSet<_> = here.keys().chain(there.keys()).collect();
        let line = |name: &&str| {
            let now = here.get(name).cloned().unwrap_or_default();
            let then = there.get(name);
            let then = then.cloned().unwrap_or_default();
            if !then.is_empty()
                && !now.is_empty()
                && then.iter().all(|state| *state == SpecState::Failed)
                && now.iter().all(|state| *state == SpecState::Passed)
            {
                return None;
            }
            let reasons =
                self.specs.iter().filter(|spec| spec.name == *name && !spec.reason.is_empty());
            let reasons: String = reasons.map(|spec| format!(": {}", spec.reason)).collect();
            (now != then).then(|| format!("{name}: {now:?}, direct {then:?}{reasons}"))
        };
        names.into_iter().filter_map(line).collect()
    }

    /// A name may occur more than once.
    fn by_name(&self) -> BTreeMap<&str, Vec<SpecState>> {
        let mut specs = BTreeMap::<_, Vec<_>>::new();
        for spec in &self.specs {
            specs.entry(spec.name.as_str()).or_default().push(spec.state);
        }
        specs
    }
}

/// Setup and teardown are no specs, unless they fail.
fn counts(report: &ginkgo::Spec) -> bool {
    report.is_test() || report.state != "passed"
}

impl Spec {
    fn of(report: &ginkgo::Spec) -> Self {
        let name = match report.name() {
            name if report.is_test() => name,
            name => format!("{name} [{}]", report.kind).trim_start().to_owned(),
        };
        let state = match report.state.as_str() {
            "passed" => SpecState::Passed,
            "skipped" => SpecState::Skipped,
            "pending" => SpecState::Pending,
            // Also panicked, interrupted, aborted and timedout.
            _ => SpecState::Failed,
        };
        Self { name, state, reason: report.reason(REASON) }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, pending } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped, {pending} pending")
    }
}

#[cfg(test)]
#[path = "test_report.rs"]
mod tests;
