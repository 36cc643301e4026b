//! The table of calls, its JSON rows, and the targets.

use serde::Serialize;

use crate::report::Targets;

/// One row: one path, number of callers and driver. Ratios are to the direct path in the same
/// round, medians of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `direct`, `ws` or `quic`.
    pub path: &'static str,
    /// Callers at the same time.
    pub callers: usize,
    /// How long the driver takes for a call, in ms.
    pub driver_ms: u64,
    /// The median latency, in µs.
    pub p50_us: f64,
    /// The latency of the slowest in a hundred, in µs.
    pub p99_us: f64,
    /// Calls answered in a second.
    pub calls_per_s: f64,
    /// Calls that failed, in all rounds.
    pub errors: u64,
    /// Median latency to direct's.
    pub p50_ratio: f64,
    /// Calls in a second to direct's.
    pub calls_ratio: f64,
    /// CPU time of csi-cloud for a call, in µs.
    pub cloud_cpu_us: f64,
    /// CPU time of csi-edge for a call, in µs.
    pub edge_cpu_us: f64,
    /// The most memory csi-cloud had resident so far, in KiB.
    pub cloud_peak_kib: u64,
    /// The most memory csi-edge had resident so far, in KiB.
    pub edge_peak_kib: u64,
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "path    callers  driver ms    p50 µs    p99 µs   calls/s  errors  p50 ×  calls \
         ×  cloud CPU µs  \
         edge CPU µs  cloud KiB  edge KiB\n",
    );
    for row in rows {
        let Row {
            path,
            callers,
            driver_ms,
            p50_us,
            p99_us,
            calls_per_s,
            errors,
            p50_ratio,
            calls_ratio,
            ..
        } = row;
        text += &format!(
            "{path:6}  {callers:7}  {driver_ms:9}  {p50_us:8.0}  {p99_us:8.0}  {calls_per_s:8.0}  \
             {errors:6}  {p50_ratio:5.2}  {calls_ratio:7.2}",
        );
        let Row { cloud_cpu_us, edge_cpu_us, cloud_peak_kib, edge_peak_kib, .. } = row;
        if *path == "direct" {
            text += &format!("  {:>12}  {:>11}  {:>9}  {:>8}\n", "–", "–", "–", "–");
        } else {
            text += &format!(
                "  {cloud_cpu_us:12.1}  {edge_cpu_us:11.1}  {cloud_peak_kib:9}  {edge_peak_kib:8}\n"
            );
        }
    }
    text
}

/// The targets. No call may have failed.
pub fn targets(rows: &[Row]) -> Targets {
    let mut targets = Targets::default();
    for row in rows.iter().filter(|row| row.path != "direct") {
        let mut target = |what: &str, reached: f64, met: bool| {
            let path = row.path;
            let callers = row.callers;
            let ms = row.driver_ms;
            let what = format_args!("{path} callers {callers} driver {ms} ms: {what}");
            targets.add(what, format_args!("{reached:.2}"), met);
        };
        match (row.driver_ms, row.callers) {
            (0, 1) => {
                target("p50 at most 4.0 × direct", row.p50_ratio, row.p50_ratio <= 4.0);
                target("calls/s at least 0.25 × direct", row.calls_ratio, row.calls_ratio >= 0.25);
            }
            (0, 16) => {
                target("calls/s at least 0.38 × direct", row.calls_ratio, row.calls_ratio >= 0.38)
            }
            (0, _) => {
                target("calls/s at least 0.50 × direct", row.calls_ratio, row.calls_ratio >= 0.50)
            }
            _ => target("calls/s at least 0.95 × direct", row.calls_ratio, row.calls_ratio >= 0.95),
        }
    }
    targets.errors(rows.iter().map(|row| row.errors).sum());
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &'static str, calls_ratio: f64, errors: u64) -> Row {
        Row {
            path,
            callers: 16,
            driver_ms: 0,
            p50_us: 1.0,
            p99_us: 1.0,
            calls_per_s: 1.0,
            errors,
            p50_ratio: 1.0,
            calls_ratio,
            cloud_cpu_us: 0.0,
            edge_cpu_us: 0.0,
            cloud_peak_kib: 0,
            edge_peak_kib: 0,
        }
    }

    #[test]
    fn a_target_that_is_missed_and_an_error_fail() {
        assert!(targets(&[row("ws", 0.38, 0)]).met);
        let Targets { text, met } = targets(&[row("ws", 0.37, 0)]);
        assert!(!met && text.contains("0.37 MISSED"));
        assert!(!targets(&[row("direct", 1.0, 1)]).met);
    }

    #[test]
    fn no_ratio_is_no_target_met() {
        assert!(!targets(&[row("quic", f64::NAN, 0)]).met);
    }
}
