//! Exclusive use between nodes: a direct volume is handed over here only with the cloud's word that it is this node's.
//! That word is kept, so a node that is cut off asks nobody while it lasts; one that has a link has it confirmed first.
//!
//! All of it is done with the right to the volume. Whatever has no record is let go; the cloud is told at once, or when
//! there is a link.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proto::control::lease::{Answer, MAX_ID, Step};
use proto::csi::topology::Scope;
use proto::error::{Error, chain};
use proto::names::DriverName;
use tracing::{error, info, warn};

use super::published;
use super::{Direct, not_yet};

pub(crate) mod asks;
mod fence;
pub(super) mod known;
pub mod lease;
pub(super) mod rounds;

use asks::NoAnswer;
use lease::{Entry, Lease, Wish};

const HANDED_OVER: &str = "handed over directly";
/// How long a pod's volume waits for the cloud's word.
const ASK: Duration = Duration::from_secs(5);
/// How long an unpublished volume's caller waits until the cloud knows.
const TELL: Duration = Duration::from_secs(2);

/// Why it is not known here what the cloud has decided.
#[derive(Debug, thiserror::Error)]
enum Unheard {
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    #[error("csi-cloud's answer cannot be kept in the state directory")]
    NotKept(#[from] io::Error),
}

/// Whether the cloud knows how a volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// It does, or it will be told at the next link.
    Yes,
    /// Something is to be done again.
    Later,
    /// It did not answer.
    Silent,
}

impl Direct {
    /// Makes a volume this node's before it is handed over.
    pub(super) async fn own(
        &self,
        driver: &DriverName,
        volume: &str,
        (target, recorded): (&Path, bool),
    ) -> Result<(), Arc<Error>> {
        if volume.len() > MAX_ID {
            let why = format!("its id has more than {MAX_ID} bytes, so it cannot be known whose it is");
            return Err(Error::DirectRefused { volume: volume.to_owned(), why }.into());
        }
        let state = self.state(volume)?;
        self.calls.asks().first_link().await;
        let kept = self.known.of(state, driver.as_str(), volume).map_err(not_yet(volume, HANDED_OVER))?;
        let lease = lease::settled(kept.as_ref().map(|kept| kept.lease.clone()), recorded);
        let link = self.calls.asks().link();
        let lease = match lease::wish(lease.as_ref()) {
            Wish::Has(lease) => lease,
            Wish::Fenced(why) => return Err(fence::refusal(volume, &why)),
            Wish::Ask => Lease::Unsettled,
        };
        let entry =
            Entry { driver: driver.to_string(), volume_id: volume.to_owned(), pod: pod(target), lease };
        if kept.as_ref() != Some(&entry) {
            self.known.keep(state, &entry).map_err(not_yet(volume, HANDED_OVER))?;
        }
        let is_ours = entry.lease != Lease::Unsettled;
        match link {
            None if is_ours => Ok(()),
            Some(link) if is_ours && self.known.has_confirmed(link, &entry) => Ok(()),
            _ => self.ask_for(driver, entry).await,
        }
    }

    /// Asks the cloud for a volume, or whether it is this node's still.
    async fn ask_for(&self, driver: &DriverName, entry: Entry) -> Result<(), Arc<Error>> {
        let (volume, pod) = (entry.volume_id.clone(), entry.pod.clone());
        let (step, is_ours) = match entry.lease {
            // An operator may have taken it since the last link.
            Lease::Held { epoch } => (Step::Hold { epoch, pod }, true),
            _ => (Step::Ask { pod }, false),
        };
        let answer = match self.hear(driver, &entry, step, ASK).await {
            Ok(answer) => answer,
            // Cut off meanwhile: what is this node's it has.
            Err(Unheard::NoAnswer(NoAnswer::NoLink)) if is_ours => return Ok(()),
            // It has no record of anybody's.
            Err(Unheard::NoAnswer(NoAnswer::Older)) if is_ours || self.is_nodes(driver) => return Ok(()),
            Err(error) => return Err(not_yet(&volume, HANDED_OVER)(error)),
        };
        match answer {
            Answer::Held { epoch } => {
                info!(%driver, volume, epoch, "is this node's");
                Ok(())
            }
            Answer::Fenced { why } if is_ours => Err(fence::refusal(&volume, &why)),
            Answer::Anothers { why } | Answer::Fenced { why } => Err(Error::Owned { volume, why }.into()),
            Answer::NotNow { why } => Err(not_yet(&volume, HANDED_OVER)(why)),
            Answer::Released => Err(not_yet(&volume, HANDED_OVER)("csi-cloud answered something else")),
        }
    }

    /// Says to the cloud how a volume stands, which is durable, or asks for it; and makes the answer durable.
    async fn hear(
        &self,
        driver: &DriverName,
        entry: &Entry,
        step: Step,
        patience: Duration,
    ) -> Result<Answer, Unheard> {
        let volume = &entry.volume_id;
        let state = self.state.as_deref().unwrap_or_else(|| Path::new("/"));
        let (answer, link) = self.calls.asks().ask(driver, volume, step, patience).await?;
        let Some(lease) = lease::answered(entry.lease.clone(), &answer) else {
            self.known.forget(state, entry)?;
            return Ok(answer);
        };
        let after = Entry { lease, ..entry.clone() };
        let kept = if after == *entry { Ok(()) } else { self.known.keep(state, &after) };
        if let Lease::Fenced { why, .. } = &after.lease {
            error!(%driver, volume, why, "the volume was taken from this node; a guest that writes to it here destroys data: delete its pod");
            if let Err(error) = kept {
                let error = chain(&error);
                warn!(%driver, volume, error, "that cannot be kept, and a csi-edge that starts now does not know it");
                self.calls.asks().stir();
            }
            if !self.hide(driver.as_str(), volume).await {
                self.calls.asks().stir();
            }
            return Ok(answer);
        }
        kept?;
        if matches!(answer, Answer::Held { .. }) {
            self.known.hear(link, after);
        }
        Ok(answer)
    }

    /// Whether no other node could have the volumes of a driver. That is not more than likely, since the scope may be
    /// what a driver lets one think; so it counts only with a cloud that cannot be asked because it is older.
    fn is_nodes(&self, driver: &DriverName) -> bool {
        self.calls.scopes().of(driver) == Some(Scope::Node)
    }

    /// After something was done with a volume, and with the right to it: what is not used here any more is let go, and the
    /// cloud told of what it does not know, if it can be.
    pub(super) async fn let_go(&self, driver: &DriverName, volume: &str) {
        let told = match self.settle_owner(driver, volume) {
            Ok(None) => return,
            // The next round does it, for it may take a while.
            Ok(Some(Entry { lease: Lease::Fenced { .. }, .. })) => return,
            Ok(Some(entry)) => self.see_to(driver, &entry, false).await,
            Err(error) => {
                let error = chain(&error);
                warn!(%driver, volume, error, "it cannot be kept whose the volume is; it stays this node's until it can");
                Told::Later
            }
        };
        if told != Told::Yes {
            self.calls.asks().stir();
        }
    }

    /// Makes durable how a volume stands when nothing is being done with it.
    fn settle_owner(&self, driver: &DriverName, volume: &str) -> io::Result<Option<Entry>> {
        let Some(state) = self.state.as_deref().filter(|_| volume.len() <= MAX_ID) else { return Ok(None) };
        let kept = self.known.of(state, driver.as_str(), volume)?;
        let records = published::of(state, driver.as_str(), volume)?;
        let before = kept.as_ref().map(|kept| kept.lease.clone());
        let after = lease::settled(before.clone(), !records.is_empty());
        let pod = records.first().map(|record| pod(&record.target_as_given));
        let pod = kept.map(|kept| kept.pod).or(pod).unwrap_or_default();
        let (driver, volume_id) = (driver.to_string(), volume.to_owned());
        let Some(lease) = after else { return Ok(None) };
        let entry = Entry { driver, volume_id, pod, lease };
        if before.as_ref() != Some(&entry.lease) {
            self.known.keep(state, &entry)?;
        } else if self.known.is_only_remembered(&entry) {
            // It counts all the same, and the next round tries again.
            let _ = self.known.keep(state, &entry);
        }
        Ok(Some(entry))
    }

    /// Tells the cloud how a volume stands, unless it knows, or has been silent; and hides what was taken from this node.
    async fn see_to(&self, driver: &DriverName, entry: &Entry, silent: bool) -> Told {
        let volume = &entry.volume_id;
        let Some((first, step)) = lease::statement(&entry.lease, &entry.pod) else {
            return if self.hide(driver.as_str(), volume).await { Told::Yes } else { Told::Later };
        };
        let Some(link) = self.calls.asks().link() else { return Told::Yes };
        if self.known.has_heard(link, entry) {
            return Told::Yes;
        }
        if silent {
            return Told::Later;
        }
        let said = async {
            let first = Entry { lease: first, ..entry.clone() };
            if first != *entry {
                let state = self.state.as_deref().unwrap_or_else(|| Path::new("/"));
                self.known.keep(state, &first)?;
            }
            self.hear(driver, &first, step, TELL).await
        };
        let (told, error) = match said.await {
            Ok(Answer::NotNow { why } | Answer::Anothers { why }) => (Told::Later, why),
            Ok(_) => return Told::Yes,
            Err(error @ Unheard::NoAnswer(_)) => (Told::Silent, chain(&error)),
            Err(error) => (Told::Later, chain(&error)),
        };
        warn!(%driver, volume, error, "csi-cloud does not know whose the volume is");
        told
    }
}

/// The UID of a pod in the path of its volume, as kubelets have it; empty if it is not there.
fn pod(target: &Path) -> String {
    let mut parts = target.iter().skip_while(|part| *part != "pods").skip(1);
    let (pod, volumes) = (parts.next(), parts.next());
    let pod = pod.filter(|_| volumes.is_some_and(|part| part == "volumes"));
    pod.map(|pod| pod.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
