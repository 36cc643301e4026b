//! Claims of a driver at three nodes, without us and behind us, at a real control plane. Without us
//! external-provisioner is at each node, with `--node-deployment`; behind us it is once in the
//! cloud.
//!
//! There are neither kubelets nor pods: the test writes the nodes' objects, and chooses nodes for
//! claims as the scheduler does. The driver is `fielddriver`.

pub mod command;
mod plane;
mod scenarios;
mod scene;
mod strangers;
