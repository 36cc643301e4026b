//! What a search found.

use maud::{Markup, html};
use proto::admin::view::{Found, Hit, Target};
use proto::host::plain;

use super::link;
use super::nodes::badge;

/// What was found for a text.
pub(crate) fn find(text: &str, found: &Found) -> Markup {
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
            span .kind { (kind(&hit.target)) } " "
            a href=(link::target(&hit.target)) { (hit.label) }
            @if let Some(state) = hit.state { " " (badge(state)) }
            @if !hit.detail.is_empty() { " " span .muted { (hit.detail) } }
        }
    }
}

fn kind(target: &Target) -> &'static str {
    match target {
        Target::Node(_) => "node",
        Target::Claim { .. } => "claim",
        _ => "volume",
    }
}

/// The page of what was meant without doubt.
pub(crate) fn only(found: &Found, text: &str) -> Option<String> {
    let mut exact = found.hits.iter().filter(|hit| hit.label == text);
    match (found.hits.as_slice(), exact.next(), exact.next()) {
        ([only], ..) | (_, Some(only), None) => Some(link::target(&only.target)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::view::NodeState;

    #[test]
    fn what_was_searched_for_is_escaped_and_hits_are_links() {
        let nothing = find("<b>\u{1b}", &Found::default()).into_string();
        assert!(nothing.contains("&lt;b&gt;\\u{1b}"), "{nothing}");
        let hit = Hit {
            target: Target::Node("n1".parse().unwrap()),
            label: "n1".into(),
            state: Some(NodeState::Away),
            detail: "d".into(),
        };
        let found = Found { hits: vec![hit], is_cut: true };
        let shown = find("n", &found).into_string();
        assert!(shown.contains("<a href=\"/node/n1\">n1</a>") && shown.contains("There is more"));
    }

    #[test]
    fn one_hit_or_one_exact_hit_is_what_was_meant() {
        let hit = |name: &str| Hit {
            target: Target::Node(name.parse().unwrap()),
            label: name.into(),
            state: None,
            detail: String::new(),
        };
        let of = |names: &[&str]| Found {
            hits: names.iter().map(|name| hit(name)).collect(),
            is_cut: false,
        };
        assert_eq!(only(&of(&["n12"]), "n1").as_deref(), Some("/node/n12"));
        assert_eq!(only(&of(&["n12", "n1"]), "n1").as_deref(), Some("/node/n1"));
        assert_eq!(only(&of(&["n12", "n11"]), "n1"), None);
    }
}
