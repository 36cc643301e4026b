//! Times: as an age that the script keeps true, and as a date.

use std::time::{Duration, UNIX_EPOCH};

use maud::{Markup, html};
use proto::admin::cells::age;

/// How long something lasts, since a moment in ms since 1970.
pub(crate) fn since(moment: u64, now: u64) -> Markup {
    let lasts = Duration::from_millis(now.saturating_sub(moment));
    html! {
        time title=(date(moment)) data-ms=(moment) { (age(lasts)) }
    }
}

/// A moment as a date, in UTC.
pub(crate) fn date(moment: u64) -> String {
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(moment));
    // Without the day of the week, and by the zone's usual name.
    let (_, date) = date.split_once(", ").unwrap_or_default();
    date.replace("GMT", "UTC")
}

/// A number with thin spaces between its thousands.
pub(crate) fn number(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + 4);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

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
            [999, 5_000, 1_234_567].map(number),
            ["999", "5\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }
}
