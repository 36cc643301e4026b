//! Whose a volume is, in words for operators: they say what to look at and what to do, since a person may have to.

use k8s_openapi::jiff::Timestamp;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::nodes::links::Links;
use crate::state::record::{Attached, Holder, LeaseRecord};
use crate::state::store::writer::Store;

/// How a node stands that has a volume, as far as letting go of it is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is linked, and says when it has let go.
    Linked,
    /// It is linked, and its csi-edge, of this version, says nothing of what it has.
    Mute(Box<str>),
    /// It has no link, and says so when it has one again.
    Away,
    /// It was removed, so it gets no link.
    Removed,
}

impl Standing {
    /// `removed`: an operator removed it.
    pub(crate) fn of(node: &NodeName, removed: bool, links: &Links) -> Self {
        match links.now(node) {
            // Its link may end in a moment.
            _ if removed => Self::Removed,
            None => Self::Away,
            Some(link) if link.peer.leases => Self::Linked,
            Some(link) => Self::Mute(link.peer.version.clone()),
        }
    }
}

/// Who is said to have a volume, and what to do about it.
pub(crate) fn whose(
    driver: &DriverName,
    id: &Id,
    own: &LeaseRecord,
    store: &Store,
    links: &Links,
) -> String {
    let volume = id.text();
    let release =
        |node: &NodeName| format!("`csi-cloud volume release {driver} {volume} --node {node}`");
    match (&own.holder, &own.attached) {
        (Some(owner), _) => {
            let removed = store.read(|state| state.is_removed(&owner.node));
            let standing = Standing::of(&owner.node, removed, links);
            format!("{}, and {}", has(owner), until(&owner.node, &standing, &release(&owner.node)))
        }
        (None, Some(Attached { node, id, since })) => format!(
            "it is attached to node {node}{}, as {id:?}, and is free when it is detached (ControllerUnpublishVolume); if \
             it was, and the driver says the same, {} forgets that it is attached",
            date(*since),
            release(node)
        ),
        (None, None) => "it is nobody's now".into(),
    }
}

fn has(owner: &Holder) -> String {
    let Holder { node, pod, since, .. } = owner;
    match &**pod {
        "" => format!("node {node} has it for a pod{}", date(*since)),
        pod => format!("node {node} has it for pod {pod}{}", date(*since)),
    }
}

fn date(since: u64) -> String {
    let since = i64::try_from(since).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    since.map(|since| format!(" since {since:.0}")).unwrap_or_default()
}

/// Until when a node has it, and what to do if it is not so.
fn until(node: &NodeName, standing: &Standing, release: &str) -> String {
    match standing {
        Standing::Linked => format!(
            "is linked: it lets go when that pod is gone and the volume is unpublished there. If `csi-edge direct list` \
             there does not have the volume: stop csi-edge there, give {release}, and start it again"
        ),
        Standing::Mute(version) => format!(
            "is linked, but its csi-edge, {version}, does not say when it has let go: upgrade it; or, when that pod is \
             gone and the volume is unpublished there, and only then, give {release}"
        ),
        Standing::Away => format!(
            "has no link: it lets go when it has linked and the pod there is gone; if it is off for good, and only then, \
             {release} takes it from that node"
        ),
        Standing::Removed => format!(
            "was removed, so it never says that it has let go: if that machine is off, or the volume is unpublished \
             there, and only then, {release} takes it from {node}"
        ),
    }
}
