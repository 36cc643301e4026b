//! Finds and reads the configuration files of the VM runtimes that are installed on a node.
//!
//! A container engine names the file of each of its handlers; without that, the runtimes' own
//! defaults count. All paths are below a root, symlinks too. Files are bounded, and anything but a
//! regular file is refused without waiting.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use toml::{Table, Value};

/// The most bytes of a file.
const MOST: u64 = 1 << 20;
/// The most files of one directory.
const FILES: usize = 256;
/// The configuration of containerd, of kata-deploy's additions to it, and of CRI-O; and that of
/// containerd in k3s, RKE2 and MicroK8s.
const ENGINES: [&str; 7] = [
    "etc/containerd/config.toml",
    "opt/kata/containerd/config.d/kata-deploy.toml",
    "etc/crio/crio.conf",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "var/snap/microk8s/current/args/containerd.toml",
    "var/snap/microk8s/current/args/containerd-template.toml",
];
/// The directories of further files of these, and of k0s, which has no other.
const ENGINES_MORE: [(&str, &str); 6] = [
    ("etc/containerd/conf.d", ".toml"),
    ("etc/containerd/config.d", ".toml"),
    ("etc/crio/crio.conf.d", ".conf"),
    ("etc/k0s/containerd.d", ".toml"),
    ("var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d", ".toml"),
    ("var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d", ".toml"),
];
/// The default configuration paths of the runtimes, each group in their order.
const DEFAULTS: [&[&str]; 2] = [
    &[
        "etc/kata-containers/configuration.toml",
        "usr/share/defaults/kata-containers/configuration.toml",
    ],
    &[
        "etc/kata-containers/runtime-rs/configuration.toml",
        "usr/share/defaults/kata-containers/runtime-rs/configuration.toml",
    ],
];
/// The same of a runtime that kata-deploy has installed. It is in use only if an engine's handler
/// says so.
const DEPLOYED: &str = "opt/kata/share/defaults/kata-containers/configuration.toml";
/// The most symlinks that are followed to a file.
const LINKS: usize = 16;
/// kata-deploy's note of its version.
const VERSION: &str = "opt/kata/VERSION";

/// A configuration with its drop-in files merged in.
#[derive(Debug)]
pub(super) struct Configuration {
    /// Its path on the host.
    pub(super) path: PathBuf,
    /// The content, or why it cannot be read.
    pub(super) content: Result<Table, String>,
}

/// The settings of the container engines that concern direct volumes.
#[derive(Debug, Default)]
pub(super) struct EngineSettings {
    /// Each of Kata's handlers with the path of its file; empty for a handler that leaves it to the
    /// runtime.
    pub(super) handlers: Vec<(String, PathBuf)>,
    /// NRI's default validator, as each file has it.
    validators: Vec<bool>,
}

impl EngineSettings {
    /// True if NRI refuses the containers whose Pods require a plugin that is not there.
    pub(super) fn validates(&self) -> bool {
        !self.validators.is_empty() && self.validators.iter().all(|is_on| *is_on)
    }

    /// Reads a table of an engine's file, which has this name.
    fn read(&mut self, name: &str, table: &Table) {
        let is_kata = |key: &str| {
            table.get(key).and_then(Value::as_str).is_some_and(|value| value.contains("kata"))
        };
        if is_kata("runtime_type") || is_kata("runtime_path") {
            let options = table.get("options").and_then(Value::as_table);
            let path = options.and_then(|options| options.get("ConfigPath"));
            let path = path.or_else(|| table.get("runtime_config_path")).and_then(Value::as_str);
            let path = path.unwrap_or_default().trim_start_matches('/');
            self.handlers.push((name.to_owned(), path.into()));
        }
        if name == "default_validator" {
            // containerd's key, and CRI-O's.
            let keys = ["enable", "nri_enable_default_validator"];
            self.validators.extend(keys.iter().filter_map(|key| table.get(*key)?.as_bool()));
        }
        for (name, below) in table {
            if let Some(below) = below.as_table() {
                self.read(name, below);
            }
        }
    }
}

/// The settings in all files of the engines.
pub(super) fn engines(root: &Path) -> EngineSettings {
    let mut settings = EngineSettings::default();
    let engines = ENGINES.iter().map(PathBuf::from);
    let more = ENGINES_MORE.iter().flat_map(|(dir, end)| listed(root, Path::new(dir), end));
    for engine in engines.chain(more) {
        // An engine's damaged file is the engine's own matter; it says so itself.
        if let Ok(table) = table(root, &engine) {
            settings.read("", &table);
        }
    }
    settings
}

/// The configurations that are in use, by path. With engines that name none, the defaults.
///
/// # Errors
/// The root cannot be opened, so nothing is known.
pub(super) fn configurations(
    root: &Path,
    engines: &EngineSettings,
) -> io::Result<Vec<Configuration>> {
    within(root, Path::new("."), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
    let mut paths: BTreeSet<_> = engines.handlers.iter().map(|(_, path)| path.clone()).collect();
    // A damaged file is there, and its fault is named.
    let is_there = |path: &&PathBuf| {
        open(root, path).err().is_none_or(|error| error.kind() != io::ErrorKind::NotFound)
    };
    let has_handler = !paths.is_empty();
    if !has_handler || paths.remove(Path::new("")) {
        let defaults = DEFAULTS.map(|group| group.iter().map(PathBuf::from).collect::<Vec<_>>());
        let first = defaults.iter().filter_map(|group| group.iter().find(is_there));
        paths.extend(first.cloned());
        paths.extend(Some(PathBuf::from(DEPLOYED)).filter(|path| has_handler && is_there(&path)));
    }
    let read = |path: PathBuf| {
        let content = merged(root, &path);
        Configuration { path: Path::new("/").join(&path), content }
    };
    Ok(paths.into_iter().map(read).collect())
}

/// The version that kata-deploy has installed, if it says so.
pub(super) fn version(root: &Path) -> Option<String> {
    let text = text(root, Path::new(VERSION)).ok()?;
    let line = text.lines().next()?.trim();
    let is_version =
        !line.is_empty() && line.len() <= 64 && line.chars().all(|c| c.is_ascii_graphic());
    is_version.then(|| line.to_owned())
}

/// A configuration, and over it the drop-in files in the order of their names. They are beside the
/// file itself, where Kata looks, and not beside a symlink to it.
fn merged(root: &Path, path: &Path) -> Result<Table, String> {
    let mut whole = table(root, path)?;
    let file = behind_links(root, path);
    let beside = file.parent().unwrap_or(&file).join("config.d");
    for file in listed(root, &beside, ".toml") {
        let over =
            table(root, &file).map_err(|why| format!("its drop-in /{} {why}", file.display()))?;
        merge(&mut whole, over);
    }
    Ok(whole)
}

/// The file that a path leads to; the path itself where that cannot be told.
fn behind_links(root: &Path, path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(link) = within(root, &path, flags) else { break };
        // Fails for what is no symlink.
        let Ok(target) = rustix::fs::readlinkat(&link, "", Vec::new()) else { break };
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        path = match target.strip_prefix("/") {
            Ok(absolute) => absolute.to_owned(),
            Err(_) => path.parent().map_or_else(|| target.to_owned(), |parent| parent.join(target)),
        };
    }
    path
}

fn merge(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => merge(under, over),
            (_, value) => drop(under.insert(key, value)),
        }
    }
}

fn table(root: &Path, path: &Path) -> Result<Table, String> {
    let text = text(root, path).map_err(|error| format!("cannot be read: {error}"))?;
    text.parse()
        .map_err(|error: toml::de::Error| format!("is no TOML: {}", error.message().trim_end()))
}

/// The files of a directory with this ending, by name.
fn listed(root: &Path, directory: &Path, end: &str) -> Vec<PathBuf> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = within(root, directory, flags) else { return Vec::new() };
    let Ok(entries) = rustix::fs::Dir::read_from(&opened) else { return Vec::new() };
    let names =
        entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    let mut files: Vec<_> =
        names.filter(|name| name.ends_with(end)).map(|name| directory.join(name)).collect();
    files.sort();
    files.truncate(FILES);
    files
}

fn text(root: &Path, path: &Path) -> io::Result<String> {
    let file = open(root, path)?;
    let mut text = String::new();
    file.take(MOST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

/// Opens a regular file, without waiting for anybody at the other end of a FIFO.
fn open(root: &Path, path: &Path) -> io::Result<File> {
    let file = within(root, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC)?;
    let file = File::from(file);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is no regular file"))
    }
}

/// Opens a path below a root that symlinks do not leave.
fn within(root: &Path, path: &Path, flags: OFlags) -> io::Result<std::os::fd::OwnedFd> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, directory, Mode::empty())?;
    Ok(openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
}
