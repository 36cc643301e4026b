//! Lease records: this node's right to a volume, in one file per volume. A record is durable before
//! it counts, so a node that is cut off or restarted knows its leases.
//!
//! The transitions are pure functions of the lease and the cloud's answer.

use std::io;
use std::path::{Path, PathBuf};

use proto::control::lease::{LeaseAction, Outcome};
use proto::host::files;
use proto::host::files::{make_private, name};
use proto::host::publish::{Existing, publish};
use serde::{Deserialize, Serialize};

/// The lease of a volume at this node. Without one the volume is not this node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Lease {
    /// It is this node's.
    Held {
        /// The cloud's epoch; 0 if the volume was published before the cloud could be asked.
        epoch: u64,
        /// The cloud's MAC of it, opaque here. None in records of an older csi-edge, and of a lease
        /// that no cloud proved.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mac: Option<String>,
    },
    /// Still this node's, unused here, and the cloud does not know that yet.
    LetGo {
        /// As in [`Lease::Held`].
        epoch: u64,
        /// As in [`Lease::Held`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mac: Option<String>,
    },
    /// Not this node's, though the cloud may think so: a request or a release has no answer yet.
    Unsettled,
    /// An operator took it from this node while a pod had it here. Unpublishing it ends this.
    Fenced {
        /// The last epoch of this node.
        epoch: u64,
        /// The reason, in the cloud's words.
        why: String,
    },
}

/// The result of a pod's wish for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Granted once this is durable; nobody need be asked.
    Has(Lease),
    /// The cloud decides, once [`Lease::Unsettled`] is durable.
    Ask,
    /// Refused, in the cloud's words.
    Fenced(String),
}

/// Decides on a pod's wish for a volume.
pub fn wish(lease: Option<&Lease>) -> Wish {
    match lease {
        Some(Lease::Held { epoch, mac } | Lease::LetGo { epoch, mac }) => {
            Wish::Has(Lease::Held { epoch: *epoch, mac: mac.clone() })
        }
        None | Some(Lease::Unsettled) => Wish::Ask,
        Some(Lease::Fenced { why, .. }) => Wish::Fenced(why.clone()),
    }
}

/// The lease of a volume without a running operation. `recorded`: the volume has a record of
/// publication here.
pub fn settled(lease: Option<Lease>, recorded: bool) -> Option<Lease> {
    match (lease, recorded) {
        (Some(Lease::Held { epoch, mac }), false) => Some(Lease::LetGo { epoch, mac }),
        (Some(Lease::LetGo { epoch, mac }), true) => Some(Lease::Held { epoch, mac }),
        // Published without a lease, by an older csi-edge or with an older csi-cloud. The cloud is
        // told when it can be.
        (None | Some(Lease::Unsettled), true) => Some(Lease::Held { epoch: 0, mac: None }),
        // No guest has it any more, so this node is an ordinary one again.
        (Some(Lease::Fenced { .. }), false) => Some(Lease::Unsettled),
        (lease, _) => lease,
    }
}

/// The report to the cloud about an idle volume, and the lease that must be durable before.
pub fn statement(lease: &Lease, pod: &str) -> Option<(Lease, LeaseAction)> {
    match lease {
        Lease::Held { epoch, mac } => {
            let step = LeaseAction::Hold { epoch: *epoch, pod: pod.into(), mac: mac.clone() };
            Some((lease.clone(), step))
        }
        // From here on it is not this node's: the cloud may have heard it, even without an answer.
        Lease::LetGo { .. } | Lease::Unsettled => Some((Lease::Unsettled, LeaseAction::Release)),
        Lease::Fenced { .. } => None,
    }
}

/// The lease after an answer to a step that was sent with this lease.
pub fn answered(lease: Lease, answer: &Outcome) -> Option<Lease> {
    match (lease, answer) {
        (Lease::Held { epoch: before, mac: kept }, Outcome::Held { epoch, mac }) => {
            // A cloud that is older than MACs, or has lost its key, takes away no proof.
            let kept = kept.filter(|_| before == *epoch);
            Some(Lease::Held { epoch: *epoch, mac: mac.clone().or(kept) })
        }
        (Lease::Unsettled, Outcome::Held { epoch, mac }) => {
            Some(Lease::Held { epoch: *epoch, mac: mac.clone() })
        }
        (Lease::Held { epoch, .. }, Outcome::Fenced { why }) => {
            Some(Lease::Fenced { epoch, why: why.clone() })
        }
        (Lease::Unsettled, Outcome::Released | Outcome::HeldElsewhere { .. }) => None,
        (lease, _) => Some(lease),
    }
}

/// The record of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseEntry {
    /// The driver's CSI name.
    pub driver: String,
    /// The volume's id.
    pub volume_id: String,
    /// The UID of its pod, or of its last one; empty if it is not known.
    pub pod: String,
    /// The state of the lease.
    #[serde(flatten)]
    pub lease: Lease,
}

fn directory(state: &Path) -> PathBuf {
    state.join("direct").join("owners")
}

fn path(state: &Path, driver: &str, volume_id: &str) -> PathBuf {
    directory(state).join(format!("{}.json", name(&[driver.as_bytes(), volume_id.as_bytes()])))
}

impl LeaseEntry {
    /// Makes the record durable.
    ///
    /// # Errors
    /// The file system's; the older record stays.
    pub fn keep(&self, state: &Path) -> io::Result<()> {
        make_private(&directory(state))?;
        let text = serde_json::to_vec_pretty(self)?;
        publish(&path(state, &self.driver, &self.volume_id), &text, 0o600, Existing::Replace)
    }
}

/// The record of a volume.
///
/// # Errors
/// It cannot be read, so the lease is not known.
pub fn of(state: &Path, driver: &str, volume_id: &str) -> io::Result<Option<LeaseEntry>> {
    let entry = match read(&path(state, driver, volume_id)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entry => entry?,
    };
    if (&*entry.driver, &*entry.volume_id) != (driver, volume_id) {
        return Err(io::Error::other("what is known of its owner is another volume's"));
    }
    Ok(Some(entry))
}

/// Forgets a volume.
///
/// # Errors
/// The file system's.
pub fn forget(state: &Path, driver: &str, volume_id: &str) -> io::Result<()> {
    files::remove(&path(state, driver, volume_id))
}

/// All records, with the error in place of each that cannot be read.
///
/// # Errors
/// The directory cannot be read.
pub fn all(state: &Path) -> io::Result<Vec<io::Result<LeaseEntry>>> {
    let entries = match std::fs::read_dir(directory(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "json") {
            all.push(read(&path));
        }
    }
    Ok(all)
}

fn read(path: &Path) -> io::Result<LeaseEntry> {
    let text = files::read(path)?;
    serde_json::from_slice(&text)
        .map_err(|error| io::Error::other(format!("{} is damaged: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(epoch: u64) -> Option<String> {
        Some(format!("mac of {epoch}"))
    }

    fn let_go(epoch: u64) -> Lease {
        Lease::LetGo { epoch, mac: mac(epoch) }
    }

    fn held(epoch: u64) -> Lease {
        Lease::Held { epoch, mac: mac(epoch) }
    }

    fn fenced() -> Lease {
        Lease::Fenced { epoch: 5, why: "w".into() }
    }

    #[test]
    fn only_what_is_its_own_is_had_without_asking() {
        assert_eq!(wish(Some(&held(5))), Wish::Has(held(5)));
        assert_eq!(wish(Some(&let_go(5))), Wish::Has(held(5)));
        assert_eq!(wish(None), Wish::Ask);
        assert_eq!(wish(Some(&Lease::Unsettled)), Wish::Ask);
        assert_eq!(wish(Some(&fenced())), Wish::Fenced("w".into()));
    }

    #[test]
    fn what_nobody_uses_here_is_let_go_and_what_is_published_is_held() {
        assert_eq!(settled(Some(held(5)), false), Some(let_go(5)));
        assert_eq!(settled(Some(let_go(5)), true), Some(held(5)));
        assert_eq!(settled(Some(held(5)), true), Some(held(5)));
        let unasked = Some(Lease::Held { epoch: 0, mac: None });
        assert_eq!(settled(None, true), unasked, "published without a question");
        assert_eq!(
            settled(Some(Lease::Unsettled), true),
            unasked,
            "it is never let go under a guest"
        );
        assert_eq!(settled(Some(fenced()), true), Some(fenced()));
        assert_eq!(settled(Some(fenced()), false), Some(Lease::Unsettled));
        assert_eq!(settled(None, false), None);
    }

    #[test]
    fn it_is_not_its_own_any_more_before_the_cloud_is_told() {
        let release = Some((Lease::Unsettled, LeaseAction::Release));
        assert_eq!(statement(&let_go(5), "p"), release);
        assert_eq!(statement(&Lease::Unsettled, "p"), release);
        assert_eq!(statement(&fenced(), "p"), None);
        let hold = LeaseAction::Hold { epoch: 5, pod: "p".into(), mac: mac(5) };
        assert_eq!(statement(&held(5), "p"), Some((held(5), hold)));
    }

    #[test]
    fn an_answer_is_taken_for_what_it_says() {
        let why = || "w".to_owned();
        let granted = Outcome::Held { epoch: 9, mac: mac(9) };
        assert_eq!(answered(Lease::Unsettled, &granted), Some(held(9)));
        assert_eq!(answered(Lease::Unsettled, &Outcome::HeldElsewhere { why: why() }), None);
        assert_eq!(answered(Lease::Unsettled, &Outcome::Released), None);
        assert_eq!(
            answered(Lease::Unsettled, &Outcome::NotNow { why: why() }),
            Some(Lease::Unsettled)
        );
        assert_eq!(answered(held(5), &granted), Some(held(9)));
        let unproven = |epoch| Outcome::Held { epoch, mac: None };
        assert_eq!(answered(held(5), &unproven(5)), Some(held(5)), "the proof stays");
        let bare = Some(Lease::Held { epoch: 9, mac: None });
        assert_eq!(answered(held(5), &unproven(9)), bare, "a MAC is of one epoch");
        assert_eq!(answered(Lease::Unsettled, &unproven(9)), bare);
        assert_eq!(answered(held(5), &Outcome::Fenced { why: why() }), Some(fenced()));
        assert_eq!(answered(held(5), &Outcome::NotNow { why: why() }), Some(held(5)));
    }

    #[test]
    fn it_is_kept_and_what_is_damaged_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let driver = "d.example".to_owned();
        let volume_id = "v".to_owned();
        let pod = "p".to_owned();
        let mut entry = LeaseEntry { driver, volume_id, pod, lease: held(5) };
        assert_eq!(of(dir.path(), "d.example", "v").unwrap(), None);
        for lease in [held(5), let_go(5), Lease::Unsettled, fenced()] {
            entry.lease = lease;
            entry.keep(dir.path()).unwrap();
            assert_eq!(of(dir.path(), "d.example", "v").unwrap().as_ref(), Some(&entry));
        }
        assert_eq!(all(dir.path()).unwrap().len(), 1);
        assert_eq!(of(dir.path(), "d.example", "w").unwrap(), None);
        let file = path(dir.path(), "d.example", "v");
        std::fs::rename(&file, path(dir.path(), "d.example", "w")).unwrap();
        let others = of(dir.path(), "d.example", "w").unwrap_err().to_string();
        assert!(others.contains("another volume's"), "{others}");
        publish(&file, b"{\"state\":", 0o600, Existing::Replace).unwrap();
        let cut = of(dir.path(), "d.example", "v").unwrap_err().to_string();
        assert!(cut.contains("is damaged"), "{cut}");
        // A record of an older csi-edge has no MAC.
        let older = br#"{"driver":"d.example","volume_id":"v","pod":"p","state":"held","epoch":5}"#;
        publish(&file, older, 0o600, Existing::Replace).unwrap();
        let lease = of(dir.path(), "d.example", "v").unwrap().unwrap().lease;
        assert_eq!(lease, Lease::Held { epoch: 5, mac: None });
        forget(dir.path(), "d.example", "v").unwrap();
        forget(dir.path(), "d.example", "v").unwrap();
        assert_eq!(of(dir.path(), "d.example", "v").unwrap(), None);
    }
}
