//! The location of the store, as a URL. Its scheme is the kind of store.
//!
//! docs/design/recipes.md says what a new kind takes. An error names the scheme only, since a URL
//! may contain a password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::backend::{Backend, StoreError};
use super::etcd_at::{EtcdAt, NoEtcdAt};
use super::file;
use super::file::File;
use super::memory::Memory;
use crate::etcd::settings::EtcdSettings;

/// The location of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAt {
    /// A file on this host, for one csi-cloud: `file:PATH`.
    File(PathBuf),
    /// In etcd, for several csi-clouds: `etcd://HOST:PORT,HOST:PORT/PREFIX`.
    Etcd(EtcdAt),
    /// Nowhere: all records end with the process. For tests and trials, and only on request:
    /// `memory:`.
    Memory,
}

/// A store that is open, or that is still to be joined.
pub enum Opened {
    /// One that this csi-cloud has alone.
    Own(Box<dyn Backend>),
    /// One of several csi-clouds. See [`Store::join`](super::writer::Store::join).
    Shared(EtcdAt),
}

/// The reason why a text is no location.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreAtError {
    /// The text has no scheme, or an unknown one.
    #[error("{0} is no kind of store; there are file:PATH, etcd://HOST:PORT/PREFIX and memory:")]
    Unknown(String),
    /// Something is missing, or it names a user, which belongs into the configuration.
    #[error(
        "a store in etcd is etcd://HOST:PORT,HOST:PORT/PREFIX, for example \
         etcd://etcd-0:2379,etcd-1:2379/edge-csi; user and password belong into [etcd]"
    )]
    Etcd,
    /// A file on another host, or no file.
    #[error("a store in a file is file:PATH, for example file:/var/lib/edge-csi/cloud.redb")]
    File,
    /// Text after `memory:`.
    #[error("memory: stands alone; it keeps nothing and has no place")]
    Memory,
}

impl StoreAt {
    /// Opens a store that one csi-cloud has alone; creates it if there is none.
    ///
    /// # Errors
    /// It cannot be read or trusted, or another csi-cloud has it open.
    pub fn open(self) -> Result<Opened, StoreError> {
        Ok(match self {
            Self::File(path) => Opened::Own(Box::new(File::open(&path)?)),
            Self::Memory => Opened::Own(Box::new(Memory::default())),
            Self::Etcd(at) => Opened::Shared(at),
        })
    }

    /// The same, with how etcd is reached.
    #[must_use]
    pub fn with_etcd(self, settings: EtcdSettings) -> Self {
        match self {
            Self::Etcd(at) => Self::Etcd(EtcdAt { settings, ..at }),
            own @ (Self::File(_) | Self::Memory) => own,
        }
    }

    /// Resolves a relative path against this directory.
    #[must_use]
    pub(crate) fn below(self, directory: &Path) -> Self {
        match self {
            Self::File(path) => Self::File(directory.join(path)),
            shared @ (Self::Etcd(_) | Self::Memory) => shared,
        }
    }
}

impl FromStr for StoreAt {
    type Err = StoreAtError;

    fn from_str(text: &str) -> Result<Self, StoreAtError> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(StoreAtError::Unknown("a text without a scheme".into()));
        };
        match scheme {
            "file" => path(rest).map(Self::File).ok_or(StoreAtError::File),
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err(StoreAtError::Memory),
            "etcd" => text.parse().map(Self::Etcd).map_err(|NoEtcdAt| StoreAtError::Etcd),
            other => Err(StoreAtError::Unknown(format!("{other:?}"))),
        }
    }
}

impl fmt::Display for StoreAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.write_str(&file::url(path)),
            Self::Etcd(at) => at.fmt(f),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

/// RFC 8089: a file URL is `file:PATH` or `file://HOST/PATH`. The host must be empty.
fn path(rest: &str) -> Option<PathBuf> {
    let path = match rest.strip_prefix("//") {
        Some(after) => {
            Some(after).filter(|path| path.starts_with('/') && !path.starts_with("//"))?
        }
        None => rest,
    };
    // A path with a trailing slash is a directory.
    (!path.is_empty() && !path.ends_with('/')).then(|| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_scheme_says_what_kind_of_store() {
        for (text, expected) in [
            ("file:/a/b.redb", Ok(StoreAt::File("/a/b.redb".into()))),
            ("file:///a/b.redb", Ok(StoreAt::File("/a/b.redb".into()))),
            ("file:b.redb", Ok(StoreAt::File("b.redb".into()))),
            ("memory:", Ok(StoreAt::Memory)),
            ("memory:x", Err(StoreAtError::Memory)),
            ("file:", Err(StoreAtError::File)),
            ("file:/a/", Err(StoreAtError::File)),
            ("file://host/a", Err(StoreAtError::File)),
            ("etcd://h:2379", Err(StoreAtError::Etcd)),
            ("etcd://me:hunter2@h:2379/p", Err(StoreAtError::Etcd)),
            ("FILE:/a", Err(StoreAtError::Unknown("\"FILE\"".into()))),
        ] {
            assert_eq!(text.parse::<StoreAt>(), expected, "{text}");
        }
    }

    #[test]
    fn an_unknown_kind_is_told_the_known_ones_and_no_password_is_printed() {
        for text in ["redis://me:hunter2@h", "/var/lib/hunter2", "", "etcd://me:hunter2@h:1/p"] {
            let error = text.parse::<StoreAt>().unwrap_err().to_string();
            assert!(error.contains("file:PATH") || error.contains("etcd://HOST"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_store_or_an_error(text in "((file|memory|etcd|[a-z]*):)?/{0,4}.*") {
            if let Ok(store) = text.parse::<StoreAt>() {
                prop_assert_eq!(store.to_string().parse::<StoreAt>(), Ok(store));
            }
        }
    }
}
