//! Kubernetes' own storage suite (`External.Storage` of its `e2e.test`), run for drivers behind us
//! and for the same drivers without us. Every test must end with us as it does without.
//!
//! Both ways are on one stand and in one run of the suite, so they meet the same machine. Tests
//! that stop kubelets, or that need a stand for themselves, mostly wait. So each kind of tests runs
//! on a stand of its own, beside the others.

pub mod command;
mod images;
mod kubelets;
mod report;
mod straight;
mod suite;
mod together;

use crate::stand::layout::{Layout, Network, Plan};
use crate::stand::{DRIVER, ONE, SHARED, STRAIGHT};

/// The stand of the suite. Its nodes differ in how they reach the cloud.
const LAYOUT: Layout = Layout {
    nodes: &[
        Plan { name: "n1", scheme: "wss", drivers: &[DRIVER, SHARED, ONE] },
        Plan { name: "n2", scheme: "wss", drivers: &[DRIVER, SHARED] },
        Plan { name: "n3", scheme: "quic", drivers: &[DRIVER, SHARED] },
    ],
    fronts: &[DRIVER, SHARED, ONE],
    network: Network::Own,
    // Parallel tests do not reach it, and the test of limits reaches it in time.
    attach_limit: Some(30),
    deployed: None,
};

/// A driver as the suite runs it, with us and without.
struct Pair {
    /// What it is, in the results.
    title: &'static str,
    with_us: &'static str,
    without_us: &'static str,
    /// How the suite is told about it, in `manifests/`.
    definition: &'static str,
}

/// The drivers of a run.
const PAIRS: [Pair; 3] = [
    Pair {
        title: "hostdir at three nodes, scope node",
        with_us: DRIVER,
        without_us: STRAIGHT[0],
        definition: "hostdir.yaml",
    },
    Pair {
        title: "hostdir with a file server, scope shared",
        with_us: SHARED,
        without_us: STRAIGHT[1],
        definition: "shared.yaml",
    },
    Pair {
        title: "hostdir at one node, with attachments and group snapshots",
        with_us: ONE,
        without_us: STRAIGHT[2],
        definition: "hostdir-one.yaml",
    },
];
