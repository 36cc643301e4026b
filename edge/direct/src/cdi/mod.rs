//! A file of the Container Device Interface that names the devices of direct volumes: for runtimes and pods that ask for a
//! device by name instead of mounting a volume.
//!
//! CDI's edits are asked for by a device's name, never by a CSI volume, and a mount's place in the container is not known here;
//! so the file has device nodes and no mounts. It appears whole or not at all, and is written by
//! `csi-edge direct cdi` only.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use proto::host::publish::{Existing, publish};
use serde::Serialize;

use crate::records::files::name;
use crate::records::published::{Kind, Published, State};

/// The version of the CDI specification that the file is of: the first one whose devices have annotations.
pub const VERSION: &str = "0.6.0";
/// Vendor and class: a pod asks for `edge-csi.io/direct=NAME`.
pub const KIND: &str = "edge-csi.io/direct";
/// The file's name. It is what CDI recommends: vendor, hyphen, class.
pub const FILE: &str = "edge-csi.io-direct.json";
/// Where a container finds its devices.
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

/// Its type and numbers are those of the host's node.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    path: PathBuf,
    host_path: PathBuf,
    permissions: &'static str,
}

/// What a volume's device is called: letters and digits, which is what CDI takes at both ends of a name.
pub fn device_name(driver: &str, volume_id: &str) -> String {
    name(&[driver.as_bytes(), volume_id.as_bytes()])
}

fn spec(published: &[Published]) -> Spec {
    // A PCI address is made a node by VFIO's own group, and a socket is no device.
    let volumes = published.iter().filter(|v| v.kind == Kind::Block && v.state == State::Published);
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

/// Writes the file into this directory, in place of an older one; without devices it removes it, since a file of CDI
/// has one at least. How many devices it names.
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
        let begun = Published { state: State::Begun, ..record("begun") };
        let spdk = Published { kind: Kind::Spdk, ..record("spdk") };
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
                "annotations": { "edge-csi.io/driver": "d.example", "edge-csi.io/volume-id": "v-1" },
                "containerEdits": { "deviceNodes": [
                    { "path": format!("/dev/edge-csi/{name}"), "hostPath": "/dev/loop1", "permissions": "rw" }
                ] },
            }],
        });
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected);
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{name}");
        assert_eq!(write(dir.path(), &[]).unwrap(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
