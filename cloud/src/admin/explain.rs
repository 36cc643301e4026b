//! `csi-cloud explain`: why something waits.

use crate::admin::admin_state::AdminState;
use crate::explain::answer::Explanation;
use crate::explain::explainer::Explainer;
use crate::explain::subject::Subject;

/// The path of the command.
pub(crate) const PATH: &str = "/explain";

impl AdminState {
    /// Says why something waits.
    pub(crate) async fn explain(&self, subject: &Subject) -> Explanation {
        self.explainer().explain(subject).await
    }

    /// What says why something waits, for one question.
    pub(crate) fn explainer(&self) -> Explainer<'_> {
        Explainer {
            store: &self.store,
            links: &self.links,
            calls: &self.calls,
            drivers: self.policies.keys().cloned().collect(),
            objects: self.doctor.as_ref().map(|doctor| &doctor.objects),
        }
    }
}
