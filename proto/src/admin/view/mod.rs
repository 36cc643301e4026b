//! What csi-cloud's socket `view` serves: read commands for csi-page, and one stream.
//!
//! The list of paths is closed, and none of them changes anything. The stream is lines of JSON:
//! first the whole fleet, then each second what has changed.

use std::fmt::Write as _;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

mod answers;
mod fleet;
mod node_state;

pub use answers::{
    CallRow, CallsPage, ClaimPage, ExplainAnswer, ExplainQuery, ExplainStep, Found, GroupValues,
    GroupsOf, Hit, Latency, MomentOutcome, NodeDetails, NodeOf, NodePage, SetApartDetails, TextOf,
    Timeline, TimelineMoment, VolumeDetails, VolumeOf, VolumePage,
};
pub use fleet::{
    DriverCell, FleetChange, FleetMessage, HealthDetails, InFlight, NodeCell, PageTarget, Problem,
    ReplicaCell, Several, Severity, Snapshot, TroubledVolume, near,
};
pub use node_state::NodeState;

/// The path of the stream of [`FleetMessage`].
pub const WATCH: &str = "/view/watch";
/// Explains a [`ExplainQuery`]: [`ExplainAnswer`].
pub const EXPLAIN: &str = "/view/explain";
/// One node, [`NodeOf`]: [`NodePage`].
pub const NODE: &str = "/view/node";
/// One volume, [`VolumeOf`]: [`VolumePage`].
pub const VOLUME: &str = "/view/volume";
/// One claim, [`TextOf`] with `NAMESPACE/NAME`: [`ClaimPage`].
pub const CLAIM: &str = "/view/claim";
/// Calls in flight and calls that ended: [`CallsPage`].
pub const CALLS: &str = "/view/calls";
/// What has a name, [`TextOf`]: [`Found`].
pub const FIND: &str = "/view/find";
/// The values by which nodes can be grouped, [`GroupsOf`]: [`GroupValues`].
pub const GROUPS: &str = "/view/groups";

/// All paths of the socket `view`.
pub const PATHS: [&str; 8] = [WATCH, EXPLAIN, NODE, VOLUME, CLAIM, CALLS, FIND, GROUPS];

/// The mode of the socket: its owner, and its group, in which csi-page is.
pub const MODE: u32 = 0o660;

/// The SHA-256 of a certificate's public key, in hexadecimal digits; a CA that is renewed keeps its
/// key. `None` if it is not a certificate.
pub fn key_hash(certificate: &CertificateDer<'static>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let hash = ring::digest::digest(&ring::digest::SHA256, parsed.public_key().raw);
    let mut digits = String::with_capacity(64);
    for byte in hash.as_ref() {
        // Writing to a String cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    Some(digits)
}
