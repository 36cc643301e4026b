use proto::csi::status::ToStatus;

use super::*;

#[test]
fn what_nodes_say_is_escaped_in_a_status() {
    let text = "\n\u{1b}[31m\u{202e}".to_owned();
    let driver: DriverName = "d.example".parse().unwrap();
    let node: NodeName = "n1".parse().unwrap();
    let refused = Error::RefusedByOne {
        driver: driver.clone(),
        method: "DeleteVolume",
        id: text.clone(),
        node: node.clone(),
        why: text.clone(),
    };
    let nowhere = Error::Nowhere { driver: driver.clone(), why: text.clone() };
    let apart = Error::SetApart { node, driver, why: text };
    for error in [refused, nowhere, apart] {
        let message = error.status().message().to_owned();
        let raw = message.contains(|c: char| c.is_control() || c == '\u{202e}');
        assert!(!raw && message.contains("u{1b}[31m"), "{message:?}");
    }
}
