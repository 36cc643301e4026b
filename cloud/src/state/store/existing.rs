//! A store that is there, for commands that need no csi-cloud: `csi-cloud store`.

use super::backend::{Backend, StoreError};
use super::file::File;
use super::replicated::offline::Offline;
use super::url::StoreAt;
use crate::state::record::Change;

/// A store that is there.
pub(super) enum Existing {
    /// In a file.
    File(File),
    /// In etcd.
    Etcd(Offline),
}

impl Existing {
    /// Opens it. A file must exist, and no csi-cloud may have it open.
    ///
    /// # Errors
    /// It is missing, in use or in memory, or cannot be read.
    pub(super) fn open(at: &StoreAt) -> anyhow::Result<Self> {
        Ok(match at {
            StoreAt::File(path) => Self::File(File::existing(path)?),
            StoreAt::Etcd(at) => Self::Etcd(at.offline()?),
            StoreAt::Memory => return Err(forgets()),
        })
    }

    /// Fills a store that is missing or empty.
    ///
    /// # Errors
    /// It has records already or is in memory, `fill` fails, or it cannot be read or written.
    pub(super) fn import(
        at: &StoreAt,
        fill: impl FnOnce(&mut dyn Backend) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match at {
            StoreAt::File(path) => File::import(path, fill),
            StoreAt::Etcd(at) => at.import(fill),
            StoreAt::Memory => Err(forgets()),
        }
    }

    /// Reads all records.
    ///
    /// # Errors
    /// It cannot be read, or a record cannot be decoded.
    pub(super) fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        match self {
            Self::File(file) => file.load(each),
            Self::Etcd(etcd) => etcd.load(each),
        }
    }

    /// The format that it states.
    pub(super) fn format(&self) -> u64 {
        match self {
            Self::File(file) => file.format(),
            Self::Etcd(etcd) => etcd.format(),
        }
    }
}

fn forgets() -> anyhow::Error {
    anyhow::anyhow!(
        "memory: ends with its csi-cloud, so there is nothing to look after; give file:PATH or \
         etcd://HOST:PORT/PREFIX"
    )
}
