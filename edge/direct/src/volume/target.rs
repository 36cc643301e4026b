//! Paths of a volume: the target as the runtime sees it, and our path at which the driver
//! publishes.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use super::cover;

/// The target with the symlinks of its parent resolved, as the container engine resolves them for
/// the runtime.
///
/// # Errors
/// No target can have this path, or its parent is not there.
pub(crate) fn canonical(target: &Path) -> io::Result<PathBuf> {
    let bad = || io::Error::other("it is no absolute path with a name at its end");
    let parent = target.parent().ok_or_else(bad)?;
    let name = target.file_name().ok_or_else(bad)?;
    if !target.is_absolute() {
        return Err(bad());
    }
    Ok(std::fs::canonicalize(parent)?.join(name))
}

/// True if a path climbs out of a directory with `..`.
pub fn climbs(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

/// Refuses a target outside of these directories; none allow any. Both are compared without
/// symlinks.
///
/// # Errors
/// The directories.
pub(crate) fn is_within(directories: &[PathBuf], target: &Path) -> io::Result<()> {
    let real = |directory: &PathBuf| {
        std::fs::canonicalize(directory).unwrap_or_else(|_| directory.clone())
    };
    let mut real = directories.iter().map(real);
    if directories.is_empty() || real.any(|directory| target.starts_with(directory)) {
        return Ok(());
    }
    Err(io::Error::other(format!("csi-edge may put targets into {directories:?} only (targets)")))
}

/// Refuses a target that the host's container engine would resolve differently: no runtime would
/// find its entry. In a container a symlink of the host, such as a kubelet's directory, may be no
/// symlink.
///
/// # Errors
/// Where the host finds it, or that this is not known.
pub(crate) fn is_hosts(proc: &Path, given: &Path, target: &Path) -> io::Result<()> {
    let namespace = |process: &str| std::fs::read_link(proc.join(process).join("ns/mnt"));
    // Process 2 is the kernel's own, and never in a container.
    if let (Ok(ours), Ok(hosts)) = (namespace("self"), namespace("2"))
        && ours == hosts
    {
        return Ok(());
    }
    let unknown =
        |error| io::Error::other(format!("it is not known what it is to the host: {error}"));
    let seen = resolved(&proc.join("1/root"), given.parent().unwrap_or(given)).map_err(unknown)?;
    let seen = seen.join(given.file_name().unwrap_or_default());
    if seen == target {
        return Ok(());
    }
    let seen = seen.display();
    let target = target.display();
    Err(io::Error::other(format!(
        "the host resolves it to {seen}, and csi-edge's container to {target}; mount the kubelet's \
         directory there under the path without symlinks, and start the kubelet with that path as \
         --root-dir"
    )))
}

/// Resolves the symlinks of a path below another root.
fn resolved(root: &Path, path: &Path) -> io::Result<PathBuf> {
    /// As many as the kernel follows.
    const LINKS: usize = 40;
    let parts = |path: &Path| path.iter().rev().map(ToOwned::to_owned).collect::<Vec<_>>();
    let mut seen = PathBuf::from("/");
    let mut rest = parts(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        match part.to_str() {
            Some("/") => seen = PathBuf::from("/"),
            Some(".") => {}
            Some("..") => drop(seen.pop()),
            _ => match std::fs::read_link(
                root.join(seen.join(&part).strip_prefix("/").unwrap_or(&seen)),
            ) {
                Ok(_) if links == LINKS => return Err(io::ErrorKind::InvalidFilename.into()),
                Ok(link) => {
                    links += 1;
                    rest.extend(parts(&link));
                }
                // It is no symlink.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => seen.push(part),
                Err(error) => return Err(error),
            },
        }
    }
    Ok(seen)
}

/// The private path at which a driver publishes its device for a target. It is below the kubelet's
/// directory if the target is, because drivers share that with the host; else below the state
/// directory.
pub(crate) fn private(state: &Path, target: &Path, key: &str) -> PathBuf {
    let parts: Vec<_> = target.components().collect();
    let is = |part: Option<&Component<'_>>, name: &str| {
        part.is_some_and(|part| part.as_os_str() == name)
    };
    // .../pods/UID/volumes/kubernetes.io~csi/...
    let pods = (1..parts.len()).find(|at| {
        is(parts.get(*at), "pods")
            && is(parts.get(at + 2), "volumes")
            && is(parts.get(at + 3), "kubernetes.io~csi")
    });
    match pods.and_then(|at| parts.get(..at)) {
        Some(kubelet) => {
            kubelet.iter().collect::<PathBuf>().join("plugins/edge-csi.io/direct").join(key)
        }
        None => state.join("direct/devices").join(key),
    }
}

/// Checks that a runtime can get a target: it is absent, covered by us, or an empty directory
/// without a mount.
///
/// # Errors
/// Something else is at its path, or nobody can tell.
pub(crate) fn is_open(target: &Path) -> io::Result<()> {
    let meta = match std::fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        meta => meta?,
    };
    let parent = target.parent().map(std::fs::metadata).transpose()?;
    if !meta.is_dir() {
        return Err(io::Error::other("it is no directory"));
    }
    if cover::is_cover(target) {
        return Ok(());
    }
    if parent.is_some_and(|parent| parent.dev() != meta.dev()) {
        return Err(io::Error::other("something is mounted there"));
    }
    if std::fs::read_dir(target)?.next().is_some() {
        // Only a container without a VM writes there.
        return Err(io::Error::other(
            "it has files in it, which a container without a VM may have written",
        ));
    }
    Ok(())
}

/// Makes the target: an empty directory, which is covered next.
///
/// # Errors
/// Something else is at its path, or the directory cannot be made.
pub(crate) fn make(target: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o750).create(target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => is_open(target),
        made => made,
    }
}

/// Removes the target. What a pod wrote into it, while no cover was there, is kept. The directory
/// is moved near the driver's path, and that place is returned.
///
/// # Errors
/// The system's; nothing was thrown away.
pub(crate) fn remove(target: &Path, private: &Path) -> io::Result<Option<PathBuf>> {
    cover::uncover(target)?;
    match remove_empty(target) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        removed => return removed.map(|()| None),
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let key = private.file_name().unwrap_or_default().to_string_lossy();
    let name = format!("{key}-{}", now.as_millis());
    let parent = private.parent().unwrap_or(private).with_file_name("left-by-pods");
    let kept = parent.join(name);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&parent)?;
    std::fs::rename(target, &kept)?;
    File::open(parent)?.sync_all()?;
    Ok(Some(kept))
}

/// Removes an empty directory or file if it is there. One with content stays, and is an error.
///
/// # Errors
/// It has content, or cannot be removed.
pub(crate) fn remove_empty(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir(path),
        Ok(meta) if meta.is_file() && meta.len() > 0 => {
            Err(io::Error::other("it is a file with content"))
        }
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::host::publish::{Existing, publish};

    #[test]
    fn a_target_is_what_the_runtime_sees() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(canonical(&link.join("mount")).unwrap(), real.join("mount"));
        assert_eq!(canonical(&real.join("mount")).unwrap(), real.join("mount"));
        for bad in ["", "/", "mount", "/does/not/exist/mount", "/tmp/.."] {
            assert!(canonical(Path::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_target_is_within_the_directories_that_are_given() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir_all(real.join("pods")).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let target = canonical(&link.join("pods/mount")).unwrap();
        is_within(&[], &target).unwrap();
        for given in [&real, &link] {
            is_within(&["/none".into(), given.clone()], &target).unwrap();
        }
        for given in ["/none".into(), real.join("po"), real.join("pods/mount/x")] {
            let refused = is_within(&[given], &target).unwrap_err();
            assert!(refused.to_string().contains("may put targets into"), "{refused}");
        }
        // A symlink in the directory leads out of it.
        std::os::unix::fs::symlink(dir.path(), real.join("out")).unwrap();
        let out = canonical(&real.join("out/mount")).unwrap();
        let refused = is_within(&[real], &out).unwrap_err();
        assert!(refused.to_string().contains("may put targets into"), "{refused}");
    }

    #[test]
    fn what_the_host_resolves_otherwise_is_refused() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("1/root");
        for path in
            ["1/root/mnt/disk/kubelet/pods/p", "1/root/var/lib/plain/pods/p", "self/ns", "2/ns"]
        {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        symlink("../../mnt/./disk", host.join("var/lib/disk")).unwrap();
        symlink("/var/lib/disk/kubelet", host.join("var/lib/kubelet")).unwrap();
        symlink("loop", host.join("loop")).unwrap();
        let check =
            |given: &str, target: &str| is_hosts(dir.path(), Path::new(given), Path::new(target));
        let plain = "/var/lib/plain/pods/p/mount";
        check(plain, plain).unwrap();
        let given = "/var/lib/kubelet/pods/p/mount";
        let refused = check(given, given).unwrap_err().to_string();
        assert!(refused.contains("/mnt/disk/kubelet/pods/p/mount"), "{refused}");
        check(given, "/mnt/disk/kubelet/pods/p/mount").unwrap();
        for unknown in ["/loop/mount", "/gone/mount"] {
            assert!(check(unknown, unknown).unwrap_err().to_string().contains("not known"));
        }
        // Outside a container csi-edge sees what the host sees.
        for process in ["self", "2"] {
            symlink("mnt:[1]", dir.path().join(process).join("ns/mnt")).unwrap();
        }
        check(given, given).unwrap();
    }

    #[test]
    fn a_driver_publishes_where_it_and_we_can_see_it() {
        let of = |target| private(Path::new("/state"), Path::new(target), "k");
        let kubelets = "/var/lib/kubelet/pods/9b5/volumes/kubernetes.io~csi/pvc-1/mount";
        assert_eq!(of(kubelets), Path::new("/var/lib/kubelet/plugins/edge-csi.io/direct/k"));
        assert_eq!(of("/mnt/pods/x/mount"), Path::new("/state/direct/devices/k"));
        assert_eq!(of("/pods"), Path::new("/state/direct/devices/k"));
    }

    #[test]
    fn what_has_content_is_neither_used_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("mount");
        is_open(&target).unwrap();
        make(&target).unwrap();
        make(&target).unwrap();
        let file = target.join("written");
        publish(&file, b"by a container", 0o600, Existing::Keep).unwrap();
        assert!(is_open(&target).unwrap_err().to_string().contains("without a VM"));
        let kept = remove_empty(&target).unwrap_err().kind();
        assert_eq!(kept, io::ErrorKind::DirectoryNotEmpty);
        let kept = remove_empty(&file).unwrap_err().to_string();
        assert_eq!(kept, "it is a file with content");
        assert_eq!(std::fs::read(&file).unwrap(), b"by a container");
        std::fs::remove_file(&file).unwrap();
        remove_empty(&target).unwrap();
        remove_empty(&target).unwrap();
        assert!(is_open(Path::new("/proc")).unwrap_err().to_string().contains("mounted"));
    }
}
