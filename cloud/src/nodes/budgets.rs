//! Limits the control messages of each node over all its links, and the rate of its links.
//!
//! The budget is kept by node, so a new link brings no new burst.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use proto::host::limit::{Bucket, Rate};
use proto::names::NodeName;
use tokio::time::Instant;

use crate::state::quotas::{OverQuota, Quota, Quotas};

/// The links that a node may make. An edge races its endpoints, and is started again, and its
/// network breaks; then it waits longer from time to time.
const LINKS: Rate = Rate::per_second(1, 20);

/// The budgets of nodes that have sent something lately.
#[derive(Default)]
pub(super) struct Budgets(Mutex<HashMap<NodeName, Bucket>>);

impl Budgets {
    /// Takes one message of the node.
    ///
    /// # Errors
    /// The node is over its rate.
    pub(super) fn take(&self, node: &NodeName, quotas: &Quotas) -> Result<(), OverQuota> {
        let at_once = quotas.control_messages_at_once;
        let per_second = quotas.control_messages_per_s;
        let rate = Rate::per_second(number(per_second), number(at_once));
        if self.lock().entry(node.clone()).or_default().try_take(rate, Instant::now()) {
            return Ok(());
        }
        let what = || format!("control messages at once with {per_second} a second");
        quotas.check(Quota::ControlMessages, at_once.saturating_add(1), what)
    }

    /// Takes one link of the node. Returns `false` if it makes more than it may.
    pub(super) fn take_link(&self, node: &NodeName) -> bool {
        self.lock().entry(node.clone()).or_default().try_take(LINKS, Instant::now())
    }

    /// Forgets the nodes whose budget is full again, and returns them.
    pub(super) fn forget_full(&self) -> Vec<NodeName> {
        let now = Instant::now();
        self.lock().extract_if(|_, bucket| bucket.is_full(now)).map(|(node, _)| node).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Bucket>> {
        self.0.lock()
    }
}

fn number(setting: u64) -> u32 {
    setting.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An edge that loses each link after some seconds, as with a bad network, is never refused.
    #[tokio::test(start_paused = true)]
    async fn an_edge_whose_links_break_is_not_refused() {
        let node: NodeName = "n1".parse().unwrap();
        let budgets = Budgets::default();
        for round in 0..1000 {
            assert!(budgets.take_link(&node), "{round}");
            // It begins anew after a longer time whenever it has been started again at once.
            let pause = if round % 10 == 0 { 0 } else { 1200 };
            tokio::time::advance(Duration::from_millis(pause)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_node_has_a_budget_of_its_own_until_all_is_paid() {
        let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        let quotas =
            Quotas { control_messages_per_s: 1, control_messages_at_once: 3, ..Quotas::default() };
        let budgets = Budgets::default();
        for _ in 0..3 {
            assert_eq!(budgets.take(&n1, &quotas), Ok(()));
        }
        let over = budgets.take(&n1, &quotas).unwrap_err();
        let text = "4 control messages at once with 1 a second, and 3 is the quota of a node \
                    (control_messages_at_once in [quotas])";
        assert_eq!((over.quota, over.to_string()), (Quota::ControlMessages, text.to_owned()));
        assert_eq!(budgets.take(&n2, &quotas), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(budgets.forget_full(), [n2]);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(budgets.forget_full(), [n1]);
        assert_eq!(budgets.lock().len(), 0);
    }
}
