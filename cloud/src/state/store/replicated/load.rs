//! Reads all records, page by page, as they were at one revision.

use super::cluster::Cluster;
use super::keys::Key;
use super::orders::Orders;
use super::position::Position;
use crate::etcd::api::{KeyValue, RangeRequest};
use crate::etcd::error::EtcdError;
use crate::etcd::request;
use crate::etcd::request::ranges;
use crate::state::record::Change;
use crate::state::store::backend::StoreError;
use crate::state::store::codec::Decoder;
use crate::state::store::format;
use crate::state::store::format::{Needs, Newer, OLDEST};
use crate::state::store::table::Table;

/// The records of the first page of a table.
const FIRST_PAGE: i64 = 1_000;
/// The bytes that a page should have. Pages must be few: for each one, etcd counts all keys of the
/// table that are left.
const PAGE_BYTES: usize = 8 << 20;

/// The reason why the records were not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// etcd gave no answer.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// Its answer cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The position and orders that were read beside the records.
pub(super) struct Loaded {
    /// All is as it was at this revision.
    pub(super) revision: i64,
    pub(super) position: Position,
    pub(super) leader: Option<KeyValue>,
    pub(super) orders: Orders,
    pub(super) needs: Needs,
}

/// Reads all records.
///
/// # Errors
/// etcd gives no answer, or compacts the revision meanwhile; or a record is none.
pub(super) async fn load<F: FnMut(Change) + ?Sized>(
    cluster: &Cluster,
    each: &mut F,
) -> Result<Loaded, LoadError> {
    let Cluster { client, keys, .. } = cluster;
    let heads = request::read([
        request::get(&keys.commit()),
        request::get(&keys.leader()),
        request::get_all(&keys.orders()),
    ]);
    let answer = client.txn(heads).await?;
    let revision = answer.header.map_or(0, |header| header.revision);
    let [commit, leader, orders] = ranges(answer);
    let position = Position::of(commit.first(), &cluster.url)?;
    let mut decoder = Decoder::default();
    let mut newer = Newer::new();
    for table in Table::ALL {
        let mut range = request::get_all(&keys.table(table));
        range.revision = revision;
        let mut pages = Pages { range, limit: FIRST_PAGE };
        while let Some(page) = pages.next(cluster).await? {
            for found in &page {
                let Key::Record(table, key) = keys.parse(&found.key) else { continue };
                let change = decoder.decode(table, key, &found.value)?;
                let needed = format::needed(&change);
                if needed > OLDEST {
                    newer.insert((table, key.to_vec()), needed);
                }
                each(change);
            }
        }
    }
    let mut needs = Needs::unknown();
    needs.learn(newer);
    let leader = leader.into_iter().next();
    Ok(Loaded { revision, position, leader, orders: Orders::of(keys, &orders), needs })
}

/// The rest of a table to read, and the size of a page.
struct Pages {
    range: RangeRequest,
    limit: i64,
}

impl Pages {
    /// The next page; none after the last.
    async fn next(&mut self, cluster: &Cluster) -> Result<Option<Vec<KeyValue>>, EtcdError> {
        loop {
            let range = RangeRequest { limit: self.limit, ..self.range.clone() };
            match cluster.client.range(range).await {
                Err(EtcdError::TooLarge(_)) if self.limit > 1 => self.limit /= 2,
                Err(error) => return Err(error),
                Ok(page) => {
                    let Some(last) = page.kvs.last() else { return Ok(None) };
                    // The first key after it.
                    self.range.key = [&*last.key, b"\0"].concat();
                    self.limit = next_limit(&page.kvs);
                    return Ok(Some(page.kvs));
                }
            }
        }
    }
}

/// The number of records for the next page, if they are as large as those of this one.
fn next_limit(page: &[KeyValue]) -> i64 {
    let bytes: usize = page.iter().map(|found| found.key.len() + found.value.len()).sum();
    let records = PAGE_BYTES.saturating_mul(page.len()) / bytes.max(1);
    i64::try_from(records).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_more_small_records_than_large_ones() {
        let found = |bytes| KeyValue { value: vec![0; bytes], ..KeyValue::default() };
        assert_eq!(next_limit(&vec![found(128); 1_000]), 65_536);
        assert_eq!(next_limit(&[found(16 << 20)]), 1, "at least one");
        assert_eq!(next_limit(&[KeyValue::default()]), 8 << 20, "an empty one has no size");
    }
}
