//! Certificates that somebody else has too: `csi-cloud explain node` says the same.

use proto::admin::doctor::Finding;

use crate::admin::admin_state::AdminState;
use crate::explain::node::has_certificate;
use crate::nodes::cordon;

const CHECK: &str = "certificate-shared";

impl AdminState {
    /// A warning for each node whose certificate, or an older one, somebody else has.
    pub(super) fn shared_certificates(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (node, fault) in cordon::shared_certificates(&self.links) {
            if let Some(found) = has_certificate(&fault, &node) {
                findings.push(Finding::warning(CHECK, node.to_string(), found.text, found.next));
            }
        }
        findings
    }
}
