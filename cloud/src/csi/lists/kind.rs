//! What a list is of. Both kinds are built alike, so their pages are read as bytes: each entry is kept as the
//! driver wrote it, also with fields that are newer than we are.

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
use crate::state::record::NodeDriver;

/// The number of the entries in both answers.
pub(super) const ENTRIES: u32 = 1;
/// The number of the token for the next page in both answers.
pub(super) const NEXT_TOKEN: u32 = 2;
/// Entries that a node is asked for at once. An answer has at most 4 MiB, so an entry may have 8 KiB.
const PAGE: i32 = 500;

/// A kind of list.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Volumes,
    Snapshots,
}

/// What a list may need to be made, in order; never printed.
pub(super) type Secrets = BTreeMap<String, String>;

/// A page of a node's list.
pub(super) struct Page {
    pub(super) entries: Vec<Bytes>,
    /// Empty at the end.
    pub(super) next: String,
}

/// What a caller wants of a list.
pub(super) struct Wanted {
    pub(super) most: i32,
    pub(super) token: String,
    pub(super) secrets: Secrets,
}

impl Kind {
    /// The kind of this list; none of one that is not kept.
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

    /// What a create of this kind makes.
    fn made(self) -> csi::Kind {
        match self {
            Self::Volumes => csi::Kind::Volume,
            Self::Snapshots => csi::Kind::Snapshot,
        }
    }

    /// Tells the kinds apart in a token.
    pub(super) fn letter(self) -> u8 {
        match self {
            Self::Volumes => b'v',
            Self::Snapshots => b's',
        }
    }

    pub(super) fn id(self, text: String) -> Id {
        self.made().id(text)
    }

    pub(super) fn is_of(self, id: &Id) -> bool {
        !matches!(id, Id::Name(..)) && id.kind() == Some(self.made())
    }

    /// All ids of this kind that come after one, or all of them.
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

    /// Whether the driver says at a node that it lists this.
    pub(super) fn is_listed(self, at: &NodeDriver) -> bool {
        let lists = match self {
            Self::Volumes => rpc::Type::ListVolumes,
            Self::Snapshots => rpc::Type::ListSnapshots,
        };
        let said =
            at.answer(Local::Capabilities(Capabilities::Controller)).cloned().unwrap_or_default();
        let said = csi::ControllerGetCapabilitiesResponse::decode(said).unwrap_or_default();
        let mut types = said.capabilities.into_iter().filter_map(|capability| capability.r#type);
        types.any(|Type::Rpc(rpc)| rpc.r#type() == lists)
    }

    /// What an entry is about. It stands in an answer to a create as it does in a list.
    ///
    /// # Errors
    /// It is no entry.
    pub(super) fn read(self, entry: &Bytes) -> Result<Option<Made>, DecodeError> {
        match Method::creating(self.made()).learn() {
            Learn::Made(read) => {
                let thing = read(entry)?.into_iter().next();
                Ok(thing.filter(|thing| !thing.id.text().is_empty()))
            }
            Learn::Nothing
            | Learn::Gone
            | Learn::Attached(_)
            | Learn::Detached(_)
            | Learn::Resized(_) => Ok(None),
        }
    }

    /// The entry of what was never seen in a list.
    pub(super) fn bare(self, id: &str) -> Bytes {
        let volume = || csi::Volume { volume_id: id.into(), ..Default::default() };
        let snapshot = || csi::Snapshot { snapshot_id: id.into(), ..Default::default() };
        match self {
            Self::Volumes => {
                csi::list_volumes_response::Entry { volume: Some(volume()), status: None }
                    .encode_to_vec()
                    .into()
            }
            Self::Snapshots => csi::list_snapshots_response::Entry { snapshot: Some(snapshot()) }
                .encode_to_vec()
                .into(),
        }
    }

    /// Asks a node for a page.
    ///
    /// # Errors
    /// See [`NodeQueries::ask`].
    pub(super) async fn page(
        self,
        asker: &NodeQueries,
        node: &NodeName,
        secrets: &Secrets,
        token: String,
        deadline: Instant,
    ) -> Result<Page, QueryError> {
        let answer = match self {
            Self::Volumes => {
                let request = csi::ListVolumesRequest { max_entries: PAGE, starting_token: token };
                asker.ask(node, self.method(), &request, deadline).await?
            }
            Self::Snapshots => {
                let request = csi::ListSnapshotsRequest {
                    max_entries: PAGE,
                    starting_token: token,
                    secrets: secrets.clone().into_iter().collect(),
                    ..Default::default()
                };
                asker.ask(node, self.method(), &request, deadline).await?
            }
        };
        Page::read(&answer).ok_or_else(|| QueryError::Unreadable {
            node: node.clone(),
            method: self.method().name(),
        })
    }
}

impl Page {
    /// Reads an (unframed) answer. None if it is malformed.
    pub(super) fn read(answer: &[u8]) -> Option<Self> {
        let mut page = Self { entries: Vec::new(), next: String::new() };
        for field in wire::fields(answer) {
            let field = field.ok()?;
            match (field.number, field.content) {
                // Copied: what is kept of an entry must not keep the whole answer in memory.
                (ENTRIES, Some(entry)) => page.entries.push(Bytes::copy_from_slice(entry)),
                (NEXT_TOKEN, Some(token)) => {
                    page.next = std::str::from_utf8(token).ok()?.to_owned()
                }
                _ => {}
            }
        }
        Some(page)
    }

    /// The bytes of its entries.
    pub(super) fn size(&self) -> usize {
        self.entries.iter().map(Bytes::len).sum()
    }
}

impl Wanted {
    /// Reads an (unframed) request.
    ///
    /// # Errors
    /// It is not what the method takes.
    pub(super) fn read(kind: Kind, request: &Bytes) -> Result<Self, DecodeError> {
        Ok(match kind {
            Kind::Volumes => {
                let request = csi::ListVolumesRequest::decode(request.clone())?;
                let (most, token) = (request.max_entries, request.starting_token);
                Self { most, token, secrets: Secrets::new() }
            }
            Kind::Snapshots => {
                let request = csi::ListSnapshotsRequest::decode(request.clone())?;
                let (most, token) = (request.max_entries, request.starting_token);
                Self { most, token, secrets: request.secrets.into_iter().collect() }
            }
        })
    }
}
