//! The position of the store: the number of its last commit, an id of it, and its format.
//!
//! A commit proves that it follows the commit seen last, by comparing the bytes of this value. The
//! id is random, so two commits of one number differ, and none is taken for the other.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::etcd::api::{Compare, KeyValue, RequestOp};
use crate::etcd::request;
use crate::state::store::backend::StoreError;
use crate::state::store::format::{NEWEST, OLDEST};

/// The format of a store during an import: no csi-cloud knows it.
pub(super) const IMPORTING: u64 = u64::MAX;

/// The value of the key `commit`.
#[derive(Serialize, Deserialize)]
struct Written {
    number: u64,
    format: u64,
    /// None in commits of before 2026-11-25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<Uuid>,
}

/// The last commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Its number; 0 before the first.
    pub(super) number: u64,
    /// The format of the store.
    pub(super) format: u64,
    /// The bytes in etcd; none before the first.
    bytes: Option<Vec<u8>>,
}

/// The reason why the value is no position.
#[derive(Debug, thiserror::Error)]
enum PositionError {
    #[error("its key commit holds no JSON of csi-cloud")]
    Json(#[from] serde_json::Error),
    #[error(
        "an import into it has not finished; do it again, or delete all keys below its prefix to \
         begin anew"
    )]
    Importing,
    #[error("its commit {at} came after {after}: etcd was put back to an older state meanwhile")]
    Gap { at: u64, after: u64 },
    #[error(
        "it was made by a newer csi-cloud, in format {0}; this one knows up to {NEWEST}, start the \
         newer one"
    )]
    Newer(u64),
}

impl Position {
    /// The position that etcd has; `at` names the store.
    ///
    /// # Errors
    /// The value cannot be read, states a newer format, or is of an import that is not finished.
    pub(super) fn of(found: Option<&KeyValue>, at: &str) -> Result<Self, StoreError> {
        Self::parse(found).map_err(|why| unusable(why, at))
    }

    /// The position that etcd has after the next commit.
    ///
    /// # Errors
    /// See [`Position::of`]; or it is not the next commit, so one was missed.
    pub(super) fn then(&self, found: Option<&KeyValue>, at: &str) -> Result<Self, StoreError> {
        let next = Self::of(found, at)?;
        if next.number == self.number.saturating_add(1) {
            return Ok(next);
        }
        Err(unusable(PositionError::Gap { at: next.number, after: self.number }, at))
    }

    /// The position of a store during an import, if there is one. Its records do not count.
    pub(super) fn of_import(found: Option<&KeyValue>) -> Option<Self> {
        let bytes = &found?.value;
        let Written { number, format, .. } = serde_json::from_slice(bytes).ok()?;
        (format == IMPORTING).then(|| Self { number, format, bytes: Some(bytes.clone()) })
    }

    fn parse(found: Option<&KeyValue>) -> Result<Self, PositionError> {
        let Some(KeyValue { value: bytes, .. }) = found else {
            return Ok(Self { number: 0, format: OLDEST, bytes: None });
        };
        let Written { number, format, .. } = serde_json::from_slice(bytes)?;
        if format == IMPORTING {
            return Err(PositionError::Importing);
        }
        if format > NEWEST {
            return Err(PositionError::Newer(format));
        }
        Ok(Self { number, format, bytes: Some(bytes.to_vec()) })
    }

    /// The position after the next commit.
    pub(super) fn next(&self, format: u64) -> Self {
        let number = self.number.saturating_add(1);
        let written = Written { number, format, id: Some(Uuid::new_v4()) };
        // Numbers and ids have no JSON that fails.
        let bytes = serde_json::to_vec(&written).unwrap_or_default();
        Self { number, format, bytes: Some(bytes) }
    }

    /// True in etcd while this is the last commit.
    pub(super) fn is_last(&self, key: &[u8]) -> Compare {
        match &self.bytes {
            Some(bytes) => request::has_value(key, bytes.clone()),
            None => request::is_created_at(key, 0),
        }
    }

    /// Makes it the last commit.
    pub(super) fn put(&self, key: &[u8]) -> RequestOp {
        request::put(key, self.bytes.clone().unwrap_or_default(), 0)
    }

    /// True if etcd has this one.
    pub(super) fn is(&self, found: Option<&KeyValue>) -> bool {
        found.map(|found| &found.value) == self.bytes.as_ref()
    }
}

fn unusable(why: PositionError, at: &str) -> StoreError {
    StoreError::Open { store: at.to_owned(), why: Arc::new(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(value: &str) -> KeyValue {
        KeyValue { value: value.into(), ..KeyValue::default() }
    }

    #[test]
    fn the_next_one_is_read_back() {
        let first = Position::of(None, "x").unwrap();
        assert!(first.is(None));
        let second = first.next(OLDEST);
        assert!(!second.is(None));
        let text = String::from_utf8(second.bytes.clone().unwrap()).unwrap();
        assert!(text.starts_with(r#"{"number":1,"format":1,"id":""#), "the format never changes");
        assert!(second.is(Some(&found(&text))));
        assert_eq!(Position::of(Some(&found(&text)), "x").unwrap(), second);
        let other = first.next(OLDEST);
        assert!(other.number == 1 && !other.is(Some(&found(&text))), "it is another commit");
    }

    #[test]
    fn a_commit_that_is_not_the_next_one_shows_that_etcd_was_put_back() {
        let at = |number: u64| found(&format!(r#"{{"number":{number},"format":1}}"#));
        let seventh = Position::of(Some(&at(7)), "x").unwrap();
        assert_eq!(seventh.then(Some(&at(8)), "x").unwrap().number, 8);
        for other in [None, Some(at(1)), Some(at(7)), Some(at(9))] {
            let error = seventh.then(other.as_ref(), "x").unwrap_err();
            assert!(proto::host::chain(&error).contains("put back"), "{error}");
        }
    }

    #[test]
    fn what_a_newer_one_wrote_is_refused() {
        let newer = format!(r#"{{"number":1,"format":{}}}"#, NEWEST + 1);
        for text in ["", "{}", &newer] {
            let error = Position::of(Some(&found(text)), "etcd://a/b").unwrap_err();
            assert!(error.to_string().contains("etcd://a/b"), "{error}");
        }
        let more = r#"{"number":7,"format":1,"more":1}"#;
        assert_eq!(Position::of(Some(&found(more)), "x").unwrap().number, 7);
    }
}
