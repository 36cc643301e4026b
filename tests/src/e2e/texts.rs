//! Variations of the claims and pods of `scene`, and scripts for pods, still as a user writes them.
//!
//! The texts of `scene` end inside `spec`, so that a line more is one field more.

/// Only stays.
pub(super) const STAY: &str = "exec sleep 2147483647";
/// Writes a file at `/data` once, and stays.
pub(super) const WRITE: &str = "echo written at $(hostname) > /data/file && sync && exec sleep 2147483647";
/// The file is there.
pub(super) const READ: &str = "grep -q written /data/file";
/// Writes into the raw volume at `/dev/disk` once, and stays.
pub(super) const WRITE_RAW: &str = "echo raw at $(hostname) | dd of=/dev/disk bs=512 count=1 conv=sync,notrunc && sync && exec sleep 2147483647";
/// That is there.
pub(super) const READ_RAW: &str = "head -c 6 /dev/disk | grep -q \"raw at\"";

/// A claim or pod with further lines of its `spec`.
pub(super) fn with(text: &str, lines: &[&str]) -> String {
    lines.iter().fold(text.to_owned(), |text, line| format!("{text}  {line}\n"))
}

/// A pod that may run at one node only.
pub(super) fn at(pod: &str, node: &str) -> String {
    with(pod, &[&format!("nodeSelector: {{kubernetes.io/hostname: {node}}}")])
}

/// A pod that would rather run at a node, which the scheduler grants if it can.
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
    with(&super::scene::claim(name, class), &["volumeMode: Block"])
}

/// A pod that has a claim's raw volume at `/dev/disk`.
pub(super) fn raw_pod(name: &str, claim: &str, script: &str, ready: &str) -> String {
    let pod = super::scene::pod(name, claim, script, ready);
    pod.replace("volumeMounts:", "volumeDevices:").replace("mountPath: /data", "devicePath: /dev/disk")
}

/// A claim of another size than 16Mi.
pub(super) fn sized(claim: &str, size: &str) -> String {
    claim.replace("storage: 16Mi", &format!("storage: {size}"))
}
