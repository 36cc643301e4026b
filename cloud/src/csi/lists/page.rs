//! One page of a merged list, from the store alone.
//!
//! Pages are ordered by id. So an entry that stays is listed exactly once, whatever changes between
//! two pages.

use bytes::Bytes;
use proto::csi::Id;
use proto::csi::wire;

use super::kind::{ENTRIES, ListKind, NEXT_TOKEN};
use super::token;
use crate::rewrite::message;
use crate::state::driver_state::DriverState;
use crate::state::list_entry;
use crate::state::record::Home;

/// The most entries of a page.
const MAX_ENTRIES: usize = 10_000;
/// The most bytes of a page, unless its first entry alone has more. Other calls wait while a
/// page is made and written. A message has at most 4 MiB.
const MAX_BYTES: usize = 128 * 1024;

/// The unframed answer with the page after an id. A `limit` of zero means the maximum.
pub(super) fn page(
    driver: Option<&DriverState>,
    kind: ListKind,
    after: Option<&str>,
    limit: usize,
) -> Vec<u8> {
    let has_status = driver.is_some_and(|driver| kind.has_status(driver));
    let limit = if limit == 0 { MAX_ENTRIES } else { limit.min(MAX_ENTRIES) };
    let homes = driver.map(|driver| driver.homes().range(kind.range(after)));
    let mut message = Vec::new();
    let mut last = "";
    // Absent entries are not shown. Entries lost with their node are, until the CO deletes them.
    let shown = homes.into_iter().flatten().filter(|(_, home)| !home.absent);
    for (entries, (id, home)) in shown.enumerate() {
        let mut entry = entry(driver, kind, id, home);
        if has_status {
            entry = list_entry::with_status(entry);
        }
        let is_full = message.len() + entry.len() > MAX_BYTES && entries > 0;
        if is_full || entries == limit {
            let next = token::write(kind.letter(), last);
            wire::append(&mut message, &[NEXT_TOKEN], next.as_bytes());
            break;
        }
        wire::append(&mut message, &[ENTRIES], &entry);
        last = id.text();
    }
    message
}

/// The entry as its node last listed it, with our topology if the driver reports none.
fn entry(driver: Option<&DriverState>, kind: ListKind, id: &Id, home: &Home) -> Bytes {
    let entry = if home.entry.is_empty() { kind.bare(id.text()) } else { home.entry.clone() };
    let driver = driver.filter(|driver| driver.has_our_topology());
    let at = driver.and_then(|driver| driver.at(&home.node));
    // A stored entry that cannot be parsed is shown unchanged.
    message::into_entry(kind.list(), &entry, &home.node, at).unwrap_or(entry)
}
