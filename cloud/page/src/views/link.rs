//! Addresses of the page, and short words in it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use proto::admin::view::Target;
use proto::names::{DriverName, NodeName};

/// What is written as it is in a part of an address.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The longest name that is shown whole, in characters.
const LONGEST: usize = 64;

/// A text as a part of an address.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

/// The page of a node.
pub(crate) fn node(node: &NodeName) -> String {
    format!("/node/{}", encode(node.as_str()))
}

/// The page of a driver.
pub(crate) fn driver(driver: &DriverName) -> String {
    format!("/driver/{}", encode(driver.as_str()))
}

/// The page of a volume, or of the name under which one is to be made.
pub(crate) fn volume(driver: &DriverName, id: &str) -> String {
    format!("/volume/{}/{}", encode(driver.as_str()), encode(id))
}

/// The page of a claim.
pub(crate) fn claim(namespace: &str, name: &str) -> String {
    format!("/claim/{}/{}", encode(namespace), encode(name))
}

/// A name, cut in the middle if it is long.
pub(crate) fn short(text: &str) -> String {
    let count = text.chars().count();
    if count <= LONGEST {
        return text.to_owned();
    }
    let half = LONGEST / 2;
    let begin: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(count - half).collect();
    format!("{begin}…{end}")
}

/// The address of a page.
pub(crate) fn target(target: &Target) -> String {
    match target {
        Target::Overview => "/".into(),
        Target::Certificates => "/certificates".into(),
        Target::Calls => "/calls".into(),
        Target::Node(name) => node(name),
        Target::Driver(name) => driver(name),
        Target::Volume { driver, id } => volume(driver, id),
        Target::Claim { namespace, name } => claim(namespace, name),
        Target::Nodes { state, driver: None } => format!("/nodes?state={}", state.name()),
        Target::Nodes { state, driver: Some(driver) } => {
            format!("/nodes?state={}&driver={}", state.name(), encode(driver.as_str()))
        }
        Target::Volumes { state } => format!("/volumes?state={}", encode(state)),
    }
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
}
