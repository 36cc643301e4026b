//! Acquires and releases exclusive use of direct volumes.
//!
//! A volume is handed over only with the cloud's lease. The lease is durable, so a node without a
//! link asks nobody while it holds one; a node with a link has it confirmed first. Every function
//! needs the lock of its volume. A volume without a record is released; the cloud hears of it at
//! once or at the next link.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edge_calls::lease_client::{LeaseClient, NoAnswer};
use proto::control::lease::{LeaseAction, MAX_ID, Outcome};
use proto::host::chain;
use proto::names::DriverName;
use tracing::{error, info, warn};

use super::cache::LeaseCache;
use super::fence;
use super::record;
use super::record::{Lease, LeaseEntry, Wish};
use crate::error::{Error, HANDED_OVER, not_yet};
use crate::records::published;
use crate::records::published::Published;
use crate::volume::node::Node;

/// The time for which a pod's volume waits for the cloud's answer.
const ACQUIRE: Duration = Duration::from_secs(5);
/// The time for which an unpublish waits until the cloud knows of it.
pub(crate) const REPORT: Duration = Duration::from_secs(2);

/// The reason why the cloud's decision is not known here.
#[derive(Debug, thiserror::Error)]
enum NoDecision {
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    #[error("csi-cloud's answer cannot be kept in the state directory")]
    NotKept(#[from] io::Error),
}

/// Whether the cloud knows how a volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// It does, or it hears of it at the next link.
    Yes,
    /// Something is left to do.
    Later,
    /// It did not answer.
    Silent,
}

/// The leases of this node.
pub(crate) struct Leases {
    node: Arc<Node>,
    client: Arc<LeaseClient>,
    cache: LeaseCache,
}

impl Leases {
    pub(crate) fn new(node: Arc<Node>, client: Arc<LeaseClient>) -> Self {
        Self { node, client, cache: LeaseCache::default() }
    }

    /// The client for lease requests to the cloud.
    pub(crate) fn client(&self) -> &LeaseClient {
        &self.client
    }

    /// Acquires the lease of a volume before it is handed over. `recorded`: the volume has a record
    /// of publication here.
    ///
    /// # Errors
    /// Another node has the volume, or it was taken from this one. It also fails if the lease is
    /// not known or cannot be kept, there is no state directory, or the id is too long.
    pub(crate) async fn acquire(
        &self,
        driver: &DriverName,
        volume: &str,
        target: &Path,
        recorded: bool,
    ) -> Result<(), Error> {
        if volume.len() > MAX_ID {
            let why =
                format!("its id has more than {MAX_ID} bytes, so it cannot be known whose it is");
            return Err(Error::DirectRefused { volume: volume.to_owned(), why });
        }
        let state = self.node.state(volume)?;
        self.client.first_link().await;
        let kept = self.cache.of(state, driver.as_str(), volume);
        let kept = kept.map_err(not_yet(volume, HANDED_OVER))?;
        let lease = record::settled(kept.as_ref().map(|kept| kept.lease.clone()), recorded);
        let link = self.client.link();
        let lease = match record::wish(lease.as_ref()) {
            Wish::Has(lease) => lease,
            Wish::Fenced(why) => return Err(fence::refusal(volume, &why)),
            Wish::Ask => Lease::Unsettled,
        };
        let entry = LeaseEntry {
            driver: driver.to_string(),
            volume_id: volume.to_owned(),
            pod: pod_in(target),
            lease,
        };
        if kept.as_ref() != Some(&entry) {
            self.cache.keep(state, &entry).map_err(not_yet(volume, HANDED_OVER))?;
        }
        let held = entry.lease != Lease::Unsettled;
        match link {
            None if held => Ok(()),
            Some(link) if held && self.cache.has_confirmed(link, &entry) => Ok(()),
            _ => self.request(driver, entry).await,
        }
    }

    /// Requests a lease from the cloud, or has a held one confirmed.
    async fn request(&self, driver: &DriverName, entry: LeaseEntry) -> Result<(), Error> {
        let volume = entry.volume_id.clone();
        let pod = entry.pod.clone();
        let (step, held) = match entry.lease {
            // An operator may have taken it since the last link.
            Lease::Held { epoch, ref mac } => {
                (LeaseAction::Hold { epoch, pod, mac: mac.clone() }, true)
            }
            _ => (LeaseAction::Ask { pod }, false),
        };
        let answer = match self.exchange(driver, &entry, step, ACQUIRE).await {
            Ok(answer) => answer,
            // Cut off meanwhile: this node keeps what it holds.
            Err(NoDecision::NoAnswer(NoAnswer::NoLink)) if held => return Ok(()),
            Err(error) => return Err(not_yet(&volume, HANDED_OVER)(error)),
        };
        match answer {
            Outcome::Held { epoch, .. } => {
                info!(%driver, volume, epoch, "is this node's");
                Ok(())
            }
            Outcome::Fenced { why } if held => Err(fence::refusal(&volume, &why)),
            Outcome::HeldElsewhere { why } | Outcome::Fenced { why } => {
                Err(Error::Owned { volume, why })
            }
            Outcome::NotNow { why } => Err(not_yet(&volume, HANDED_OVER)(why)),
            Outcome::Released => {
                Err(not_yet(&volume, HANDED_OVER)("csi-cloud answered something else"))
            }
        }
    }

    /// Sends the cloud a step about a durable lease, and makes its answer durable.
    async fn exchange(
        &self,
        driver: &DriverName,
        entry: &LeaseEntry,
        step: LeaseAction,
        patience: Duration,
    ) -> Result<Outcome, NoDecision> {
        let volume = &entry.volume_id;
        let state = self.node.state.as_deref().unwrap_or_else(|| Path::new("/"));
        let (answer, link) = self.client.ask(driver, volume, step, patience).await?;
        let Some(lease) = record::answered(entry.lease.clone(), &answer) else {
            self.cache.forget(state, entry)?;
            return Ok(answer);
        };
        let after = LeaseEntry { lease, ..entry.clone() };
        let kept = if after == *entry { Ok(()) } else { self.cache.keep(state, &after) };
        if let Lease::Fenced { why, .. } = &after.lease {
            self.fenced(driver, volume, why, kept).await;
            return Ok(answer);
        }
        kept?;
        if matches!(answer, Outcome::Held { .. }) {
            self.cache.set_reported(link, after);
        }
        Ok(answer)
    }

    /// Reports and hides a volume that the cloud has just fenced.
    async fn fenced(&self, driver: &DriverName, volume: &str, why: &str, kept: io::Result<()>) {
        error!(
            %driver, volume, why,
            "the volume was taken from this node; a guest that writes to it here destroys data: \
             delete its pod"
        );
        if let Err(error) = kept {
            let error = chain(&error);
            warn!(
                %driver, volume, error,
                "that cannot be kept, and a csi-edge that starts now does not know it"
            );
            self.client.restate_all();
        }
        if !fence::hide(&self.node, driver.as_str(), volume).await {
            self.client.restate_all();
        }
    }

    /// True if a volume was taken from this node; true also if that cannot be read.
    pub(crate) fn is_fenced(&self, record: &Published) -> bool {
        let Some(state) = &self.node.state else { return false };
        let kept = self.cache.of(state, &record.driver, &record.volume_id);
        kept.map_or(true, |kept| {
            kept.is_some_and(|kept| matches!(kept.lease, Lease::Fenced { .. }))
        })
    }

    /// After an operation, releases a volume that is not used here any more. With a link, it
    /// reports the change to the cloud.
    pub(crate) async fn settle_and_report(&self, driver: &DriverName, volume: &str) {
        let reported = match self.settle(driver, volume) {
            Ok(None) => return,
            // This may take a while, so the next round does it.
            Ok(Some(LeaseEntry { lease: Lease::Fenced { .. }, .. })) => return,
            Ok(Some(entry)) => self.report(driver, &entry, false).await,
            Err(error) => {
                let error = chain(&error);
                warn!(
                    %driver, volume, error,
                    "it cannot be kept whose the volume is; it stays this node's until it can"
                );
                Reported::Later
            }
        };
        if reported != Reported::Yes {
            self.client.restate_all();
        }
    }

    /// Makes the lease of a volume durable, as it stands while no operation runs on the volume.
    ///
    /// # Errors
    /// A record cannot be read, or the lease cannot be kept.
    pub(crate) fn settle(
        &self,
        driver: &DriverName,
        volume: &str,
    ) -> io::Result<Option<LeaseEntry>> {
        let state = self.node.state.as_deref().filter(|_| volume.len() <= MAX_ID);
        let Some(state) = state else { return Ok(None) };
        let kept = self.cache.of(state, driver.as_str(), volume)?;
        let records = published::of(state, driver.as_str(), volume)?;
        let before = kept.as_ref().map(|kept| kept.lease.clone());
        let after = record::settled(before.clone(), !records.is_empty());
        let pod = records.first().map(|record| pod_in(&record.target_as_given));
        let pod = kept.map(|kept| kept.pod).or(pod).unwrap_or_default();
        let Some(lease) = after else { return Ok(None) };
        let entry =
            LeaseEntry { driver: driver.to_string(), volume_id: volume.to_owned(), pod, lease };
        if before.as_ref() != Some(&entry.lease) {
            self.cache.keep(state, &entry)?;
        } else if self.cache.is_only_remembered(&entry) {
            // The fence counts all the same, and the next round tries again.
            let _ = self.cache.keep(state, &entry);
        }
        Ok(Some(entry))
    }

    /// Reports a lease to the cloud, unless it knows or has been `silent`; hides a fenced volume.
    pub(crate) async fn report(
        &self,
        driver: &DriverName,
        entry: &LeaseEntry,
        silent: bool,
    ) -> Reported {
        let volume = &entry.volume_id;
        let Some((first, step)) = record::statement(&entry.lease, &entry.pod) else {
            let hidden = fence::hide(&self.node, driver.as_str(), volume).await;
            return if hidden { Reported::Yes } else { Reported::Later };
        };
        let Some(link) = self.client.link() else { return Reported::Yes };
        if self.cache.is_reported(link, entry) {
            return Reported::Yes;
        }
        if silent {
            return Reported::Later;
        }
        let answered = async {
            let first = LeaseEntry { lease: first, ..entry.clone() };
            if first != *entry {
                let state = self.node.state.as_deref().unwrap_or_else(|| Path::new("/"));
                self.cache.keep(state, &first)?;
            }
            self.exchange(driver, &first, step, REPORT).await
        };
        let (reported, error) = match answered.await {
            Ok(Outcome::NotNow { why } | Outcome::HeldElsewhere { why }) => (Reported::Later, why),
            Ok(_) => return Reported::Yes,
            Err(error @ NoDecision::NoAnswer(_)) => (Reported::Silent, chain(&error)),
            Err(error) => (Reported::Later, chain(&error)),
        };
        warn!(%driver, volume, error, "csi-cloud does not know whose the volume is");
        reported
    }
}

/// The uid of a pod in the path of its volume, as kubelets have it; empty if there is none.
pub fn pod_in(target: &Path) -> String {
    let mut parts = target.iter().skip_while(|part| *part != "pods").skip(1);
    let pod = parts.next();
    let volumes = parts.next();
    let pod = pod.filter(|_| volumes.is_some_and(|part| part == "volumes"));
    pod.map(|pod| pod.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_in_its_volumes_path() {
        let uid = "0a1b-2c";
        let path = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/pvc/mount");
        assert_eq!(pod_in(Path::new(&path)), uid);
        for other in ["/pods/p/mount", "/pods", "/mnt/x"] {
            assert_eq!(pod_in(Path::new(other)), "");
        }
    }
}
