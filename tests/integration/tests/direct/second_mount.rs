//! A second mount of a volume, as Kata's runtime-rs makes it: by a device of its own upon the same
//! bytes. csi-edge is away. Needs root and loop devices: `make direct`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, ensure};
use guest::contract::Runtime;
use serde_json::Value;

use super::handover::Handover;

/// A loop device upon a file, while it lives.
struct Loop(PathBuf);

impl Loop {
    fn upon(file: &Path) -> anyhow::Result<Self> {
        let made = Command::new("losetup").args(["-f", "--show"]).arg(file).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Ok(Self(String::from_utf8(made.stdout)?.trim().into()))
    }

    /// Mounts it in a mount namespace that ends at once.
    fn mount(&self, at: &Path) -> anyhow::Result<Output> {
        let command = "mount \"$0\" \"$1\" && echo second > \"$1/hello\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "--propagation", "private", "sh", "-c", command]);
        Ok(unshare.arg(&self.0).arg(at).output()?)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// The file of the loop device in the only entry.
fn backing_file(at: &Handover) -> anyhow::Result<PathBuf> {
    let entry = std::fs::read_dir(at.scene.root())?.next().context("no entry")??.path();
    let info: Value = serde_json::from_slice(&std::fs::read(entry.join("mountInfo.json"))?)?;
    let device = Path::new(info["device"].as_str().context("no device")?).file_name();
    let sys = Path::new("/sys/block").join(device.context("no name")?).join("loop/backing_file");
    Ok(std::fs::read_to_string(sys)?.trim().into())
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn the_kernel_of_a_second_guest_refuses_ext4_that_the_first_one_has_mounted()
-> anyhow::Result<()> {
    let (mut at, target) = Handover::published().await?;
    let mut first = at.guest(Runtime::Rs, &target).await?;
    first.tell("write hello from the first guest").await?;
    at.scene.kill_edge().await?;
    let second = Loop::upon(&backing_file(&at)?)?;
    let place = at.scene.stand.dir().join("second");
    std::fs::create_dir(&place)?;
    let refused = second.mount(&place)?;
    let why = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success() && why.contains("busy"), "it was mounted twice: {why}");
    drop(second);
    assert_eq!(first.tell("read hello").await?, "from the first guest");
    first.stop().await?;
    at.scene.start_edge().await?;
    at.end_at(&target).await
}
