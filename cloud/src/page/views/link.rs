//! Addresses of the page, and short words in it.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use proto::admin::cells::age;
use proto::names::{DriverName, NodeName};

/// What is written as it is in a part of an address.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The longest name that is shown whole, in characters.
const LONGEST: usize = 64;

/// A text as a part of an address.
pub(in crate::page) fn encode(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

/// The page of a node.
pub(in crate::page) fn node(node: &NodeName) -> String {
    format!("/node/{}", encode(node.as_str()))
}

/// The page of a driver.
pub(in crate::page) fn driver(driver: &DriverName) -> String {
    format!("/driver/{}", encode(driver.as_str()))
}

/// The page of a volume, or of the name under which one is to be made.
pub(in crate::page) fn volume(driver: &DriverName, id: &str) -> String {
    format!("/volume/{}/{}", encode(driver.as_str()), encode(id))
}

/// The page of a claim.
pub(in crate::page) fn claim(namespace: &str, name: &str) -> String {
    format!("/claim/{}/{}", encode(namespace), encode(name))
}

/// A name, cut in the middle if it is long.
pub(in crate::page) fn short(text: &str) -> String {
    let count = text.chars().count();
    if count <= LONGEST {
        return text.to_owned();
    }
    let half = LONGEST / 2;
    let begin: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(count - half).collect();
    format!("{begin}…{end}")
}

/// When a certificate ends or ended.
pub(in crate::page) fn ending(end: u64, now: u64) -> String {
    let time = age(Duration::from_millis(end.abs_diff(now)));
    if end > now { format!("ends in {time}") } else { format!("ended {time} ago") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_in_a_name_is_one_part_of_an_address() {
        let driver = "d.example".parse().unwrap();
        assert_eq!(
            volume(&driver, "a/b?c#d e&\"<"),
            "/volume/d.example/a%2Fb%3Fc%23d%20e%26%22%3C"
        );
        assert_eq!(claim("shop", "data-0"), "/claim/shop/data-0");
    }

    #[test]
    fn a_long_name_keeps_its_begin_and_its_end() {
        let long = format!("a{}z", "é".repeat(100));
        let short = short(&long);
        assert_eq!(short.chars().count(), LONGEST + 1);
        assert!(short.starts_with('a') && short.ends_with('z'));
    }

    #[test]
    fn an_end_is_ahead_or_past() {
        assert_eq!(ending(100_000, 40_000), "ends in 60s");
        assert_eq!(ending(40_000, 100_000), "ended 60s ago");
    }
}
