//! The MAC of a lease: a node shows it to prove that this csi-cloud granted the lease to it.
//!
//! It is HMAC-SHA256 under a key that is in the store and never changes. So a MAC also counts when
//! an older copy of the store was put back. A store that was lost has another key. A MAC is no
//! secret: it names its node, and only that node's certificate can show it.

use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::state::trust::SecretKey;

/// The purpose of a MAC. Another use of the key needs another text.
const PURPOSE: &[u8] = b"edge-csi lease of a direct volume, 1";

/// The fields that a MAC covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted<'a> {
    /// The node to which the lease was granted.
    pub(crate) node: &'a NodeName,
    /// The volume's driver.
    pub(crate) driver: &'a DriverName,
    /// The volume.
    pub(crate) id: &'a Id,
    /// The epoch of the lease.
    pub(crate) epoch: u64,
}

impl Granted<'_> {
    /// The MAC, as base64.
    pub(crate) fn mac(&self, key: &SecretKey) -> String {
        key.mac(&self.bytes())
    }

    /// True if this MAC was made with this key for exactly this lease.
    pub(crate) fn is_proven_by(&self, mac: &str, key: &SecretKey) -> bool {
        key.has_signed(&self.bytes(), mac)
    }

    /// Each text has its length before it, so no two leases have the same bytes.
    fn bytes(&self) -> Vec<u8> {
        let texts = [
            PURPOSE,
            self.node.as_str().as_bytes(),
            self.driver.as_str().as_bytes(),
            self.id.text().as_bytes(),
        ];
        let mut bytes = Vec::new();
        for text in texts {
            bytes.extend(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
            bytes.extend_from_slice(text);
        }
        bytes.extend(self.epoch.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SecretKey = SecretKey::of([7; 32]);

    fn mac_of(node: &str, driver: &str, volume: &str, epoch: u64) -> String {
        let node = node.parse().unwrap();
        let driver = driver.parse().unwrap();
        let id = Id::Volume(volume.into());
        Granted { node: &node, driver: &driver, id: &id, epoch }.mac(&KEY)
    }

    /// Edges keep MACs for years, so their bytes never change.
    #[test]
    fn the_bytes_of_a_mac_never_change() {
        let mac = "HgceQWGxFwimqdl+rUr+fzuLlNkzl6VU4FhouEEiaBI";
        assert_eq!(mac_of("n1", "d.example", "v", 5), mac);
    }

    #[test]
    fn a_mac_proves_one_lease_of_one_node_under_one_key() {
        let mac = mac_of("n1", "d.example", "v", 5);
        let proves = |node: &str, driver: &str, volume: &str, epoch, key: &SecretKey, mac: &str| {
            let node = node.parse().unwrap();
            let driver = driver.parse().unwrap();
            let id = Id::Volume(volume.into());
            Granted { node: &node, driver: &driver, id: &id, epoch }.is_proven_by(mac, key)
        };
        assert!(proves("n1", "d.example", "v", 5, &KEY, &mac));
        assert!(!proves("n2", "d.example", "v", 5, &KEY, &mac));
        assert!(!proves("n1", "d.exampl", "ev", 5, &KEY, &mac));
        assert!(!proves("n1", "d.example", "w", 5, &KEY, &mac));
        assert!(!proves("n1", "d.example", "v", 6, &KEY, &mac));
        assert!(!proves("n1", "d.example", "v", 5, &SecretKey::of([8; 32]), &mac));
        for odd in ["", "*", "AAAA", &mac[1..], &format!("{mac}A")] {
            assert!(!proves("n1", "d.example", "v", 5, &KEY, odd), "{odd}");
        }
    }
}
