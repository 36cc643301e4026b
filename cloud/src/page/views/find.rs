//! What a search found.

use maud::{Markup, html};
use proto::host::plain;

use super::nodes::badge;
use crate::page::find::{Found, Hit};

/// What was found for a text.
pub(in crate::page) fn find(text: &str, found: &Found) -> Markup {
    html! {
        h1 { "Search" }
        @if text.is_empty() {
            p { "Write the name of a claim, a volume or a node into the field above." }
        } @else if found.hits.is_empty() {
            p { "Nothing is known by the name " b { (plain(text)) } "." }
        } @else {
            p .muted { "Found for " b { (plain(text)) } ":" }
            ul .hits {
                @for hit in &found.hits { (row(hit)) }
            }
            @if found.is_cut { p .muted { "There is more; write more of the name." } }
        }
        ul .unknown {
            li { "A claim is found by its name. By NAMESPACE/NAME, Kubernetes is asked too." }
            li { "A volume is found by the begin of its id, or by its PersistentVolume." }
            li { "A node is found by any part of its name." }
        }
    }
}

fn row(hit: &Hit) -> Markup {
    html! {
        li {
            span .kind { (hit.kind) } " "
            a href=(hit.href) { (hit.label) }
            @if let Some(state) = hit.state { " " (badge(state)) }
            @if !hit.detail.is_empty() { " " span .muted { (hit.detail) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::node_state::NodeState;

    #[test]
    fn what_was_searched_for_is_escaped_and_hits_are_links() {
        let nothing = find("<b>\u{1b}", &Found::default()).into_string();
        assert!(nothing.contains("&lt;b&gt;\\u{1b}"), "{nothing}");
        let hit = Hit {
            kind: "node",
            label: "n1".into(),
            href: "/node/n1".into(),
            state: Some(NodeState::Away),
            detail: "d".into(),
        };
        let found = Found { hits: vec![hit], is_cut: true };
        let shown = find("n", &found).into_string();
        assert!(shown.contains("<a href=\"/node/n1\">n1</a>") && shown.contains("There is more"));
    }
}
