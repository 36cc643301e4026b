//! Makes the device that a driver has published ready, and hands it to the runtime.

use std::io;
use std::path::Path;

use proto::csi::direct::DeviceKind;
use proto::csi::direct::{Direct, FileSystem, Mount};
use tracing::warn;

use super::cover;
use super::node::Node;
use super::release;
use super::target;
use crate::device::{block, spdk, vfio};
use crate::error::{Error, HANDED_OVER, not_yet};
use crate::format::grow;
use crate::format::grow::Growing;
use crate::format::mmp;
use crate::format::prepare;
use crate::format::prepare::{FormatError, FormatSettings, Ready};
use crate::records::journal::Journal;
use crate::records::published::{Custody, PublicationState, Published};
use crate::runtimes::entry;
use crate::runtimes::mount_info::MountInfo;
use crate::runtimes::prerequisites;
use crate::runtimes::prerequisites::CheckVerdict;

/// What a publication asks of the file system.
pub(crate) struct FileSystemRequest<'a> {
    pub(crate) direct: &'a Direct,
    pub(crate) mount: &'a Mount,
    /// Why the pod does not get an xfs, which a volume without `fstype` may turn out to be.
    pub(crate) no_xfs: Option<String>,
}

/// Prepares the device that the driver has published, and gives it to the runtime.
///
/// # Errors
/// There is no device that can be handed over, or its file system cannot be made ready. It also
/// fails if there is no state directory, a record cannot be kept, or the runtime cannot be told.
pub(crate) async fn attach(
    node: &Node,
    mut record: Published,
    wanted: FileSystemRequest<'_>,
) -> Result<(), Error> {
    let volume = record.volume_id.clone();
    let state = node.state(&volume)?;
    // The driver has published it since. That is durable before anybody can have the device.
    record.unpublishing = false;
    record.custody = Custody::default();
    match record.kind {
        DeviceKind::Block | DeviceKind::Vfio => prepare_device(node, &mut record, &wanted).await?,
        DeviceKind::Spdk => {
            let socket = spdk::socket(&record.private_path);
            record.device = socket.map_err(not_yet(&volume, HANDED_OVER))?;
            record.fstype = wanted.mount.file_system.unwrap_or_default().as_str().into();
        }
    }
    if record.kind == DeviceKind::Vfio {
        let pci = vfio::controller(&node.host, record.number, node.nvme);
        let pci = pci.map_err(not_yet(&volume, HANDED_OVER))?;
        record.device.clone_from(&pci.device);
        // Durable first, so that the device is given back whatever happens now.
        record.keep(state).map_err(not_yet(&volume, HANDED_OVER))?;
        let host = node.host.clone();
        let given = vfio::aside(move || pci.hand_over(&host, &vfio::kernel)).await;
        given.map_err(not_yet(&volume, HANDED_OVER))?;
    }
    record.state = PublicationState::Published;
    record.keep(state).map_err(not_yet(&volume, HANDED_OVER))?;
    show(node, &record)
}

/// Finds the block device that the driver has published, and prepares its file system.
async fn prepare_device(
    node: &Node,
    record: &mut Published,
    wanted: &FileSystemRequest<'_>,
) -> Result<(), Error> {
    let volume = record.volume_id.clone();
    let state = node.state(&volume)?;
    let device = block::device(&node.host, &record.private_path).await;
    let device = device.map_err(not_yet(&volume, HANDED_OVER))?;
    release::claim(node, record, &device)?;
    let growing = Growing::of(state);
    let mended = grow::mend(&node.host, &growing, &record.private_path).await;
    mended.map_err(not_yet(&volume, HANDED_OVER))?;
    let ready = prepare_file_system(state, record, wanted.direct, wanted.mount).await;
    let ready = ready.map_err(not_yet(&volume, HANDED_OVER))?;
    if ready.file_system == FileSystem::Xfs
        && let Some(why) = &wanted.no_xfs
    {
        return Err(not_yet(&volume, HANDED_OVER)(why.clone()));
    }
    // It may have grown while nobody had it. Once it is handed over, only the guest can grow it.
    let file_system = (ready.file_system.as_str(), ready.uuid.as_str());
    let filled = grow::fill(&node.host, &growing, &record.private_path, file_system).await;
    filled.map_err(not_yet(&volume, HANDED_OVER))?;
    // Whatever runtime its pod has: the handler is often not known, and a volume changes its pod.
    // A guest that only reads does not take part.
    let is_written = !record.options.iter().any(|option| option == "ro");
    if ready.file_system == FileSystem::Ext4 && is_written {
        let protected = mmp::protect(&record.private_path).await;
        protected.map_err(not_yet(&volume, HANDED_OVER))?;
    }
    record.device = device.path;
    record.fstype = ready.file_system.as_str().to_owned();
    record.uuid = ready.uuid;
    Ok(())
}

async fn prepare_file_system(
    state: &Path,
    record: &Published,
    direct: &Direct,
    mount: &Mount,
) -> Result<Ready, FormatError> {
    let journal = Journal::of(state, &record.driver, &record.volume_id);
    let wanted = FormatSettings {
        file_system: mount.file_system,
        mkfs: &direct.mkfs,
        blank: direct.blank,
        fsck: direct.fsck,
    };
    prepare::ready(&record.private_path, &journal, wanted, &|_| Ok(())).await
}

/// Tells the runtime of a volume, and makes the directory in whose place the runtime mounts. The
/// directory is covered first, so that nobody can ever write there.
///
/// # Errors
/// The target cannot be made or covered, or the entry cannot be published. A target without a cover
/// is no error if the runtimes passed their check.
pub(crate) fn show(node: &Node, record: &Published) -> Result<(), Error> {
    make_target(node, record)?;
    let shown = node.root.publish(&record.target, &MountInfo::of(record));
    shown.map_err(not_yet(&record.volume_id, HANDED_OVER))
}

/// Tells the runtime again of a volume that was published before: writes its damaged entry anew.
/// The volume is none that its driver was asked to take back.
///
/// # Errors
/// The target cannot be made or covered, the entry is somebody else's, or it cannot be written.
pub(crate) fn show_again(node: &Node, record: &Published) -> Result<(), Error> {
    make_target(node, record)?;
    let shown = entry::restore(&node.root, record);
    shown.map_err(not_yet(&record.volume_id, HANDED_OVER))
}

/// Makes the directory at the target, and covers it.
fn make_target(node: &Node, record: &Published) -> Result<(), Error> {
    let not_done = not_yet::<io::Error>(&record.volume_id, HANDED_OVER);
    target::make(&record.target).map_err(&not_done)?;
    cover_unless_checked(node, record).map_err(not_done)
}

/// Covers the target. Without the right to mount, only runtimes that passed their check get a
/// volume: they do not share the directory.
fn cover_unless_checked(node: &Node, record: &Published) -> io::Result<()> {
    let Err(error) = cover::cover(&node.host.proc, &record.target) else { return Ok(()) };
    let target = record.target.display();
    let why = match prerequisites::check(&node.checks.root).verdict() {
        CheckVerdict::Passed => {
            let volume = &record.volume_id;
            warn!(volume, %target, %error, "the target is not covered; its runtimes are checked");
            return Ok(());
        }
        CheckVerdict::Failed(faults) => faults,
        CheckVerdict::Unknown => "no configuration of a runtime was found".into(),
    };
    Err(io::Error::other(format!(
        "the target {target} cannot be covered by a read-only mount ({error}), and the runtimes \
         did not pass `csi-edge direct check` ({why})"
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use proto::csi::direct;
    use proto::host::chain;
    use proto::host::publish::{Existing, publish};

    use super::*;
    use crate::device::host::Host;
    use crate::records::published;
    use crate::records::published::tests::record;
    use crate::runtimes::mount_info::Root;
    use crate::runtimes::prerequisites::Checks;

    #[tokio::test]
    async fn what_the_driver_has_published_again_is_not_being_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host { proc: dir.path().join("proc"), ..Host::default() };
        let checks = Checks { root: dir.path().join("host"), required: false };
        let root = Root::new(dir.path().join("entries"));
        let node = Node::new(Some(dir.path().to_owned()), host, root).with_checks(checks);
        let private_path = dir.path().join("socket");
        let _socket = UnixListener::bind(&private_path).unwrap();
        let target = dir.path().join("mount");
        let kind = DeviceKind::Spdk;
        let state = PublicationState::Begun;
        let volume = Published { target, private_path, kind, state, ..record("v") };
        let asked = Published { unpublishing: true, ..volume };
        let direct = Direct::read(&[(direct::KEY.to_owned(), "kata".to_owned())].into());
        let direct = direct.unwrap().unwrap();
        let mount = Mount { file_system: None, flags: Vec::new(), group: String::new() };
        // Its target cannot be covered; it was the driver's turn before.
        let wanted = FileSystemRequest { direct: &direct, mount: &mount, no_xfs: None };
        attach(&node, asked, wanted).await.unwrap_err();
        let kept = published::all(dir.path()).unwrap().pop().unwrap();
        assert_eq!((kept.state, kept.unpublishing), (PublicationState::Published, false));
    }

    #[test]
    fn without_a_cover_only_checked_runtimes_get_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        // The host does not see what is mounted here.
        let host = Host { proc: dir.path().join("proc"), ..Host::default() };
        let checks = Checks { root: dir.path().join("host"), required: false };
        let node = Node::new(None, host, Root::new(dir.path().join("entries")));
        let node = node.with_checks(checks);
        let target = dir.path().canonicalize().unwrap().join("mount");
        let record = Published { target, ..record("v") };
        let shown = || show(&node, &record).map_err(|error| chain(&error));
        let has_entry = || node.root.entry(&record.target).unwrap().exists();
        std::fs::create_dir(dir.path().join("host")).unwrap();
        let refused = shown().unwrap_err();
        assert!(refused.contains("no configuration of a runtime was found"), "{refused}");
        let path = dir.path().join("host/etc/kata-containers/configuration.toml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let configure = |disabled: bool| {
            let text = format!("[hypervisor.qemu]\ndisable_block_device_use = {disabled}\n");
            publish(&path, text.as_bytes(), 0o600, Existing::Replace).unwrap();
        };
        configure(true);
        let refused = shown().unwrap_err();
        assert!(refused.contains("set it to false") && !has_entry(), "{refused}");
        configure(false);
        shown().unwrap();
        assert!(has_entry() && !cover::is_cover(&record.target));
    }
}
