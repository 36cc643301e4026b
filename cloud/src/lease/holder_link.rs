//! Explains to operators who holds a volume, and what to do if the holder does not release it.

use k8s_openapi::jiff::Timestamp;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::nodes::links::Links;
use crate::state::record::{Attached, Holder, LeaseClaim, LeaseRecord};
use crate::state::store::writer::Store;

/// Whether the node of a holder can release its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HolderLink {
    /// It is linked, and reports a release.
    Linked,
    /// It has no link; it reports its leases on the next one.
    Away,
    /// An operator removed it, so it gets no link.
    Removed,
}

impl HolderLink {
    /// The standing of a node; `removed` is true if an operator removed it.
    pub(crate) fn of(node: &NodeName, removed: bool, links: &Links) -> Self {
        match links.now(node) {
            // It may still have a link that is about to end.
            _ if removed => Self::Removed,
            None => Self::Away,
            Some(_) => Self::Linked,
        }
    }
}

/// Names the holder of a volume, and the remedy.
pub(crate) fn explain(
    driver: &DriverName,
    id: &Id,
    record: &LeaseRecord,
    store: &Store,
    links: &Links,
) -> String {
    let volume = id.text();
    let release =
        |node: &NodeName| format!("`csi-cloud volume release {driver} {volume} --node {node}`");
    match (&record.holder, &record.attached) {
        (Some(holder), _) => {
            let removed = store.read(|state| state.is_removed(&holder.node));
            let standing = HolderLink::of(&holder.node, removed, links);
            let release = release(&holder.node);
            format!("{}, and {}", has(holder), until(&holder.node, &standing, &release))
        }
        (None, _) if !record.claims.is_empty() => format!(
            "{}, and no lease of this csi-cloud proves it; it is kept from everybody until all but \
             one say that they do not have it. If one of them does not have it, and only then, \
             {} says so for it",
            claimed(&record.claims),
            release_of_each(&record.claims, release)
        ),
        (None, Some(Attached { node, id, since })) => format!(
            "it is attached to node {node}{}, as {id:?}, and is free when it is detached \
             (ControllerUnpublishVolume); if it was, and the driver says the same, \
             {} forgets that it is attached",
            date(*since),
            release(node)
        ),
        (None, None) => "it is nobody's now".into(),
    }
}

/// Names the nodes that claim it.
fn claimed(claims: &[LeaseClaim]) -> String {
    let says = |claim: &LeaseClaim| {
        format!("node {} says that it has it{}", claim.node, date(claim.since))
    };
    claims.iter().map(says).collect::<Vec<_>>().join(", ")
}

fn release_of_each(claims: &[LeaseClaim], release: impl Fn(&NodeName) -> String) -> String {
    claims.iter().map(|claim| release(&claim.node)).collect::<Vec<_>>().join(" or ")
}

fn has(holder: &Holder) -> String {
    let Holder { node, pod, since, .. } = holder;
    match &**pod {
        "" => format!("node {node} has it for a pod{}", date(*since)),
        pod => format!("node {node} has it for pod {pod}{}", date(*since)),
    }
}

fn date(since: u64) -> String {
    let since = i64::try_from(since).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    since.map(|since| format!(" since {since:.0}")).unwrap_or_default()
}

/// The condition under which the node releases it, and the remedy otherwise.
fn until(node: &NodeName, standing: &HolderLink, release: &str) -> String {
    match standing {
        HolderLink::Linked => format!(
            "is linked: it lets go when that pod is gone and the volume is unpublished there. \
             If `csi-edge direct list` there does not have the volume: \
             stop csi-edge there, give {release}, and start it again"
        ),
        HolderLink::Away => format!(
            "has no link: it lets go when it has linked and the pod there is gone; \
             if it is off for good, and only then, {release} takes it from that node"
        ),
        HolderLink::Removed => format!(
            "was removed, so it never says that it has let go: \
             if that machine is off, or the volume is unpublished there, \
             and only then, {release} takes it from {node}"
        ),
    }
}
