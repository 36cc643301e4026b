//! Keeps the last introduction of each driver, for while the driver is away or cannot introduce
//! itself.
//!
//! A kubelet and its registrar ask when the node starts, often before the driver has, or before
//! what the driver asks itself is there. A file keeps the answers, with the node's name and the
//! machine: a copy of the file, or its disk in another machine, answers nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use proto::control::hello;
use proto::csi;
use proto::csi::topology;
use proto::csi::{Capabilities, Local, Method};
use proto::host::files;
use proto::host::files::Unread;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::host::publish::publish_record;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};
use tonic::Code;
use tracing::warn;

/// The file's name in the state directory.
const FILE: &str = "introductions.json";
/// The drivers that are kept.
const MOST: usize = 64;
/// The answers of one driver that are kept, in bytes.
const LARGEST: usize = 64 * 1024;

/// The last introduction of each driver.
#[derive(Default)]
pub struct Introductions {
    known: Mutex<ByName>,
    /// The file, and whose it is.
    file: Option<(PathBuf, KeptFor)>,
}

/// Whose introductions a file keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFor {
    /// The node.
    pub node: NodeName,
    /// The machine's own id, which no disk takes along; none if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

type ByName = BTreeMap<DriverName, Arc<hello::Driver>>;

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct IntroductionsRecord {
    #[serde(flatten)]
    of: KeptFor,
    drivers: Vec<hello::Driver>,
}

impl fmt::Display for KeptFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, machine } = self;
        let machine = machine.as_deref().unwrap_or("without an id");
        write!(f, "the node {node} on the machine {machine}")
    }
}

/// True if a driver's earlier answer to NodeGetInfo may stand for one that failed so: what it needs
/// for an answer may be away for now. Any other code says something of this driver at this node.
pub(crate) fn may_stand_for(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Internal | Code::Unknown)
}

impl Introductions {
    /// Reads the introductions in this state directory, if there is one. A file that is damaged,
    /// cannot be read, or is another node's or machine's counts as empty: drivers introduce
    /// themselves again.
    pub fn open(directory: Option<&Path>, of: KeptFor) -> Self {
        let file = directory.map(|directory| (directory.join(FILE), of));
        let known = file.as_ref().map(|(file, of)| read(file, of)).unwrap_or_default();
        Self { known: Mutex::new(known), file }
    }

    /// Whose introductions this state directory keeps; `None` if it keeps none that can be read.
    pub fn kept_for(directory: &Path) -> Option<KeptFor> {
        let text = files::read(&directory.join(FILE)).ok()?;
        Some(serde_json::from_slice::<IntroductionsRecord>(&text).ok()?.of)
    }

    /// A driver's last answer to this call; none if it never introduced itself, or does not
    /// implement the call.
    ///
    /// Probe is answered `ready: false`, because an older answer may be false by now. CSI allows
    /// that, and callers ask again.
    pub(crate) fn answer(&self, driver: &DriverName, local: Local) -> Option<Bytes> {
        let known = self.of(driver)?;
        match local {
            Local::Probe => Some(csi::ProbeResponse { ready: Some(false) }.encode_to_vec().into()),
            Local::Info | Local::Capabilities(_) | Local::NodeInfo => {
                let answer = known.answers.get(Method::answering(local).name())?;
                Some(answer.0.clone())
            }
        }
    }

    /// The last answer to NodeGetInfo of a driver that gave this answer to GetPluginInfo, so of the
    /// same version.
    pub(crate) fn node_info(&self, driver: &DriverName, info: &Bytes) -> Option<Bytes> {
        let known = self.of(driver)?;
        let answer = |local| known.answers.get(Method::answering(local).name());
        let is_same = answer(Local::Info).is_some_and(|known| known.0 == *info);
        answer(Local::NodeInfo).filter(|_| is_same).map(|answer| answer.0.clone())
    }

    /// True if a driver had its own topology; none if it never introduced itself.
    pub(crate) fn has_own_topology(&self, driver: &DriverName) -> Option<bool> {
        let known = self.of(driver)?;
        let answer = |local| known.answers.get(Method::answering(local).name());
        let answer = |local| answer(local).map_or(&[][..], |answer| &answer.0);
        let plugin = Local::Capabilities(Capabilities::Plugin);
        Some(topology::has_own(answer(plugin), answer(Local::NodeInfo)))
    }

    /// Takes introductions, and writes them if they are news. A driver that is away, or has not
    /// introduced itself wholly, has no answer to GetPluginInfo.
    pub(crate) async fn take(&self, drivers: Vec<hello::Driver>) {
        let mut is_news = false;
        for driver in drivers {
            is_news |= self.learn(driver);
        }
        let Some((file, of)) = self.file.clone().filter(|_| is_news) else { return };
        let drivers = self.known().values().map(|driver| driver.as_ref().clone()).collect();
        keep(file, IntroductionsRecord { of, drivers }).await;
    }

    /// Keeps an introduction; returns whether it is news.
    fn learn(&self, driver: hello::Driver) -> bool {
        let driver = hello::Driver { health: None, ..driver };
        let size: usize = driver.answers.values().map(|answer| answer.0.len()).sum();
        let name = driver.name.clone();
        if !driver.answers.contains_key(Method::answering(Local::Info).name()) {
            return false;
        }
        let mut known = self.known();
        let before = known.get(&name).cloned();
        if before.as_deref() == Some(&driver) {
            return false;
        }
        if size > LARGEST || (before.is_none() && known.len() >= MOST) {
            let limits = format!("{MOST} drivers and {LARGEST} bytes of each are kept");
            peer_warn!(
                LogPeer::Driver(&name), driver = %name, size, limits,
                "its answers are not kept for when it is away"
            );
            return known.remove(&name).is_some();
        }
        let has_other_info = |before: &Arc<hello::Driver>| {
            let info = Method::answering(Local::NodeInfo).name();
            before.answers.get(info) != driver.answers.get(info)
        };
        if before.as_ref().is_some_and(has_other_info) {
            peer_info!(
                LogPeer::Driver(&name),
                driver = %name,
                "its answer to NodeGetInfo has changed; start its registrar again, since a kubelet \
                 asks only at registration"
            );
        }
        known.insert(name, Arc::new(driver));
        true
    }

    fn of(&self, driver: &DriverName) -> Option<Arc<hello::Driver>> {
        self.known().get(driver).cloned()
    }

    fn known(&self) -> MutexGuard<'_, ByName> {
        self.known.lock()
    }
}

fn read(file: &Path, of: &KeptFor) -> ByName {
    let kept = match files::read(file) {
        Ok(text) => serde_json::from_slice::<IntroductionsRecord>(&text).context("it is damaged"),
        Err(Unread::Missing) => return ByName::new(),
        Err(error) => Err(error.into()),
    };
    let kept = kept.and_then(|kept| match kept.of == *of {
        true => Ok(kept.drivers),
        false => anyhow::bail!("it is of {}, and this is {of}", kept.of),
    });
    match kept {
        Ok(drivers) => {
            drivers.into_iter().map(|driver| (driver.name.clone(), Arc::new(driver))).collect()
        }
        Err(error) => {
            let file = file.display();
            let error = format!("{error:#}");
            warn!(
                %file, error,
                "what drivers said of themselves cannot be used; until they are up, nothing is \
                 answered for them"
            );
            ByName::new()
        }
    }
}

/// Writes the file.
async fn keep(file: PathBuf, kept: IntroductionsRecord) {
    let path = file.clone();
    let written = tokio::task::spawn_blocking(move || publish_record(&path, &kept)).await;
    let written = written.context("it was broken off").and_then(|written| Ok(written?));
    let Err(error) = written else { return };
    let file = file.display();
    let error = format!("{error:#}");
    warn!(
        %file, error,
        "what drivers say of themselves cannot be kept; after a restart, nothing is answered for \
         them until they are up"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::host::publish::{Existing, publish};

    fn driver(name: &str, info: &[u8]) -> hello::Driver {
        let answer = |method: Local, bytes: &[u8]| {
            let bytes = Bytes::copy_from_slice(bytes);
            (Method::answering(method).name().to_owned(), hello::Protobuf(bytes))
        };
        hello::Driver {
            name: name.parse().unwrap(),
            answers: [answer(Local::Info, b""), answer(Local::NodeInfo, info)].into(),
            health: None,
        }
    }

    fn away(name: &str) -> hello::Driver {
        hello::Driver { answers: BTreeMap::new(), ..driver(name, b"") }
    }

    fn node() -> KeptFor {
        of("n1", Some("m1"))
    }

    fn of(node: &str, machine: Option<&str>) -> KeptFor {
        KeptFor { node: node.parse().unwrap(), machine: machine.map(str::to_owned) }
    }

    fn info(of: &Introductions, name: &str) -> Option<Bytes> {
        of.answer(&name.parse().unwrap(), Local::NodeInfo)
    }

    #[tokio::test]
    async fn a_driver_that_is_away_after_a_restart_has_said_what_it_said() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Introductions::open(Some(dir.path()), node());
        let first = open();
        first.take(vec![driver("a.b", b"\x0a\x01x"), away("c.d")]).await;
        let again = open();
        assert_eq!(info(&again, "a.b").as_deref(), Some(&b"\x0a\x01x"[..]));
        assert_eq!(info(&again, "c.d"), None, "it never said anything");
        assert_eq!(again.has_own_topology(&"a.b".parse().unwrap()), Some(false));
        assert_eq!(again.has_own_topology(&"c.d".parse().unwrap()), None);
        let probe = again.answer(&"a.b".parse().unwrap(), Local::Probe).unwrap();
        let ready = csi::ProbeResponse::decode(probe).unwrap().ready;
        assert_eq!(ready, Some(false), "nobody knows whether it is ready");
        assert_eq!(again.answer(&"c.d".parse().unwrap(), Local::Probe), None);
        // It comes up with another answer, while the other one is still away.
        again.take(vec![driver("a.b", b"\x0a\x01y"), away("c.d")]).await;
        again.take(vec![away("a.b"), driver("c.d", b"")]).await;
        let third = open();
        assert_eq!(info(&third, "a.b").as_deref(), Some(&b"\x0a\x01y"[..]));
        assert!(info(&third, "c.d").is_some());
    }

    #[tokio::test]
    async fn a_file_that_is_damaged_or_another_nodes_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        for text in [&b"{\"node\":\"n1\",\"drivers\":["[..], b"", b"\xff"] {
            publish(&file, text, 0o600, Existing::Replace).unwrap();
            assert_eq!(info(&Introductions::open(Some(dir.path()), node()), "a.b"), None);
        }
        Introductions::open(Some(dir.path()), node()).take(vec![driver("a.b", b"")]).await;
        assert!(info(&Introductions::open(Some(dir.path()), node()), "a.b").is_some());
        for other in [of("n2", Some("m1")), of("n1", Some("m2")), of("n1", None)] {
            let copy = Introductions::open(Some(dir.path()), other.clone());
            assert_eq!(info(&copy, "a.b"), None, "{other}: it is another node's id");
        }
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_or_read_changes_no_answer() {
        let dir = tempfile::tempdir().unwrap();
        // A directory in its place.
        std::fs::create_dir(dir.path().join(FILE)).unwrap();
        for state in [Some(dir.path()), None] {
            let introductions = Introductions::open(state, node());
            assert_eq!(info(&introductions, "a.b"), None);
            introductions.take(vec![driver("a.b", b"")]).await;
            assert!(info(&introductions, "a.b").is_some());
        }
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let introductions = Introductions::open(None, node());
        let many = (0..MOST + 1).map(|n| driver(&format!("d{n}.example"), b"")).collect();
        introductions.take(many).await;
        assert_eq!(introductions.known().len(), MOST);
        let one = introductions.known().keys().next().unwrap().clone();
        introductions.take(vec![driver(one.as_str(), &vec![0; LARGEST + 1])]).await;
        assert_eq!(info(&introductions, one.as_str()), None, "an older answer is not its last");
    }
}
