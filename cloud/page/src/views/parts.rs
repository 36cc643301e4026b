//! Parts that several pages have: tables, sections, facts, choices, sentences, numbers and times.
//! What `explain` and peers say is made plain.

use std::fmt::Display;
use std::time::{Duration, UNIX_EPOCH};

use maud::{Markup, html};
use proto::admin::cells::age;
use proto::admin::view::NodeState;
use proto::host::plain;

/// A column of a table, by its title.
#[derive(Clone, Copy)]
pub(super) enum Column {
    Text(&'static str),
    /// Numbers are aligned at their ends.
    Number(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        let (Self::Text(title) | Self::Number(title)) = self;
        title
    }

    fn class(self) -> Option<&'static str> {
        matches!(self, Self::Number(_)).then_some("number")
    }
}

/// A table. The first cell of each row names the row.
pub(super) fn table<const N: usize>(
    label: &str,
    columns: [Column; N],
    rows: impl Iterator<Item = [Markup; N]>,
) -> Markup {
    html! {
        div .scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead {
                    tr {
                        @for column in columns {
                            th scope="col" class=[column.class()] { (column.title()) }
                        }
                    }
                }
                tbody {
                    @for cells in rows {
                        tr {
                            @for (place, (column, cell)) in columns.iter().zip(cells).enumerate() {
                                @if place == 0 {
                                    th scope="row" { (cell) }
                                } @else {
                                    td class=[column.class()] { (cell) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A section with a title.
pub(super) fn section(id: &str, title: &str, content: Markup) -> Markup {
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (title) }
            (content)
        }
    }
}

/// Facts, as far as they are known.
pub(super) fn facts<'a>(facts: impl IntoIterator<Item = (&'a str, Option<Markup>)>) -> Markup {
    html! {
        dl {
            @for (name, fact) in facts {
                @if let Some(fact) = fact { dt { (name) } dd { (fact) } }
            }
        }
    }
}

/// A choice among lists: the address and the word of each, and whether it is shown.
pub(super) fn choice<'a>(
    label: &str,
    lists: impl Iterator<Item = (String, &'a str, bool)>,
) -> Markup {
    html! {
        nav aria-label=(label) {
            ul .filters {
                @for (href, word, is_shown) in lists {
                    li { a href=(href) aria-current=[is_shown.then_some("true")] { (word) } }
                }
            }
        }
    }
}

/// A state in its colour and in words.
pub(super) fn badge(state: NodeState) -> Markup {
    html! {
        span .badge {
            svg viewBox="0 0 11 11" width="11" height="11" aria-hidden="true" {
                path .(state.name()) d="M1 1h9v9h-9z" {}
            }
            (state.label())
        }
    }
}

/// A sentence. What is between backticks is a command.
pub(super) fn words(text: &str) -> Markup {
    let text = plain(text);
    // Without a pair, a backtick is only a sign.
    let is_paired = text.matches('`').count().is_multiple_of(2);
    html! {
        @if is_paired {
            @for (place, part) in text.split('`').enumerate() {
                @if place % 2 == 1 { code { (part) } } @else { (part) }
            }
        } @else {
            (text)
        }
    }
}

/// A number with thin spaces between its thousands.
pub(super) fn number(number: impl Display) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join("\u{202f}")
}

/// How long something lasts, since a moment in ms since 1970. The script keeps it true.
pub(super) fn since(moment: u64, now: u64) -> Markup {
    let lasts = Duration::from_millis(now.saturating_sub(moment));
    html! {
        time title=(date(moment)) data-ms=(moment) { (age(lasts)) }
    }
}

/// A moment as a date, in UTC.
pub(super) fn date(moment: u64) -> String {
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(moment));
    // Without the day of the week, and by the zone's usual name.
    let (_, date) = date.split_once(", ").unwrap_or_default();
    date.replace("GMT", "UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stand_out_and_all_is_escaped() {
        let shown = words("run `csi-edge <x>` there\u{1b}").into_string();
        assert_eq!(shown, "run <code>csi-edge &lt;x&gt;</code> there\\u{1b}");
        assert_eq!(words("a ` b").into_string(), "a ` b");
    }

    #[test]
    fn an_age_carries_its_moment_for_the_script() {
        let shown = since(1_000, 61_000).into_string();
        let expected = "<time title=\"01 Jan 1970 00:00:01 UTC\" data-ms=\"1000\">60s</time>";
        assert_eq!(shown, expected);
        assert!(since(5_000, 1_000).into_string().contains(">0s<"), "clocks may differ");
    }

    #[test]
    fn numbers_are_read_at_a_glance() {
        assert_eq!(
            [0, 999, 5_000, 1_234_567].map(number),
            ["0", "999", "5\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }
}
