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

    /// The explainer for one question.
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

#[cfg(test)]
mod tests {
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::admin::tests::admin_state_into;
    use crate::explain::answer::Cause;
    use crate::state::record::Node;
    use crate::state::store::memory::{Crash, Memory};

    #[tokio::test]
    async fn a_store_that_takes_no_more_changes_is_the_first_cause() {
        let tasks = Tasks::default();
        let failing = Memory::default().crashing(Crash::Before(0));
        let admin = admin_state_into(Box::new(failing), &tasks);
        let node = || "n1".parse().unwrap();
        let asked = || Subject::Node(node());
        assert_eq!(admin.explain(&asked()).await.verdict.cause, Cause::NodeUnknown);
        let written = admin.store.write(move |txn| {
            txn.set_node(&node(), Some(Node { since: 1, removed: None }));
        });
        assert!(written.await.is_err());
        let verdict = admin.explain(&asked()).await.verdict;
        assert_eq!(verdict.cause, Cause::StoreFails);
        assert!(verdict.sentence().contains("EdgeCsiStoreFailing"), "{verdict:?}");
    }
}
