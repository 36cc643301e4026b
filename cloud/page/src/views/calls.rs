//! Calls: those in flight, and how long those took that ended.

use std::collections::BTreeMap;

use maud::{Markup, html};
use proto::admin::cells::took;
use proto::admin::view::{CallRow, Calls, Latency};
use proto::host::plain;

use super::link;
use super::time::{number, since};
use super::timeline::moments;

/// The width of the chart, for a latency of 100 s.
const WIDTH: f64 = 600.0;
/// The height of one row of it.
const ROW: usize = 28;
/// Where its bars begin.
const LEFT: f64 = 210.0;
/// What is left free after them.
const RIGHT: f64 = 24.0;
/// The marks of its axis, in ms.
const MARKS: [(u64, &str); 6] = [
    (1, "1 ms"),
    (10, "10 ms"),
    (100, "0.1 s"),
    (1_000, "1 s"),
    (10_000, "10 s"),
    (100_000, "100 s"),
];

/// The calls in flight, the latencies of those that ended, and their last failures.
pub(crate) fn calls(shown: &Calls, now: u64) -> Markup {
    let Calls { running, failures, .. } = shown;
    html! {
        h1 { "Calls" }
        section aria-labelledby="running-title" {
            h2 #running-title { "In flight" }
            @if running.is_empty() {
                p .muted { "No call is in flight." }
            } @else {
                (table(running, now))
            }
        }
        section aria-labelledby="latency-title" {
            h2 #latency-title { "How long calls took" }
            (latencies(shown))
        }
        section aria-labelledby="failures-title" {
            h2 #failures-title { "The last failures" }
            @if failures.is_empty() {
                p .muted { "None of the calls that are kept has failed." }
            } @else {
                (moments(failures, now))
            }
        }
    }
}

fn table(running: &[CallRow], now: u64) -> Markup {
    html! {
        div .scroll tabindex="0" role="region" aria-label="Calls in flight" {
            table {
                thead {
                    tr {
                        th scope="col" { "call" }
                        th scope="col" { "for" }
                        th scope="col" { "stage" }
                        th scope="col" { "about" }
                        th scope="col" { "node" }
                        th scope="col" { "driver" }
                    }
                }
                tbody { @for call in running { (row(call, now)) } }
            }
        }
    }
}

fn row(call: &CallRow, now: u64) -> Markup {
    html! {
        tr {
            th scope="row" { (call.rpc) }
            td { (since(now.saturating_sub(call.age_ms), now)) }
            td { (call.stage) }
            td {
                @if !call.subject.is_empty() {
                    a href=(link::volume(&call.driver, &call.subject)) {
                        (link::short(&plain(&call.subject)))
                    }
                }
            }
            td { @if let Some(node) = &call.node { a href=(link::node(node)) { (node) } } }
            td { (call.driver) }
        }
    }
}

fn latencies(shown: &Calls) -> Markup {
    let Calls { kept, latencies, .. } = shown;
    html! {
        @if latencies.is_empty() {
            p .muted { "No call is kept." }
        } @else {
            p .muted {
                "Of the " (number(*kept)) " calls that are kept: the last eight about each "
                "id or name. Full to the median, pale to 95 %, a mark at the longest."
            }
            div .scroll tabindex="0" role="region" aria-label="Latencies" {
                (chart(latencies))
                (figures(latencies))
            }
        }
    }
}

/// Where a duration is on the axis, which is logarithmic.
fn place(millis: u64) -> f64 {
    let decades = (millis.clamp(1, 100_000) as f64).log10();
    (LEFT + decades / 5.0 * (WIDTH - LEFT - RIGHT)).round()
}

fn chart(latencies: &BTreeMap<String, Latency>) -> Markup {
    let height = latencies.len() * ROW + ROW;
    let bars = |row: usize| row * ROW + ROW;
    html! {
        svg .latencies viewBox={"0 0 " (WIDTH) " " (height)} width=(WIDTH) height=(height)
            aria-hidden="true" {
            @for (millis, label) in MARKS {
                path .axis d={"M" (place(millis)) " 20V" (height)} {}
                text .axis x=(place(millis)) y="13" text-anchor="middle" { (label) }
            }
            @for (row, (rpc, latency)) in latencies.iter().enumerate() {
                @let y = bars(row);
                text x="0" y=(y + 15) { (rpc) }
                path .light d=(bar(y, latency.most)) {}
                path .dark d=(bar(y, latency.half)) {}
                path .longest d={"M" (place(latency.longest)) " " (y + 2) "v16"} {}
            }
        }
    }
}

fn bar(y: usize, millis: u64) -> String {
    let width = (place(millis) - LEFT).max(2.0);
    format!("M{LEFT} {}h{width}v10h-{width}z", y + 5)
}

fn figures(latencies: &BTreeMap<String, Latency>) -> Markup {
    html! {
        table .figures {
            thead {
                tr {
                    th scope="col" { "call" }
                    th scope="col" .number { "kept" }
                    th scope="col" .number { "median" }
                    th scope="col" .number { "95 %" }
                    th scope="col" .number { "longest" }
                }
            }
            tbody {
                @for (rpc, latency) in latencies {
                    tr {
                        th scope="row" { (rpc) }
                        td .number { (number(latency.calls)) }
                        td .number { (took(latency.half)) }
                        td .number { (took(latency.most)) }
                        td .number { (took(latency.longest)) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_drawn_by_decades() {
        let latency = Latency { calls: 100, half: 50, most: 95, longest: 100 };
        assert_eq!((place(0), place(1)), (LEFT, LEFT));
        assert!((place(10) - LEFT - 73.0).abs() < 1.0 && place(u64::MAX) == WIDTH - RIGHT);
        let shown = chart(&[("CreateVolume".to_owned(), latency)].into()).into_string();
        assert!(shown.contains(">CreateVolume</text>") && shown.contains("viewBox=\"0 0 600 56\""));
    }

    #[test]
    fn a_call_in_flight_leads_to_what_it_is_about() {
        let call = CallRow {
            rpc: "DeleteVolume".into(),
            driver: "d.example".parse().unwrap(),
            node: "n1".parse().ok(),
            subject: "<v>".into(),
            age_ms: 5_000,
            stage: "sent".into(),
        };
        let shown = calls(&Calls { running: vec![call], ..Calls::default() }, 61_000).into_string();
        assert!(shown.contains("/volume/d.example/%3Cv%3E\">&lt;v&gt;<"), "{shown}");
        assert!(shown.contains(">5s</time>") && shown.contains("No call is kept."), "{shown}");
    }
}
