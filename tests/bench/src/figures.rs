//! Single figures: a value and its limit.

use serde::Serialize;

use super::report::Targets;

/// Something that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The name of the quantity.
    pub what: String,
    /// How much.
    pub value: f64,
    /// The measured object.
    pub unit: &'static str,
    /// The target, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
}

/// The target of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// This or less.
    Most(f64),
    /// This or more.
    Least(f64),
}

impl Figure {
    /// A figure without a target.
    pub fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { what: what.into(), value, unit, target: None }
    }

    /// This figure with an upper limit.
    #[must_use]
    pub fn at_most(self, most: f64) -> Self {
        Self { target: Some(Target::Most(most)), ..self }
    }

    /// This figure with a lower limit.
    #[must_use]
    pub fn at_least(self, least: f64) -> Self {
        Self { target: Some(Target::Least(least)), ..self }
    }
}

/// All figures, one a line.
pub fn table(figures: &[Figure]) -> String {
    let width = figures.iter().map(|figure| figure.what.chars().count()).max().unwrap_or(0);
    let line =
        |Figure { what, value, unit, .. }: &Figure| format!("{what:width$}  {value:10.2} {unit}\n");
    figures.iter().map(line).collect()
}

/// Those with a target.
pub fn targets(figures: &[Figure]) -> Targets {
    let mut targets = Targets::default();
    for Figure { what, value, unit, target } in figures {
        let reached = format_args!("{value:.2}");
        match target {
            Some(Target::Most(most)) => {
                targets.add(format_args!("{what} at most {most} {unit}"), reached, value <= most);
            }
            Some(Target::Least(least)) => {
                targets.add(
                    format_args!("{what} at least {least} {unit}"),
                    reached,
                    value >= least,
                );
            }
            None => {}
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_or_missed_and_no_number_misses_it() {
        let met = |figure: Figure| targets(&[Figure::new("other", 9.0, "ms"), figure]).met;
        for (value, at_most, at_least) in
            [(1.0, true, false), (2.0, true, true), (3.0, false, true)]
        {
            assert_eq!(met(Figure::new("x", value, "ms").at_most(2.0)), at_most, "{value}");
            assert_eq!(met(Figure::new("x", value, "ms").at_least(2.0)), at_least, "{value}");
        }
        assert!(!met(Figure::new("x", f64::NAN, "ms").at_most(2.0)));
        assert!(!met(Figure::new("x", f64::NAN, "ms").at_least(2.0)));
    }
}
