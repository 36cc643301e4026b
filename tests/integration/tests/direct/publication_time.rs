//! How long a kubelet waits for a publication. Needs root and loop devices: `make direct`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use guest::contract::Runtime;
use guest::scene::mount;
use proto::csi::VolumeCapability;
use proto::csi::volume_capability::AccessType;
use proto::csi::volume_capability::access_mode::Mode;
use tokio::time::Instant;

use super::handover::Handover;
use super::second_mount::backing_file;

/// The time after which a kubelet gives a call up.
const KUBELET: Duration = Duration::from_secs(120);
/// How often each publication is measured.
const TIMES: usize = 7;

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let copied = Command::new("cp").args(["--sparse=always", "--"]).args([from, to]).status()?;
    ensure!(copied.success(), "{} cannot be copied", from.display());
    Ok(())
}

/// The access of a pod that writes, and of one that only reads. The latter's volume is not
/// protected, as no volume was before.
fn access(is_read_only: bool) -> VolumeCapability {
    let mut access = mount(Mode::SingleNodeSingleWriter, "ext4", "");
    if let Some(AccessType::Mount(mount)) = &mut access.access_type
        && is_read_only
    {
        mount.mount_flags.push("ro".into());
    }
    access
}

struct Measured {
    at: Handover,
    target: PathBuf,
}

impl Measured {
    /// Publishes the volume, and returns how long that took.
    async fn publish(&mut self, is_read_only: bool) -> anyhow::Result<Duration> {
        self.at.volume.capability = access(is_read_only);
        let begun = Instant::now();
        self.at.publish(&self.target).await?;
        Ok(begun.elapsed())
    }

    /// The same of a volume that is unpublished then.
    async fn once(&mut self, is_read_only: bool) -> anyhow::Result<Duration> {
        let took = self.publish(is_read_only).await?;
        self.at.unpublish(&self.target).await?;
        Ok(took)
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_publication_is_answered_before_a_kubelet_gives_it_up() -> anyhow::Result<()> {
    let at = Handover::of("node", access(false)).await?;
    let target = at.scene.target("pod")?;
    let mut measured = Measured { at, target };
    measured.publish(true).await?;
    let file = backing_file(&measured.at)?;
    measured.at.unpublish(&measured.target).await?;
    let dir = measured.at.scene.stand.dir().to_owned();
    let [unprotected, crashed] = ["unprotected", "crashed"].map(|name| dir.join(name));
    copy(&file, &unprotected)?;
    let mut took = [const { Vec::new() }; 3];
    for _ in 0..TIMES {
        copy(&unprotected, &file)?;
        for (took, is_read_only) in took.iter_mut().zip([true, false, false]) {
            took.push(measured.once(is_read_only).await?);
        }
    }
    let [without, first, later] = took.map(|mut took| {
        took.sort();
        took[took.len() / 2]
    });

    measured.publish(false).await?;
    let mut guest = measured.at.guest(Runtime::Go, &measured.target).await?;
    guest.tell("write file whole").await?;
    // As it is when the machine of the guest is switched off.
    copy(&file, &crashed)?;
    guest.stop().await?;
    measured.at.unpublish(&measured.target).await?;
    copy(&crashed, &file)?;
    let after_crash = measured.publish(false).await?;
    println!(
        "a clean volume is published in {without:?} without its protection, in {first:?} when \
         that is switched on, in {later:?} later; in {after_crash:?} after a crash"
    );
    ensure!(after_crash < KUBELET, "a kubelet does not wait {after_crash:?}");
    let Measured { at, target } = measured;
    assert_eq!(at.read(Runtime::Go, &target, "file").await?, "whole");
    at.end_at(&target).await
}
