//! `csi-cloud doctor`: what keeps an installation from working, and what to do.

use crate::admin::admin_state::AdminState;
use crate::admin::refused::CommandError;
use crate::kubernetes::doctor::finding::Finding;

/// The path of `csi-cloud doctor kubeedge`.
pub(crate) const KUBEEDGE: &str = "/doctor/kubeedge";

impl AdminState {
    /// Looks at all that KubeEdge needs.
    ///
    /// # Errors
    /// This csi-cloud knows no Kubernetes.
    pub(super) async fn doctor_kubeedge(&self) -> Result<Vec<Finding>, CommandError> {
        match &self.doctor {
            Some(doctor) => Ok(doctor.kubeedge().await),
            None => Err(CommandError::conflict(
                "this csi-cloud knows no Kubernetes, so it cannot look there; set [kubernetes] in \
                 its configuration (--kubernetes)",
            )),
        }
    }
}
