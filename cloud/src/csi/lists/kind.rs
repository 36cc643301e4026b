//! The kinds of merged lists, and their pages.
//!
//! Both kinds have the same layout, so pages are read as bytes. Each entry is kept as the driver
//! wrote it, with fields that csi-cloud does not know.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use prost::{DecodeError, Message};
use proto::csi;
use proto::csi::controller_service_capability::{Type, rpc};
use proto::csi::wire;
use proto::csi::{Capabilities, Id, Learn, List, Local, Made, Method};
use proto::names::NodeName;
use tokio::time::Instant;

use crate::nodes::query::{NodeQueries, QueryError};
use crate::state::driver_state::DriverState;
use crate::state::record::NodeDriver;

/// The field number of the entries in both answers.
pub(super) const ENTRIES: u32 = 1;
/// The field number of the next page's token in both answers.
pub(super) const NEXT_TOKEN: u32 = 2;
const CONTROLLER: Local = Local::Capabilities(Capabilities::Controller);
/// The bytes of a page that are recorded at a time, or one larger entry. Others that wait for the
/// store, or for a thread, get their turn in between.
const PIECE: usize = 128 << 10;

/// A kind of list.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// Of ListVolumes.
    Volumes,
    /// Of ListSnapshots.
    Snapshots,
}

/// The secrets of a request, sorted; never printed.
pub(super) type Secrets = BTreeMap<String, String>;

/// A page of a node's list.
pub struct Page {
    pub(super) entries: Vec<Bytes>,
    /// The token of the next page; empty at the end.
    pub(super) next: String,
    /// The size of the answer.
    pub(super) bytes: usize,
}

/// A caller's request for a list.
pub(super) struct ListRequest {
    pub(super) max_entries: i32,
    pub(super) token: String,
    pub(super) secrets: Secrets,
}

impl ListKind {
    /// The kind of this list. None if its entries are not stored.
    pub(super) fn of(list: List) -> Option<Self> {
        match list {
            List::Volumes => Some(Self::Volumes),
            List::Snapshots => Some(Self::Snapshots),
            List::Health => None,
        }
    }

    /// The list that shows this kind.
    pub(super) fn list(self) -> List {
        match self {
            Self::Volumes => List::Volumes,
            Self::Snapshots => List::Snapshots,
        }
    }

    /// The RPC that lists this kind.
    pub(super) fn method(self) -> Method {
        Method::listing(self.list())
    }

    /// The kind of thing in this list.
    fn resource(self) -> csi::Resource {
        match self {
            Self::Volumes => csi::Resource::Volume,
            Self::Snapshots => csi::Resource::Snapshot,
        }
    }

    /// The letter of this kind in a token.
    pub(super) fn letter(self) -> u8 {
        match self {
            Self::Volumes => b'v',
            Self::Snapshots => b's',
        }
    }

    pub(super) fn id(self, text: String) -> Id {
        self.resource().id(text)
    }

    pub(super) fn is_of(self, id: &Id) -> bool {
        !matches!(id, Id::Name(..)) && id.kind() == Some(self.resource())
    }

    /// All ids of this kind, or those after this one.
    pub(super) fn range(self, after: Option<&str>) -> (Bound<Id>, Bound<Id>) {
        let from = after.map_or_else(
            || Bound::Included(self.id(String::new())),
            |after| Bound::Excluded(self.id(after.to_owned())),
        );
        let end = match self {
            Self::Volumes => Id::Snapshot(String::new()),
            Self::Snapshots => Id::Group(String::new()),
        };
        (from, Bound::Excluded(end))
    }

    /// True if the driver reports at a node that it has this list.
    pub(super) fn is_listed(self, at: &NodeDriver) -> bool {
        let lists = match self {
            Self::Volumes => rpc::Type::ListVolumes,
            Self::Snapshots => rpc::Type::ListSnapshots,
        };
        has(at.answer(CONTROLLER), lists)
    }

    /// True if each entry of the front's list has a status. CSI: it must have one if the plugin has
    /// LIST_VOLUMES_PUBLISHED_NODES, also for a volume that no node has listed yet.
    pub(super) fn has_status(self, driver: &DriverState) -> bool {
        if self != Self::Volumes {
            return false;
        }
        let said = driver.info().answer(CONTROLLER, false).ok().flatten();
        has(said.as_ref(), rpc::Type::ListVolumesPublishedNodes)
    }

    /// Reads an entry, which has the same layout as the answer of a create. None without an id.
    ///
    /// # Errors
    /// It cannot be decoded.
    pub fn read(self, entry: &Bytes) -> Result<Option<Made>, DecodeError> {
        match Method::creating(self.resource()).learn() {
            Learn::Made(read) => {
                let made = read(entry)?.into_iter().next();
                Ok(made.filter(|made| !made.id.text().is_empty()))
            }
            Learn::Nothing
            | Learn::Gone
            | Learn::Attached(_)
            | Learn::Detached(_)
            | Learn::Resized(_) => Ok(None),
        }
    }

    /// The entry of an id that no list has shown yet.
    pub(super) fn bare(self, id: &str) -> Bytes {
        let entry = match self {
            Self::Volumes => {
                let volume = csi::Volume { volume_id: id.into(), ..Default::default() };
                csi::list_volumes_response::Entry { volume: Some(volume), status: None }
                    .encode_to_vec()
            }
            Self::Snapshots => {
                let snapshot = csi::Snapshot { snapshot_id: id.into(), ..Default::default() };
                csi::list_snapshots_response::Entry { snapshot: Some(snapshot) }.encode_to_vec()
            }
        };
        entry.into()
    }

    /// Asks a node for a page of at most so many entries; with zero the driver decides.
    ///
    /// # Errors
    /// See [`NodeQueries::ask`].
    pub(super) async fn page(
        self,
        queries: &NodeQueries,
        node: &NodeName,
        secrets: &Secrets,
        (max_entries, token): (i32, &str),
        deadline: Instant,
    ) -> Result<Page, QueryError> {
        let starting_token = token.to_owned();
        let answer = match self {
            Self::Volumes => {
                let request = csi::ListVolumesRequest { max_entries, starting_token };
                queries.ask(node, self.method(), &request, deadline).await?
            }
            Self::Snapshots => {
                let request = csi::ListSnapshotsRequest {
                    max_entries,
                    starting_token,
                    secrets: secrets.clone().into_iter().collect(),
                    ..Default::default()
                };
                queries.ask(node, self.method(), &request, deadline).await?
            }
        };
        Page::read(&answer).ok_or_else(|| QueryError::Unreadable {
            node: node.clone(),
            method: self.method().name(),
        })
    }
}

impl Page {
    /// Reads an unframed answer. None if it is malformed.
    pub fn read(answer: &[u8]) -> Option<Self> {
        let mut page = Self { entries: Vec::new(), next: String::new(), bytes: answer.len() };
        for field in wire::fields(answer) {
            let field = field.ok()?;
            match (field.number, field.content) {
                // Copied, so that a stored entry does not keep the whole answer in memory.
                (ENTRIES, Some(entry)) => page.entries.push(Bytes::copy_from_slice(entry)),
                (NEXT_TOKEN, Some(token)) => {
                    page.next = std::str::from_utf8(token).ok()?.to_owned();
                }
                _ => {}
            }
        }
        Some(page)
    }

    /// The entries, as the driver wrote them.
    pub fn entries(&self) -> &[Bytes] {
        &self.entries
    }

    /// The entries in pieces of at most [`PIECE`] bytes, or of one entry.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[Bytes]> {
        let mut size = 0;
        self.entries.chunk_by(move |last, next| {
            size += last.len();
            let fits = size + next.len() <= PIECE;
            if !fits {
                size = 0;
            }
            fits
        })
    }

    /// The bytes of all entries.
    pub fn size(&self) -> usize {
        self.entries.iter().map(Bytes::len).sum()
    }
}

impl ListRequest {
    /// Reads an unframed request.
    ///
    /// # Errors
    /// It cannot be decoded.
    pub(super) fn read(kind: ListKind, request: &Bytes) -> Result<Self, DecodeError> {
        Ok(match kind {
            ListKind::Volumes => {
                let request = csi::ListVolumesRequest::decode(request.clone())?;
                Self {
                    max_entries: request.max_entries,
                    token: request.starting_token,
                    secrets: Secrets::new(),
                }
            }
            ListKind::Snapshots => {
                let request = csi::ListSnapshotsRequest::decode(request.clone())?;
                Self {
                    max_entries: request.max_entries,
                    token: request.starting_token,
                    secrets: request.secrets.into_iter().collect(),
                }
            }
        })
    }
}

/// True if an answer to ControllerGetCapabilities has this one.
fn has(answer: Option<&Bytes>, wanted: rpc::Type) -> bool {
    let reported =
        csi::ControllerGetCapabilitiesResponse::decode(answer.cloned().unwrap_or_default());
    let capabilities = reported.unwrap_or_default().capabilities;
    let mut types = capabilities.into_iter().filter_map(|capability| capability.r#type);
    types.any(|Type::Rpc(rpc)| rpc.r#type() == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(entries: &[usize]) -> Vec<Vec<usize>> {
        let entries = entries.iter().map(|size| Bytes::from(vec![0; *size])).collect();
        let page = Page { entries, next: String::new(), bytes: 0 };
        page.pieces().map(|piece| piece.iter().map(Bytes::len).collect()).collect()
    }

    #[test]
    fn a_page_is_recorded_in_pieces_and_every_entry_is_in_one() {
        let half = PIECE / 2;
        let pieces = sizes(&[half, half, 1, 2 * PIECE, half, half - 1, 1, 1]);
        let expected =
            [vec![half, half], vec![1], vec![2 * PIECE], vec![half, half - 1, 1], vec![1]];
        assert_eq!(pieces, expected);
        assert!(sizes(&[]).is_empty());
    }
}
