//! What is seen to again and again, whether or not anybody calls: the cloud knows how each volume stands, what was taken
//! from this node is told to no runtime, and what pods that are gone have left is taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use proto::control::lease::MAX_ID;
use proto::csi::rpc;
use proto::error::chain;
use proto::names::DriverName;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::super::published;
use super::super::published::{Kind, Published};
use super::super::{Asking, Direct};
use super::Told;
use super::lease;

/// How soon what was left undone is done again: at first, and twice that each time, up to the last.
const AGAIN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(60);
/// How soon all is looked at again when nothing was left.
const LOOK: Duration = Duration::from_secs(10);
/// How long a pod's directory is missing before what it had is taken back without a call.
const GONE: Duration = Duration::from_secs(15);

/// The targets of pods that are gone, and since when.
type Orphans = BTreeMap<PathBuf, Instant>;

impl Direct {
    /// Lets go what is not used, and holds what is, as a csi-edge left it that has ended. Nobody is asked.
    pub fn settle_owners(&self) {
        for (driver, volume) in self.owned().0 {
            if let Err(error) = self.settle_owner(&driver, &volume) {
                warn!(%driver, volume, error = chain(&error), "it is not known whose the volume is");
            }
        }
    }

    /// Sees to all volumes, at each new link and every few seconds, until told to stop.
    pub async fn keep_owners(self: Arc<Self>) {
        let (mut news, mut wait, mut orphans) = (self.calls.asks().news(), AGAIN, Orphans::new());
        loop {
            news.borrow_and_update();
            let all = self.see_to_all().await;
            // Later, so that a node that has just linked states what it has first.
            self.take_back_all_orphans(&mut orphans);
            if all {
                wait = AGAIN;
            }
            tokio::select! {
                biased;
                _ = news.changed() => wait = AGAIN,
                () = tokio::time::sleep(LOOK), if all => {}
                () = tokio::time::sleep(wait), if !all => wait = (wait * 2).min(SELDOM),
            }
        }
    }

    /// Whether nothing was left undone.
    pub(super) async fn see_to_all(&self) -> bool {
        let (volumes, mut all) = self.owned();
        let mut silent = false;
        for (driver, volume) in volumes {
            let told = self.see_to_one(&driver, &volume, silent).await;
            all &= told == Told::Yes;
            // A link that has lost one answer may lose all, and each volume would be kept from its callers meanwhile.
            silent |= told == Told::Silent;
        }
        all
    }

    async fn see_to_one(&self, driver: &DriverName, volume: &str, silent: bool) -> Told {
        let _stating = Stating::of(self, driver, volume);
        // Whoever does something with it tells of it.
        let Some(_busy) = self.take(driver, volume) else { return Told::Later };
        match self.settle_owner(driver, volume) {
            Ok(Some(entry)) => self.see_to(driver, &entry, silent).await,
            Ok(None) => Told::Yes,
            // It stays so until somebody looks, or there is room on the disk.
            Err(error) => {
                debug!(%driver, volume, error = chain(&error), "it is not known whose the volume is");
                Told::Later
            }
        }
    }

    /// The volumes that are published, or of which it is kept whose they are; and whether these are all.
    fn owned(&self) -> (BTreeSet<(DriverName, String)>, bool) {
        let Some(state) = &self.state else { return (BTreeSet::new(), true) };
        let (records, kept) = (published::each(state), lease::all(state));
        let all = records.is_ok() && kept.is_ok();
        let records = records.unwrap_or_default().into_iter().flatten();
        let records = records.map(|record| (record.driver, record.volume_id));
        let kept = kept.unwrap_or_default().into_iter().flatten();
        let kept = kept.map(|entry| (entry.driver, entry.volume_id));
        let volumes = records.chain(kept).filter(|(_, volume)| volume.len() <= MAX_ID);
        (volumes.filter_map(|(driver, volume)| Some((driver.parse().ok()?, volume))).collect(), all)
    }

    /// Takes back what was handed over to pods that are gone, each in a task of its own: a driver takes as long as it
    /// likes.
    fn take_back_all_orphans(self: &Arc<Self>, orphans: &mut Orphans) {
        let records = self.state.as_ref().and_then(|state| published::each(state).ok()).unwrap_or_default();
        let gone: Vec<_> = records.into_iter().flatten().filter(is_orphan).collect();
        orphans.retain(|target, _| gone.iter().any(|record| record.target == *target));
        for record in gone {
            let since = *orphans.entry(record.target.clone()).or_insert_with(Instant::now);
            if since.elapsed() < GONE {
                continue;
            }
            let Ok(driver) = record.driver.parse::<DriverName>() else { continue };
            let Some(rpc) = rpc::find("/csi.v1.Node/NodeUnpublishVolume") else { continue };
            // Whoever does something with it may be taking it back, and else it is this one's turn the next time.
            let Some(busy) = self.take(&driver, &record.volume_id) else { continue };
            let direct = self.clone();
            self.tasks.spawn("direct", async move {
                let (volume, headers) = (&record.volume_id, HeaderMap::new());
                let asking = Asking { driver: &driver, rpc, headers: &headers };
                match direct.take_back_orphans(&asking, volume).await {
                    Ok(()) => direct.let_go(&driver, volume).await,
                    Err(error) => warn!(%driver, volume, error = error.chain(), "not taken back yet"),
                }
                drop(busy);
            });
        }
    }
}

/// Says which volume is being seen to, until that has ended.
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

/// Whether a volume was handed over to a kubelet's pod that is gone. A kubelet that was away when its pod went may see no
/// mount at the target and not unpublish; it removes the pod's directory in the end. The volume's directory in it says
/// nothing: a kubelet removes that after a refusal, too.
pub(in super::super) fn is_orphan(record: &Published) -> bool {
    let missing = |path: &Path| {
        std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let Some(pod) = pod_directory(&record.target) else { return false };
    // While a kubelet's whole directory is not mounted, as at a boot, nothing is known of its pods. Ours is in it, too. And
    // who is connected to SPDK's socket is not known.
    let kubelets = [pod.parent(), record.private_path.parent()];
    record.kind != Kind::Spdk && missing(pod) && !kubelets.into_iter().flatten().any(missing)
}

/// The directory of the pod whose volume is at a target: `…/pods/UID` of `…/pods/UID/volumes/kubernetes.io~csi/PV/mount`.
fn pod_directory(target: &Path) -> Option<&Path> {
    let [_, volume, plugin, volumes, pod, pods] = *target.ancestors().take(6).collect::<Vec<_>>() else {
        return None;
    };
    let named = |path: &Path, name: &str| path.file_name().is_some_and(|is| is == name);
    let kubelets = named(plugin, "kubernetes.io~csi") && named(volumes, "volumes") && named(pods, "pods");
    (kubelets && volume.file_name().is_some()).then_some(pod)
}

#[cfg(test)]
mod tests {
    use super::super::super::published::tests::record;
    use super::*;

    #[test]
    fn a_pod_is_gone_when_its_directory_is_and_others_may_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let pods = dir.path().join("pods");
        let (ours, volume) = (dir.path().join("plugins/ours"), pods.join("uid/volumes/kubernetes.io~csi/pv"));
        let record = Published { target: volume.join("mount"), private_path: ours.join("v"), ..record("v") };
        std::fs::create_dir_all(&ours).unwrap();
        assert!(!is_orphan(&record), "the kubelet's pods are not there at all");
        std::fs::create_dir_all(&volume).unwrap();
        assert!(!is_orphan(&record), "the target itself may be missing");
        std::fs::remove_dir(&volume).unwrap();
        assert!(!is_orphan(&record), "so it is after a refusal");
        std::fs::remove_dir_all(pods.join("uid")).unwrap();
        assert!(is_orphan(&record));
        assert!(!is_orphan(&Published { kind: Kind::Spdk, ..record.clone() }));
        std::fs::remove_dir(&ours).unwrap();
        assert!(!is_orphan(&record), "an older directory is below one that is not mounted");
        std::fs::create_dir(&ours).unwrap();
        for target in ["x/mount", "pods/uid/mount", "pods/uid/volumes/other/pv/mount"] {
            let elsewhere = Published { target: dir.path().join(target), ..record.clone() };
            assert!(!is_orphan(&elsewhere), "{target} is no kubelet's");
        }
    }
}
