//! A call on its way to its node: it outlives the link that it was sent on.
//!
//! If the link is lost with the call on it, nobody here knows whether the driver has it. So the caller is held
//! until its deadline, and the identical request is sent again on the node's next link, with the same id: the
//! edge joins it to the run that there is, or answers it from the one that was.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use http::uri::Authority;
use http::{HeaderValue, Response};
use proto::csi::Method;
use proto::host::chain;
use proto::http2::forward;
use proto::http2::forward::{Answer, Body, CALL_ID, Call};
use proto::link::Kind;
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;
use tracing::info;
use uuid::Uuid;

use crate::nodes::links::{Handle, Links};
use crate::telemetry::calls::{Running, Sent};

/// How long a caller without a deadline is held for a node that lost its link.
pub const HOLD: Duration = Duration::from_secs(120);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Where a call goes, and until when.
pub struct NodeCall<'a> {
    /// All links.
    pub links: &'a Links,
    /// The driver that the call is for.
    pub driver: &'a DriverName,
    /// The driver's name as the edge reads it.
    pub authority: &'a Authority,
    /// The node that the call is for.
    pub node: &'a NodeName,
    /// The method.
    pub method: Method,
    /// The caller's deadline.
    pub deadline: Option<Instant>,
    /// Whom to tell how far it got; none for questions of our own.
    pub call: Option<Arc<Running>>,
}

/// Why there is no answer.
enum Failed {
    /// The link, or a byte stream of it, went away; the call may have arrived.
    Lost(BoxError),
    /// Another link would not help.
    Final(Error),
}

impl NodeCall<'_> {
    /// Sends a call that has one answer, and sends it again on the next link whenever one is lost. It has an id then.
    ///
    /// # Errors
    /// The node has no link, or none came back in time; or the edge, whose link holds, did not answer.
    pub async fn unary(&self, call: &mut Call) -> Result<Answer, Error> {
        let mut link = self.link()?;
        let sent = self.call.as_ref().map(|call| call.sent(self.node));
        // A holder of a front's socket gave it one already, and sends it again to the next csi-cloud.
        call.headers.entry(CALL_ID).or_insert_with(call_id);
        // Only a byte stream of the link may have broken; a link that is there is tried once more.
        let mut once_more = true;
        loop {
            let lost = match self.send(&link, call).await {
                Ok(answer) => return Ok(answer),
                Err(Failed::Final(error)) => return Err(error),
                Err(Failed::Lost(error)) => error,
            };
            if once_more && link.is_up() {
                once_more = false;
                continue;
            }
            let (node, rpc) = (self.node, self.method.name());
            info!(%node, rpc, reason = chain(lost.as_ref()), "lost the link with a call on it; waiting for the next");
            let waiting = sent.as_ref().map(Sent::waiting);
            link = self.next(&link).await.ok_or_else(|| self.lost(lost))?;
            drop(waiting);
            info!(%node, rpc, "sending the call again");
            once_more = true;
        }
    }

    /// Sends a call whose answer is a stream, which is passed on as it arrives and never sent again.
    ///
    /// # Errors
    /// The node has no link, or lost it.
    pub async fn stream(&self, call: &Call) -> Result<Response<Body>, Error> {
        let link = self.link()?;
        let _sent = self.call.as_ref().map(|call| call.sent(self.node));
        let room = link.passing()?;
        let upstream = link.upstream(Kind::Bulk).await.map_err(|error| self.lost(error.into()))?;
        let sent = forward::forward(&upstream, call, self.authority, self.deadline).await;
        let response = sent.map_err(|error| self.lost(error))?;
        Ok(forward::pass(response, &self.lost("in the middle of its answer".into()), room))
    }

    async fn send(&self, link: &Handle, call: &Call) -> Result<Answer, Failed> {
        let kind = if self.method.bulk() { Kind::Bulk } else { Kind::Calls };
        let _room = link.room().map_err(Failed::Final)?;
        let upstream = link.upstream(kind).await.map_err(|error| Failed::Lost(error.into()))?;
        let failed = |error: BoxError| match error.downcast_ref::<h2::Error>() {
            // The edge refused or broke off this call alone.
            Some(h2) if !h2.is_reset() => Failed::Lost(error),
            _ => Failed::Final(self.lost(error)),
        };
        let sent = forward::forward(&upstream, call, self.authority, self.deadline).await;
        Answer::collect(sent.map_err(failed)?).await.map_err(failed)
    }

    fn link(&self) -> Result<Arc<Handle>, Error> {
        let (node, driver) = (self.node.clone(), self.driver.clone());
        self.links.now(self.node).ok_or(Error::NotLinked { node, driver })
    }

    /// The node's next link; none if it does not come.
    async fn next(&self, lost: &Arc<Handle>) -> Option<Arc<Handle>> {
        let next = self.links.next(self.node, lost);
        if self.deadline.is_some() {
            return next.await;
        }
        tokio::time::timeout(HOLD, next).await.unwrap_or(None)
    }

    fn lost(&self, source: BoxError) -> Error {
        Error::LinkLost { node: self.node.clone(), source }
    }
}

/// A new id for a caller's call.
pub(crate) fn call_id() -> HeaderValue {
    let mut text = Uuid::encode_buffer();
    let text = Uuid::now_v7().hyphenated().encode_lower(&mut text);
    // Hexadecimal digits and hyphens are always a header value.
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
