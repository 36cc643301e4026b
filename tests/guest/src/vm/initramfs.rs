//! The archive with which the guest's kernel starts (cpio, "newc"). It holds our process 1, the
//! tools that grow file systems, the libraries of both, and kernel modules.
//!
//! It is made anew in each run, in memory, so it can be neither old nor half.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::kernel::Kernel;
use super::protocol::MODULES;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;

/// An archive for this kernel.
///
/// # Errors
/// One of the files is not there.
pub fn of(
    kernel: &Kernel,
    init: &Path,
    tools: &[PathBuf],
    modules: &[&str],
) -> anyhow::Result<Vec<u8>> {
    let mut archive = Archive::default();
    // The kernel opens it for process 1, before anything is mounted.
    archive.entry("dev", DIRECTORY, (0, 0), &[]);
    archive.entry("dev/console", DEVICE, (5, 1), &[]);
    archive.file(Path::new("init"), init)?;
    for tool in tools {
        archive.file(
            &Path::new("bin").join(tool.file_name().context("a tool without a name")?),
            tool,
        )?;
    }
    for program in tools.iter().map(PathBuf::as_path).chain([init]) {
        for library in libraries(program)? {
            archive.file(library.strip_prefix("/")?, &library)?;
        }
    }
    for (n, module) in kernel.modules(modules)?.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&Path::new(MODULES).join(format!("{n:03}-{name}")), module)?;
    }
    Ok(archive.end())
}

/// The libraries that the dynamic linker loads for a program.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("ldd cannot be started; it is in libc-bin")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ldd {}: {error}", program.display());
    Ok(paths(&String::from_utf8_lossy(&output.stdout)))
}

/// The files in what `ldd` says.
fn paths(text: &str) -> Vec<PathBuf> {
    let words =
        text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(PathBuf::from).collect()
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    there: BTreeSet<PathBuf>,
}

impl Archive {
    /// A file, with the directories that it is in; once, however often it is added.
    fn file(&mut self, at: &Path, from: &Path) -> anyhow::Result<()> {
        let above: Vec<_> =
            at.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
        for directory in above.into_iter().rev() {
            self.entry(&directory.to_string_lossy(), DIRECTORY, (0, 0), &[]);
        }
        let bytes =
            std::fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.entry(&at.to_string_lossy(), PROGRAM, (0, 0), &bytes);
        Ok(())
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        if !self.there.insert(name.into()) {
            return;
        }
        let inode = self.there.len();
        let size = content.len();
        let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
        let fields = [
            inode,
            mode as usize,
            0,
            0,
            links,
            0,
            size,
            0,
            0,
            device.0 as usize,
            device.1 as usize,
        ];
        self.bytes.extend(b"070701");
        for field in fields.into_iter().chain([name.len() + 1, 0]) {
            self.bytes.extend(format!("{field:08X}").into_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::host::publish::{Existing, publish};

    #[test]
    fn the_archive_is_what_a_kernel_unpacks() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("x");
        publish(&file, b"hello", 0o644, Existing::Keep)?;
        let mut archive = Archive::default();
        archive.file(Path::new("bin/x"), &file)?;
        archive.file(Path::new("bin/x"), &file)?;
        let bytes = archive.end();
        // By the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
        let header = "070701 00000001 000041ED 00000000 00000000 00000002 00000000 00000000 \
                      00000000 00000000 \
                      00000000 00000000 00000004 00000000";
        let header = header.replace(' ', "");
        assert_eq!(std::str::from_utf8(&bytes[..110])?, header);
        assert_eq!(&bytes[110..116], b"bin\0\0\0");
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("bin/x\0").count(), 1);
        // The name ends at a multiple of four, counted from the beginning, and so does the content.
        let content = text.find("hello\0\0\x000707").context("no content")?;
        assert!(content.is_multiple_of(4) && text[..content].ends_with("bin/x\0"), "{text}");
        assert!(
            text.trim_end_matches('\0').ends_with("TRAILER!!!") && bytes.len().is_multiple_of(4)
        );
        Ok(())
    }

    #[test]
    fn libraries_are_where_the_linker_finds_them() {
        let text = "\tlinux-vdso.so.1 (0x7ffd)\n\tlibc.so.6 => \
                    /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        let found = paths(text);
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(found, expected.map(PathBuf::from));
        assert!(paths("\tstatically linked\n").is_empty());
    }
}
