//! The machine that csi-edge runs on, by what no disk takes to another one.
//!
//! A copy of a node's disk has the node's certificate too. csi-cloud tells the two machines apart
//! by this id, and the kubelet's kept answers are used on their own machine only.

use std::io;
use std::io::ErrorKind;
use std::path::Path;

/// The kernel's directory.
pub const SYS: &str = "/sys";
/// What the firmware says: the UUID of DMI, or the device tree's serial number.
const FIRMWARE: [&str; 2] = ["class/dmi/id/product_uuid", "firmware/devicetree/base/serial-number"];
/// What vendors leave there, without all but letters and digits. It is the same on many machines.
const PLACEHOLDERS: [&str; 14] = [
    "03000200040005000006000700080009",
    "00020003000400050006000700080009",
    "123456781234567890abcddeefaabbcc",
    "0123456789",
    "0123456789abcdef",
    "123456789",
    "1234567890",
    "default",
    "defaultstring",
    "notapplicable",
    "notsettable",
    "notspecified",
    "systemserialnumber",
    "tobefilledbyoem",
];

/// The own id of the machine whose kernel's directory this is: the UUID in its DMI tables, its
/// device tree's serial number, or the lowest permanent address of its network cards, in this
/// order. `None` if it has none of these, or does not tell: an id that may be another one after a
/// restart is worse than none.
pub fn own_id(sys: &Path) -> Option<String> {
    for path in FIRMWARE {
        match std::fs::read_to_string(sys.join(path)) {
            Ok(text) => {
                // The device tree ends strings with a NUL.
                let id = text.trim_end_matches('\0').trim();
                if !is_placeholder(id) {
                    return Some(id.to_owned());
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // Only root may read it: as another user this would be another machine.
            Err(_) => return None,
        }
    }
    lowest_address(sys).ok()?
}

/// True if the text does not tell one machine from another.
fn is_placeholder(id: &str) -> bool {
    let bare: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
    let bare = bare.to_ascii_lowercase();
    let mut digits = bare.chars();
    let first = digits.next();
    digits.all(|digit| Some(digit) == first) || PLACEHOLDERS.contains(&bare.as_str())
}

/// The lowest permanent address of the machine's network cards. `None` if there is none.
fn lowest_address(sys: &Path) -> io::Result<Option<String>> {
    let mut addresses = Vec::new();
    for card in std::fs::read_dir(sys.join("class/net"))? {
        addresses.extend(permanent_address(&card?.path()));
    }
    Ok(addresses.into_iter().min())
}

/// The address that is built into a network card; `None` if that is not a part of the machine, or
/// its address was set or drawn.
fn permanent_address(card: &Path) -> Option<String> {
    // An adapter may be plugged into another machine.
    let bus = std::fs::read_link(card.join("device/subsystem")).ok()?;
    if bus.file_name().is_some_and(|bus| bus == "usb") {
        return None;
    }
    let read = |file: &str| std::fs::read_to_string(card.join(file)).ok();
    let address = match read("bonding_slave/perm_hwaddr") {
        Some(built_in) => built_in,
        // Zero is the kernel's NET_ADDR_PERM.
        None if read("addr_assign_type")?.trim() == "0" => read("address")?,
        None => return None,
    };
    let address = address.trim();
    let first = u8::from_str_radix(address.get(..2)?, 16).ok()?;
    // Administered locally, or of a group.
    let is_assigned = first & 0b11 == 0;
    (is_assigned && !is_placeholder(address)).then(|| address.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proto::host::publish::{Existing, publish};

    use super::*;

    fn write(sys: &Path, file: &str, text: &str) {
        let file = sys.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        publish(&file, text.as_bytes(), 0o600, Existing::Replace).unwrap();
    }

    fn add_card(sys: &Path, name: &str, bus: &str, assigned: &str, address: &str) {
        let card = format!("class/net/{name}");
        write(sys, &format!("{card}/addr_assign_type"), assigned);
        write(sys, &format!("{card}/address"), address);
        let device = sys.join(card).join("device");
        std::fs::create_dir(&device).unwrap();
        symlink(format!("../../bus/{bus}"), device.join("subsystem")).unwrap();
    }

    #[test]
    fn a_machine_is_known_by_its_dmi_tables_its_device_tree_or_its_network_card() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path();
        assert_eq!(own_id(sys), None);
        write(sys, "class/net/lo/address", "00:00:00:00:00:00\n");
        write(sys, "class/net/lo/addr_assign_type", "0\n");
        add_card(sys, "usb0", "usb", "0\n", "00:11:22:33:44:01\n");
        add_card(sys, "eth0", "platform", "3\n", "00:11:22:33:44:02\n");
        add_card(sys, "eth1", "pci", "0\n", "02:11:22:33:44:03\n");
        assert_eq!(own_id(sys), None, "an adapter, an address that was set, and a local one");
        write(sys, "class/net/eth0/bonding_slave/perm_hwaddr", "00:11:22:33:44:05\n");
        assert_eq!(own_id(sys).as_deref(), Some("00:11:22:33:44:05"));
        add_card(sys, "eth2", "platform", "0\n", "00:11:22:33:44:04\n");
        assert_eq!(own_id(sys).as_deref(), Some("00:11:22:33:44:04"));
        write(sys, FIRMWARE[1], "10000000abcd\0");
        assert_eq!(own_id(sys).as_deref(), Some("10000000abcd"));
        write(sys, FIRMWARE[0], "03000200-0400-0500-0006-000700080009\n");
        assert_eq!(own_id(sys).as_deref(), Some("10000000abcd"), "many machines have that UUID");
        write(sys, FIRMWARE[0], "4c4c4544-0042\n");
        assert_eq!(own_id(sys).as_deref(), Some("4c4c4544-0042"));
    }

    #[test]
    fn an_id_that_cannot_be_read_is_not_replaced_by_another_one() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), FIRMWARE[1], "10000000abcd\0");
        std::fs::create_dir_all(dir.path().join(FIRMWARE[0])).unwrap();
        assert_eq!(own_id(dir.path()), None);
    }

    #[test]
    fn what_vendors_leave_there_is_not_an_id() {
        for id in ["", "00000000-0000-0000-0000-000000000000", "FFFFFFFF", "To Be Filled By O.E.M."]
        {
            assert!(is_placeholder(id), "{id}");
        }
        assert!(!is_placeholder("00000000-0000-0000-0000-ac1f6b000001"));
    }
}
