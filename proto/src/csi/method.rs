//! `Method`, the enum of all CSI RPCs, and the columns of the table in `table.rs`.
//!
//! Whatever treats one RPC differently from another asks a column here and compares no names.

use std::cmp::Ordering;
use std::fmt;

use bytes::Bytes;

use super::column::{
    Capabilities, Class, DirectCall, List, Local, Locks, NodeStep, Places, Resource, Rewrite,
};
use super::required;
use super::table::table;
use super::wire::{self, Edit, Malformed};

/// The services of a CSI driver, as they stand in a request's path.
pub const SERVICES: [&str; 5] = [
    "csi.v1.Identity",
    "csi.v1.Controller",
    "csi.v1.GroupController",
    "csi.v1.SnapshotMetadata",
    "csi.v1.Node",
];

/// A service of [`SERVICES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The plugin's identity.
    Identity,
    /// Volumes and snapshots as such.
    Controller,
    /// Groups of snapshots.
    GroupController,
    /// The blocks of snapshots.
    SnapshotMetadata,
    /// Volumes at this node.
    Node,
}

impl Service {
    /// In the order of [`SERVICES`].
    const ALL: [Self; SERVICES.len()] = [
        Self::Identity,
        Self::Controller,
        Self::GroupController,
        Self::SnapshotMetadata,
        Self::Node,
    ];

    /// The service of a request path, whether its method is known or not.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::and_method(path).map(|(service, _)| service)
    }

    fn and_method(path: &str) -> Option<(Self, &str)> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        let named = |(of, name): (Self, &str)| (name == service).then_some(of);
        let of = Self::ALL.into_iter().zip(SERVICES).find_map(named)?;
        Some((of, method))
    }

    /// True if CSI's controller plugin has it, which may run apart from the node plugin.
    pub fn is_controllers(self) -> bool {
        match self {
            Self::Controller | Self::GroupController | Self::SnapshotMetadata => true,
            Self::Identity | Self::Node => false,
        }
    }
}

/// The columns of one RPC that are plain data.
struct Row {
    name: &'static str,
    path: &'static str,
    streaming: bool,
    sent: bool,
    local: Option<Local>,
    creates: Option<Resource>,
    locks: Locks,
    lists: Option<List>,
    rewrite: Rewrite,
    direct: Option<DirectCall>,
    places: Option<Places>,
    secrets: Option<u32>,
    classes: &'static [(u32, Class)],
    incomplete: fn(&Bytes) -> Option<&'static str>,
}

impl Row {
    /// A row that leaves out all columns.
    const fn new(name: &'static str, path: &'static str) -> Self {
        Self {
            name,
            path,
            streaming: false,
            sent: false,
            local: None,
            creates: None,
            locks: Locks::Nothing,
            lists: None,
            rewrite: Rewrite::Nothing,
            direct: None,
            places: None,
            secrets: None,
            classes: &[],
            incomplete: required::nothing,
        }
    }
}

macro_rules! methods {
    ($($service:ident/$method:ident($($request:tt)*) => $key:expr
        $(, learn $learn:expr)? $(, { $($column:ident: $value:expr),* $(,)? })?;)*) => {
        /// An RPC of CSI 1.13.0.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Method {
            $(
                #[doc = concat!("`csi.v1.", stringify!($service), "/", stringify!($method), "`")]
                $method,
            )*
        }

        impl Method {
            /// All RPCs, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$method),*];
        }

        /// The rows, in the order of the enum's variants.
        static ROWS: [Row; Method::ALL.len()] = [$(Row {
            $($($column: $value,)*)?
            ..Row::new(
                stringify!($method),
                concat!("/csi.v1.", stringify!($service), "/", stringify!($method)),
            )
        }),*];
    };
}
table!(methods);

/// Longer than any path of the table; checked while [`BY_LENGTH`] is computed.
const PATH_LENGTHS: usize = 64;
/// The end of a chain in [`BY_LENGTH`].
const END: u8 = u8::MAX;

/// Chains of rows whose paths have the same length.
struct Chains {
    /// The first row, by length.
    first: [u8; PATH_LENGTHS],
    /// The row after a row.
    next: [u8; Method::ALL.len()],
}

/// A lookup compares the few paths of the right length only.
static BY_LENGTH: Chains = by_length();

const fn by_length() -> Chains {
    let mut chains = Chains { first: [END; PATH_LENGTHS], next: [END; Method::ALL.len()] };
    let mut index = Method::ALL.len();
    while index > 0 {
        index -= 1;
        let length = ROWS[index].path.len();
        chains.next[index] = chains.first[length];
        // There are fewer than 255 rows: the enum has one byte.
        chains.first[length] = index as u8;
    }
    chains
}

/// The method of each value of a column. A value in no row, or in two, breaks the build.
macro_rules! methods_by {
    ($column:ident, $count:expr) => {{
        let mut methods = [None; $count];
        let mut row = 0;
        while row < Method::ALL.len() {
            if let Some(value) = ROWS[row].$column {
                let at: usize = value.index();
                assert!(methods[at].is_none(), "two rows have one value");
                methods[at] = Some(Method::ALL[row]);
            }
            row += 1;
        }
        let mut found = [Method::ALL[0]; $count];
        let mut at = 0;
        while at < $count {
            assert!(methods[at].is_some(), "no row has a value");
            if let Some(method) = methods[at] {
                found[at] = method;
            }
            at += 1;
        }
        found
    }};
}

static CREATING: [Method; Resource::ALL.len()] = methods_by!(creates, Resource::ALL.len());
static LISTING: [Method; List::ALL.len()] = methods_by!(lists, List::ALL.len());
static ANSWERING: [Method; Local::ALL.len()] = methods_by!(local, Local::ALL.len());

impl Method {
    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// CSI's name, for example `CreateVolume`; unique over all services.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// For example `/csi.v1.Controller/CreateVolume`.
    pub const fn path(self) -> &'static str {
        self.row().path
    }

    /// The RPC of a request path.
    pub fn of_path(path: &str) -> Option<Self> {
        let mut index = *BY_LENGTH.first.get(path.len())?;
        while let Some(row) = ROWS.get(usize::from(index)) {
            if row.path == path {
                return Self::ALL.get(usize::from(index)).copied();
            }
            index = BY_LENGTH.next[usize::from(index)];
        }
        None
    }

    /// The RPC of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|method| method.name() == name)
    }

    /// True if the answer is a stream of messages. Such a call changes nothing.
    pub const fn streaming(self) -> bool {
        self.row().streaming
    }

    /// True if csi-cloud sends the call over a link. An edge takes no other call from one.
    pub const fn sent(self) -> bool {
        self.row().sent
    }

    /// True if answers may be large. Such a call travels beside the small calls, not among them.
    pub const fn bulk(self) -> bool {
        self.row().streaming || self.row().lists.is_some()
    }

    /// The answer that a front gives itself; none if a driver answers.
    pub const fn local(self) -> Option<Local> {
        self.row().local
    }

    /// The kind of resource that the call creates, with its name as idempotency key.
    pub const fn creates(self) -> Option<Resource> {
        self.row().creates
    }

    /// The column of what the call locks; see [`Method::locks`].
    pub const fn locks_column(self) -> Locks {
        self.row().locks
    }

    /// The list over all nodes that the call asks for.
    pub const fn lists(self) -> Option<List> {
        self.row().lists
    }

    /// The rewriting that the request and its answer need.
    pub const fn rewrite(self) -> Rewrite {
        self.row().rewrite
    }

    /// The effect of the call on a direct volume; none if that makes no difference.
    pub const fn direct(self) -> Option<DirectCall> {
        self.row().direct
    }

    /// The fields of the request that are edited for the driver of a direct volume.
    pub const fn places(self) -> Option<Places> {
        self.row().places
    }

    /// The number of the request's field with secrets; none if it has none.
    pub const fn secrets(self) -> Option<u32> {
        self.row().secrets
    }

    /// The numbers of the request's fields with parameters of classes.
    pub const fn classes(self) -> &'static [(u32, Class)] {
        self.row().classes
    }

    /// The unframed request without its secrets; all other bytes are kept. None if it has none.
    ///
    /// # Errors
    /// The request is malformed.
    pub fn without_secrets(self, request: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
        let Some(number) = self.secrets() else { return Ok(None) };
        wire::edit(request, &[number], |_| Ok(Edit::Drop))
    }

    /// The required field that an (unframed) request lacks, beside the id.
    pub fn incomplete(self, request: &Bytes) -> Option<&'static str> {
        (self.row().incomplete)(request)
    }

    /// The RPC that makes things of a kind.
    pub const fn creating(kind: Resource) -> Self {
        CREATING[kind.index()]
    }

    /// The RPC that asks for a list.
    pub const fn listing(list: List) -> Self {
        LISTING[list.index()]
    }

    /// The RPC that a front answers with this.
    pub const fn answering(local: Local) -> Self {
        ANSWERING[local.index()]
    }
}

/// By name, which does not change when rows are added or moved.
impl Ord for Method {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(other.name())
    }
}

impl PartialOrd for Method {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whether the path names a method, known or not, of a service that a CSI driver has.
pub fn of_driver(path: &str) -> bool {
    Service::and_method(path).is_some_and(|(_, method)| {
        !method.is_empty() && method.bytes().all(|b| b.is_ascii_alphanumeric())
    })
}
