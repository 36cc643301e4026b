//! What `explain` says of something, in its own words, and its life as a list of moments.

use maud::{Markup, html};
use proto::admin::view::{ExplainAnswer, MomentOutcome, PageTarget, Timeline, TimelineMoment};
use proto::host::plain;

use super::link;
use super::parts::Column::Text;
use super::parts::{date, section, since, table, words};

/// What `explain` says of something, with its name above.
pub(crate) fn headed(kind: &str, name: &str, said: &ExplainAnswer) -> Markup {
    html! {
        p .kind { (kind) }
        h1 { (plain(name)) }
        (explanation(said))
    }
}

/// The verdict and the chain that led to it.
pub(super) fn explanation(said: &ExplainAnswer) -> Markup {
    let class = if said.is_fine { "fine" } else { "fault" };
    let columns = [Text("object"), Text("state"), Text("found")];
    let rows = said.steps.iter().map(|step| {
        let object = plain(&step.object);
        let named = html! {
            @match href(&step.object) {
                Some(href) => a href=(href) { (object) },
                None => (object),
            }
        };
        [named, html! { (plain(&step.state)) }, words(&step.found)]
    });
    let chain = html! { div .chain { (table("The chain to its node", columns, rows)) } };
    html! {
        section #verdict .verdict .(class) aria-label="Verdict" {
            p .what { (words(&said.text)) }
            (next_step(&said.next))
        }
        @if !said.steps.is_empty() {
            (section("chain-title", "How csi-cloud came to that", chain))
        }
    }
}

/// What to do next, if anything.
pub(super) fn next_step(next: &str) -> Markup {
    html! {
        @if !next.is_empty() {
            p .next { span .arrow aria-hidden="true" { "→ " } (words(next)) }
        }
    }
}

/// The page of an object of the chain, if it has one.
fn href(object: &str) -> Option<String> {
    let (kind, name) = object.split_once(' ')?;
    let target = match kind {
        "node" => PageTarget::Node(name.parse().ok()?),
        "driver" => PageTarget::Driver(name.parse().ok()?),
        "claim" => {
            let (namespace, name) = name.split_once('/')?;
            PageTarget::Claim { namespace: namespace.into(), name: name.into() }
        }
        "volume" => {
            let (id, driver) = name.rsplit_once(" of ")?;
            PageTarget::Volume { driver: driver.parse().ok()?, id: id.into() }
        }
        _ => return None,
    };
    Some(link::address(&target))
}

/// A life, the newest moment first, and what is not known of it.
pub(crate) fn life(title: &str, life: &Timeline, now: u64) -> Markup {
    section(
        "life-title",
        title,
        html! {
            (moments(&life.moments, now))
            @if !life.unknown.is_empty() {
                h3 { "What is not known" }
                ul .unknown { @for line in &life.unknown { li { (line) } } }
            }
        },
    )
}

/// Moments, of which the oldest is the first.
pub(crate) fn moments(moments: &[TimelineMoment], now: u64) -> Markup {
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

fn row(moment: &TimelineMoment, now: u64) -> Markup {
    let (class, word) = match &moment.outcome {
        MomentOutcome::Recorded => ("recorded", None),
        MomentOutcome::Done => ("done", Some("OK")),
        MomentOutcome::Failed(code) => ("failed", Some(&**code)),
        MomentOutcome::Runs(stage) => ("runs", Some(&**stage)),
    };
    html! {
        li .(class) {
            p .when { span .date { (date(moment.at)) } " " span .ago { (since(moment.at, now)) } }
            p .what {
                b { (moment.what) }
                @if let Some(word) = word { " " span .outcome { (word) } }
                @if let Some(node) = &moment.node {
                    " at node " (link::node(node))
                }
            }
            @if !moment.detail.is_empty() { p .detail { (moment.detail) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::admin::view::ExplainStep;

    use super::*;

    fn step(object: &str) -> ExplainStep {
        ExplainStep { object: object.into(), state: "bad\u{202e}".into(), found: "<b>".into() }
    }

    #[test]
    fn the_words_are_those_of_explain_and_escaped() {
        let shown = explanation(&ExplainAnswer {
            steps: vec![step("claim shop/data"), step("scheduler")],
            is_fine: false,
            text: "node n1 is away".into(),
            next: "look at its power".into(),
        });
        let shown = shown.into_string();
        assert!(shown.contains("node n1 is away</p>") && shown.contains("look at its power</p>"));
        assert!(shown.contains("<a href=\"/claim/shop/data\">claim shop/data</a>"), "{shown}");
        assert!(shown.contains("bad\\u{202e}") && shown.contains("&lt;b&gt;"), "{shown}");
    }

    #[test]
    fn objects_that_have_a_page_are_links() {
        assert_eq!(href("node n1").as_deref(), Some("/node/n1"));
        assert_eq!(href("driver d.example").as_deref(), Some("/driver/d.example"));
        assert_eq!(
            href("volume a of b of d.example").as_deref(),
            Some("/volume/d.example/a%20of%20b")
        );
        for other in ["driver d.example at node n1", "scheduler", "node a b", "claim x"] {
            assert_eq!(href(other), None, "{other}");
        }
    }

    #[test]
    fn the_newest_moment_is_the_first_and_texts_are_escaped() {
        let moment = |at, outcome, detail: &str| TimelineMoment {
            at,
            what: format!("call {at}"),
            outcome,
            node: "n1".parse().ok(),
            detail: detail.into(),
        };
        let life = Timeline {
            moments: vec![
                moment(1_000, MomentOutcome::Done, ""),
                moment(
                    2_000,
                    MomentOutcome::Failed("INTERNAL".into()),
                    "<script>alert(1)</script>",
                ),
            ],
            unknown: vec!["much".into()],
        };
        let shown = self::life("Its life", &life, 3_000).into_string();
        assert!(shown.find("call 2000") < shown.find("call 1000"), "{shown}");
        assert!(shown.contains("&lt;script&gt;") && !shown.contains("<script>"), "{shown}");
        assert!(shown.contains("class=\"outcome\">INTERNAL<") && shown.contains("much"));
        assert!(moments(&[], 1).into_string().contains("No call"));
    }
}
