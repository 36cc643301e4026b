//! The controller's specs that cannot pass with volumes spread over nodes, because csi-sanity has
//! the socket of one node only. Each has its reason, and one that passes is a fault too.

use super::report::{Report, SpecState};
use super::suite::Part;

/// A volume without a topology is not at the suite's node, where these specs publish it.
pub const TIED: [(&str, &str); 2] = [
    (
        "Controller Service [Controller Server] ControllerPublishVolume should fail when \
         publishing more volumes than \
         the node max attach limit",
        "it makes volumes without saying where, and publishes all of them to its one node",
    ),
    (
        "Controller Service [Controller Server] ControllerPublishVolume should fail when the \
         volume is already \
         published but is incompatible",
        "it makes a volume without saying where, and publishes it to its one node",
    ),
];

/// A line for each controller's spec that ended otherwise than in `direct`. Specs that must fail
/// are left out, and have a line if they did not fail.
pub fn spread_differences(spread: &Report, direct: &Report) -> Vec<String> {
    let is_tied = |name: &str| TIED.iter().any(|(tied, _)| *tied == name);
    let untied = |report: &Report| {
        report.filtered(|spec| Part::Controller.has(spec) && !is_tied(&spec.name))
    };
    let failed = |name: &str| {
        let mut specs = spread.specs.iter().filter(|spec| spec.name == name).peekable();
        specs.peek().is_some() && specs.all(|spec| spec.state == SpecState::Failed)
    };
    let line =
        |(name, why): &(&str, &str)| format!("{name}: it did not fail, and it should: {why}");
    let unexpected = TIED.iter().filter(|(name, _)| !failed(name)).map(line);
    untied(spread).differences(&untied(direct)).into_iter().chain(unexpected).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sanity::report::Spec;

    fn report(specs: &[(&str, SpecState)]) -> Report {
        let spec = |(name, state): &(&str, SpecState)| Spec {
            name: (*name).to_owned(),
            state: *state,
            reason: String::new(),
        };
        Report { specs: specs.iter().map(spec).collect() }
    }

    #[test]
    fn the_tied_must_fail_and_no_other_may() {
        let [(one, _), (two, _)] = TIED;
        let other = "ListSnapshots [Controller Server] should work";
        let all =
            |one_is, two_is, other_is| report(&[(one, one_is), (two, two_is), (other, other_is)]);
        let direct = all(SpecState::Passed, SpecState::Passed, SpecState::Passed);
        let differences =
            |one, two, other| spread_differences(&all(one, two, other), &direct).len();
        assert_eq!(differences(SpecState::Failed, SpecState::Failed, SpecState::Passed), 0);
        assert_eq!(differences(SpecState::Failed, SpecState::Passed, SpecState::Passed), 1);
        assert_eq!(differences(SpecState::Skipped, SpecState::Failed, SpecState::Passed), 1);
        assert_eq!(differences(SpecState::Failed, SpecState::Failed, SpecState::Failed), 1);
        assert_eq!(
            spread_differences(&report(&[(other, SpecState::Passed)]), &direct).len(),
            2,
            "none of them ran"
        );
    }

    #[test]
    fn specs_of_a_nodes_own_services_do_not_count() {
        let tied = TIED.map(|(name, _)| (name, SpecState::Failed));
        let node = [("Node Service should work", SpecState::Passed)];
        let direct = report(&[tied.as_slice(), &node].concat());
        assert!(spread_differences(&report(&tied), &direct).is_empty());
    }
}
