//! Variations of the claims and pods of `scene`, and scripts for pods, still as a user writes them.
//!
//! The texts of `scene` end inside `spec`, so that a line more is one field more.

use super::scene::{claim_of, pod_with};

/// Writes into the raw volume at `/dev/disk` once, and stays.
pub(super) const WRITE_RAW: &str = "echo raw at $(hostname) | dd of=/dev/disk bs=512 count=1 \
                                    conv=sync,notrunc && sync && exec sleep 2147483647";
/// The key exists.
pub(super) const READ_RAW: &str = "head -c 6 /dev/disk | grep -q \"raw at\"";

/// A claim or pod with further lines of its `spec`.
pub(super) fn with(text: &str, lines: &[&str]) -> String {
    lines.iter().fold(text.to_owned(), |text, line| format!("{text}  {line}\n"))
}

/// A pod that may run at one node only.
pub(super) fn at(pod: &str, node: &str) -> String {
    with(pod, &[&format!("nodeSelector: {{kubernetes.io/hostname: {node}}}")])
}

/// A pod that prefers a node, which the scheduler grants if it can.
pub(super) fn rather(pod: &str, node: &str) -> String {
    let preferred = format!("{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}");
    let affinity = format!(
        "affinity: {{nodeAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: \
         [{{weight: 100, preference: {{matchExpressions: [{preferred}]}}}}]}}}}"
    );
    with(pod, &[&affinity])
}

/// A claim for a raw volume.
pub(super) fn raw_claim(name: &str, class: &str) -> String {
    claim_of(name, class, "16Mi", "  volumeMode: Block")
}

/// A pod that has a claim's raw volume at `/dev/disk`.
pub(super) fn raw_pod(name: &str, claim: &str, script: &str, ready: &str) -> String {
    let volumes = format!("[{{name: disk, persistentVolumeClaim: {{claimName: {claim}}}}}]");
    pod_with(name, "volumeDevices: [{name: disk, devicePath: /dev/disk}]", &volumes, script, ready)
}

/// A claim of another size than 16Mi.
pub(super) fn sized(claim: &str, size: &str) -> String {
    claim.replace("storage: 16Mi", &format!("storage: {size}"))
}
