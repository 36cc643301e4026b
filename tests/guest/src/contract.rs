//! How runtimes find a direct volume, written after their code and not after ours. Kata's Go
//! runtime and runtime-rs detect it differently where something is wrong.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use serde::Deserialize;

/// The runtime whose detection is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Runtime {
    /// Kata's first runtime, in Go.
    Go,
    /// Its second one, in Rust.
    Rs,
    /// No VM at all.
    Runc,
}

/// A mount of a container, as containerd writes it into `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct OciMount {
    /// Where in the container.
    pub destination: PathBuf,
    /// `bind` for all that the kubelet mounts.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// The kubelet's target path, with its symlinks resolved.
    pub source: PathBuf,
    /// Its options.
    #[serde(default)]
    pub options: Vec<String>,
}

/// The fields of `config.json` that decide.
#[derive(Debug, Deserialize)]
pub struct OciConfig {
    /// The container's mounts.
    pub mounts: Vec<OciMount>,
}

/// The file as the runtimes' structures have it.
#[derive(Clone, Debug, Deserialize)]
pub struct Info {
    /// Missing keys are empty in Go, and an error in Rust.
    #[serde(rename = "volume-type")]
    pub volume_type: Option<String>,
    /// The device on the host.
    pub device: Option<String>,
    /// The file system.
    pub fstype: Option<String>,
    /// Text to text.
    #[serde(default)]
    pub metadata: std::collections::BTreeMap<String, String>,
    /// Mount options.
    #[serde(default)]
    pub options: Vec<String>,
}

/// The result of a runtime's look at a mount.
#[derive(Debug)]
pub enum Found {
    /// The device is given to the guest.
    Direct(Info),
    /// The host's directory is shared with the guest, or bound into the container.
    Shared,
    /// The container does not start.
    Fails(String),
}

/// Where the directory of a mount source is, if it is a direct volume's.
pub fn entry(root: &Path, source: &Path) -> PathBuf {
    root.join(URL_SAFE.encode(source.as_os_str().as_bytes()))
}

/// Classifies a mount by the files below the runtime's root directory.
pub fn detect(runtime: Runtime, root: &Path, mount: &OciMount) -> Found {
    let entry = entry(root, &mount.source);
    match runtime {
        Runtime::Runc => Found::Shared,
        Runtime::Go => go(&entry, mount),
        Runtime::Rs => rs(&entry, mount),
    }
}

/// A bind mount is known by its type or options, because any type with `bind` or `rbind` becomes
/// `bind` first. A missing or malformed file counts as none. A file that was read decides, even if
/// its device is gone: the guest then waits for a disk that does not come.
fn go(entry: &Path, mount: &OciMount) -> Found {
    let info =
        || serde_json::from_slice::<Info>(&std::fs::read(entry.join("mountInfo.json")).ok()?).ok();
    let is_bind = mount.kind.as_deref() == Some("bind")
        || mount.options.iter().any(|option| option == "bind" || option == "rbind");
    match info().filter(|_| is_bind) {
        Some(info) if is_disk(info.device.as_deref()) => Found::Direct(info),
        Some(_) => Found::Fails("the guest has no disk for it".into()),
        None => Found::Shared,
    }
}

/// The work of Kata's agent on a volume's storage: it mounts it with its options, then gives it to
/// the group.
///
/// # Errors
/// Why the container does not start.
pub fn agent(info: &Info) -> Result<(), String> {
    let is_read_only = info.options.iter().any(|option| option == "ro");
    let host_only = ["X-", "x-", "user", "owner", "group", "comment=", "uhelper=", "nosymfollow"];
    let nogroup = ["nouser", "nogroup", "nofail", "_netdev", "auto", "noauto"];
    let unknown = info.options.iter().find(|option| {
        host_only.iter().any(|word| option.starts_with(word)) || nogroup.contains(&option.as_str())
    });
    match (unknown, info.metadata.get("fsGroup")) {
        (Some(option), _) => Err(format!("EINVAL: the kernel does not know {option}")),
        // Whatever the policy, if the root's group differs.
        (None, Some(_)) if is_read_only => Err("EROFS: the group cannot be changed".into()),
        (None, Some(group)) if group.parse::<u32>().unwrap_or(0) == 0 => {
            Err("the runtime takes group 0 for an error".into())
        }
        (None, _) => Ok(()),
    }
}

/// The agent's work for the containers of a pod that share one volume, read-only or not. runtime-rs
/// adds `ro` to the device's mount for each container. A mounted device cannot be mounted again in
/// the other mode.
///
/// # Errors
/// Why a container does not start.
pub fn containers(runtime: Runtime, read_only: &[bool]) -> Result<(), String> {
    let is_mixed = read_only.iter().any(|one| Some(one) != read_only.first());
    if runtime == Runtime::Rs && is_mixed {
        return Err("EBUSY: the device is mounted in another way".into());
    }
    Ok(())
}

/// A directory is the sign, and then all must be right.
fn rs(entry: &Path, mount: &OciMount) -> Found {
    const KINDS: [&str; 5] = ["bind", "directvol", "vfiovol", "spdkvol", "spoolvol"];
    if !KINDS.contains(&mount.kind.as_deref().unwrap_or("bind")) || !entry.is_dir() {
        return Found::Shared;
    }
    let text = match std::fs::read(entry.join("mountInfo.json")) {
        Ok(text) => text,
        Err(error) => {
            return Found::Fails(format!("unexpected error occurs when parse mount info: {error}"));
        }
    };
    let info: Info = match serde_json::from_slice(&text) {
        Ok(info) => info,
        Err(error) => return Found::Fails(error.to_string()),
    };
    match (info.volume_type.as_deref(), &info.device, &info.fstype) {
        (Some("directvol"), Some(device), Some(_)) if is_disk(Some(device)) => Found::Direct(info),
        (Some("directvol"), Some(_), Some(_)) => {
            Found::Fails("the device is neither a file nor a disk".into())
        }
        (Some(other), Some(_), Some(_)) => Found::Fails(format!("volume type {other} is invalid")),
        _ => Found::Fails("missing field".into()),
    }
}

fn is_disk(device: Option<&str>) -> bool {
    let meta = device.and_then(|device| std::fs::metadata(device).ok());
    meta.is_some_and(|meta| meta.is_file() || meta.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::csi::direct::{FileSystem, options};
    use proto::host::publish::{Existing, publish};

    /// The results of both runtimes for an entry with this file; none is an empty directory.
    fn both(kind: &str, text: Option<&str>) -> [String; 2] {
        both_with(kind, &[], text)
    }

    /// The same for a mount with these options.
    fn both_with(kind: &str, options: &[&str], text: Option<&str>) -> [String; 2] {
        let dir = tempfile::tempdir().unwrap();
        // echo -n /a | base64
        let entry = dir.path().join("L2E=");
        std::fs::create_dir(&entry).unwrap();
        let disk = dir.path().join("disk");
        publish(&disk, b"x", 0o600, Existing::Keep).unwrap();
        if let Some(text) = text {
            let text = text.replace("DISK", disk.to_str().unwrap());
            publish(&entry.join("mountInfo.json"), text.as_bytes(), 0o600, Existing::Keep).unwrap();
        }
        let mount = OciMount {
            destination: "/data".into(),
            kind: Some(kind.into()),
            source: "/a".into(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        [Runtime::Go, Runtime::Rs].map(|runtime| match detect(runtime, dir.path(), &mount) {
            Found::Direct(_) => "direct".into(),
            Found::Shared => "shared".into(),
            Found::Fails(_) => "fails".into(),
        })
    }

    #[test]
    fn the_runtimes_differ_as_their_code_does() {
        let whole = r#"{"volume-type":"directvol","device":"DISK","fstype":"ext4"}"#;
        assert_eq!(both("bind", Some(whole)), ["direct", "direct"]);
        assert_eq!(both("directvol", Some(whole)), ["shared", "direct"]);
        assert_eq!(both("tmpfs", Some(whole)), ["shared", "shared"]);
        assert_eq!(both("bind", None), ["shared", "fails"]);
        assert_eq!(both("bind", Some("{")), ["shared", "fails"]);
        assert_eq!(both("bind", Some(&whole.replace("directvol", "blk"))), ["direct", "fails"]);
        assert_eq!(both("bind", Some(&whole.replace("DISK", "/gone"))), ["fails", "fails"]);
        // A typed mount of the kubelet's is a bind mount by its options.
        for option in ["bind", "rbind"] {
            assert_eq!(both_with("directvol", &[option], Some(whole)), ["direct", "direct"]);
            assert_eq!(both_with("vfiovol", &[option], Some(whole)), ["direct", "direct"]);
            assert_eq!(both_with("directvol", &[option], None), ["shared", "fails"]);
        }
        let old = r#"{"volume_type":"directvol","device":"DISK","fs_type":"ext4"}"#;
        assert_eq!(both("bind", Some(old)), ["direct", "fails"]);
    }

    /// An entry that csi-edge would write for these flags of a volume, or why it writes none.
    fn written(flags: &[&str], group: Option<&str>) -> Result<Info, String> {
        let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let found = options::for_guest(&flags, FileSystem::Ext4, false);
        let found = found.map_err(|error| error.to_string())?;
        let group = group.filter(|_| !found.is_read_only());
        let metadata = group.map(|group| ("fsGroup".to_owned(), group.to_owned()));
        Ok(Info {
            volume_type: Some("directvol".into()),
            device: Some("/dev/x".into()),
            fstype: Some("ext4".into()),
            metadata: metadata.into_iter().collect(),
            options: found.options,
        })
    }

    #[test]
    fn the_agent_takes_what_is_written_for_it() {
        for flags in [&["ro"][..], &["noatime", "ro"], &[], &["X-mount.mkdir"], &["user", "ro"]] {
            for group in [None, Some("7")] {
                agent(&written(flags, group).unwrap()).unwrap();
            }
        }
        for flag in ["nosymfollow", "nosuch", "offset=1"] {
            assert!(written(&[flag], None).unwrap_err().contains(flag));
        }
        // It would not take what earlier versions wrote.
        let mut older = written(&["ro"], None).unwrap();
        older.metadata.insert("fsGroup".into(), "7".into());
        assert!(agent(&older).unwrap_err().contains("EROFS"));
        let mut older = written(&[], None).unwrap();
        older.options.push("X-mount.mkdir".into());
        assert!(agent(&older).unwrap_err().contains("EINVAL"));
    }

    #[test]
    fn mixed_read_only_is_for_one_runtime_only() {
        for (mixed, go, rs) in
            [(&[true, false][..], true, false), (&[true, true], true, true), (&[false], true, true)]
        {
            assert_eq!(containers(Runtime::Go, mixed).is_ok(), go);
            assert_eq!(containers(Runtime::Rs, mixed).is_ok(), rs);
        }
    }
}
