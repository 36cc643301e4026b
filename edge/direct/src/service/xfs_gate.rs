//! Decides whether a pod may get its volume as xfs.
//!
//! xfs has nothing on its device that keeps a second guest away, and Kata's runtime-rs can give a
//! device to one. So its pods get an xfs only where NRI refuses their containers without csi-edge's
//! plugin.

use edge_calls::metadata::{KnownPod, Metadata};

use super::runtime_class::PATIENCE;
use crate::runtimes::prerequisites::NodeRuntimes;
use crate::volume::node::Node;

/// Why the pod with this uid does not get a volume as xfs, with advice. `None` if it may.
pub(super) async fn refusal(node: &Node, metadata: &Metadata, uid: &str) -> Option<String> {
    let runtimes = NodeRuntimes::below(&node.checks.root);
    // The check of the runtimes warns of a root that cannot be read.
    if !runtimes.has_runtime_rs {
        return None;
    }
    let pod = metadata.pod_with_class(uid, PATIENCE).await.map(|(pod, _)| pod);
    decide(&runtimes, pod.as_ref())
}

fn decide(runtimes: &NodeRuntimes, pod: Option<&KnownPod>) -> Option<String> {
    let handler = pod.and_then(|pod| pod.handler.as_deref());
    let whose = match handler.map(|handler| (handler, runtimes.is_runtime_rs(handler))) {
        Some((_, Some(false))) => return None,
        Some((handler, Some(true))) => format!("the pod's handler {handler} is Kata's runtime-rs"),
        Some((handler, None)) => format!(
            "Kata's runtime-rs is installed here, and it is not known whether handler {handler} is"
        ),
        None => {
            "Kata's runtime-rs is installed here, and the pod's handler is not known (metadata \
                 in csi-cloud's section [kubernetes] tells it)"
                .to_owned()
        }
    };
    let requires = pod.is_some_and(|pod| pod.requires_plugin);
    let missing = match (requires, runtimes.validates) {
        (true, true) => return None,
        (false, _) => "the pod does not require the NRI plugin by its annotation",
        (true, false) => "NRI's default validator is not enabled on this node",
    };
    Some(format!(
        "{whose}, which can give it to a second guest, and xfs does not notice; {missing}. Use \
         ext4, or the plugin as the documentation of direct volumes has it"
    ))
}

#[cfg(test)]
mod tests;
