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
    /// CPU time for a call of csi-cloud and csi-edge, in µs; of the load and the driver if direct.
    pub cpu_us: [f64; 2],
    /// CPU time of both to that of load and driver for a direct call.
    pub cpu_ratio: f64,
    /// The most memory csi-cloud had resident so far, in KiB.
    pub cloud_peak_kib: u64,
    /// The most memory csi-edge had resident so far, in KiB.
    pub edge_peak_kib: u64,
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "path    callers  driver ms    p50 µs    p99 µs   calls/s  errors  p50 ×  calls ×  CPU × \
         cloud CPU µs  edge CPU µs  cloud KiB  edge KiB\n",
    );
    for row in rows {
        let Row { path, callers, driver_ms, p50_us, p99_us, calls_per_s, errors, .. } = row;
        text += &format!(
            "{path:6}  {callers:7}  {driver_ms:9}  {p50_us:8.0}  {p99_us:8.0}  {calls_per_s:8.0}  \
             {errors:6}",
        );
        let Row { p50_ratio, calls_ratio, cpu_ratio, cpu_us: [cloud, edge], .. } = row;
        text += &format!("  {p50_ratio:5.2}  {calls_ratio:7.2}  {cpu_ratio:5.2}");
        let Row { cloud_peak_kib, edge_peak_kib, .. } = row;
        match *path {
            "direct" => text += &format!("  load {cloud:.1}, driver {edge:.1}\n"),
            _ => {
                text +=
                    &format!(" {cloud:12.1}  {edge:11.1}  {cloud_peak_kib:9}  {edge_peak_kib:8}\n");
            }
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
        let calls = row.calls_ratio;
        match (row.driver_ms, row.callers) {
            (0, 1) => {
                target("p50 at most 2.6 × direct", row.p50_ratio, row.p50_ratio <= 2.6);
                target("calls/s at least 0.25 × direct", calls, calls >= 0.25);
            }
            (0, 16) => target("calls/s at least 0.28 × direct", calls, calls >= 0.28),
            (0, _) => {
                target("calls/s at least 0.34 × direct", calls, calls >= 0.34);
                let cpu = row.cpu_ratio;
                target("CPU at most 1.25 × load's and driver's", cpu, cpu <= 1.25);
            }
            _ => target("calls/s at least 0.95 × direct", calls, calls >= 0.95),
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
            cpu_us: [0.0; 2],
            cpu_ratio: 1.0,
            cloud_peak_kib: 0,
            edge_peak_kib: 0,
        }
    }

    #[test]
    fn a_target_that_is_missed_and_an_error_fail() {
        assert!(targets(&[row("ws", 0.28, 0)]).met);
        let Targets { text, met } = targets(&[row("ws", 0.27, 0)]);
        assert!(!met && text.contains("0.27 MISSED"));
        assert!(!targets(&[row("direct", 1.0, 1)]).met);
    }

    #[test]
    fn no_ratio_is_no_target_met() {
        assert!(!targets(&[row("quic", f64::NAN, 0)]).met);
    }
}
