//! The steps of the volumes' lives that the power cuts interrupted, and how often. Pure.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::ensure;

/// After so many cuts each step must have been cut.
const MANY: u64 = 100;

/// What a volume's caller waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Nothing.
    #[default]
    Idle,
    /// NodeStageVolume.
    Stage,
    /// NodePublishVolume.
    Publish,
    /// ControllerExpandVolume.
    Expand,
    /// NodeUnpublishVolume.
    Unpublish,
    /// NodeUnstageVolume.
    Unstage,
}

impl Step {
    /// The steps that a cut can interrupt, with their names.
    const ALL: [(Self, &'static str); 5] = [
        (Self::Stage, "stage"),
        (Self::Publish, "publish"),
        (Self::Expand, "expand"),
        (Self::Unpublish, "unpublish"),
        (Self::Unstage, "unstage"),
    ];
}

/// How often each step was cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    cuts: u64,
    commits: u64,
    steps: BTreeMap<Step, u64>,
}

impl Tally {
    /// One cut, at which the volumes were in these steps. `at_commit` is true if csi-edge had just
    /// changed its records.
    pub fn of(at_commit: bool, open: impl IntoIterator<Item = Step>) -> Self {
        let mut steps: BTreeMap<Step, u64> = BTreeMap::new();
        for step in open {
            *steps.entry(step).or_default() += 1;
        }
        Self { cuts: 1, commits: u64::from(at_commit), steps }
    }

    /// Adds what other cuts interrupted.
    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.commits += other.commits;
        for (step, times) in &other.steps {
            *self.steps.entry(*step).or_default() += times;
        }
    }

    /// Checks that many cuts left out no step.
    ///
    /// # Errors
    /// They did.
    pub fn check(&self) -> anyhow::Result<()> {
        let rows = self.rows();
        let never: Vec<_> =
            rows.iter().filter(|(_, times)| *times == 0).map(|(name, _)| *name).collect();
        let cuts = self.cuts;
        ensure!(cuts < MANY || never.is_empty(), "none of {cuts} power cuts came at {never:?}");
        Ok(())
    }

    /// The rows of the table.
    fn rows(&self) -> Vec<(&'static str, u64)> {
        let times = |step: Step| self.steps.get(&step).copied().unwrap_or_default();
        let steps = Step::ALL.into_iter().map(|(step, name)| (name, times(step)));
        steps.chain([("a commit", self.commits)]).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("step         cut")?;
        for (name, times) in self.rows() {
            write!(f, "\n{name:<12} {times}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: [Step; 6] =
        [Step::Stage, Step::Stage, Step::Publish, Step::Unpublish, Step::Unstage, Step::Idle];

    #[test]
    fn what_was_open_at_the_cuts_is_counted_and_nothing_may_be_missing_of_many() {
        let mut all = Tally::default();
        for _ in 1..MANY {
            all.add(&Tally::of(false, OPEN));
        }
        let table = "step         cut\nstage        198\npublish      99\nexpand       0\n\
                     unpublish    99\nunstage      99\na commit     0";
        assert_eq!(all.to_string(), table);
        all.check().unwrap();
        all.add(&Tally::of(false, OPEN));
        let missing = all.check().unwrap_err().to_string();
        assert_eq!(missing, r#"none of 100 power cuts came at ["expand", "a commit"]"#);
        all.add(&Tally::of(true, [Step::Expand]));
        all.check().unwrap();
    }
}
