//! The runtime's configuration: one key of Kata's Go runtime. With it, the runtime takes no device,
//! and shares the directory instead.

use std::io;
use std::path::Path;

use anyhow::Context;
use toml::{Table, Value};

/// Whether block devices are taken. Without a file they are.
///
/// # Errors
/// The file cannot be read.
pub(super) fn takes_devices(path: &Path) -> anyhow::Result<bool> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        text => text,
    };
    let cannot = || format!("cannot read {}", path.display());
    let table: Table = text.with_context(cannot)?.parse().with_context(cannot)?;
    let hypervisors = table.get("hypervisor").and_then(Value::as_table);
    let disabled = hypervisors.into_iter().flatten().any(|(_, settings)| {
        settings.get("disable_block_device_use").and_then(Value::as_bool) == Some(true)
    });
    Ok(!disabled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::host::publish::{Existing, publish};

    #[test]
    fn a_stock_configuration_takes_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("configuration.toml");
        let takes = |text: &str| {
            publish(&path, text.as_bytes(), 0o600, Existing::Replace).unwrap();
            takes_devices(&path)
        };
        assert!(takes_devices(&dir.path().join("none")).unwrap());
        assert!(!takes("[hypervisor.qemu]\ndisable_block_device_use = true\n").unwrap());
        assert!(takes("[hypervisor.qemu]\ndisable_block_device_use = false\n").unwrap());
        assert!(takes("[hypervisor.qemu]\n").unwrap());
        assert!(takes("[").is_err());
    }
}
