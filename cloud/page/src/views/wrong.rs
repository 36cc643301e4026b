//! What is wrong, as a list.

use maud::{Markup, html};
use proto::admin::view::{Problem, Severity, Snapshot};
use proto::host::plain;

use super::link;
use super::parts::{number, since, words};
use super::subject::next_step;

/// Rows on the first screen.
const FIRST: usize = 6;
/// Rows on the page of all.
const MOST: usize = 200;

/// The first rows, for the first screen.
pub(super) fn first(snapshot: &Snapshot) -> Markup {
    let more = snapshot.problems.len().saturating_sub(FIRST);
    html! {
        h2 #wrong-title { "What is wrong now" }
        (list(&snapshot.problems, FIRST, snapshot.at))
        @if more > 0 {
            p .more { a href="/wrong" { "and " (number(more)) " more" } }
        }
    }
}

/// All rows.
pub(crate) fn all(snapshot: &Snapshot) -> Markup {
    html! {
        h1 { "What is wrong now" }
        (list(&snapshot.problems, MOST, snapshot.at))
        @if snapshot.problems.len() > MOST {
            p .muted { "More is wrong than is shown here." }
        }
    }
}

fn list(problems: &[Problem], most: usize, now: u64) -> Markup {
    html! {
        @if problems.is_empty() {
            p .fine { "Nothing is wrong, as far as csi-cloud knows." }
        } @else {
            ol .problems {
                @for problem in problems.iter().take(most) { (row(problem, now)) }
            }
        }
    }
}

fn row(problem: &Problem, now: u64) -> Markup {
    html! {
        li .(severity(problem)) {
            p .what {
                span .mark { (severity(problem)) }
                (words(&problem.text))
            }
            @if let Some(moment) = problem.since {
                p .since {
                    "for " @if problem.count > 1 { "up to " } (since(moment, now))
                }
            }
            (next_step(&problem.next))
            p .places {
                @for (at, (label, target)) in problem.places.iter().enumerate() {
                    @if at > 0 { ", " }
                    a href=(link::address(target)) { (link::short(&plain(label))) }
                }
                @if let Some(all) = &problem.all {
                    ", " a href=(link::address(all)) { "all " (number(problem.count)) }
                }
            }
        }
    }
}

/// Its word, also in the style sheet.
fn severity(problem: &Problem) -> &'static str {
    match problem.severity {
        Severity::Fault => "fault",
        Severity::Warning => "warning",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::problem;

    #[test]
    fn a_row_says_what_since_when_where_and_what_next() {
        let problems = vec![problem("5 nodes rest", 5)];
        let snapshot = Snapshot { at: 61_000, problems, ..Snapshot::default() };
        let shown = first(&snapshot).into_string();
        for part in [
            "<li class=\"fault\">",
            "5 nodes rest",
            "for up to <time",
            ">60s</time>",
            "look there",
            "<a href=\"/node/n0\">n0</a>",
            ">all 5</a>",
        ] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert!(!shown.contains("/wrong"), "there is no more");
        assert!(first(&Snapshot::default()).into_string().contains("Nothing is wrong"));
    }

    #[test]
    fn the_first_screen_has_some_rows_and_a_way_to_the_others() {
        let problems = (0..9).map(|number| problem(&format!("{number}"), 1)).collect();
        let snapshot = Snapshot { problems, ..Snapshot::default() };
        let shown = first(&snapshot).into_string();
        assert_eq!(shown.matches("<li").count(), FIRST);
        assert!(shown.contains("and 3 more"));
        assert_eq!(all(&snapshot).into_string().matches("<li").count(), 9);
    }
}
