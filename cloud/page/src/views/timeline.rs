//! A life as a list of moments, the newest first, and what is not known of it.

use maud::{Markup, html};
use proto::admin::view::{Moment, Outcome, Timeline};

use super::link;
use super::time::{date, since};

/// A life.
pub(crate) fn timeline(title: &str, life: &Timeline, now: u64) -> Markup {
    html! {
        section .life aria-labelledby="life-title" {
            h2 #life-title { (title) }
            (moments(&life.moments, now))
            @if !life.unknown.is_empty() {
                h3 { "What is not known" }
                ul .unknown {
                    @for line in &life.unknown { li { (line) } }
                }
            }
        }
    }
}

/// Moments, of which the oldest is the first.
pub(crate) fn moments(moments: &[Moment], now: u64) -> Markup {
    html! {
        @if moments.is_empty() {
            p .muted { "No call is kept." }
        } @else {
            ol .timeline reversed {
                @for moment in moments.iter().rev() { (row(moment, now)) }
            }
        }
    }
}

fn row(moment: &Moment, now: u64) -> Markup {
    let (class, word) = match &moment.outcome {
        Outcome::Recorded => ("recorded", None),
        Outcome::Done => ("done", Some("OK")),
        Outcome::Failed(code) => ("failed", Some(&**code)),
        Outcome::Runs(stage) => ("runs", Some(&**stage)),
    };
    html! {
        li .(class) {
            p .when { span .date { (date(moment.at)) } " " span .ago { (since(moment.at, now)) } }
            p .what {
                b { (moment.what) }
                @if let Some(word) = word { " " span .outcome { (word) } }
                @if let Some(node) = &moment.node {
                    " at node " a href=(link::node(node)) { (node) }
                }
            }
            @if !moment.detail.is_empty() { p .detail { (moment.detail) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_moment_is_the_first_and_texts_are_escaped() {
        let moment = |at, outcome, detail: &str| Moment {
            at,
            what: format!("call {at}"),
            outcome,
            node: "n1".parse().ok(),
            detail: detail.into(),
        };
        let life = Timeline {
            moments: vec![
                moment(1_000, Outcome::Done, ""),
                moment(2_000, Outcome::Failed("INTERNAL".into()), "<script>alert(1)</script>"),
            ],
            unknown: vec!["much".into()],
        };
        let shown = timeline("Its life", &life, 3_000).into_string();
        assert!(shown.find("call 2000") < shown.find("call 1000"), "{shown}");
        assert!(shown.contains("&lt;script&gt;") && !shown.contains("<script>"), "{shown}");
        assert!(shown.contains("class=\"outcome\">INTERNAL<") && shown.contains("much"));
        assert!(moments(&[], 1).into_string().contains("No call"));
    }
}
