//! Sentences of `explain` and of peers: made plain, with commands in letters of their own.

use maud::{Markup, html};
use proto::host::plain;

/// A sentence. What is between backticks is a command.
pub(crate) fn words(text: &str) -> Markup {
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

/// A number of things, in words.
pub(crate) fn many(number: usize, one: &str, several: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{} {several}", super::time::number(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stand_out_and_all_is_escaped() {
        let shown = words("run `csi-edge <x>` there\u{1b}").into_string();
        assert_eq!(shown, "run <code>csi-edge &lt;x&gt;</code> there\\u{1b}");
        assert_eq!(words("a ` b").into_string(), "a ` b");
        assert_eq!([1, 2_000].map(|n| many(n, "node", "nodes")), ["1 node", "2\u{202f}000 nodes"]);
    }
}
