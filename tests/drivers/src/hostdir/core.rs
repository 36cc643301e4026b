//! The driver's state: its settings, the three shelves of objects, and who works on them.

use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use parking_lot::{Mutex, MutexGuard};
use proto::csi::{Topology, TopologyRequirement, Volume};
use tonic::Status;

use super::locks::Locks;
use super::record::{Group, Record as _, Snapshot, VolumeRecord, topology};
use super::store::Shelf;
use super::{check, data, fail, loops, mounts};

/// How the driver presents itself.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The plugin's name.
    pub name: String,
    /// The id of this node, the only one.
    pub node_id: String,
    /// The most volumes that may be published to the node; 0 for any number.
    pub attach_limit: u32,
    /// The most bytes of all volumes together; 0 for the size of the file system.
    pub capacity: i64,
    /// A new volume's topology is the first that the caller prefers, whichever node this is, as
    /// that of some drivers.
    pub echo_preferred: bool,
    /// The file server whose directory the state is. Drivers of several nodes use it then, each
    /// can manage any volume, and a volume is a directory. None if the volumes are this node's.
    pub server: Option<String>,
}

/// The state that all calls share.
pub(super) struct Core {
    pub(super) settings: Settings,
    pub(super) state: PathBuf,
    pub(super) volumes: Shelf<VolumeRecord>,
    pub(super) snapshots: Shelf<Snapshot>,
    pub(super) groups: Shelf<Group>,
    pub(super) locks: Locks,
    /// Held while the volumes of the node are counted and one is added.
    pub(super) attaching: Mutex<()>,
    /// Held by the call whose turn it is ([`Core::turn`]).
    turns: Mutex<()>,
    /// Another driver on this state would take what is being made for half-made. None if the state
    /// is a file server's.
    pub(super) _alone: Option<Alone>,
}

/// The only driver on a state directory, until it is dropped.
///
/// The lock is released explicitly, because a lock ends only with the last copy of its descriptor.
/// A child that another thread starts has a copy until it calls `exec`.
pub(super) struct Alone(pub(super) File);

impl Alone {
    fn on(state: &Path) -> anyhow::Result<Self> {
        let file = File::create(state.join("lock")).context("cannot make the lock file")?;
        file.try_lock().with_context(|| format!("another driver uses {}", state.display()))?;
        Ok(Self(file))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // A lock that is not released here ends with its descriptor, a little later.
        let _ = self.0.unlock();
    }
}

impl Core {
    pub(super) fn open(state: &Path, settings: Settings) -> anyhow::Result<Self> {
        fs::create_dir_all(state).with_context(|| format!("cannot make {}", state.display()))?;
        // The kernel names files of loop devices by their full paths.
        let state = fs::canonicalize(state)
            .with_context(|| format!("cannot resolve {}", state.display()))?;
        let is_shared = settings.server.is_some();
        let alone = (!is_shared).then(|| Alone::on(&state)).transpose()?;
        let owner = is_shared.then_some(settings.node_id.as_str());
        let core = Self {
            _alone: alone,
            turns: Mutex::default(),
            volumes: Shelf::open(&state, owner)?,
            snapshots: Shelf::open(&state, owner)?,
            groups: Shelf::open(&state, owner)?,
            settings,
            locks: Locks::default(),
            attaching: Mutex::default(),
            state,
        };
        if is_shared {
            // Half-made members may be another node's, and mounts are nobody's record.
            return Ok(core);
        }
        core.sweep_members().map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        core.forget_lost_mounts().map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        Ok(core)
    }

    /// Removes the members of group snapshots that were never finished, or are half-deleted.
    fn sweep_members(&self) -> Result<(), Status> {
        let lost = |snapshot: &Snapshot| {
            snapshot.group.as_deref().is_some_and(|group| self.groups.get(group).is_none())
        };
        for snapshot in self.snapshots.all().iter().filter(|snapshot| lost(snapshot)) {
            self.snapshots.remove(snapshot.id())?;
        }
        Ok(())
    }

    /// Forgets what is not mounted or attached any more: the node was restarted, or a private mount
    /// namespace ended. A kubelet that starts again looks for volumes in the directories of pods.
    /// So it unstages no raw volume that it had unpublished before.
    fn forget_lost_mounts(&self) -> Result<(), Status> {
        for mut volume in self.volumes.all() {
            let before = volume.targets.len();
            let staged = volume.staged.is_some();
            let mut idle = Vec::new();
            volume.targets.retain(|path, target| {
                let kept = mounts::is_mount(path);
                idle.extend(target.device.take_if(|_| !kept));
                kept
            });
            if let Some(there) = &volume.staged {
                let kept = match volume.block {
                    true => loops::attached(&self.data(&volume))?.is_some(),
                    false => mounts::is_mount(&there.path),
                };
                volume.staged.take_if(|_| !kept);
            }
            if volume.targets.len() == before && volume.staged.is_some() == staged {
                continue;
            }
            for device in idle {
                loops::detach(&self.data(&volume), Some(&device))?;
            }
            self.volumes.update(volume)?;
        }
        Ok(())
    }

    /// Begins a call. On a file server's state calls take turns, and each sees what the server has
    /// now, because drivers at other nodes change it.
    pub(super) fn turn(&self) -> Result<Option<MutexGuard<'_, ()>>, Status> {
        if self.settings.server.is_none() {
            return Ok(None);
        }
        let turn = self.turns.lock();
        let read = self.volumes.reload().and_then(|()| self.snapshots.reload());
        read.map_err(|error| Status::unavailable(format!("cannot read the server: {error:#}")))?;
        Ok(Some(turn))
    }

    /// Refuses a topology that excludes this node. Volumes of a file server are accessible from all
    /// nodes.
    pub(super) fn check_place(&self, wanted: Option<&TopologyRequirement>) -> Result<(), Status> {
        if self.settings.server.is_some() {
            return Ok(());
        }
        check::topology(wanted, self.node())
    }

    /// Where volumes and snapshots are: at this node, or nowhere in particular.
    pub(super) fn topology(&self) -> Vec<Topology> {
        let is_local = self.settings.server.is_none();
        is_local.then(|| topology(self.node())).into_iter().collect()
    }

    /// A volume's CSI message. On a file server it names the share that a node mounts.
    pub(super) fn show(&self, volume: &VolumeRecord) -> Volume {
        let mut shown = volume.csi(self.topology());
        if let Some(server) = &self.settings.server {
            let data = self.data(volume);
            let share = data.strip_prefix(&self.state).unwrap_or(&data).display();
            let context = [("server", server.clone()), ("share", format!("/{share}"))];
            shown.volume_context = context.map(|(key, value)| (key.to_owned(), value)).into();
        }
        shown
    }

    /// Where a volume's data is.
    pub(super) fn data(&self, volume: &VolumeRecord) -> PathBuf {
        data::path(&self.volumes.dir(&volume.id), volume.block)
    }

    /// Where a snapshot's data is.
    pub(super) fn copy_of(&self, snapshot: &Snapshot) -> PathBuf {
        data::path(&self.snapshots.dir(&snapshot.id), snapshot.block)
    }

    pub(super) fn node(&self) -> &str {
        &self.settings.node_id
    }

    pub(super) fn volume(&self, id: &str) -> Result<VolumeRecord, Status> {
        self.volumes.get(id).ok_or_else(|| fail::no_volume(id))
    }

    pub(super) fn snapshot(&self, id: &str) -> Result<Snapshot, Status> {
        self.snapshots.get(id).ok_or_else(|| fail::no_snapshot(id))
    }
}
