//! Calls: those in flight, and how long those took that ended.

use std::collections::BTreeMap;

use maud::{Markup, html};
use proto::admin::cells::took;
use proto::admin::view::{CallRow, CallsPage, Latency};

use super::link;
use super::parts::Column::{Number, Text};
use super::parts::{number, section, since, table};
use super::subject::moments;

/// The width of the chart, for a latency of 100 s.
const WIDTH: f64 = 600.0;
/// The height of one row of it.
const ROW: usize = 28;
/// Where its bars begin.
const LEFT: f64 = 210.0;
/// What is left free after them.
const RIGHT: f64 = 24.0;
/// The marks of its axis, in ms.
const MARKS: [u64; 6] = [1, 10, 100, 1_000, 10_000, 100_000];

/// The calls in flight, the latencies of those that ended, and their last failures.
pub(crate) fn calls(shown: &CallsPage, now: u64) -> Markup {
    let CallsPage { running, failures, .. } = shown;
    html! {
        h1 { "Calls" }
        (section("running-title", "In flight", html! {
            @if running.is_empty() {
                p .muted { "No call is in flight." }
            } @else {
                (in_flight(running, now))
            }
        }))
        (section("latency-title", "How long calls took", latencies(shown)))
        (section("failures-title", "The last failures", html! {
            @if failures.is_empty() {
                p .muted { "None of the calls that are kept has failed." }
            } @else {
                (moments(failures, now))
            }
        }))
    }
}

fn in_flight(running: &[CallRow], now: u64) -> Markup {
    let columns =
        [Text("call"), Text("for"), Text("stage"), Text("about"), Text("node"), Text("driver")];
    let rows = running.iter().map(|call| {
        let CallRow { rpc, driver, node, subject, age_ms, stage } = call;
        [
            html! { (rpc) },
            since(now.saturating_sub(*age_ms), now),
            html! { (stage) },
            html! { @if !subject.is_empty() { (link::volume(driver, subject)) } },
            html! { @if let Some(node) = node { (link::node(node)) } },
            html! { (driver) },
        ]
    });
    table("Calls in flight", columns, rows)
}

fn latencies(shown: &CallsPage) -> Markup {
    let CallsPage { kept, latencies, .. } = shown;
    let columns =
        [Text("call"), Number("kept"), Number("median"), Number("95 %"), Number("longest")];
    let rows = latencies.iter().map(|(rpc, latency)| {
        let Latency { calls, half, most, longest } = *latency;
        let [half, most, longest] = [half, most, longest].map(|millis| html! { (took(millis)) });
        [html! { (rpc) }, html! { (number(calls)) }, half, most, longest]
    });
    html! {
        @if latencies.is_empty() {
            p .muted { "No call is kept." }
        } @else {
            p .muted {
                "Of the " (number(kept)) " calls that are kept: the last eight about each "
                "id or name. Full to the median, pale to 95 %, a mark at the longest."
            }
            (chart(latencies))
            div .figures { (table("Latencies", columns, rows)) }
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
    html! {
        svg .latencies viewBox={"0 0 " (WIDTH) " " (height)} width=(WIDTH) height=(height)
            aria-hidden="true" {
            @for millis in MARKS {
                path .axis d={"M" (place(millis)) " 20V" (height)} {}
                text .axis x=(place(millis)) y="13" text-anchor="middle" { (took(millis)) }
            }
            @for (row, (rpc, latency)) in latencies.iter().enumerate() {
                @let y = row * ROW + ROW;
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
        let shown =
            calls(&CallsPage { running: vec![call], ..CallsPage::default() }, 61_000).into_string();
        assert!(shown.contains("/volume/d.example/%3Cv%3E\">&lt;v&gt;<"), "{shown}");
        assert!(shown.contains(">5s</time>") && shown.contains("No call is kept."), "{shown}");
    }
}
