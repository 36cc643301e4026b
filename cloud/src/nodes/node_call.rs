//! A call to one node, which survives the loss of its link.
//!
//! If a link is lost, it is unknown whether the driver has the call. So the caller waits, and the
//! identical request is sent on the node's next link with the same id. The edge joins it to the
//! running call, or repeats its answer.

use std::sync::Arc;

use http::Response;
use http::uri::Authority;
use proto::csi::column::Locks;
use proto::csi::{Id, Method};
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info};
use proto::http2::body::Body;
use proto::http2::call_id;
use proto::http2::forward;
use proto::http2::forward::{Answer, BEGIN_WITHIN, CALL_ID, Call, LEADER_EPOCH, WATERMARK};
use proto::link::StreamKind;
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;

use crate::error::Error;
use crate::nodes::connections::Lane;
use crate::nodes::handle::Handle;
use crate::nodes::in_doubt::{BEGIN, CallPlace, InDoubt, for_edge};
use crate::nodes::links::Links;
use crate::state::election::HOLD;
use crate::state::older_store;
use crate::telemetry::calls::{Running, Sent};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The path of one driver's calls to its nodes.
#[derive(Clone, Copy)]
pub struct Sender<'a> {
    /// All links.
    pub links: &'a Links,
    /// The driver of the calls.
    pub driver: &'a DriverName,
    /// The driver's name as the HTTP/2 authority, which the edge reads.
    pub authority: &'a Authority,
    /// The calls in doubt of a shared driver; none for any other.
    pub(crate) in_doubt: Option<&'a InDoubt>,
}

/// The target of a call, and its deadline.
pub struct NodeCall<'a> {
    /// The path to the node.
    pub sender: Sender<'a>,
    /// The node of the call.
    pub node: &'a NodeName,
    /// The method.
    pub method: Method,
    /// One of many questions, or a call.
    pub(crate) lane: Lane,
    /// The caller's deadline.
    pub deadline: Option<Instant>,
    /// The time by which a shared driver's call must have begun at the node. `None` if it may begin
    /// until its deadline.
    pub(crate) begins_by: Option<Instant>,
    /// The call in flight, which records the progress; none for queries of csi-cloud itself.
    pub call: Option<Arc<Running>>,
    /// The ids in doubt until the call is answered; empty unless the driver is shared.
    pub(crate) about: Vec<Id>,
}

impl Sender<'_> {
    /// The place of a call that goes to a node now.
    pub(crate) fn place(&self, node: &NodeName) -> CallPlace {
        let machine = self.links.store().read(|state| state.node(node)?.machine);
        CallPlace { node: node.clone(), machine }
    }

    /// The time by which a shared driver's call that is sent now must have begun at one of these
    /// nodes. `None` if it may begin until its deadline, because the csi-edge of some node does not
    /// keep to such a time.
    pub(crate) fn begins_by(&self, nodes: &[NodeName]) -> Option<Instant> {
        self.in_doubt?;
        let mut links = nodes.iter().map(|node| self.links.now(node));
        let all_keep_to_it = links.all(|link| link.is_some_and(|at| at.peer.begins_within));
        all_keep_to_it.then(|| Instant::now() + BEGIN)
    }
}

/// The result of a call.
pub(crate) struct Ended {
    /// The answer, or why there is none.
    pub(crate) answer: Result<Answer, Error>,
    /// False only if it is certain that no byte of the call went to the driver.
    pub(crate) maybe_dispatched: bool,
}

/// A call that may change a driver's volumes or snapshots. When it is dropped, the link notes the
/// time, so that earlier lists and capacities of the node are not used again.
struct Change<'a> {
    links: &'a Links,
    driver: &'a DriverName,
    node: &'a NodeName,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.links.now(self.node) {
            link.note_changed(self.driver);
        }
    }
}

/// The reason why there is no answer.
enum Failed {
    /// The link or its byte stream was lost; the call may have arrived.
    Lost(BoxError),
    /// Another link would not help.
    Final(Error),
}

/// False only if the driver certainly never got the call: it was never sent, or it was sent once
/// and refused before dispatch. A call that was sent twice may have arrived the first time.
fn maybe_dispatched(sends: usize, last_is_refused: bool) -> bool {
    sends > 1 || (sends == 1 && !last_is_refused)
}

impl NodeCall<'_> {
    /// Sends a call with a single answer, and sends it again on the next link when one is lost. It
    /// gets an id first.
    ///
    /// # Errors
    /// The node has no link, no link came back in time, or the edge did not answer on an intact
    /// link.
    pub async fn unary(self, call: &mut Call) -> Result<Answer, Error> {
        self.tracked(call).await.answer
    }

    /// Sends a call as [`Self::unary`] does, and says whether the driver may have got it.
    pub(crate) async fn tracked(mut self, call: &mut Call) -> Ended {
        let Sender { links, driver, .. } = self.sender;
        let _change = (self.method.locks_column() != Locks::Nothing).then(|| Change {
            links,
            driver,
            node: self.node,
        });
        let about = std::mem::take(&mut self.about);
        let table = self.sender.in_doubt;
        let in_doubt = table.map(|table| {
            table.send(about, self.sender.place(self.node), self.deadline, self.begins_by)
        });
        let mut sends = 0_usize;
        let mut answer = self.answer(call, &mut sends).await;
        let is_refused = answer.as_mut().is_ok_and(Answer::take_not_dispatched);
        let maybe_dispatched = maybe_dispatched(sends, is_refused);
        if let Some(sent) = in_doubt
            && (answer.is_ok() || !maybe_dispatched)
        {
            sent.answered();
        }
        Ended { answer, maybe_dispatched }
    }

    /// `sends` counts how often the call may have left csi-cloud.
    async fn answer(&self, call: &mut Call, sends: &mut usize) -> Result<Answer, Error> {
        let mut link = self.link()?;
        let sent = self.call.as_ref().map(|call| call.sent(self.node));
        self.mark(call);
        // Maybe only the byte stream broke: an intact link is tried once more.
        let mut once_more = true;
        loop {
            let lost = match self.send(&link, call, sends).await {
                Ok(answer) => return Ok(answer),
                Err(Failed::Final(error)) => return Err(error),
                Err(Failed::Lost(error)) => error,
            };
            if once_more && link.is_up() {
                once_more = false;
                continue;
            }
            let node = self.node;
            let rpc = self.method.name();
            let reason = chain(lost.as_ref());
            let id = self.call.as_ref().map(|call| call.id.to_string());
            peer_info!(
                LogPeer::Node(node),
                call = id, %node, rpc, reason,
                "lost the link with a call on it; waiting for the next"
            );
            let waiting = sent.as_ref().map(Sent::waiting);
            link = self.next(&link).await.ok_or_else(|| self.given_up(lost))?;
            drop(waiting);
            peer_info!(LogPeer::Node(node), call = id, %node, rpc, "sending the call again");
            once_more = true;
        }
    }

    /// Sends a call with a streamed answer, which is passed on as it arrives and never sent again.
    ///
    /// # Errors
    /// The node has no link, or lost it.
    pub async fn stream(&self, call: &mut Call) -> Result<Response<Body>, Error> {
        let link = self.link()?;
        self.mark(call);
        let _sent = self.call.as_ref().map(|call| call.sent(self.node));
        let room = link.passing()?;
        self.count();
        let lent = link.lend(StreamKind::Bulk, self.lane).await;
        let lent = lent.map_err(|error| self.lost(error.into()))?;
        let (authority, deadline) = (self.sender.authority, self.deadline);
        let sent = forward::forward(&lent.upstream, call, authority, deadline).await;
        let response = sent.map_err(|error| self.lost(error))?;
        let broken = self.lost("in the middle of its answer".into());
        Ok(forward::pass(response, &broken, (room, lent)))
    }

    async fn send(
        &self,
        link: &Handle,
        call: &mut Call,
        sends: &mut usize,
    ) -> Result<Answer, Failed> {
        let kind = if self.method.bulk() { StreamKind::Bulk } else { StreamKind::Calls };
        let _room = link.permit().map_err(Failed::Final)?;
        // Lent until the answer is read.
        let lent = link.lend(kind, self.lane).await.map_err(|error| Failed::Lost(error.into()))?;
        if let Some(begins_by) = self.begins_by {
            if !link.peer.begins_within {
                return Err(Failed::Final(self.lost("its csi-edge is another one now".into())));
            }
            call.headers.insert(&BEGIN_WITHIN, forward::timeout_value(for_edge(begins_by)));
        }
        if self.method.creates().is_some() && link.peer.takes_watermark {
            let watermark = older_store::watermark(self.sender.links.store(), self.node);
            if let Some(header) = watermark.and_then(|watermark| watermark.header()) {
                call.headers.insert(&WATERMARK, header);
            }
        }
        *sends += 1;
        self.count();
        let (authority, deadline) = (self.sender.authority, self.deadline);
        let sent = forward::forward(&lent.upstream, call, authority, deadline).await;
        Answer::collect(sent.map_err(|error| self.failed(error))?)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Sets the headers that only csi-cloud may set: the call's id and the leader epoch.
    fn mark(&self, call: &mut Call) {
        // A caller's call has an id since it arrived; csi-cloud's own queries get theirs here.
        call.headers.entry(&CALL_ID).or_insert_with(call_id::made);
        if let Some(epoch) = self.sender.links.leading().epoch() {
            call.headers.insert(&LEADER_EPOCH, epoch.clone());
        }
    }

    /// Counts an attempt of the caller's call, for display.
    fn count(&self) {
        if let Some(call) = &self.call {
            call.attempt();
        }
    }

    fn failed(&self, error: BoxError) -> Failed {
        match error.downcast_ref::<h2::Error>() {
            Some(h2) if !h2.is_reset() => Failed::Lost(error),
            // The edge refused or reset only this call.
            _ => Failed::Final(self.lost(error)),
        }
    }

    fn link(&self) -> Result<Arc<Handle>, Error> {
        self.sender.links.now(self.node).ok_or_else(|| Error::NotLinked {
            node: self.node.clone(),
            driver: self.sender.driver.clone(),
        })
    }

    /// The node's next link; none if none comes in time.
    async fn next(&self, lost: &Arc<Handle>) -> Option<Arc<Handle>> {
        let next = self.sender.links.next(self.node, lost);
        let patience = match (self.begins_by, self.deadline) {
            // By then it can no longer begin there, and may go to another node.
            (Some(_), _) => BEGIN,
            (None, None) => HOLD,
            (None, Some(_)) => return next.await,
        };
        tokio::time::timeout(patience, next).await.unwrap_or(None)
    }

    /// The error of a call that waits no longer for its node's next link.
    fn given_up(&self, lost: BoxError) -> Error {
        if self.sender.links.store().read(|state| state.is_removed(self.node)) {
            return Error::Removed { node: self.node.clone() };
        }
        self.lost(lost)
    }

    fn lost(&self, source: BoxError) -> Error {
        Error::LinkLost { node: self.node.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name is freed only if no driver can have got it.
    #[test]
    fn a_refusal_counts_for_the_copy_that_was_refused() {
        assert!(!maybe_dispatched(0, false), "it never left csi-cloud");
        assert!(!maybe_dispatched(1, true), "the only copy was refused");
        assert!(maybe_dispatched(1, false));
        assert!(maybe_dispatched(2, true), "the first copy may have arrived");
        assert!(maybe_dispatched(2, false));
    }
}
