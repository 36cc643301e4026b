//! Text of a peer, made safe to be shown: in logs, errors, Events and tables.

use serde::{Deserialize, Deserializer};

/// The longest text that is shown, in bytes.
const LONGEST: usize = 4096;

/// The text without control characters, each of which is written as an escape such as `\n` or
/// `\u{1b}`. Marks that change the direction of text count as such. A long text is cut. A text that
/// is plain stays as it is.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len().min(LONGEST));
    for c in text.chars() {
        let is_control = is_control(c);
        let length = if is_control { c.escape_default().len() } else { c.len_utf8() };
        if plain.len() + length > LONGEST {
            plain.push('…');
            break;
        }
        if is_control {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// The longest start of a text that has at most so many bytes.
pub fn start(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

/// Reads a text of a peer, as the field of a message that is only shown.
///
/// # Errors
/// It is no text.
pub fn plain_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|text| plain(&text))
}

/// Control characters, line and paragraph separators, and marks of direction (Unicode 15, Bidi).
fn is_control(c: char) -> bool {
    let is_mark = matches!(
        c,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || is_mark
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_all_else_stays() {
        assert_eq!(plain("a\nb\x1b[31m\u{9b}\u{202e}"), "a\\nb\\u{1b}[31m\\u{9b}\\u{202e}");
        assert_eq!(plain("Grüße, \"vol-1\" 日本"), "Grüße, \"vol-1\" 日本");
        assert!(plain(&"x".repeat(1 << 20)).len() < LONGEST + 16);
    }

    #[test]
    fn a_start_ends_between_characters() {
        assert_eq!([0, 1, 2, 3, 9].map(|most| start("aé!", most)), ["", "a", "a", "aé", "aé!"]);
    }

    #[test]
    fn what_is_plain_stays_wherever_it_was_cut() {
        for before in LONGEST - 12..LONGEST + 2 {
            let cut = plain(&["x".repeat(before), "\u{1b}\n".repeat(20)].concat());
            assert!(cut.ends_with('…') && cut.len() <= LONGEST + '…'.len_utf8());
            assert_eq!(plain(&cut), cut, "{before}");
        }
    }

    proptest! {
        #[test]
        fn no_control_character_is_raw(text in any::<String>(), bytes in any::<Vec<u8>>()) {
            for text in [text, String::from_utf8_lossy(&bytes).into_owned()] {
                let plain = plain(&text);
                prop_assert!(!plain.contains(is_control), "{plain:?}");
                prop_assert_eq!(super::plain(&plain), plain, "it is plain already");
            }
        }
    }
}
