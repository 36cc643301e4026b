//! Writes a Container Device Interface file that names the devices of direct volumes, for pods that
//! request a device instead of mounting a volume.
//!
//! CDI edits belong to a device, never to a CSI volume, so the file has device nodes and no mounts.
//! It appears whole or not at all; only `csi-edge direct cdi` writes it. This room may use
//! `records`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use proto::csi::direct::DeviceKind;
use proto::host::files::name;
use proto::host::publish::{Existing, publish};
use serde::Serialize;

use crate::records::published::{PublicationState, Published};

/// The version of the CDI specification: the first with annotations on devices.
pub const VERSION: &str = "0.6.0";
/// Vendor and class: a pod requests `edge-csi.io/direct=NAME`.
pub const KIND: &str = "edge-csi.io/direct";
/// The file's name, as CDI recommends: vendor, hyphen, class.
pub const FILE: &str = "edge-csi.io-direct.json";
/// The directory of devices in a container.
const DEVICES: &str = "/dev/edge-csi";

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    annotations: BTreeMap<&'static str, String>,
    container_edits: Edits,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Edits {
    device_nodes: Vec<Node>,
}

/// The type and numbers are those of the host's node.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    path: PathBuf,
    host_path: PathBuf,
    permissions: &'static str,
}

/// The name of a volume's device: letters and digits, which CDI accepts at both ends of a name.
pub fn device_name(driver: &str, volume_id: &str) -> String {
    name(&[driver.as_bytes(), volume_id.as_bytes()])
}

fn spec(published: &[Published]) -> Spec {
    // VFIO makes its own node of a PCI address, and a socket is no device.
    let volumes = published
        .iter()
        .filter(|v| v.kind == DeviceKind::Block && v.state == PublicationState::Published);
    // One volume at two targets is one device.
    let devices: BTreeMap<String, Device> =
        volumes.map(device).map(|d| (d.name.clone(), d)).collect();
    Spec { cdi_version: VERSION, kind: KIND, devices: devices.into_values().collect() }
}

fn device(volume: &Published) -> Device {
    let name = device_name(&volume.driver, &volume.volume_id);
    let read_only = volume.options.iter().any(|option| option == "ro");
    let node = Node {
        path: Path::new(DEVICES).join(&name),
        host_path: volume.device.clone(),
        permissions: if read_only { "r" } else { "rw" },
    };
    let annotations = BTreeMap::from([
        ("edge-csi.io/driver", volume.driver.clone()),
        ("edge-csi.io/volume-id", volume.volume_id.clone()),
    ]);
    Device { name, annotations, container_edits: Edits { device_nodes: vec![node] } }
}

/// Writes the file into this directory, in place of an older one, and returns the number of
/// devices. Without devices it removes the file, because CDI requires one device.
///
/// # Errors
/// The file system's; the older file stays then.
pub fn write(directory: &Path, published: &[Published]) -> io::Result<usize> {
    let spec = spec(published);
    let path = directory.join(FILE);
    if spec.devices.is_empty() {
        return match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(0),
        };
    }
    std::fs::create_dir_all(directory)?;
    publish(&path, &serde_json::to_vec_pretty(&spec)?, 0o644, Existing::Replace)?;
    Ok(spec.devices.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::published::tests::record;

    #[test]
    fn the_file_is_as_cdi_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let begun = Published { state: PublicationState::Begun, ..record("begun") };
        let spdk = Published { kind: DeviceKind::Spdk, ..record("spdk") };
        let again = Published { target: "/other".into(), ..record("v-1") };
        let written = write(dir.path(), &[record("v-1"), begun, spdk, again]).unwrap();
        assert_eq!(written, 1);
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        let name = device_name("d.example", "v-1");
        let expected = serde_json::json!({
            "cdiVersion": "0.6.0",
            "kind": "edge-csi.io/direct",
            "devices": [{
                "name": name,
                "annotations": {
                    "edge-csi.io/driver": "d.example",
                    "edge-csi.io/volume-id": "v-1",
                },
                "containerEdits": { "deviceNodes": [
                    {
                        "path": format!("/dev/edge-csi/{name}"),
                        "hostPath": "/dev/loop1",
                        "permissions": "rw",
                    }
                ] },
            }],
        });
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected);
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{name}");
        assert_eq!(write(dir.path(), &[]).unwrap(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
