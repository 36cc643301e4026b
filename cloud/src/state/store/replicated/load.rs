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

/// The most records of a page.
const PAGE: i64 = 5_000;

/// Why the records were not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// etcd gave no answer.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// What it gave cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was read beside the records.
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
        let mut pages = Pages { range, limit: PAGE };
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

/// What is left to read of a table, and the size of a page.
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
                    return Ok(Some(page.kvs));
                }
            }
        }
    }
}
