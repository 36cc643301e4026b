//! What all pages have: the head, the way to the others, and the search.

use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

use maud::{DOCTYPE, Markup, html};
use proto::host::plain;

use super::link::encode;

/// Tells the style sheet and the script from those of another csi-page, which a browser may have.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    hasher.write(concat!(include_str!("../page.css"), include_str!("../page.js")).as_bytes());
    format!("{:x}", hasher.finish())
});

/// A page among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    Overview,
    Nodes,
    Volumes,
    Calls,
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
    pub(crate) about: &'a [&'a str],
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
    let about = frame.about.iter().map(|name| encode(name)).collect::<Vec<_>>();
    html! {
        (DOCTYPE)
        html lang="en" data-revision=(frame.revision) data-now=(frame.now)
            data-about=(about.join(" ")) {
            (head(frame.title))
            body {
                a .skip href="#main" { "Skip to the content" }
                header .top {
                    a .brand href="/" { (mark()) "Edge CSI" }
                    nav aria-label="Pages" {
                        ul {
                            @for (tab, href, label) in TABS {
                                @let current = (tab == frame.tab).then_some("page");
                                li { a href=(href) aria-current=[current] { (label) } }
                            }
                        }
                    }
                    form .search role="search" action="/find" {
                        label .hidden for="q" { "Search for a claim, volume or node" }
                        input #q type="search" name="q" value=(frame.query) maxlength="300"
                            autocomplete="off" spellcheck="false"
                            placeholder="Claim, volume or node";
                        button type="submit" { "Find" }
                    }
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

/// The page that asks for a token; `why` says why the last one did not do.
pub(crate) fn login(why: Option<&str>) -> Markup {
    let form = html! {
        form method="post" action="/login" {
            label for="token" { "Token" }
            input #token type="password" name="token" required autofocus
                autocomplete="current-password"
                aria-describedby=[why.is_some().then_some("why")];
            @if let Some(why) = why { p #why .refused role="alert" { (why) } }
            button type="submit" { "Log in" }
        }
        p .muted {
            "The tokens are the lines of the file that csi-page is given as "
            code { "--tokens" } "."
        }
    };
    bare("Log in", &form)
}

/// Says that csi-cloud does not answer.
pub(crate) fn away() -> Markup {
    let main = html! {
        p { "csi-cloud does not answer at its socket view. Is it running, and does it "
            "have the key " code { "view" } "? csi-page's log says more." }
        p { a href="" { "Try again" } }
    };
    bare("csi-cloud is away", &main)
}

/// The content of a page for an object that does not exist.
pub(crate) fn not_found() -> Markup {
    html! {
        h1 { "Not found" }
        p { "csi-cloud knows no such page, node or driver. The search above finds what it knows." }
    }
}

/// A page without the way to others.
fn bare(title: &str, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title))
            body .login { main #main { h1 { (mark()) "Edge CSI" } (main) } }
        }
    }
}

/// The head of every page.
fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (plain(title)) " · Edge CSI" }
            link rel="icon" type="image/svg+xml" href="/icon.svg";
            link rel="stylesheet" href={"/page.css?v=" (*VERSION)};
            script src={"/page.js?v=" (*VERSION)} defer {}
        }
    }
}

/// The mark before the name.
fn mark() -> Markup {
    html! {
        svg .mark viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" {
            path d="M1 1h6v6h-6zM9 1h6v6h-6zM1 9h6v6h-6z" {}
            path .one d="M9 9h6v6h-6z" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(title: &str) -> Frame<'_> {
        Frame {
            title,
            tab: Tab::Nodes,
            about: &["n 1", "v"],
            revision: "e-7".into(),
            now: 9,
            query: "\"><script>",
            has_session: true,
        }
    }

    #[test]
    fn a_refusal_is_said_to_everybody() {
        assert!(!login(None).into_string().contains("alert"));
        let shown = login(Some("no")).into_string();
        assert!(shown.contains("role=\"alert\">no<") && shown.contains("aria-describedby"));
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
