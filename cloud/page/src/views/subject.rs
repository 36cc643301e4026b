//! What `explain` says of something, in its own words.

use maud::{Markup, html};
use proto::admin::view::{Explanation, Step};
use proto::host::plain;
use proto::names::{DriverName, NodeName};

use super::link;
use super::words::words;

/// The verdict and the chain that led to it.
pub(crate) fn explanation(explanation: &Explanation) -> Markup {
    html! {
        (verdict(explanation))
        @if !explanation.steps.is_empty() {
            section aria-labelledby="chain-title" {
                h2 #chain-title { "How csi-cloud came to that" }
                div .scroll tabindex="0" role="region" aria-label="The chain to its node" {
                    table .chain {
                        thead {
                            tr {
                                th scope="col" { "object" }
                                th scope="col" { "state" }
                                th scope="col" { "found" }
                            }
                        }
                        tbody { @for step in &explanation.steps { (row(step)) } }
                    }
                }
            }
        }
    }
}

fn verdict(verdict: &Explanation) -> Markup {
    let class = if verdict.is_fine { "fine" } else { "fault" };
    html! {
        section #verdict .verdict .(class) aria-label="Verdict" {
            p .what { (words(&verdict.text)) }
            @if !verdict.next.is_empty() {
                p .next { span .arrow aria-hidden="true" { "→ " } (words(&verdict.next)) }
            }
        }
    }
}

fn row(step: &Step) -> Markup {
    let object = plain(&step.object);
    html! {
        tr {
            th scope="row" {
                @match href(&step.object) {
                    Some(href) => a href=(href) { (object) },
                    None => (object),
                }
            }
            td { (plain(&step.state)) }
            td { (words(&step.found)) }
        }
    }
}

/// The page of an object of the chain, if it has one.
fn href(object: &str) -> Option<String> {
    if let Some(node) = object.strip_prefix("node ") {
        return Some(link::node(&node.parse::<NodeName>().ok()?));
    }
    if let Some(claim) = object.strip_prefix("claim ") {
        let (namespace, name) = claim.split_once('/')?;
        return Some(link::claim(namespace, name));
    }
    if let Some(driver) = object.strip_prefix("driver ") {
        return Some(link::driver(&driver.parse::<DriverName>().ok()?));
    }
    let (id, driver) = object.strip_prefix("volume ")?.rsplit_once(" of ")?;
    Some(link::volume(&driver.parse::<DriverName>().ok()?, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(object: &str) -> Step {
        Step { object: object.into(), state: "bad\u{202e}".into(), found: "<b>".into() }
    }

    #[test]
    fn the_words_are_those_of_explain_and_escaped() {
        let shown = explanation(&Explanation {
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
}
