//! Refusals of links: an edge is told why, and where the csi-cloud is that leads.

use std::time::Duration;

use proto::control::hello::{Message, PROTOCOL, Refused};
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::link::Link;
use proto::names::NodeName;
use tokio::time::timeout;

use crate::error::NotLeading;
use crate::nodes::links::{Links, REMOVED, REVOKED};

/// The time for a refused edge to take the reason.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The reason why a link has no hello.
pub(super) enum NoHello {
    /// It is lost.
    Lost,
    /// Its node asked for a new certificate instead, and has the answer.
    Renewed,
    /// The node may not link, for this reason.
    Refused(String),
    /// The node is to link to the csi-cloud that leads.
    Follows(NotLeading),
}

/// The reason why a node may not link.
pub(super) enum Exclusion {
    /// An operator removed it.
    Removed,
    /// An operator revoked its certificate.
    Revoked,
}

impl Exclusion {
    /// The reason given when its link ends.
    pub(super) fn why(&self) -> &'static str {
        match self {
            Self::Removed => REMOVED,
            Self::Revoked => REVOKED,
        }
    }

    /// The reason, and the command that lets the node in again.
    pub(super) fn refusal(&self, node: &NodeName) -> String {
        let why = self.why();
        match self {
            Self::Removed => format!("{why}; `csi-cloud node admit {node}` lets it in again"),
            Self::Revoked => {
                format!("{why}; a new token lets it join again: `csi-cloud token create {node}`")
            }
        }
    }
}

/// Ends a link that has no hello.
pub(super) async fn end_without_hello(links: &Links, node: &NodeName, link: Link, why: NoHello) {
    match why {
        NoHello::Lost => {}
        NoHello::Renewed => link.close("link again with the new certificate").await,
        NoHello::Refused(reason) => refuse(node, link, &reason).await,
        NoHello::Follows(why) => send_to_leader(links, node, link, &why).await,
    }
}

/// Refuses a link of a node.
pub(super) async fn refuse(node: &NodeName, link: Link, reason: &str) {
    peer_warn!(LogPeer::Node(node), %node, reason, "refused a link");
    end_with(link, Refused { protocol: PROTOCOL, reason: reason.into(), leader: None }).await;
}

/// Refuses a link of a node that another csi-cloud serves, and says where that is.
async fn send_to_leader(links: &Links, node: &NodeName, link: Link, why: &NotLeading) {
    let refused = to_leader(links, why);
    let leader = refused.leader.as_deref().unwrap_or_default().join(" ");
    peer_info!(LogPeer::Node(node), %node, %why, leader, "sent an edge to the leader");
    end_with(link, refused).await;
}

/// The refusal of an edge that another csi-cloud serves: it says where that is.
pub(super) fn to_leader(links: &Links, why: &NotLeading) -> Refused {
    let leader = Some(links.leading().leader());
    Refused { protocol: PROTOCOL, reason: why.to_string(), leader }
}

async fn end_with(mut link: Link, refused: Refused) {
    let reason = refused.reason.clone();
    let sent = timeout(LAST_WORD, link.send(&Message::Refused(refused))).await;
    if matches!(sent, Ok(Ok(()))) {
        link.close(&reason).await;
    }
}
