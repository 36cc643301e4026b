//! What all pages have: the head, the way to the others, and the search.

use maud::{DOCTYPE, Markup, html};
use proto::host::plain;

use crate::asset::{SCRIPT, STYLE};

/// A page among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    /// The fleet at a glance.
    Overview,
    /// The list of nodes.
    Nodes,
    /// Volumes in trouble.
    Volumes,
    /// Calls in flight and latencies.
    Calls,
    /// Certificates.
    Certificates,
    /// Any other.
    Other,
}

/// The frame of one page.
pub(crate) struct Frame<'a> {
    /// The title of the window.
    pub(crate) title: &'a str,
    /// Where it is among the pages.
    pub(crate) tab: Tab,
    /// The names whose changes make it old, and the script loads it anew.
    pub(crate) about: Vec<String>,
    /// The revision of what it shows.
    pub(crate) revision: String,
    /// The time, in ms since 1970.
    pub(crate) now: u64,
    /// What was searched for.
    pub(crate) query: &'a str,
    /// Whether a session can be ended.
    pub(crate) has_session: bool,
}

const TABS: [(Tab, &str, &str); 5] = [
    (Tab::Overview, "/", "Overview"),
    (Tab::Nodes, "/nodes", "Nodes"),
    (Tab::Volumes, "/volumes", "Volumes"),
    (Tab::Calls, "/calls", "Calls"),
    (Tab::Certificates, "/certificates", "Certificates"),
];

/// A whole page.
pub(crate) fn page(frame: &Frame<'_>, main: &Markup) -> Markup {
    let about = frame.about.iter().map(|name| super::link::encode(name)).collect::<Vec<_>>();
    html! {
        (DOCTYPE)
        html lang="en" data-revision=(frame.revision) data-now=(frame.now)
            data-about=(about.join(" ")) {
            (head(frame.title))
            body {
                a .skip href="#main" { "Skip to the content" }
                header .top {
                    a .brand href="/" { (mark()) "Edge CSI" }
                    (tabs(frame.tab))
                    (search(frame.query))
                    p #live .live { "not live" }
                    @if frame.has_session {
                        form .logout method="post" action="/logout" {
                            button type="submit" { "Log out" }
                        }
                    }
                }
                p #news .hidden role="status" aria-live="polite" {}
                main #main tabindex="-1" { (main) }
            }
        }
    }
}

/// The head of every page, also of the one that asks for a token.
pub(crate) fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (plain(title)) " · Edge CSI" }
            link rel="icon" type="image/svg+xml" href="/icon.svg";
            link rel="stylesheet" href=(STYLE.href());
            script src=(SCRIPT.href()) defer {}
        }
    }
}

/// The mark before the name.
pub(crate) fn mark() -> Markup {
    html! {
        svg .mark viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" {
            path d="M1 1h6v6h-6zM9 1h6v6h-6zM1 9h6v6h-6z" {}
            path .one d="M9 9h6v6h-6z" {}
        }
    }
}

fn tabs(current: Tab) -> Markup {
    html! {
        nav aria-label="Pages" {
            ul {
                @for (tab, href, label) in TABS {
                    li {
                        a href=(href) aria-current=[(tab == current).then_some("page")] { (label) }
                    }
                }
            }
        }
    }
}

fn search(query: &str) -> Markup {
    html! {
        form .search role="search" action="/find" {
            label .hidden for="q" { "Search for a claim, volume or node" }
            input #q type="search" name="q" value=(query) maxlength="300" autocomplete="off"
                spellcheck="false" placeholder="Claim, volume or node";
            button type="submit" { "Find" }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame for tests.
    pub(crate) fn frame(title: &str) -> Frame<'_> {
        Frame {
            title,
            tab: Tab::Nodes,
            about: vec!["n 1".into(), "v".into()],
            revision: "e-7".into(),
            now: 9,
            query: "\"><script>",
            has_session: true,
        }
    }

    #[test]
    fn nothing_in_a_page_is_from_elsewhere_or_inline() {
        let shown = page(&frame("<b>"), &html! { p { "x" } }).into_string();
        assert!(shown.contains("<title>&lt;b&gt; · Edge CSI</title>"), "{shown}");
        assert!(!shown.contains("\"><script>") && !shown.contains(" style="), "{shown}");
        assert!(!shown.contains("http://") && !shown.contains("https://"), "{shown}");
        assert!(shown.contains("data-about=\"n%201 v\""), "{shown}");
        assert_eq!(shown.matches("aria-current").count(), 1);
        let without = Frame { has_session: false, ..frame("t") };
        assert!(!page(&without, &html! {}).into_string().contains("/logout"));
    }
}
