//! A container as containerd writes it down for its runtime, and which of its mounts are direct
//! volumes.

use std::collections::BTreeMap;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::contract::{Found, Info, OciMount, Runtime, detect, entry};

/// The annotation in which containerd names a container's sandbox.
const SANDBOX: &str = "io.kubernetes.cri.sandbox-id";
/// That with the container's name in its pod.
const NAME: &str = "io.kubernetes.cri.container-name";

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    mounts: Vec<Value>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// A direct volume of a container.
#[derive(Debug)]
pub(super) struct BundleVolume {
    /// The contract's entry for it.
    pub(super) info: Info,
    /// Its device.
    pub(super) device: String,
    /// The kubelet's path for it.
    pub(super) source: PathBuf,
    /// Where the container has it.
    pub(super) destination: PathBuf,
}

/// A container and its direct volumes.
#[derive(Debug)]
pub(super) struct Container {
    /// Its sandbox, if it has direct volumes.
    pub(super) sandbox: String,
    /// Its name in the pod.
    pub(super) name: String,
    /// Its direct volumes.
    pub(super) volumes: Vec<BundleVolume>,
    /// All its mounts, as containerd wrote them.
    pub(super) mounts: Vec<Value>,
}

impl Container {
    /// Reads the container of a bundle, with the direct volumes whose entries are below a root.
    ///
    /// # Errors
    /// There is none, or a real runtime would refuse one of its mounts, or share it with the guest
    /// by mistake.
    pub(super) fn read(bundle: &Path, entries: &Path) -> anyhow::Result<Self> {
        let path = bundle.join("config.json");
        let cannot = || format!("cannot read {}", path.display());
        let text = std::fs::read(&path).with_context(cannot)?;
        let config: Config = serde_json::from_slice(&text).with_context(cannot)?;
        let mut volumes = Vec::new();
        for mount in &config.mounts {
            let mount: OciMount = serde_json::from_value(mount.clone()).with_context(cannot)?;
            let what = || {
                format!(
                    "the mount of {} at {}",
                    mount.source.display(),
                    mount.destination.display()
                )
            };
            let Some(info) = found(entries, &mount).with_context(what)? else { continue };
            let device = info.device.clone().context("a direct volume without a device")?;
            let OciMount { source, destination, .. } = mount;
            volumes.push(BundleVolume { info, device, source, destination });
        }
        let annotation = |key: &str| config.annotations.get(key).cloned().unwrap_or_default();
        let sandbox = annotation(SANDBOX);
        // It becomes a part of paths.
        let is_id = !sandbox.is_empty() && sandbox.bytes().all(|byte| byte.is_ascii_alphanumeric());
        ensure!(
            volumes.is_empty() || is_id,
            "a container with direct volumes in no sandbox: {sandbox:?}"
        );
        let name = annotation(NAME);
        Ok(Self { sandbox, name, volumes, mounts: config.mounts })
    }

    /// Leaves the sandbox's id in the entries of its volumes, as Kata's Go runtime does.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn record(&self, entries: &Path) -> anyhow::Result<()> {
        for volume in &self.volumes {
            let path = entry(entries, &volume.source).join(&self.sandbox);
            let made = std::fs::File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path);
            made.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// The result of both runtimes for a mount. If they disagree, only one of them could serve the
/// volume.
fn found(entries: &Path, mount: &OciMount) -> anyhow::Result<Option<Info>> {
    match [Runtime::Go, Runtime::Rs].map(|runtime| detect(runtime, entries, mount)) {
        [Found::Direct(info), Found::Direct(_)] => Ok(Some(info)),
        [Found::Shared, Found::Shared] => Ok(None),
        [_, Found::Fails(why)] => bail!(why),
        differing => bail!("the runtimes differ: {differing:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::host::publish::{Existing, publish};

    #[test]
    fn a_direct_volume_is_found_among_mounts_and_its_sandbox_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            publish(&dir.path().join(name), text.as_bytes(), 0o600, Existing::Replace).unwrap();
        };
        let disk = dir.path().join("disk");
        write("disk", "x");
        let bind = ["rbind", "rw"];
        let of = |sandbox: &str| {
            let config = serde_json::json!({
                "mounts": [
                    {"destination": "/proc", "type": "proc", "source": "proc"},
                    {"destination": "/data", "type": "bind", "source": "/a", "options": bind},
                    {"destination": "/plain", "type": "bind", "source": "/b", "options": bind},
                ],
                "annotations": {SANDBOX: sandbox},
            });
            write("config.json", &config.to_string());
            Container::read(dir.path(), dir.path())
        };
        assert!(of("ab12").unwrap().volumes.is_empty());
        // echo -n /a | base64
        std::fs::create_dir(dir.path().join("L2E=")).unwrap();
        // runtime-rs refuses what the other one would serve empty.
        assert!(format!("{:#}", of("ab12").unwrap_err()).contains("/data"));
        let info = serde_json::json!({"volume-type": "directvol", "device": disk, "fstype": "xfs"});
        write("L2E=/mountInfo.json", &info.to_string());
        let container = of("ab12").unwrap();
        assert_eq!(container.volumes.len(), 1);
        assert_eq!(container.volumes[0].destination, Path::new("/data"));
        container.record(dir.path()).unwrap();
        assert!(dir.path().join("L2E=/ab12").exists());
        assert!(of("../x").is_err() && of("").is_err());
    }
}
