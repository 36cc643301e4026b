//! The table of `make badnet`, its JSON rows, and whether the targets are met.

use serde::Serialize;

use super::load::Lists;
use crate::load::Seen;
use crate::report::Targets;

/// One row: one kind of call, over one transport and network.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `ws` or `quic`.
    pub path: &'static str,
    /// `small`, or `list` for the answers of 4 MiB.
    pub call: &'static str,
    /// The network's rate each way, in Mbit/s.
    pub rate_mbit: u32,
    /// Packets lost by chance, each way, 0 to 1.
    pub loss: f64,
    /// Whether small calls and lists went at the same time.
    pub beside: bool,
    /// The median latency, in µs.
    pub p50_us: f64,
    /// The latency of the slowest in a hundred, in µs.
    pub p99_us: f64,
    /// The throughput of the lists in Mbit/s; 0 without lists.
    pub goodput_mbit: f64,
    /// Calls or lists that failed.
    pub errors: u64,
    /// Those that did not.
    pub calls: usize,
    /// Packets that the queue towards the cloud dropped, of those that the edge sent. None if
    /// another row counts them.
    pub dropped: f64,
}

impl Row {
    /// A row of small calls.
    pub fn small(path: &'static str, rate_mbit: u32, loss: f64, seen: &Seen) -> Self {
        Self {
            path,
            call: "small",
            rate_mbit,
            loss,
            beside: false,
            p50_us: seen.percentile(0.5),
            p99_us: seen.percentile(0.99),
            goodput_mbit: 0.0,
            errors: seen.errors,
            calls: seen.latencies.len(),
            dropped: 0.0,
        }
    }

    /// A row of lists.
    pub fn lists(path: &'static str, rate_mbit: u32, loss: f64, lists: &Lists) -> Self {
        let row = Self::small(path, rate_mbit, loss, &lists.seen);
        Self { call: "list", goodput_mbit: lists.mbit(), ..row }
    }

    /// The target for this row: its name, the measured value and the limit, in ms.
    fn target(&self) -> Option<(&'static str, f64, f64)> {
        let p50 = self.p50_us / 1e3;
        let p99 = self.p99_us / 1e3;
        match (self.call, self.path, self.beside, self.rate_mbit) {
            ("small", "quic", true, _) => Some(("p99 of a small call beside lists", p99, 300.0)),
            ("small", "ws", true, 20) => Some(("p99 of a small call beside lists", p99, 500.0)),
            ("list", _, false, 100) => Some(("p50 of a list of 4 MiB", p50, 550.0)),
            _ => None,
        }
    }
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "path  call   Mbit/s  loss %  beside    calls   p50 ms   p99 ms  goodput \
         Mbit/s  queue dropped %  errors\n",
    );
    for row in rows {
        let Row { path, call, rate_mbit, beside, calls, goodput_mbit, errors, .. } = row;
        let p50 = row.p50_us / 1e3;
        let p99 = row.p99_us / 1e3;
        let loss = row.loss * 100.0;
        let dropped = row.dropped * 100.0;
        let beside = if *beside { "yes" } else { "no" };
        text += &format!(
            "{path:4}  {call:5}  {rate_mbit:6}  {loss:6.1}  {beside:6}  {calls:7}  {p50:7.0}  \
             {p99:7.0}  {goodput_mbit:14.2}  {dropped:15.1}  {errors:6}\n",
        );
    }
    text
}

/// The targets. No call may have failed.
pub fn targets(rows: &[Row]) -> Targets {
    let mut targets = Targets::default();
    for row in rows {
        let Some((what, reached, at_most)) = row.target() else { continue };
        let what =
            format_args!("{} {} Mbit/s: {what} at most {at_most:.0} ms", row.path, row.rate_mbit);
        // No figure is no target met.
        targets.add(what, format_args!("{reached:.0}"), reached <= at_most);
    }
    targets.errors(rows.iter().map(|row| row.errors).sum());
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &'static str, rate: u32, millis: u32, errors: u64) -> Row {
        let seen = Seen { latencies: vec![millis * 1000], errors, ..Seen::default() };
        Row { beside: true, ..Row::small(path, rate, 0.01, &seen) }
    }

    #[test]
    fn a_target_that_is_missed_and_an_error_fail() {
        assert!(
            targets(&[row("quic", 2, 300, 0), row("ws", 20, 500, 0), row("ws", 2, 9000, 0)]).met
        );
        let Targets { text, met } = targets(&[row("quic", 20, 301, 0)]);
        assert!(!met && text.contains("301 MISSED"), "{text}");
        assert!(!targets(&[row("ws", 20, 501, 0)]).met);
        assert!(!targets(&[row("quic", 20, 1, 1)]).met);
    }

    #[test]
    fn no_calls_are_no_target_met() {
        let none = Row { beside: true, ..Row::small("quic", 2, 0.01, &Seen::default()) };
        assert!(!targets(&[none]).met);
        let lists = Lists { seen: Seen { latencies: vec![551_000], ..Seen::default() }, bytes: 0 };
        assert!(!targets(&[Row::lists("ws", 100, 0.0, &lists)]).met);
    }
}
