//! Names the pod and the claim of a node call in what is logged about it, as far as csi-cloud sent
//! them.

use edge_calls::metadata::Metadata;
use proto::http2::call_id::CallId;
use tracing::Span;
use tracing::field::Empty;

use super::request::Request;
use crate::lease::exclusive::pod_in;

/// The span of a call whose other names are not known yet.
pub(super) fn span(id: CallId) -> Span {
    tracing::info_span!("node call", call = %id, pod = Empty, claim = Empty)
}

/// Puts the names of the call into the span that it runs in. A request that cannot be read has
/// none, and is refused elsewhere.
pub(super) fn record(request: &Request<'_>, metadata: &Metadata) {
    let span = Span::current();
    let Ok(volume) = request.volume() else { return };
    if let Some(claim) = metadata.claim(request.driver.as_str(), &volume) {
        span.record("claim", claim);
    }
    let target = request.target().ok().flatten();
    if let Some(pod) = target.and_then(|target| metadata.pod_text(&pod_in(&target))) {
        span.record("pod", pod);
    }
}
