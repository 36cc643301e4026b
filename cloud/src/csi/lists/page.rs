//! One page of a merged list, out of the store alone: in order of the ids, so that whatever comes or goes between
//! two pages, nothing that stays is left out or given twice.

use bytes::Bytes;
use proto::csi::Id;
use proto::csi::wire;

use super::kind::{ENTRIES, Kind, NEXT_TOKEN};
use super::token;
use crate::rewrite::message;
use crate::state::known::DriverState;
use crate::state::record::Home;

/// Entries of a page, whatever is asked for.
const MOST: usize = 10_000;
/// Bytes of a page's entries, unless the first alone has more. A message has 4 MiB at most.
const BYTES: usize = 3 * 1024 * 1024;

/// The (unframed) answer with the page after an id; `most` entries, or as many as fit for zero.
pub(super) fn page(
    driver: Option<&DriverState>,
    kind: Kind,
    after: Option<&str>,
    most: usize,
) -> Vec<u8> {
    let most = if most == 0 { MOST } else { most.min(MOST) };
    let homes = driver.map(|driver| driver.homes().range(kind.range(after)));
    let mut shown = homes.into_iter().flatten().filter(|(_, home)| is_shown(home)).peekable();
    let (mut message, mut entries, mut last) = (Vec::new(), 0, "");
    while let Some((id, home)) = shown.peek().copied() {
        let entry = entry(driver, kind, id, home);
        let full = entries == most || (entries > 0 && message.len() + entry.len() > BYTES);
        if full {
            wire::append(&mut message, &[NEXT_TOKEN], token::write(kind.letter(), last).as_bytes());
            break;
        }
        wire::append(&mut message, &[ENTRIES], &entry);
        (entries, last) = (entries + 1, id.text());
        shown.next();
    }
    message
}

/// What is lost with its node is shown: it is for the CO to give it up, and until then it is known.
fn is_shown(home: &Home) -> bool {
    !home.absent
}

/// The entry as its node last gave it, with our topology if the driver has none there.
fn entry(driver: Option<&DriverState>, kind: Kind, id: &Id, home: &Home) -> Bytes {
    let entry = if home.entry.is_empty() { kind.bare(id.text()) } else { home.entry.clone() };
    let at =
        driver.filter(|driver| driver.has_our_topology()).and_then(|driver| driver.at(&home.node));
    // What is no message was kept by somebody else, and is shown as it is.
    message::into_entry(kind.list(), &entry, &home.node, at).unwrap_or(entry)
}
