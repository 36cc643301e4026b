//! Looks for what a stand may leave on the machine: processes, mounts, loop devices, control
//! groups.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Where the kernel shows its control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Removes what a stand's nodes leave after their namespaces end. Runtimes leave control groups by
/// design. Staged volumes leave loop devices, and the newest goes first, because the kubelet's
/// stands on the driver's.
///
/// # Errors
/// There is a process in a group, or a device is in use.
pub fn remove(stand: &str, devices: &[String]) -> anyhow::Result<()> {
    remove_below(&format!("{stand}-"), devices)
}

/// The same for the control groups whose names begin so.
///
/// # Errors
/// There is a process in a group, or a device is in use.
pub fn remove_below(prefix: &str, devices: &[String]) -> anyhow::Result<()> {
    for group in groups(prefix) {
        remove_group(&group).with_context(|| format!("cannot remove {}", group.display()))?;
    }
    for device in devices.iter().rev() {
        let attached = Path::new("/sys/block").join(device).join("loop/backing_file").exists();
        let detach = || {
            std::process::Command::new("losetup")
                .args(["--detach", &format!("/dev/{device}")])
                .stderr(std::process::Stdio::null())
                .status()
        };
        ensure!(!attached || detach()?.success(), "cannot detach {device}");
    }
    Ok(())
}

/// The names of the loop devices of files below a directory, and of those that stand on them, the
/// oldest first.
///
/// # Errors
/// The kernel does not say.
pub fn devices(dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut devices: BTreeSet<_> = loops(dir)?.into_iter().map(|(device, _)| device).collect();
    devices.extend(standing_on(&devices)?);
    let mut devices: Vec<_> = devices.into_iter().collect();
    devices.sort_by_key(|device| (device.len(), device.clone()));
    Ok(devices)
}

/// Loop devices whose file is one of these devices. The file's path says nothing when the mounts of
/// its node are gone.
fn standing_on(devices: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
    let mut under = BTreeSet::new();
    for device in devices {
        let node = std::fs::metadata(Path::new("/dev").join(device))?;
        let at = format!("{}:{}", rustix::fs::major(node.dev()), rustix::fs::minor(node.dev()));
        under.insert((node.ino().to_string(), at));
    }
    backed_by(&under)
}

/// The loop devices whose files have these inodes, of these devices.
fn backed_by(under: &BTreeSet<(String, String)>) -> anyhow::Result<Vec<String>> {
    let columns = "NAME,BACK-INO,BACK-MAJ:MIN";
    let mut command = std::process::Command::new("losetup");
    let listed = command.args(["--list", "--noheadings", "--raw", "-O", columns]).output()?;
    let error = String::from_utf8_lossy(&listed.stderr);
    anyhow::ensure!(listed.status.success(), "losetup: {error}");
    // It pads values, and escapes the blanks.
    let listed = String::from_utf8_lossy(&listed.stdout).replace("\\x20", "");
    let found = listed.lines().filter_map(|line| {
        let mut columns = line.split_whitespace().map(str::to_owned);
        let name = columns.next()?;
        under.contains(&(columns.next()?, columns.next()?)).then_some(name)
    });
    Ok(found.map(|name| name.trim_start_matches("/dev/").to_owned()).collect())
}

/// Loop devices of files below a directory, and these files. A container may have attached one:
/// then the path is as the container has it, and says nothing.
fn loops(dir: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let needle = dir.display().to_string();
    let mut found = Vec::new();
    let mut others = Vec::new();
    for device in std::fs::read_dir("/sys/block")?.filter_map(Result::ok) {
        let file =
            std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        let device = (device.file_name().display().to_string(), file.trim_end().to_owned());
        match file.starts_with(&needle) {
            true => found.push(device),
            false if !file.is_empty() => others.push(device),
            false => {}
        }
    }
    if !others.is_empty() {
        let mut inodes = BTreeSet::new();
        below(dir, &mut inodes);
        let ours = backed_by(&inodes)?;
        found.extend(others.into_iter().filter(|(device, _)| ours.contains(device)));
    }
    Ok(found)
}

/// The inodes of the images below a directory. What vanishes meanwhile has none.
fn below(dir: &Path, inodes: &mut BTreeSet<(String, String)>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
        let Ok(file) = entry.metadata() else { continue };
        if file.is_dir() {
            below(&entry.path(), inodes);
        } else if entry.path().extension().is_some_and(|ending| ending == "img") {
            let major = rustix::fs::major(file.dev());
            let minor = rustix::fs::minor(file.dev());
            inodes.insert((file.ino().to_string(), format!("{major}:{minor}")));
        }
    }
}

fn remove_group(group: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(group)?.filter_map(Result::ok) {
        if entry.file_type()?.is_dir() {
            remove_group(&entry.path())?;
        }
    }
    Ok(std::fs::remove_dir(group)?)
}

fn groups(prefix: &str) -> Vec<PathBuf> {
    let controllers = std::fs::read_dir(CGROUPS).into_iter().flatten().filter_map(Result::ok);
    let below = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let all = controllers.flat_map(|controller| below(controller.path()));
    all.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect()
}

/// Everything of a stand that is still on the machine, a line each. Programs are known by the
/// stand's directory in their command line.
///
/// # Errors
/// The kernel does not say.
pub fn left(dir: &Path) -> anyhow::Result<Vec<String>> {
    let needle = dir.display().to_string();
    let mut left = processes(&needle)?;
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    left.extend(
        table.lines().filter(|line| line.contains(&needle)).map(|line| format!("mount {line}")),
    );
    left.extend(loops(dir)?.iter().map(|(device, file)| format!("loop device {device} of {file}")));
    let stand = dir.file_name().unwrap_or_default().to_string_lossy();
    left.extend(
        groups(&format!("{stand}-"))
            .iter()
            .map(|group| format!("control group {}", group.display())),
    );
    Ok(left)
}

fn processes(needle: &str) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.filter_map(Result::ok) {
        let pid = entry.file_name().to_string_lossy().parse::<u32>();
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if pid.is_ok_and(|pid| pid != std::process::id()) && line.contains(needle) {
            found.push(format!("process {} {line}", entry.file_name().display()));
        }
    }
    Ok(found)
}

/// Fails if a stand has left anything.
///
/// # Errors
/// It has; the error lists what.
pub fn check(dir: &Path) -> anyhow::Result<()> {
    let left = left(dir)?;
    ensure!(left.is_empty(), "the stand left behind:\n{}", left.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::until;

    #[tokio::test]
    async fn a_process_is_known_by_the_directory_in_its_command_line() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        assert!(left(dir.path())?.is_empty());
        let file = dir.path().join("x");
        std::fs::File::create(&file)?;
        let mut child = std::process::Command::new("tail").arg("-f").arg(&file).spawn()?;
        // A process that has just been started has no command line yet.
        let known = until("it is known", || async {
            let found = left(dir.path())?;
            ensure!(found.iter().any(|line| line.contains("tail -f")), "{found:?}");
            Ok(())
        })
        .await;
        child.kill()?;
        child.wait()?;
        known?;
        assert!(left(dir.path())?.is_empty());
        Ok(())
    }

    #[tokio::test]
    #[ignore = "loop devices need root"]
    async fn a_device_is_found_that_stands_on_another_one() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        std::fs::File::create(&image)?.set_len(1 << 20)?;
        let attach = |file: &Path| {
            let mut command = std::process::Command::new("losetup");
            let done = command.args(["--find", "--show"]).arg(file).output()?;
            ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            Ok(PathBuf::from(String::from_utf8_lossy(&done.stdout).trim()))
        };
        let lower = attach(&image)?;
        let upper = attach(&lower)?;
        let found = devices(dir.path())?;
        remove("no control groups", &found)?;
        let names = [lower, upper].map(|path| path.file_name().unwrap().display().to_string());
        assert_eq!(BTreeSet::from_iter(found), BTreeSet::from(names));
        Ok(())
    }
}
