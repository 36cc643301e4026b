//! Debian's kernel, as its package was unpacked: the image, and its modules with those that they
//! need.
//!
//! A module's dependencies are read from the module itself, because `depmod` has not run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// An unpacked kernel.
#[derive(Debug)]
pub struct Kernel {
    /// The files that QEMU loads.
    pub image: PathBuf,
    /// Its modules by name, as the kernel spells it.
    modules: BTreeMap<String, PathBuf>,
    /// Modules that are part of the image, a path in each line.
    builtin: String,
}

impl Kernel {
    /// The kernel that was unpacked here.
    ///
    /// # Errors
    /// There is none.
    pub fn at(dir: &Path) -> anyhow::Result<Self> {
        let without =
            || format!("no kernel is unpacked in {}; `make guest` does that", dir.display());
        let image = only(&dir.join("boot"), "vmlinuz-").with_context(without)?;
        // Debian's packages have it there since /lib is a part of /usr.
        let lib = [dir.join("lib/modules"), dir.join("usr/lib/modules")];
        let lib = lib.iter().find_map(|lib| only(lib, "").ok()).with_context(without)?;
        let builtin = std::fs::read_to_string(lib.join("modules.builtin"))?;
        let mut modules = BTreeMap::new();
        collect(&lib.join("kernel"), &mut modules)?;
        Ok(Self { image, modules, builtin })
    }

    /// The files of these modules and of their dependencies, dependencies first. A module that is
    /// built into the kernel has no file.
    ///
    /// # Errors
    /// The kernel does not have one of them.
    pub fn modules(&self, names: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for name in names {
            self.add(name, &mut files)?;
        }
        Ok(files)
    }

    /// Whether it has a module, or what would be one is in the image.
    pub fn has(&self, name: &str) -> bool {
        self.modules.contains_key(name) || self.is_built_in(name)
    }

    fn is_built_in(&self, name: &str) -> bool {
        self.builtin.lines().any(|line| spelled(Path::new(line)).is_some_and(|known| known == name))
    }

    fn add(&self, name: &str, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
        let Some(file) = self.modules.get(name) else {
            ensure!(self.is_built_in(name), "{} has no module {name}", self.image.display());
            return Ok(());
        };
        if files.contains(file) {
            return Ok(());
        }
        for needed in needs(&std::fs::read(file)?) {
            self.add(&needed, files)?;
        }
        files.push(file.clone());
        Ok(())
    }
}

/// The one entry of a directory that begins so.
fn only(dir: &Path, prefix: &str) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(dir)?.filter_map(Result::ok);
    let mut found = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let path = found.next().with_context(|| format!("nothing in {}", dir.display()))?.path();
    ensure!(found.next().is_none(), "more than one in {}; remove the older ones", dir.display());
    Ok(path)
}

fn collect(dir: &Path, into: &mut BTreeMap<String, PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), into)?;
        } else if let Some(name) = spelled(&entry.path()) {
            into.insert(name, entry.path());
        }
    }
    Ok(())
}

/// The module's name: its file's, in which `-` is `_`.
fn spelled(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.strip_suffix(".ko")?.replace('-', "_"))
}

/// The dependencies in a module's file: `depends=a,b` between zero bytes, and the soft ones that
/// are loaded before it.
fn needs(module: &[u8]) -> Vec<String> {
    let parts = module.split(|byte| *byte == 0).filter_map(|part| part.strip_prefix(b"depends="));
    let names =
        parts.flat_map(|part| part.split(|byte| *byte == b',')).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::host::publish::{Existing, publish};

    fn unpacked(modules: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib/modules/6.1/kernel/fs/deep");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::create_dir(dir.path().join("boot")).unwrap();
        let put = |path: PathBuf, text: String| {
            publish(&path, text.as_bytes(), 0o644, Existing::Keep).unwrap()
        };
        put(dir.path().join("boot/vmlinuz-6.1"), String::new());
        put(
            dir.path().join("lib/modules/6.1/modules.builtin"),
            "kernel/drivers/virtio/virtio-ring.ko\n".into(),
        );
        for (name, depends) in modules {
            put(
                lib.join(format!("{name}.ko")),
                format!("\x7fELF\0name={name}\0depends={depends}\0license=GPL\0"),
            );
        }
        dir
    }

    #[test]
    fn a_module_comes_after_what_it_needs_and_once() {
        let modules = [
            ("ext4", "jbd2,mbcache"),
            ("jbd2", ""),
            ("mbcache", ""),
            ("virtio-blk", "virtio_ring"),
        ];
        let dir = unpacked(&modules);
        let kernel = Kernel::at(dir.path()).unwrap();
        let files = kernel.modules(&["virtio_blk", "ext4", "jbd2"]).unwrap();
        let names: Vec<_> = files.iter().map(|file| spelled(file).unwrap()).collect();
        assert_eq!(names, ["virtio_blk", "jbd2", "mbcache", "ext4"]);
        assert!(kernel.has("virtio_ring") && kernel.has("virtio_blk") && !kernel.has("xfs"));
        let without = kernel.modules(&["xfs"]).unwrap_err().to_string();
        assert!(without.contains("no module xfs"), "{without}");
    }

    #[test]
    fn no_kernel_and_two_kernels_are_said() {
        let none = format!("{:#}", Kernel::at(Path::new("/nonexistent")).unwrap_err());
        assert!(none.contains("make guest"), "{none}");
        let dir = unpacked(&[]);
        publish(&dir.path().join("boot/vmlinuz-6.2"), b"", 0o644, Existing::Keep).unwrap();
        assert!(format!("{:#}", Kernel::at(dir.path()).unwrap_err()).contains("more than one"));
    }
}
