//! The files that operators write: configurations, and exports of a store.

use std::path::Path;

use clap::Parser;
use cloud::cli as cloud_arguments;
use cloud::config::Config as CloudConfig;
use cloud::state::store::transfer::{self, ExportedSecrets};
use cloud::state::store::url::StoreAt;
use edge::commands as edge_arguments;
use edge::config::Config as EdgeConfig;
use proto::host::publish::{Existing, publish};

/// Both programs' configurations: settings, or a list of mistakes that is not empty.
pub fn configuration(bytes: &[u8]) {
    let Some((_dir, path)) = written(bytes, "config.toml") else { return };
    let arguments = ["x", "serve", "--config", &path];
    let mistakes = match cloud_arguments::Cli::try_parse_from(arguments).map(|cli| cli.command) {
        Ok(cloud_arguments::Command::Serve { flags, .. }) => CloudConfig::load(*flags).err(),
        _ => None,
    };
    assert!(mistakes.is_none_or(|mistakes| !mistakes.0.is_empty()), "refused without a reason");
    let mistakes = match edge_arguments::Cli::try_parse_from(arguments).map(|cli| cli.command) {
        Ok(edge_arguments::Command::Serve { flags, .. }) => EdgeConfig::load(*flags).err(),
        _ => None,
    };
    assert!(mistakes.is_none_or(|mistakes| !mistakes.0.is_empty()), "refused without a reason");
}

/// An import: a store whose export is imported again, or nothing.
pub fn import(bytes: &[u8]) {
    let Some((dir, path)) = written(bytes, "export.jsonl") else { return };
    let Some(first) = imported(Path::new(&path), &dir.path().join("first")) else { return };
    let again = dir.path().join("again.jsonl");
    let exported = publish(&again, &first, 0o600, Existing::Keep);
    let second = exported.ok().and_then(|()| imported(&again, &dir.path().join("second")));
    assert_eq!(second, Some(first), "an export is not imported as it was");
}

/// The export of what was imported. None if the import failed.
fn imported(file: &Path, store: &Path) -> Option<Vec<u8>> {
    let at: StoreAt = format!("file:{}", store.display()).parse().ok()?;
    if transfer::import(&at, file, None).is_err() {
        assert!(!store.exists(), "a failed import left a store");
        return None;
    }
    let mut out = Vec::new();
    let exported = transfer::export(&at, ExportedSecrets::Included, &mut out);
    assert!(exported.is_ok(), "{exported:?}");
    Some(out)
}

/// A file with these bytes, and its directory.
fn written(bytes: &[u8], name: &str) -> Option<(tempfile::TempDir, String)> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).ok()?;
    let path = dir.path().join(name);
    publish(&path, bytes, 0o600, Existing::Keep).ok()?;
    let path = path.to_str()?.to_owned();
    Some((dir, path))
}
