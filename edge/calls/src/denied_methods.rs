//! Limits what a csi-cloud may call at this node: the calls that csi-cloud sends, and no others.
//!
//! Node calls come from the kubelet, by the node's own front. The node's operator may deny more
//! methods. A denied call may still run at a driver, since only a reboot surely ends it. So a file
//! keeps the methods that each csi-edge of this boot has denied. It may use `error` and
//! `many_deletes`.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use parking_lot::{Mutex, MutexGuard};
use proto::csi::{Key, Method};
use proto::host::files;
use proto::host::publish::publish_record;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::error::Error;
use crate::many_deletes::DeleteLimit;

/// The file's name in the state directory.
const FILE: &str = "denied.json";

/// A method that csi-cloud sends and an operator may deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deniable(Method);

/// The word in `deny` for more deletes than a limit.
const MANY_DELETES: &str = "many-deletes";

/// What a node's operator can deny to csi-cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    /// All calls of a method.
    Method(Deniable),
    /// Deletes of more different things than a limit.
    ManyDeletes,
}

impl FromStr for Denial {
    type Err = NotDeniable;

    fn from_str(name: &str) -> Result<Self, NotDeniable> {
        if name == MANY_DELETES { Ok(Self::ManyDeletes) } else { name.parse().map(Self::Method) }
    }
}

/// The reason why something cannot be denied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no method that csi-cloud sends, such as \"ControllerExpandVolume\", nor \
     {MANY_DELETES:?}"
)]
pub struct NotDeniable(String);

impl FromStr for Deniable {
    type Err = NotDeniable;

    fn from_str(name: &str) -> Result<Self, NotDeniable> {
        let method = Method::of_name(name).filter(|method| method.sent());
        method.map(Self).ok_or_else(|| NotDeniable(name.to_owned()))
    }
}

/// The methods that this node's operator denies to csi-cloud.
#[derive(Default)]
pub struct DeniedMethods {
    denied: BTreeSet<Deniable>,
    /// The denied methods that no csi-edge has passed on since this boot.
    never_run: Mutex<BTreeSet<Deniable>>,
    file: Option<PathBuf>,
    /// `None` if the operator does not limit deletes.
    deletes: Option<DeleteLimit>,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct DenialRecord {
    /// The boot in which it was written.
    boot: String,
    /// The methods that each csi-edge of that boot has denied.
    denied: BTreeSet<String>,
}

/// The method of a path, if csi-cloud sends it.
///
/// # Errors
/// [`Error::NotSent`].
pub(crate) fn sent(path: &str) -> Result<Method, Error> {
    let method = Method::of_path(path).filter(|method| method.sent());
    method.ok_or_else(|| Error::NotSent(path.to_owned()))
}

impl DeniedMethods {
    /// Denies this to the cloud. `boot` is the id of this boot, and empty if it is not known.
    /// Without a state directory that can be written, a run of each method may be open.
    pub fn open(denials: &BTreeSet<Denial>, state: Option<&Path>, boot: &str) -> Self {
        let methods = denials.iter().filter_map(|denial| match denial {
            Denial::Method(method) => Some(*method),
            Denial::ManyDeletes => None,
        });
        let is_limited = denials.contains(&Denial::ManyDeletes);
        let deletes = is_limited.then(DeleteLimit::default);
        Self { deletes, ..Self::of_methods(methods.collect(), state, boot) }
    }

    fn of_methods(denied: BTreeSet<Deniable>, state: Option<&Path>, boot: &str) -> Self {
        let Some(directory) = state.filter(|_| !boot.is_empty()) else {
            return Self { denied, ..Self::default() };
        };
        let file = directory.join(FILE);
        // Without the file an earlier csi-edge of this boot may have passed anything on.
        let kept = files::read(&file).ok();
        let kept = kept.and_then(|text| serde_json::from_slice::<DenialRecord>(&text).ok());
        let never_run: BTreeSet<_> = match kept {
            Some(kept) if kept.boot != boot => denied.clone(),
            Some(kept) => {
                let since = |method: &&Deniable| kept.denied.contains(method.0.name());
                denied.iter().filter(since).copied().collect()
            }
            None => BTreeSet::new(),
        };
        let names = never_run.iter().map(|method| method.0.name().to_owned()).collect();
        if let Err(error) = keep(&file, &DenialRecord { boot: boot.to_owned(), denied: names }) {
            let file = file.display();
            warn!(
                %file, %error,
                "what is denied cannot be kept, so a denied call is refused as one whose outcome \
                 is not known"
            );
            return Self { denied, ..Self::default() };
        }
        Self { denied, never_run: Mutex::new(never_run), file: Some(file), deletes: None }
    }

    /// Notes that a method is passed on for a caller of this node.
    pub(crate) fn note_run(&self, method: Method) {
        let method = Deniable(method);
        if !self.denied.contains(&method) || !self.never_run().remove(&method) {
            return;
        }
        // Without it the next csi-edge of this boot takes every run for open.
        let removed = self.file.as_ref().map(std::fs::remove_file).transpose();
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(
                %error,
                "the record of denied calls cannot be removed; a later csi-edge may refuse finally \
                 what still runs"
            );
        }
    }

    /// Refuses a denied call, finally only if no run of it may be open. Whether one is running is
    /// asked only for denied calls.
    ///
    /// # Errors
    /// [`Error::Denied`] and [`Error::DeniedInDoubt`].
    pub(crate) fn check(
        &self,
        node: &NodeName,
        method: Method,
        is_running: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        if !self.denied.contains(&Deniable(method)) {
            return Ok(());
        }
        let method_name = method.name();
        let why = if is_running() {
            "another operation is running for what it is about"
        } else if method.creates().is_some() {
            // After a final code the caller forgets what an earlier attempt may have made.
            "an earlier attempt may have made something"
        } else if !self.never_run().contains(&Deniable(method)) {
            "a run from before the denial may be open until the machine is started again"
        } else {
            return Err(Error::Denied { node: node.clone(), method: method_name });
        };
        Err(Error::DeniedInDoubt { node: node.clone(), method: method_name, why })
    }

    /// Refuses a delete if csi-cloud deletes too many different things.
    ///
    /// # Errors
    /// [`Error::ManyDeletes`].
    pub(crate) fn check_deletes(
        &self,
        node: &NodeName,
        driver: &DriverName,
        method: Method,
        key: &Key,
    ) -> Result<(), Error> {
        match &self.deletes {
            Some(deletes) if !deletes.take(driver, method, key) => {
                Err(Error::ManyDeletes { node: node.clone(), method: method.name() })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// How many deletes were refused because they were too many.
    pub(crate) fn deletes_refused(&self) -> u64 {
        self.deletes.as_ref().map_or(0, DeleteLimit::refused)
    }

    fn never_run(&self) -> MutexGuard<'_, BTreeSet<Deniable>> {
        self.never_run.lock()
    }
}

/// Replaces the record. One of another boot may not stay: a later csi-edge of this boot would take
/// its word.
fn keep(file: &Path, record: &DenialRecord) -> io::Result<()> {
    let kept = publish_record(file, record);
    if kept.is_err() {
        // It is gone, or it cannot be changed at all.
        let _ = std::fs::remove_file(file);
    }
    kept
}

#[cfg(test)]
mod tests {
    use proto::csi::status::ToStatus;
    use tonic::Code;

    use super::*;
    use proto::host::publish::{Existing, publish};

    #[test]
    fn only_what_csi_cloud_sends_can_be_denied() {
        assert!("ControllerExpandVolume".parse::<Denial>().is_ok());
        assert_eq!("many-deletes".parse(), Ok(Denial::ManyDeletes));
        for name in ["NodeExpandVolume", "GetPluginInfo", "Expand", ""] {
            let error = name.parse::<Denial>().unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn a_link_carries_what_csi_cloud_sends() {
        let method = sent("/csi.v1.Controller/CreateVolume");
        assert_eq!(method.ok(), Some(Method::CreateVolume));
        for path in ["/csi.v1.Node/NodePublishVolume", "/csi.v1.Controller/New", "/x", ""] {
            let error = sent(path).unwrap_err();
            assert_eq!(error.code(), Code::Unimplemented, "{path}");
        }
    }

    const EXPAND: &str = "ControllerExpandVolume";

    /// The code with which csi-edge refuses after a start with this `deny`; none if it does not.
    fn code(denied: &DeniedMethods, method: Method, is_running: bool) -> Option<Code> {
        let node = "n1".parse().unwrap();
        denied.check(&node, method, || is_running).err().map(|error| error.code())
    }

    #[test]
    fn a_denial_is_final_only_if_no_run_may_be_open() {
        let dir = tempfile::tempdir().unwrap();
        let open = |denied: &[&str], boot| {
            let denied = denied.iter().map(|name| name.parse().unwrap()).collect();
            DeniedMethods::open(&denied, Some(dir.path()), boot)
        };
        let expand = |denied: &DeniedMethods| code(denied, Method::ControllerExpandVolume, false);
        let in_doubt = Some(Code::Unavailable);
        let last = Some(Code::PermissionDenied);
        assert_eq!(expand(&open(&[EXPAND], "1")), in_doubt, "what came before is not known");
        assert_eq!(expand(&open(&[EXPAND], "1")), in_doubt, "it is not known after a restart");
        let after_boot = open(&[EXPAND, "CreateVolume"], "2");
        assert_eq!(expand(&after_boot), last);
        let create = code(&after_boot, Method::CreateVolume, false);
        assert_eq!(create, in_doubt, "it may have made something in an earlier boot");
        let running = code(&after_boot, Method::ControllerExpandVolume, true);
        assert_eq!(running, in_doubt, "something runs for the volume");
        assert_eq!(code(&after_boot, Method::DeleteVolume, true), None, "it is not denied");
        assert_eq!(expand(&open(&[EXPAND], "2")), last, "each csi-edge of this boot denied it");
        assert_eq!(expand(&open(&[], "2")), None);
        assert_eq!(expand(&open(&[EXPAND], "2")), in_doubt, "it was allowed in between");
        assert_eq!(expand(&open(&[EXPAND], "3")), last);
    }

    #[test]
    fn a_run_for_a_caller_of_the_node_may_be_open_until_the_next_boot() {
        let dir = tempfile::tempdir().unwrap();
        let denied = [EXPAND.parse().unwrap()].into();
        let open = |state, boot| DeniedMethods::open(&denied, state, boot);
        let expand = |denied: &DeniedMethods| code(denied, Method::ControllerExpandVolume, false);
        open(Some(dir.path()), "1");
        let denied = open(Some(dir.path()), "2");
        denied.note_run(Method::DeleteVolume);
        assert_eq!(expand(&denied), Some(Code::PermissionDenied));
        denied.note_run(Method::ControllerExpandVolume);
        denied.note_run(Method::ControllerExpandVolume);
        assert_eq!(expand(&denied), Some(Code::Unavailable));
        let again = open(Some(dir.path()), "2");
        assert_eq!(expand(&again), Some(Code::Unavailable), "after a restart");
        assert_eq!(expand(&open(Some(dir.path()), "3")), Some(Code::PermissionDenied));
        let file = dir.path().join("file");
        publish(&file, b"", 0o600, Existing::Keep).unwrap();
        for (state, boot) in [(None, "4"), (Some(dir.path()), ""), (Some(&*file), "4")] {
            assert_eq!(expand(&open(state, boot)), Some(Code::Unavailable), "nothing is known");
        }
    }
}
