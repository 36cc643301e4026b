//! Exclusive use between nodes: a direct volume that another node could have is handed over here only with the cloud's
//! word that it is this node's. That word is kept, so nobody need be asked while it lasts.
//!
//! All of it is done with the right to the volume. Whatever has no record is let go; the cloud is told at once, or when
//! there is a link.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proto::error::{Error, chain};
use proto::identity::DriverName;
use proto::own::{Answer, Step};
use proto::topology::Scope;
use tracing::{error, info, warn};

use super::published::{self, Published};
use super::standing::Absent;
use super::{Direct, not_yet};

pub(crate) mod asks;
pub mod lease;

use lease::{Entry, Lease, Wish};

const HANDED_OVER: &str = "handed over directly";
/// How long a pod's volume waits for the cloud's word.
const ASK: Duration = Duration::from_secs(5);
/// How long an unpublished volume's caller waits until the cloud knows.
const TELL: Duration = Duration::from_secs(2);
/// How soon what could not be stated is stated again: at first, and twice that each time, up to a minute.
const AGAIN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(60);

impl Direct {
    /// Makes a volume this node's before it is handed over, if another node could have it.
    pub(super) async fn own(
        &self,
        driver: &DriverName,
        volume: &str,
        (target, recorded): (&Path, bool),
    ) -> Result<(), Arc<Error>> {
        let state = self.state(volume)?;
        let kept = lease::of(state, driver.as_str(), volume).map_err(not_yet(volume, HANDED_OVER))?;
        let shared = self.is_shared(driver);
        let lease = lease::settled(kept.as_ref().map(|kept| kept.lease.clone()), recorded, shared);
        let mut entry = Entry {
            driver: driver.to_string(),
            volume_id: volume.to_owned(),
            pod: pod(target),
            lease: Lease::Unsettled,
        };
        match lease::wish(lease.as_ref()) {
            Wish::Has(lease) => entry.lease = lease,
            Wish::Fenced(why) => {
                return Err(Error::Owned { volume: volume.to_owned(), why: fenced(&why) }.into());
            }
            Wish::Ask if !shared => return Ok(()),
            Wish::Ask => {}
        }
        if kept.as_ref() != Some(&entry) {
            entry.keep(state).map_err(not_yet(volume, HANDED_OVER))?;
        }
        if entry.lease == Lease::Unsettled { self.ask_for(driver, entry).await } else { Ok(()) }
    }

    /// Asks the cloud for a volume.
    async fn ask_for(&self, driver: &DriverName, entry: Entry) -> Result<(), Arc<Error>> {
        let volume = entry.volume_id.clone();
        let state = self.state(&volume)?;
        let ask = Step::Ask { pod: entry.pod.clone() };
        let answer = self.calls.asks().ask(driver, &volume, ask, ASK).await;
        let answer = answer.map_err(not_yet(&volume, HANDED_OVER))?;
        keep(state, &entry, lease::answered(Lease::Unsettled, &answer))
            .map_err(not_yet(&volume, HANDED_OVER))?;
        match answer {
            Answer::Held { epoch } => {
                info!(%driver, volume, epoch, "is this node's");
                Ok(())
            }
            Answer::Anothers { why } | Answer::Fenced { why } => Err(Error::Owned { volume, why }.into()),
            Answer::NotNow { why } => Err(not_yet(&volume, HANDED_OVER)(why)),
            Answer::Released => Err(not_yet(&volume, HANDED_OVER)("csi-cloud answered something else")),
        }
    }

    /// Whether another node could have the volumes of a driver; also if that was never told.
    fn is_shared(&self, driver: &DriverName) -> bool {
        self.calls.scopes().of(driver) != Some(Scope::Node)
    }

    /// After something was done with a volume, and with the right to it: what is not used here any more is let go, and the
    /// cloud told if it can be.
    pub(super) async fn let_go(&self, driver: &DriverName, volume: &str) {
        let stated = match self.settle_owner(driver, volume) {
            Ok(Some(entry))
                if !matches!(entry.lease, Lease::Held { .. }) && self.calls.asks().is_linked() =>
            {
                self.state_owner(driver, &entry).await
            }
            Ok(_) => return,
            Err(error) => {
                let error = chain(&error);
                return warn!(%driver, volume, error, "it is not known whose the volume is; it stays this node's");
            }
        };
        if !stated {
            // The next one who states all does it.
            self.calls.asks().stir();
        }
    }

    /// Makes durable how a volume stands when nothing is being done with it.
    fn settle_owner(&self, driver: &DriverName, volume: &str) -> io::Result<Option<Entry>> {
        let Some(state) = &self.state else { return Ok(None) };
        let kept = lease::of(state, driver.as_str(), volume)?;
        let records = published::of(state, driver.as_str(), volume)?;
        let before = kept.as_ref().map(|kept| kept.lease.clone());
        let after = lease::settled(before.clone(), !records.is_empty(), self.is_shared(driver));
        let pod = records.first().map(|record| pod(&record.target_as_given));
        let pod = kept.map(|kept| kept.pod).or(pod).unwrap_or_default();
        let (driver, volume_id) = (driver.to_string(), volume.to_owned());
        let entry = after.map(|lease| Entry { driver, volume_id, pod, lease });
        if let Some(entry) = entry.as_ref().filter(|entry| before.as_ref() != Some(&entry.lease)) {
            entry.keep(state)?;
        }
        Ok(entry)
    }

    /// Tells the cloud how a volume stands, and makes its answer durable; false if it has to be told again.
    async fn state_owner(&self, driver: &DriverName, entry: &Entry) -> bool {
        let Some(state) = &self.state else { return true };
        let Some((first, step)) = lease::statement(&entry.lease, &entry.pod) else { return true };
        let volume = &entry.volume_id;
        let said = async {
            if first != entry.lease {
                Entry { lease: first.clone(), ..entry.clone() }.keep(state).map_err(|error| chain(&error))?;
            }
            let answer = self.calls.asks().ask(driver, volume, step, TELL).await;
            let answer = answer.map_err(|error| error.to_string())?;
            let after = lease::answered(first.clone(), &answer);
            if let Some(lease @ Lease::Fenced { why, .. }) = &after {
                self.fence(driver, entry, why).await;
                return keep(state, entry, Some(lease.clone())).map_err(|error| chain(&error));
            }
            if after.as_ref() != Some(&first) || first != entry.lease {
                keep(state, entry, after).map_err(|error| chain(&error))?;
            }
            match answer {
                Answer::NotNow { why } => Err(why),
                _ => Ok(()),
            }
        };
        let said: Result<(), String> = said.await;
        said.inspect_err(|error| warn!(%driver, volume, error, "csi-cloud is not told whose the volume is"))
            .is_ok()
    }

    /// The volume was taken from this node: no guest that begins now is to find it. One that has it is left alone, and
    /// unpublishing it ends this.
    async fn fence(&self, driver: &DriverName, entry: &Entry, why: &str) {
        let volume = &entry.volume_id;
        error!(%driver, volume, why, "the volume was taken from this node; what a guest here writes to it destroys data");
        let state = self.state.as_deref().unwrap_or_else(|| Path::new("/"));
        for record in published::of(state, driver.as_str(), volume).unwrap_or_default() {
            let hidden = match self.is_let_go(&record, Absent::Lost).await {
                Ok(()) => {
                    self.root.remove(&record.target, driver.as_str(), volume).map_err(|error| chain(&error))
                }
                Err(error) => Err(chain(&error)),
            };
            if let Err(error) = hidden {
                warn!(%driver, volume, error, "and its runtime is still told of it");
            }
        }
    }

    /// Whether a volume was taken from this node, or that cannot be read.
    pub(super) fn is_fenced(&self, record: &Published) -> bool {
        let Some(state) = &self.state else { return false };
        let kept = lease::of(state, &record.driver, &record.volume_id);
        kept.map_or(true, |kept| kept.is_some_and(|kept| matches!(kept.lease, Lease::Fenced { .. })))
    }

    /// Lets go what is not used, and holds what is, as a csi-edge left it that has ended. Nobody is asked.
    pub fn settle_owners(&self) {
        for (driver, volume) in self.owned() {
            if let Err(error) = self.settle_owner(&driver, &volume) {
                warn!(%driver, volume, error = chain(&error), "it is not known whose the volume is");
            }
        }
    }

    /// Tells the cloud of all volumes, whenever there is a new link, until told to stop.
    pub async fn state_owners(self: Arc<Self>) {
        let (mut news, mut wait) = (self.calls.asks().news(), AGAIN);
        loop {
            news.borrow_and_update();
            let all = !self.calls.asks().is_linked() || self.state_all().await;
            tokio::select! {
                _ = news.changed() => wait = AGAIN,
                () = tokio::time::sleep(wait), if !all => wait = (wait * 2).min(SELDOM),
            }
        }
    }

    /// Whether the cloud knows of all.
    async fn state_all(&self) -> bool {
        let mut all = true;
        for (driver, volume) in self.owned() {
            all &= self.state_one(&driver, &volume).await;
            if !self.calls.asks().is_linked() {
                return true;
            }
        }
        all
    }

    async fn state_one(&self, driver: &DriverName, volume: &str) -> bool {
        let _stating = Stating::of(self, driver, volume);
        // Whoever does something with it tells of it, but not that it holds it.
        let Some(_busy) = self.take(driver, volume) else { return false };
        match self.settle_owner(driver, volume) {
            Ok(Some(entry)) => self.state_owner(driver, &entry).await,
            Ok(None) => true,
            // It stays so until somebody looks; that was said when csi-edge began.
            Err(_) => true,
        }
    }

    /// The volumes that are published, or of which it is kept whose they are.
    fn owned(&self) -> Vec<(DriverName, String)> {
        let Some(state) = &self.state else { return Vec::new() };
        let records = published::each(state).unwrap_or_default().into_iter().flatten();
        let records = records.map(|record| (record.driver, record.volume_id));
        let kept = lease::all(state).unwrap_or_default().into_iter().flatten();
        let kept = kept.map(|entry| (entry.driver, entry.volume_id));
        let all: BTreeMap<_, _> = records.chain(kept).map(|volume| (volume, ())).collect();
        all.into_keys().filter_map(|(driver, volume)| Some((driver.parse().ok()?, volume))).collect()
    }
}

/// Says of which volume the cloud is being told, until that has ended.
struct Stating<'a>(&'a Direct);

impl<'a> Stating<'a> {
    fn of(direct: &'a Direct, driver: &DriverName, volume: &str) -> Self {
        direct.stating.send_replace(Some((driver.clone(), volume.to_owned())));
        Self(direct)
    }
}

impl Drop for Stating<'_> {
    fn drop(&mut self) {
        self.0.stating.send_replace(None);
    }
}

/// Makes durable how a volume stands after an answer.
fn keep(state: &Path, entry: &Entry, lease: Option<Lease>) -> io::Result<()> {
    match lease {
        Some(lease) => Entry { lease, ..entry.clone() }.keep(state),
        None => lease::forget(state, &entry.driver, &entry.volume_id),
    }
}

fn fenced(why: &str) -> String {
    format!("{why}. What is here may be older than what another has written; unpublish it, and ask again")
}

/// The UID of a pod in the path of its volume, as kubelets have it; empty if it is not there.
fn pod(target: &Path) -> String {
    let mut parts = target.iter().skip_while(|part| *part != "pods").skip(1);
    let (pod, volumes) = (parts.next(), parts.next());
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
        assert_eq!(pod(Path::new(&path)), uid);
        for other in ["/pods/p/mount", "/pods", "/mnt/x"] {
            assert_eq!(pod(Path::new(other)), "");
        }
    }
}
