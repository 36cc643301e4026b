//! Loop devices of image files, by `losetup`, which knows the races of finding a free one.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use tonic::Status;

use super::fail::Doing as _;
use super::mounts;

/// A device that serves an image.
struct Device {
    path: String,
    readonly: bool,
}

fn losetup(what: &str, args: &[&str], image: &Path) -> Result<String, Status> {
    let what = || format!("{what} {} by losetup {}", image.display(), args.join(" "));
    let done = Command::new("losetup").args(args).output().doing(what)?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(Status::internal(format!("cannot {}: {}", what(), said.trim())));
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

fn text(image: &Path) -> Result<&str, Status> {
    image
        .to_str()
        .ok_or_else(|| Status::internal(format!("the path {} is no UTF-8", image.display())))
}

fn devices(image: &Path) -> Result<Vec<Device>, Status> {
    let args = ["--list", "--noheadings", "--raw", "-O", "NAME,RO", "-j", text(image)?];
    let listed = losetup("find the devices of", &args, image)?;
    let device = |line: &str| {
        let (path, readonly) = line.split_once(' ')?;
        Some(Device { path: path.to_owned(), readonly: readonly.trim() == "1" })
    };
    Ok(listed.lines().filter_map(device).collect())
}

/// The device that serves an image for writing, attached if there is none.
pub(super) fn attach(image: &Path) -> Result<String, Status> {
    match attached(image)? {
        Some(path) => Ok(path),
        None => losetup("attach", &["-f", "--show", text(image)?], image),
    }
}

/// The device that serves an image for writing, if there is one.
pub(super) fn attached(image: &Path) -> Result<Option<String>, Status> {
    let writable = devices(image)?.into_iter().find(|device| !device.readonly);
    Ok(writable.map(|device| device.path))
}

/// A new device that serves an image for reading only.
pub(super) fn attach_readonly(image: &Path) -> Result<String, Status> {
    losetup("attach", &["-r", "-f", "--show", text(image)?], image)
}

/// Detaches one device of an image, or all. A device that serves another file by now stays.
pub(super) fn detach(image: &Path, only: Option<&str>) -> Result<(), Status> {
    for device in devices(image)? {
        if only.is_none_or(|only| only == device.path) {
            detach_device(image, &device.path)?;
        }
    }
    Ok(())
}

/// Detaches a device of an image. The kernel may have done it by then: a device that was in use
/// when it was detached goes with its last user.
fn detach_device(image: &Path, path: &str) -> Result<(), Status> {
    losetup("detach", &["-d", path], image).map(drop).or_else(|error| {
        let is_there = devices(image)?.iter().any(|device| device.path == path);
        if is_there { Err(error) } else { Ok(()) }
    })
}

/// Whether a device of an image is mounted at a path.
pub(super) fn is_at(image: &Path, path: &str) -> Result<bool, Status> {
    Ok(devices(image)?.iter().any(|device| mounts::same(&device.path, path)))
}

/// Lets all devices of an image see that it has grown.
pub(super) fn grow(image: &Path) -> Result<(), Status> {
    for device in devices(image)? {
        losetup("grow", &["-c", &device.path], image)?;
    }
    Ok(())
}

/// Flushes the devices of an image to the image, so that a copy has all data.
pub(super) fn flush(image: &Path, block: bool) -> Result<(), Status> {
    if !block {
        return Ok(());
    }
    for device in devices(image)?.into_iter().filter(|device| !device.readonly) {
        File::options()
            .write(true)
            .open(&device.path)
            .and_then(|file| file.sync_all())
            .doing(|| format!("flush {} to {}", device.path, image.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "loop devices need root"]
    fn a_device_that_is_gone_is_detached() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let device = attach(&image).unwrap();
        // Another program that looks at all devices, such as udev's, may have it open for a moment.
        let gone = (0..1000).any(|_| {
            detach_device(&image, &device).unwrap();
            devices(&image).unwrap().is_empty()
        });
        assert!(gone, "{device} still serves {}", image.display());
    }
}
