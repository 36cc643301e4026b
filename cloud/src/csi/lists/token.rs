//! Page tokens, which hold the start of the next page.
//!
//! A token needs no state in csi-cloud, so it survives restarts and changes of the list. A mark
//! tells it from a driver's own token, which a caller may still have.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// No driver's base64 text begins like this by chance.
const MARK: &[u8] = b"edge-csi\x01";

/// A token of a list, for the page after this key.
pub fn write(list: u8, after: &str) -> String {
    URL_SAFE_NO_PAD.encode([MARK, &[list], after.as_bytes()].concat())
}

/// Reads a token of this list. None if csi-cloud did not write it.
pub fn read(list: u8, token: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    let after = bytes.strip_prefix(MARK)?.strip_prefix(&[list])?;
    String::from_utf8(after.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_token_of_this_list_is_none() {
        let cut = write(b'v', "a").split_at(5).0.to_owned();
        for token in ["", "invalid-token", "1", "ZWRnZS1jc2k", &cut, &write(b's', "a")] {
            assert_eq!(read(b'v', token), None, "{token}");
        }
    }

    proptest! {
        #[test]
        fn a_token_is_read_as_it_was_written(after in ".{0,300}") {
            prop_assert_eq!(read(b'v', &write(b'v', &after)), Some(after));
        }

        #[test]
        fn any_text_is_a_token_or_none(text in ".{0,60}") {
            prop_assert_eq!(read(b'v', &text), None);
        }
    }
}
