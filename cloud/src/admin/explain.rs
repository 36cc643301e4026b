//! `csi-cloud explain`: why something waits.

use crate::admin::admin_state::AdminState;
use crate::explain::answer::{Cause, Explanation};
use crate::explain::ended::failure;
use crate::explain::explainer::Explainer;
use crate::explain::subject::Subject;

/// The path of the command.
pub(crate) const PATH: &str = "/explain";

impl AdminState {
    /// Says why something waits.
    ///
    /// A create that was refused leaves no record. So without Kubernetes, the last call for a claim
    /// says why there is none.
    pub(crate) async fn explain(&self, subject: &Subject) -> Explanation {
        let mut explanation = self.explainer().explain(subject).await;
        if let Subject::Pvc(claim) = subject
            && explanation.verdict.cause == Cause::NotVisible
            && let Some(last) = self.calls.ended.for_claim(&claim.to_string())
            && let Some(failed) = failure(&last)
        {
            explanation.verdict = failed;
        }
        explanation
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
    use crate::admin::tests::{admin_state, admin_state_into, refuse};
    use crate::state::record::Node;
    use crate::state::store::backend::StoreError;
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
        assert!(matches!(written.await, Err(StoreError::Closed)));
        let verdict = admin.explain(&asked()).await.verdict;
        assert_eq!(verdict.cause, Cause::StoreFails);
        assert!(verdict.sentence().contains("EdgeCsiStoreFailing"), "{verdict:?}");
    }

    #[tokio::test]
    async fn without_kubernetes_the_last_call_for_a_claim_says_why_it_waits() {
        let tasks = Tasks::default();
        let state = admin_state(&tasks);
        refuse(&state, "shop/stuck", "pvc-7", "n1");
        let of = async |claim: &str| {
            let verdict = state.explain(&Subject::Pvc(claim.parse().unwrap())).await.verdict;
            (verdict.cause, verdict.node, verdict.text)
        };
        let (cause, node, text) = of("shop/stuck").await;
        assert_eq!(
            (cause, node.as_ref().map(|node| node.as_str())),
            (Cause::CallFailed, Some("n1"))
        );
        assert!(text.starts_with("CreateVolume of pvc-7 failed at node n1 "), "{text}");
        assert!(text.ends_with(" with UNAVAILABLE: node n1 has no link"), "{text}");
        assert_eq!(of("shop/other").await.0, Cause::NotVisible);
    }
}
