//! What contradicts a driver: `csi-cloud explain driver` says the same.

use proto::admin::doctor::Finding;

use crate::admin::admin_state::AdminState;

const CHECK: &str = "driver-contradicted";

impl AdminState {
    /// A warning for each thing that says otherwise than a driver.
    pub(super) async fn contradicted(&self) -> Vec<Finding> {
        let explainer = self.explainer();
        let mut findings = Vec::new();
        for driver in &explainer.drivers {
            for found in explainer.contradicted(driver).await {
                findings.push(Finding::warning(CHECK, driver.to_string(), found.text, found.next));
            }
        }
        findings
    }
}
