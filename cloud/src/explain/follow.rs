//! Follows the chain from a subject to its node: one arm for each kind of subject.

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::explainer::Explainer;
use super::subject::Subject;

impl Explainer<'_> {
    /// Says why something waits, or that nothing is wrong.
    pub async fn explain(&self, subject: &Subject) -> Explanation {
        if !self.store.is_open() {
            let mut chain = Chain::default();
            chain.judge(Some(Verdict::of(
                Cause::StoreFails,
                "csi-cloud's store takes no more changes, so it answers no call that changes \
                 anything",
                "see EdgeCsiStoreFailing in docs/troubleshoot/alerts.md",
            )));
            return chain.end(|| Verdict::fine(""));
        }
        match subject {
            Subject::Pvc(claim) => self.claim(claim).await,
            Subject::Pv(name) => self.persistent_volume(name).await,
            Subject::Pod(pod) => self.pod(pod).await,
            Subject::Snapshot(snapshot) => self.snapshot(snapshot).await,
            Subject::Volume { driver, id } => self.volume(driver, id),
            Subject::Node(node) => self.node(node).await,
            Subject::Driver(driver) => self.driver(driver).await,
        }
    }
}
