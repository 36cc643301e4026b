//! The objects in the model's Kubernetes: claims, volumes, attachments, snapshots. They outlive the
//! sidecars, as with the API server. They alone decide what may exist at the drivers.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// A claim (PVC) and the volume (PV) made for it.
#[derive(Clone, Default)]
pub struct Claim {
    /// The name that CreateVolume is called with.
    pub name: String,
    /// The node that the scheduler selected; none while it has to select again.
    pub node: Option<usize>,
    /// The requested size, in bytes.
    pub size: i64,
    /// The user deleted it.
    pub deleted: bool,
    /// An attempt was made, and its outcome is unknown.
    pub open: bool,
    /// It was deleted while `open`, and the provisioner that knew of it is gone: Kubernetes itself
    /// has forgotten it. No other volume without an owner may exist.
    pub forgotten: bool,
    /// The provisioner will not do anything for it any more.
    pub settled: bool,
    /// Whether its node alone may have its volume, whatever other claims want.
    pub strict: bool,
    /// The liar made its volume: nothing is promised of that.
    pub at_liar: bool,
    /// The volume.
    pub volume: Option<ApiVolume>,
    /// Increases with every change that sidecars watch.
    pub version: u64,
}

/// A volume (PV).
#[derive(Clone, Default)]
pub struct ApiVolume {
    /// The driver's id.
    pub id: String,
    /// Where it lives.
    pub node: usize,
    /// Its size, in bytes.
    pub size: i64,
    /// DeleteVolume was answered OK.
    pub gone: bool,
}

/// A volume at a node (VolumeAttachment).
#[derive(Clone, Default)]
pub struct Attachment {
    /// Which claim's volume.
    pub claim: usize,
    /// It shall end.
    pub deleting: bool,
    /// ControllerPublishVolume was answered OK.
    pub attached: bool,
    /// It is no more.
    pub gone: bool,
    /// The error that the last attempt left in its status.
    pub error: String,
    /// As [`Claim::version`].
    pub version: u64,
}

/// A snapshot (VolumeSnapshotContent).
#[derive(Clone, Default)]
pub struct Snapshot {
    /// The name that CreateSnapshot is called with.
    pub name: String,
    /// Of which claim's volume.
    pub claim: usize,
    /// The driver's id.
    pub id: Option<String>,
    /// The driver said that it is ready.
    pub ready: bool,
    /// The annotation `volumesnapshot-being-created`: the outcome of an attempt is open.
    pub being_created: bool,
    /// The user deleted it.
    pub deleting: bool,
    /// It is no more.
    pub gone: bool,
    /// As [`Claim::version`].
    pub version: u64,
}

/// All objects.
#[derive(Default)]
pub struct Objects {
    /// Claims.
    pub claims: Vec<Claim>,
    /// Attachments.
    pub attachments: Vec<Attachment>,
    /// Snapshots.
    pub snapshots: Vec<Snapshot>,
}

/// The API server. A clone is the same one.
#[derive(Clone)]
pub struct Api {
    objects: Arc<Mutex<Objects>>,
    changes: watch::Sender<u64>,
}

impl Default for Api {
    fn default() -> Self {
        Self { objects: Arc::default(), changes: watch::Sender::new(0) }
    }
}

impl Api {
    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock()
    }

    /// Reads.
    pub fn read<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        look(&self.lock())
    }

    /// Applies a change, and notifies all watchers.
    pub fn change<T>(&self, change: impl FnOnce(&mut Objects) -> T) -> T {
        let result = change(&mut self.lock());
        self.changes.send_modify(|changes| *changes += 1);
        result
    }

    /// Marked as changed with every change from now on.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A claim as it is now.
    pub fn claim(&self, at: usize) -> Claim {
        self.read(|objects| objects.claims.get(at).cloned().unwrap_or_default())
    }

    /// An attachment as it is now.
    pub fn attachment(&self, at: usize) -> Attachment {
        self.read(|objects| objects.attachments.get(at).cloned().unwrap_or_default())
    }

    /// A snapshot as it is now.
    pub fn snapshot(&self, at: usize) -> Snapshot {
        self.read(|objects| objects.snapshots.get(at).cloned().unwrap_or_default())
    }

    /// Changes a claim.
    pub fn change_claim(&self, at: usize, change: impl FnOnce(&mut Claim)) {
        self.change(|objects| {
            if let Some(claim) = objects.claims.get_mut(at) {
                change(claim);
                claim.version += 1;
            }
        });
    }

    /// Changes an attachment.
    pub fn change_attachment(&self, at: usize, change: impl FnOnce(&mut Attachment)) {
        self.change(|objects| {
            if let Some(attachment) = objects.attachments.get_mut(at) {
                change(attachment);
                attachment.version += 1;
            }
        });
    }

    /// Changes a snapshot.
    pub fn change_snapshot(&self, at: usize, change: impl FnOnce(&mut Snapshot)) {
        self.change(|objects| {
            if let Some(snapshot) = objects.snapshots.get_mut(at) {
                change(snapshot);
                snapshot.version += 1;
            }
        });
    }
}

impl Objects {
    /// Whether a claim's volume may be deleted: nobody uses it, and no snapshot of it is on its way
    /// (the finalizer `pvc-as-source-protection`).
    pub fn free(&self, claim: usize) -> bool {
        self.attachments.iter().all(|attachment| attachment.claim != claim || attachment.gone)
            && self.snapshots.iter().all(|of| of.claim != claim || of.gone || of.ready)
    }

    /// Whether the liar made a claim's volume.
    pub fn is_at_liar(&self, claim: usize) -> bool {
        self.claims.get(claim).is_some_and(|claim| claim.at_liar)
    }

    /// Deletes a claim, its pods first.
    pub fn delete_claim(&mut self, at: usize) {
        for attachment in self.attachments.iter_mut().filter(|of| of.claim == at && !of.gone) {
            attachment.deleting = true;
            attachment.version += 1;
        }
        if let Some(claim) = self.claims.get_mut(at) {
            claim.deleted = true;
            claim.version += 1;
        }
    }
}
