//! Direct volumes that a runtime did not take as a device, as an edge reports them to the cloud.
//!
//! A report replaces the edge's earlier one. An edge speaks for its own node only, so the cloud
//! checks that a named pod runs there.

use serde::{Deserialize, Serialize};

use crate::names::{DriverName, is_subdomain};

/// The most volumes that a report names; its total counts all.
pub const MAX_VOLUMES: usize = 64;
/// The most that a node can have, and the most that its total counts.
const MAX_TOTAL: u64 = 1_000_000;
/// The longest id of a volume in a report, in bytes. CSI's limit is 128.
const MAX_ID: usize = 256;
/// The longest namespace, and the longest uid, in bytes. Kubernetes: a DNS-1123 label; a UUID.
const MAX_LABEL: usize = 63;

/// The longest reason in a report, in bytes.
const MAX_WHY: usize = 340;

/// The direct volumes of a node that no runtime took as a device, or gets as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTaken {
    /// The number of all.
    pub total: u64,
    /// Those that are named, at most [`MAX_VOLUMES`].
    pub volumes: Vec<NotTakenVolume>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTakenVolume {
    /// Its driver.
    pub driver: DriverName,
    /// Its id.
    pub volume: String,
    /// The pod that it was published for, if the kubelet told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// Why csi-edge gives its device to no runtime. `None` if a runtime did not take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
}

/// A pod, as Kubernetes names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

impl Pod {
    /// True if these can be the names and the uid of a pod. They become part of a path in requests
    /// to Kubernetes.
    pub fn is_valid(&self) -> bool {
        let is_uid = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let Self { namespace, name, uid } = self;
        is_subdomain(name)
            && is_subdomain(namespace)
            && namespace.len() <= MAX_LABEL
            && (1..=MAX_LABEL).contains(&uid.len())
            && uid.chars().all(is_uid)
    }
}

impl NotTaken {
    /// A report of these volumes, within its bounds.
    pub fn of(volumes: Vec<NotTakenVolume>) -> Self {
        Self { total: u64::try_from(volumes.len()).unwrap_or(u64::MAX), volumes }.bounded()
    }

    /// The report within its bounds. A volume with too long an id is counted, not named. A pod that
    /// cannot be one is left out.
    #[must_use]
    pub fn bounded(self) -> Self {
        let stated = u64::try_from(self.volumes.len()).unwrap_or(u64::MAX);
        let fits = |volume: &NotTakenVolume| (1..=MAX_ID).contains(&volume.volume.len());
        let named = |mut volume: NotTakenVolume| {
            volume.pod = volume.pod.filter(Pod::is_valid);
            if let Some(why) = &mut volume.withheld {
                why.truncate(why.floor_char_boundary(MAX_WHY));
            }
            volume
        };
        let volumes = self.volumes.into_iter().filter(fits).map(named).take(MAX_VOLUMES);
        let total = self.total.clamp(stated.min(MAX_TOTAL), MAX_TOTAL);
        Self { total, volumes: volumes.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::hello::{MAX_BYTES, Message};

    fn pod(name: &str) -> Pod {
        Pod { namespace: "shop".into(), name: name.into(), uid: "u-1".into() }
    }

    fn volume(id: &str, pod: Option<Pod>) -> NotTakenVolume {
        NotTakenVolume {
            driver: "d.example".parse().unwrap(),
            volume: id.into(),
            pod,
            withheld: None,
        }
    }

    #[test]
    fn a_report_on_the_wire_is_this() {
        let withheld = Some("a VM has it".into());
        let withheld = NotTakenVolume { withheld, ..volume("w", None) };
        let volumes = vec![volume("v", Some(pod("p"))), withheld];
        let message = Message::NotTaken(NotTaken { total: 3, volumes });
        let text = concat!(
            r#"{"not_taken":{"total":3,"volumes":[{"driver":"d.example","volume":"v","#,
            r#""pod":{"namespace":"shop","name":"p","uid":"u-1"}},"#,
            r#"{"driver":"d.example","volume":"w","withheld":"a VM has it"}]}}"#
        );
        assert_eq!(message.encode().unwrap(), text);
        assert_eq!(Message::decode(text.as_bytes()).unwrap(), message);
    }

    #[test]
    fn a_report_is_bounded_and_counts_what_it_does_not_name() {
        let long = "x".repeat(MAX_ID + 1);
        let mut volumes = vec![volume(&long, None), volume("", None)];
        volumes.extend((0..MAX_VOLUMES).map(|number| volume(&format!("v{number}"), None)));
        volumes.push(volume("last", None));
        let report = NotTaken::of(volumes);
        assert_eq!((report.total, report.volumes.len()), (67, MAX_VOLUMES));
        assert_eq!(report.volumes[0].volume, "v0");
        let lies = NotTaken { total: 0, volumes: vec![volume("v", None)] };
        assert_eq!(lies.bounded().total, 1);
        let lies = NotTaken { total: u64::MAX, volumes: Vec::new() };
        assert_eq!(lies.bounded().total, MAX_TOTAL, "the sum over all nodes stays a number");
    }

    #[test]
    fn the_largest_report_fits_into_a_message() {
        // Each of these takes six bytes in JSON.
        let id = "\u{1}".repeat(MAX_ID);
        let name = ["x".repeat(60), "x".repeat(60), "x".repeat(60), "x".repeat(60)].join(".");
        let label = "n".repeat(MAX_LABEL);
        let pod = Pod { namespace: label.clone(), name, uid: label };
        assert!(pod.is_valid());
        let withheld = Some("\u{1}".repeat(MAX_WHY + 1));
        let largest = NotTakenVolume { withheld, ..volume(&id, Some(pod)) };
        let volumes = vec![largest; MAX_VOLUMES];
        let report = NotTaken::of(volumes);
        assert_eq!(report.volumes.len(), MAX_VOLUMES);
        assert!(Message::NotTaken(report).encode().unwrap().len() < MAX_BYTES);
    }

    #[test]
    fn what_cannot_be_a_pod_is_not_named() {
        for name in ["", "../secrets/x", "a/b", "a?b", "A", "a b"] {
            assert!(!pod(name).is_valid(), "{name:?}");
            let report = NotTaken::of(vec![volume("v", Some(pod(name)))]);
            assert_eq!(report.volumes[0].pod, None, "{name:?}");
        }
        for namespace in ["", "..", "a/b"] {
            assert!(!Pod { namespace: namespace.into(), ..pod("p") }.is_valid(), "{namespace:?}");
        }
        assert!(!Pod { uid: "a/b".into(), ..pod("p") }.is_valid());
        assert!(!Pod { uid: String::new(), ..pod("p") }.is_valid());
    }
}
