//! Why a pod, a claim or a volume waits: `csi-cloud explain`.
//!
//! It follows the chain from what a user sees to the node, and names the first cause that it finds.
//! Each file judges one link of the chain, by pure functions over facts. It changes nothing.
//! What cannot be seen is said, and is never taken for good.
//! May use: telemetry, state, nodes, kubernetes.

pub mod answer;
mod claim;
mod commands;
mod driver;
pub mod ended;
pub mod explainer;
mod finalizers;
mod follow;
pub(crate) mod node;
mod pod;
mod reported;
mod snapshot;
pub mod subject;
pub mod volume;
