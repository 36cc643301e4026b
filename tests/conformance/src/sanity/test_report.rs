//! Reading and comparing reports, with a part of a real one.

use super::*;

/// Six of the 103 specs that csi-sanity v5.6.0 reported of Kubernetes' mock driver.
const REAL: &str = include_str!("test_report.json");

fn real() -> Report {
    Report::parse(REAL.as_bytes()).unwrap()
}

#[test]
fn a_real_report_is_counted() {
    let counts = real().counts();
    assert_eq!(counts, Counts { passed: 2, failed: 1, skipped: 2, pending: 1 });
    assert_eq!(counts.to_string(), "2 passed, 1 failed, 2 skipped, 1 pending");
}

#[test]
fn what_failed_and_what_was_skipped_has_names_and_reasons_on_one_line() {
    let details = real().details();
    let failed = "failed: Controller Service [Controller Server] CreateVolume should not \
                  create volume with an \
                  invalid volume attribute class: Expected an error to have occurred. Got: \
                  <nil>: nil";
    let skipped = "skipped: ControllerListVolumeHealth [Controller Server] should return \
                   appropriate response: \
                   ControllerListVolumeHealth not supported";
    assert_eq!(details.len(), 3);
    assert_eq!([details[0].as_str(), details[1].as_str()], [failed, skipped]);
}

#[test]
fn equal_runs_do_not_differ_in_whatever_order_the_specs_ran() {
    let mut other = real();
    other.specs.reverse();
    assert!(other.differences(&real()).is_empty());
}

#[test]
fn a_spec_that_ends_otherwise_or_is_missing_is_a_difference() {
    let direct = real();
    let mut linked = real();
    linked.specs[1].state = SpecState::Skipped;
    let gone = linked.specs.remove(5).name;
    let changed = direct.specs[1].name.clone();
    assert_eq!(
        linked.differences(&direct),
        [format!("{gone}: [], direct [Failed]"), format!("{changed}: [Skipped], direct [Passed]")]
    );
    assert_eq!(direct.differences(&linked).len(), 2);
}

#[test]
fn unknown_ends_and_a_failing_setup_are_failures() {
    let json = r#"[{"SpecReports": [
        {"LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "panicked"},
        {"LeafNodeType": "AfterSuite", "LeafNodeText": "", "State": "passed"},
        {"LeafNodeType": "It", "LeafNodeText": "a", "State": "timedout"}
    ]}]"#;
    let report = Report::parse(json.as_bytes()).unwrap();
    assert_eq!(report.counts(), Counts { failed: 2, ..Counts::default() });
    assert_eq!(report.specs[0].name, "[BeforeSuite]");
}

#[test]
fn a_report_without_specs_is_refused() {
    for json in ["", "{}", "[]", r#"[{"SpecReports": []}]"#] {
        assert!(Report::parse(json.as_bytes()).is_err(), "{json:?}");
    }
}

#[test]
fn the_parts_leave_no_spec_out_and_have_none_in_common() {
    use crate::sanity::suite::Part;
    let part = |part: Part| real().filtered(|spec| part.has(spec));
    let controller = part(Part::Controller);
    let others = part(Part::Others);
    assert!(!controller.specs.is_empty() && !others.specs.is_empty());
    let both = others.and(controller);
    assert_eq!(both.specs.len(), part(Part::All).specs.len());
    assert!(both.differences(&real()).is_empty());
}

#[test]
fn group_controllers_are_no_controllers() {
    use crate::sanity::suite::Part;
    let spec = |name: &str| Spec {
        name: name.to_owned(),
        state: SpecState::Passed,
        reason: String::new(),
    };
    assert!(Part::Controller.has(&spec("GetSnapshot [Controller Server] should work")));
    assert!(
        Part::Others.has(&spec("GroupController Service [GroupController Server] should work"))
    );
}

#[test]
fn what_we_refuse_for_a_driver_is_no_difference_and_the_opposite_is() {
    let name = "ModifyVolume [Controller Server] should fail if no volume id is given".to_owned();
    let report =
        |state| Report { specs: vec![Spec { name: name.clone(), state, reason: String::new() }] };
    let passed = report(SpecState::Passed);
    let failed = report(SpecState::Failed);
    assert!(passed.differences(&failed).is_empty());
    assert_eq!(failed.differences(&passed).len(), 1);
    assert_eq!(report(SpecState::Skipped).differences(&failed).len(), 1);
}
