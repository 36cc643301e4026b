//! Answers edges that ask to join, at the same listeners as links.
//!
//! Nothing of an asker is authenticated but its token. It has ten seconds, and few are answered at
//! a time.

use std::net::SocketAddr;
use std::time::Duration;

use proto::control::join::Answer;
use proto::host::chain;
use proto::link::ws::join::Asker;
use tokio::time::timeout;
use tracing::debug;

use crate::nodes::links::Links;
use crate::nodes::refusal;

/// The time for an answer to be made.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers an edge at this address.
pub(super) async fn answer(links: &Links, from: SocketAddr, asker: Asker) {
    let joining = async {
        match links.leading().check() {
            Ok(()) => links.enrolment().join(from.ip(), &asker.join).await,
            Err(why) => Answer::Refused(refusal::to_leader(links, &why)),
        }
    };
    let late = |_| Answer::refused("csi-cloud took too long; ask again with the same token");
    let answer = timeout(PATIENCE, joining).await.unwrap_or_else(late);
    if let Err(error) = asker.reply(&answer).await {
        debug!(%from, error = chain(&error), "an edge that asked to join did not take the answer");
    }
}
