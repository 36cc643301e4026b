//! What ginkgo, the test framework of Kubernetes' suites, reports of each spec.

use anyhow::{Context, ensure};
use serde::Deserialize;

/// One spec of a report. Setup and teardown are specs too.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Spec {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    /// `It` for a test, or `BeforeSuite` and the like.
    #[serde(rename = "LeafNodeType")]
    pub kind: String,
    leaf_node_text: String,
    /// `passed`, `skipped`, `pending`, or how it failed.
    pub state: String,
    #[serde(default)]
    failure: Option<Failure>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    spec_reports: Vec<Spec>,
    #[serde(default)]
    special_suite_failure_reasons: Option<Vec<String>>,
}

impl Spec {
    /// Whether it is a test, and no setup or teardown.
    pub fn is_test(&self) -> bool {
        self.kind == "It"
    }

    /// Whether it prepares all tests and failed, so that no test ran.
    pub fn is_failed_setup(&self) -> bool {
        self.kind.ends_with("BeforeSuite") && !matches!(self.state.as_str(), "passed" | "skipped")
    }

    /// All its texts, from the outermost container.
    pub fn name(&self) -> String {
        let containers = self.container_hierarchy_texts.iter().flatten();
        let texts = containers.chain([&self.leaf_node_text]).filter(|text| !text.is_empty());
        texts.map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// Why it failed or was skipped, in one line of at most so many characters.
    pub fn reason(&self, most: usize) -> String {
        let message = self.failure.as_ref().map_or("", |failure| &failure.message);
        let words: Vec<_> = message.split_whitespace().collect();
        words.join(" ").chars().take(most).collect()
    }
}

/// Reads the file that `--json-report` names.
///
/// # Errors
/// It is no such report, or the run was broken off, by its time limit or a signal. Tests that were
/// not reached then look as if nobody had chosen them.
pub fn read(json: &[u8]) -> anyhow::Result<Vec<Spec>> {
    let suites: Vec<Suite> = serde_json::from_slice(json).context("this is no report of ginkgo")?;
    let mut specs = Vec::new();
    for suite in suites {
        let why = suite.special_suite_failure_reasons.unwrap_or_default();
        ensure!(why.is_empty(), "the run was broken off: {}", why.join("; "));
        specs.extend(suite.spec_reports);
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(kind: &str, state: &str) -> serde_json::Value {
        json!({
            "LeafNodeType": kind, "LeafNodeText": "stores", "State": state,
            "Failure": {"Message": "no cluster"},
        })
    }

    fn told(suite: serde_json::Value) -> String {
        format!("{:#}", read(json!([suite]).to_string().as_bytes()).unwrap_err())
    }

    #[test]
    fn a_run_that_was_broken_off_is_no_result() {
        let specs = [spec("SynchronizedBeforeSuite", "passed"), spec("It", "failed")];
        let whole = json!([{"SpecReports": specs, "SpecialSuiteFailureReasons": null}]);
        assert_eq!(read(whole.to_string().as_bytes()).unwrap().len(), 2);
        let late = json!({
            "SpecReports": specs, "SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"],
        });
        assert_eq!(told(late), "the run was broken off: Suite Timeout Elapsed");
        let failed = json!([{"SpecReports": [spec("SynchronizedBeforeSuite", "failed")]}]);
        let failed = read(failed.to_string().as_bytes()).unwrap();
        assert!(failed.iter().all(Spec::is_failed_setup));
        assert!(!read(whole.to_string().as_bytes()).unwrap().iter().any(Spec::is_failed_setup));
    }
}
