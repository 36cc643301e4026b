//! What ginkgo, the test framework of Kubernetes' suites, reports of each spec.

use anyhow::Context;
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
}

impl Spec {
    /// Whether it is a test, and no setup or teardown.
    pub fn is_test(&self) -> bool {
        self.kind == "It"
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
/// It is no such report.
pub fn read(json: &[u8]) -> anyhow::Result<Vec<Spec>> {
    let suites: Vec<Suite> = serde_json::from_slice(json).context("this is no report of ginkgo")?;
    Ok(suites.into_iter().flat_map(|suite| suite.spec_reports).collect())
}
