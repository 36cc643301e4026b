//! Addresses of the page, and short words in it.

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use proto::admin::view::PageTarget;
use proto::host::plain;
use proto::names::{DriverName, NodeName};

/// What is written as it is in a part of an address.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The longest name that is shown whole, in characters.
const LONGEST: usize = 64;

/// A text as a part of an address.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

/// A link to the page of a node.
pub(crate) fn node(node: &NodeName) -> Markup {
    html! { a href={"/node/" (encode(node.as_str()))} { (node) } }
}

/// A link to the page of a driver.
pub(crate) fn driver(driver: &DriverName) -> Markup {
    html! { a href={"/driver/" (encode(driver.as_str()))} { (driver) } }
}

/// A link to the page of a volume, or of the name under which one is to be made.
pub(crate) fn volume(driver: &DriverName, id: &str) -> Markup {
    let target = PageTarget::Volume { driver: driver.clone(), id: id.to_owned() };
    html! { a href=(address(&target)) { (short(&plain(id))) } }
}

/// A link to the page of a claim.
pub(crate) fn claim((namespace, name): &(String, String)) -> Markup {
    html! {
        a href={"/claim/" (encode(namespace)) "/" (encode(name))} {
            (plain(namespace)) "/" (plain(name))
        }
    }
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
pub(crate) fn address(target: &PageTarget) -> String {
    match target {
        PageTarget::Overview => "/".into(),
        PageTarget::Certificates => "/certificates".into(),
        PageTarget::Calls => "/calls".into(),
        PageTarget::Node(name) => format!("/node/{}", encode(name.as_str())),
        PageTarget::Driver(name) => format!("/driver/{}", encode(name.as_str())),
        PageTarget::Volume { driver, id } => {
            format!("/volume/{}/{}", encode(driver.as_str()), encode(id))
        }
        PageTarget::Claim { namespace, name } => {
            format!("/claim/{}/{}", encode(namespace), encode(name))
        }
        PageTarget::Nodes { state, driver: None } => format!("/nodes?state={}", state.name()),
        PageTarget::Nodes { state, driver: Some(driver) } => {
            format!("/nodes?state={}&driver={}", state.name(), encode(driver.as_str()))
        }
        PageTarget::Volumes { state } => format!("/volumes?state={}", encode(state)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_in_a_name_is_one_part_of_an_address() {
        let driver = "d.example".parse().unwrap();
        let target = PageTarget::Volume { driver, id: "a/b?c#d e&\"<".into() };
        assert_eq!(address(&target), "/volume/d.example/a%2Fb%3Fc%23d%20e%26%22%3C");
        let shown = claim(&("shop".into(), "data<0".into())).into_string();
        assert_eq!(shown, "<a href=\"/claim/shop/data%3C0\">shop/data&lt;0</a>");
    }

    #[test]
    fn a_long_name_keeps_its_begin_and_its_end() {
        let long = format!("a{}z", "é".repeat(100));
        let short = short(&long);
        assert_eq!(short.chars().count(), LONGEST + 1);
        assert!(short.starts_with('a') && short.ends_with('z'));
    }
}
