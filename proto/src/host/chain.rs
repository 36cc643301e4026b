//! An error and its causes in one line, for logs and statuses.

use std::error::Error;

use crate::host::plain::plain;

/// An error and all its sources, joined by `: `. A source whose text its parent repeats is left
/// out. Errors quote peers, so the text is made plain.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    plain(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failed {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    fn failed(texts: &[&'static str]) -> Option<Box<Failed>> {
        let (text, causes) = texts.split_first()?;
        Some(Box::new(Failed { text, source: failed(causes) }))
    }

    #[test]
    fn causes_are_joined_and_a_repeated_one_is_left_out() {
        let text = |texts: &[&'static str]| chain(&*failed(texts).unwrap());
        assert_eq!(text(&["a"]), "a");
        assert_eq!(text(&["a", "b", "c"]), "a: b: c");
        assert_eq!(text(&["it is b", "b", "c"]), "it is b: c");
    }

    #[test]
    fn what_a_peer_wrote_into_an_error_is_escaped() {
        let text = chain(&*failed(&["a\nb", "\u{1b}[31m"]).unwrap());
        assert_eq!(text, "a\\nb: \\u{1b}[31m");
    }
}
