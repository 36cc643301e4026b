//! Where a program has its configuration, its admin socket and its state if no flag says so.
//!
//! In a pod and under systemd both are at fixed places. In a checkout, README.md starts the
//! programs with their directories below `run`.

use std::path::{Path, PathBuf};

use super::Reader;
use crate::admin::http1::SOCKET_NAME;

/// The places at which a program is looked for.
#[derive(Clone, Debug)]
pub struct Places {
    /// The configuration in a pod and under systemd.
    config: PathBuf,
    /// The admin socket there, unless the configuration says another.
    socket: PathBuf,
    /// The directory in which a checkout has the programs' directories.
    checkout: PathBuf,
    is_cloud: bool,
}

/// An admin socket, and the places that were looked at for it.
#[derive(Debug, PartialEq, Eq)]
pub struct SocketPlace {
    /// The socket.
    pub path: PathBuf,
    /// The places.
    pub tried: Vec<PathBuf>,
}

/// The directory of csi-cloud in a checkout.
const CLOUD: &str = "cloud";
/// The state directory in that of a node.
const STATE: &str = "state";

impl Places {
    /// The places of csi-cloud.
    pub fn cloud() -> Self {
        Self::new(Path::new("/"), Path::new("run"), true)
    }

    /// The places of csi-edge.
    pub fn edge() -> Self {
        Self::new(Path::new("/"), Path::new("run"), false)
    }

    /// The places of csi-edge below another root and in another directory of a checkout, for tests.
    pub fn edge_below(root: &Path, checkout: &Path) -> Self {
        Self::new(root, checkout, false)
    }

    fn new(root: &Path, checkout: &Path, is_cloud: bool) -> Self {
        let config = if is_cloud { "etc/edge-csi/cloud.toml" } else { "etc/edge-csi/edge.toml" };
        let socket = root.join("run/edge-csi").join(SOCKET_NAME);
        Self { config: root.join(config), socket, checkout: checkout.to_owned(), is_cloud }
    }

    /// The configuration: `named`, else that of a pod or of systemd if it is there. `-` is standard
    /// input.
    pub fn configuration(&self, named: Option<PathBuf>) -> Option<PathBuf> {
        named.or_else(|| self.config.exists().then(|| self.config.clone()))
    }

    /// The admin socket: `flag`, else what the configuration says, else the first that is there.
    /// Mistakes in other keys of the configuration do not matter.
    pub fn socket(&self, flag: Option<PathBuf>, config: Option<PathBuf>) -> SocketPlace {
        if let Some(path) = flag {
            return SocketPlace { tried: vec![path.clone()], path };
        }
        let mut tried = vec![config.clone().unwrap_or_else(|| self.config.clone())];
        if let Some(config) = self.configuration(config) {
            let mut file = Reader::open(Some(&config));
            let fronts = file.path("fronts").map(|fronts| fronts.join(SOCKET_NAME));
            if let Some(path) = file.path("admin").or(fronts) {
                tried.push(path.clone());
                return SocketPlace { path, tried };
            }
        }
        let mut places = vec![self.socket.clone()];
        places.extend(self.sockets_of_checkout());
        let there = places.iter().find(|place| place.exists()).unwrap_or(&self.socket);
        let path = there.clone();
        tried.extend(places);
        SocketPlace { path, tried }
    }

    /// The admin sockets in a checkout. One of csi-edge is in the directory of its node.
    fn sockets_of_checkout(&self) -> Vec<PathBuf> {
        if self.is_cloud {
            return vec![self.checkout.join(CLOUD).join(SOCKET_NAME)];
        }
        self.of_nodes(SOCKET_NAME)
    }

    /// The state directories of csi-edge in a checkout.
    pub fn states_of_checkout(&self) -> Vec<PathBuf> {
        self.of_nodes(STATE)
    }

    /// What is there of this name in the directories of a checkout's nodes.
    fn of_nodes(&self, name: &str) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.checkout) else { return Vec::new() };
        let nodes = entries.flatten().filter(|entry| entry.file_name() != CLOUD);
        let named = nodes.map(|entry| entry.path().join(name));
        let mut there: Vec<_> = named.filter(|path| path.exists()).collect();
        there.sort();
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::publish::{Existing, publish};

    /// A directory in which files can be put, and the places of a program there.
    fn places(is_cloud: bool) -> (tempfile::TempDir, Places) {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(&dir.path().join("root"), &dir.path().join("run"), is_cloud);
        (dir, places)
    }

    fn put(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        publish(path, text.as_bytes(), 0o600, Existing::Replace).unwrap();
    }

    #[test]
    fn in_a_pod_and_under_systemd_the_configuration_says_where_the_socket_is() {
        for (is_cloud, name) in [(true, "cloud.toml"), (false, "edge.toml")] {
            let (dir, places) = places(is_cloud);
            let config = dir.path().join("root/etc/edge-csi").join(name);
            put(&config, "fronts = \"/fronts\"\nlisten = [\"wss://h:1\"]");
            let found = places.socket(None, None);
            assert_eq!(found.path, Path::new("/fronts/_admin.sock"));
            assert_eq!(found.tried, [config.clone(), found.path.clone()]);
            put(&config, "fronts = \"f\"\nadmin = \"a.sock\"");
            assert_eq!(places.socket(None, None).path, config.with_file_name("a.sock"));
            // A file or a socket that is named comes first.
            let other = dir.path().join("other.toml");
            put(&other, "fronts = \"/other\"");
            let named = places.socket(None, Some(other.clone()));
            assert_eq!(named.path, Path::new("/other/_admin.sock"));
            assert_eq!(places.socket(Some("/x".into()), Some(other)).path, Path::new("/x"));
        }
    }

    #[test]
    fn without_a_configuration_the_usual_socket_comes_before_those_of_a_checkout() {
        for (is_cloud, node) in [(true, "cloud"), (false, "node-1")] {
            let (dir, places) = places(is_cloud);
            let usual = dir.path().join("root/run/edge-csi/_admin.sock");
            assert_eq!(places.socket(None, None).path, usual, "none is there");
            let here = dir.path().join("run").join(node).join("_admin.sock");
            put(&here, "");
            put(&dir.path().join("run/cloud/_admin.sock"), "");
            let found = places.socket(None, None);
            assert_eq!(found.path, here);
            assert!(found.tried.contains(&usual) && found.tried.contains(&here), "{found:?}");
            put(&usual, "");
            assert_eq!(places.socket(None, None).path, usual);
        }
    }
}
