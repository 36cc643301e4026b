//! The file of the metadata, by redb. It is a copy: if it is damaged, the cloud sends it anew.

use std::collections::{BTreeMap, VecDeque};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use proto::control::metadata::{Key, Kind, Object, Position};
use proto::names::NodeName;
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tracing::warn;

use super::known::{GonePod, Known};
use super::receiving::Transfer;

/// The file's name in the state directory.
const FILE: &str = "metadata.redb";
/// The new name of a file that cannot be used.
const ASIDE: &str = "metadata.redb.damaged";
/// The size of redb's cache in bytes. All of it is in memory anyway.
const CACHE: usize = 1 << 20;
/// Objects in JSON.
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
/// The Node in JSON. In a table of its own: a csi-edge of 0.2 cannot read it among the objects.
const NODES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("nodes");
/// The node, the positions, and the Pods that are gone.
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const NODE: &str = "node";
const POSITION: &str = "position";
/// The position as of which the Node is known. It is another one than that of the objects if a
/// csi-edge without Nodes has written those.
const NODE_POSITION: &str = "node_position";
const GONE: &str = "gone";

/// An open file.
pub(super) struct File {
    database: Database,
    node: NodeName,
    path: PathBuf,
}

/// True if there is a file in a state directory, or something else in its place.
pub(super) fn is_there(directory: &Path) -> bool {
    directory.join(FILE).symlink_metadata().is_ok()
}

/// Opens the file in a state directory, or makes it; none if it cannot be had.
pub(super) fn open(directory: &Path, node: &NodeName) -> Option<(File, Known)> {
    let path = directory.join(FILE);
    let error = match read(&path, node) {
        Ok(opened) => return Some(opened),
        Err(error) if is_in_use(&error) => {
            warn!(path = %path.display(), "another csi-edge has this file open");
            return None;
        }
        Err(error) => error,
    };
    let file = path.display();
    let error = format!("{error:#}");
    warn!(%file, error, "metadata that cannot be used is put aside, and comes anew");
    if let Err(error) = std::fs::rename(&path, directory.join(ASIDE)) {
        warn!(%file, %error, "cannot be put aside; nothing of the metadata is kept");
        return None;
    }
    match read(&path, node) {
        Ok(opened) => Some(opened),
        Err(error) => {
            warn!(%file, error = format!("{error:#}"), "nothing of the metadata is kept");
            None
        }
    }
}

fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(redb::DatabaseError::DatabaseAlreadyOpen))
}

fn read(path: &Path, node: &NodeName) -> anyhow::Result<(File, Known)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let opened = options.open(path).context("it cannot be opened")?;
    let mut database =
        Database::builder().set_cache_size(CACHE).create_with_backend(FileBackend::new(opened)?)?;
    // redb looks at its checksums only when it is told to.
    // Damage that it cannot repair is an error. What it repaired is whole again, as of a commit.
    if !database.check_integrity()? {
        warn!(path = %path.display(), "the file of the metadata was repaired");
    }
    let file = File { database, node: node.clone(), path: path.to_owned() };
    let known = file.load()?;
    Ok((file, known))
}

impl File {
    fn load(&self) -> anyhow::Result<Known> {
        let reading = self.database.begin_write()?;
        {
            // Made if they are not there.
            reading.open_table(OBJECTS)?;
            reading.open_table(NODES)?;
            reading.open_table(META)?;
        }
        reading.commit()?;
        let reading = self.database.begin_read()?;
        let meta = reading.open_table(META)?;
        let Some(stated) = meta.get(POSITION)? else { return Ok(Known::default()) };
        let position: Position = serde_json::from_slice(stated.value())?;
        let of = meta.get(NODE)?.map(|node| String::from_utf8_lossy(node.value()).into_owned());
        let of = of.unwrap_or_default();
        anyhow::ensure!(of == self.node.as_str(), "it is of the node {of}");
        let gone = match meta.get(GONE)? {
            Some(gone) => serde_json::from_slice(gone.value())?,
            None => VecDeque::<GonePod>::new(),
        };
        let mut objects = BTreeMap::new();
        let of_node = meta.get(NODE_POSITION)?;
        let has_node = of_node.is_some_and(|of| of.value() == stated.value());
        let tables = if has_node { [OBJECTS, NODES].as_slice() } else { &[OBJECTS] };
        for table in tables {
            for entry in reading.open_table(*table)?.iter()? {
                let (_, text) = entry?;
                let object: Object = serde_json::from_slice(text.value())?;
                objects.insert(object.key(), object);
            }
        }
        // From the beginning, csi-cloud sends the Node too.
        let position = if has_node { position } else { Position::default() };
        Ok(Known::new(position, objects, gone))
    }

    /// Writes the state after a transfer, and the keys that it removed. A failure is logged: the
    /// copy in memory counts, and the next start has the older position.
    pub(super) fn keep(&mut self, transfer: &Transfer, known: &Known, lost: &[Key]) {
        if let Err(error) = self.write(transfer, known, lost) {
            let path = self.path.display();
            warn!(%path, error = format!("{error:#}"), "metadata is not kept");
        }
    }

    fn write(&self, transfer: &Transfer, known: &Known, lost: &[Key]) -> anyhow::Result<()> {
        let writing = self.database.begin_write()?;
        {
            let mut objects = writing.open_table(OBJECTS)?;
            let mut nodes = writing.open_table(NODES)?;
            if transfer.from.is_none() {
                // An earlier transfer may have failed here, so a table may have more than `lost`.
                objects.retain(|_, _| false)?;
                nodes.retain(|_, _| false)?;
            }
            for key in lost {
                let table = if key.kind == Kind::Node { &mut nodes } else { &mut objects };
                table.remove(name(key).as_str())?;
            }
            for object in &transfer.objects {
                let key = object.key();
                let table = if key.kind == Kind::Node { &mut nodes } else { &mut objects };
                table.insert(name(&key).as_str(), serde_json::to_vec(object)?.as_slice())?;
            }
            let mut meta = writing.open_table(META)?;
            let position = serde_json::to_vec(&known.position)?;
            meta.insert(NODE, self.node.as_str().as_bytes())?;
            meta.insert(POSITION, position.as_slice())?;
            meta.insert(NODE_POSITION, position.as_slice())?;
            meta.insert(GONE, serde_json::to_vec(&known.gone)?.as_slice())?;
        }
        writing.commit()?;
        Ok(())
    }
}

/// A key as text. Names have no slash.
fn name(key: &Key) -> String {
    let kind = match key.kind {
        Kind::Pod => "pod",
        Kind::Claim => "claim",
        Kind::Volume => "volume",
        Kind::Attachment => "attachment",
        Kind::Driver => "driver",
        Kind::RuntimeClass => "runtime_class",
        Kind::Node => "node",
    };
    format!("{kind}/{}/{}", key.namespace, key.name)
}
