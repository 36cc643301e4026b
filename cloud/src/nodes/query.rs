//! Queries of csi-cloud itself to a node's driver: lists, capacity, and whether it has a volume.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, header};
use prost::Message;
use proto::csi::Method;
use proto::csi::frame;
use proto::csi::status::ToStatus;
use proto::http2::forward::Call;
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::error::Error;
use crate::nodes::connections::Lane;
use crate::nodes::links::Links;
use crate::nodes::node_call::{NodeCall, Sender};

/// Queries to the nodes of one driver. Clones are equal.
#[derive(Clone)]
pub struct NodeQueries {
    /// The driver.
    pub driver: DriverName,
    authority: Authority,
    links: Arc<Links>,
    /// The operator's `ask_with_secrets`.
    with_secrets: bool,
}

/// The reason why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The driver returned an error.
    #[error("node {node}: its driver answered {:?}: {}", .status.code(), .status.message())]
    Driver {
        /// The node.
        node: NodeName,
        /// The driver's status.
        status: Status,
    },
    /// The node was not reached, or its answer was lost.
    #[error(transparent)]
    Call(#[from] Error),
    /// The answer cannot be decoded.
    #[error("node {node}: its driver answered {method} with what is not its message")]
    Unreadable {
        /// The node.
        node: NodeName,
        /// The RPC's method name.
        method: &'static str,
    },
}

impl QueryError {
    /// True if the node is over a quota with its answer.
    pub fn is_over_quota(&self) -> bool {
        matches!(self, Self::Call(Error::OverQuota { .. }))
    }

    /// True if the node gave its list, and another node may have a part of it.
    pub fn is_held(&self) -> bool {
        matches!(
            self,
            Self::Call(Error::Unconfirmed { .. } | Error::NewStore { .. } | Error::Disputed { .. })
        )
    }

    /// True if several nodes say that they have the same id.
    pub fn is_disputed(&self) -> bool {
        matches!(self, Self::Call(Error::Disputed { .. }))
    }

    /// True if the driver may have failed because its answer is too large. csi-edge says
    /// UNAVAILABLE of such an answer, and a gRPC server RESOURCE_EXHAUSTED or OUT_OF_RANGE.
    pub fn may_be_of_size(&self) -> bool {
        let sizes = [Code::Unavailable, Code::ResourceExhausted, Code::OutOfRange];
        matches!(self, Self::Driver { status, .. } if sizes.contains(&status.code()))
    }

    /// The code for a caller.
    pub fn code(&self) -> Code {
        match self {
            Self::Driver { status, .. } => status.code(),
            Self::Call(error) => error.code(),
            Self::Unreadable { .. } => Code::Unavailable,
        }
    }
}

impl NodeQueries {
    /// Queries to the nodes that have this driver. `with_secrets` lets several nodes see secrets.
    pub fn new(driver: DriverName, links: Arc<Links>, with_secrets: bool) -> Self {
        // A driver's name has only characters of a host name, so it always parses.
        let authority =
            driver.as_str().parse().unwrap_or_else(|_| Authority::from_static("invalid"));
        Self { driver, authority, links, with_secrets }
    }

    /// All links.
    pub fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// The path of calls to the nodes.
    pub(crate) fn sender(&self) -> Sender<'_> {
        Sender {
            links: &self.links,
            driver: &self.driver,
            authority: &self.authority,
            in_doubt: None,
        }
    }

    /// A call of csi-cloud itself to a node.
    pub(crate) fn node_call<'a>(
        &'a self,
        node: &'a NodeName,
        method: Method,
        lane: Lane,
        deadline: Option<Instant>,
    ) -> NodeCall<'a> {
        NodeCall {
            sender: self.sender(),
            node,
            method,
            lane,
            deadline,
            begins_by: None,
            call: None,
            about: Vec::new(),
        }
    }

    /// True if a node had one link for this time. A node that was away in between is not silent.
    pub fn was_linked(&self, node: &NodeName, time: Duration) -> bool {
        self.links.now(node).is_some_and(|link| link.begun.elapsed() >= time)
    }

    /// The unframed request that this many nodes get. Several nodes get no secrets, unless the
    /// operator wants it.
    ///
    /// # Errors
    /// The request is malformed.
    pub fn for_nodes(&self, nodes: usize, method: Method, request: &Bytes) -> Result<Bytes, Error> {
        if nodes <= 1 || self.with_secrets {
            return Ok(request.clone());
        }
        let without = method.without_secrets(request);
        let without = without
            .map_err(|error| Error::BadRequest { method: method.name(), source: error.into() })?;
        Ok(without.map_or_else(|| request.clone(), Bytes::from))
    }

    /// Sends a query to a node's driver, one of many to nodes, and returns the unframed answer. A
    /// node without a link is not waited for.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn ask(
        &self,
        node: &NodeName,
        method: Method,
        request: &impl Message,
        deadline: Instant,
    ) -> Result<Bytes, QueryError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        let body = frame::frame(&request.encode_to_vec());
        let mut call = Call { headers, path: PathAndQuery::from_static(method.path()), body };
        let node_call = self.node_call(node, method, Lane::FanOut, Some(deadline));
        let answer =
            proto::http2::forward::until(Some(deadline), node_call.unary(&mut call)).await?;
        if let Some(status) = answer.failure() {
            return Err(QueryError::Driver { node: node.clone(), status });
        }
        let unreadable = || QueryError::Unreadable { node: node.clone(), method: method.name() };
        answer.message().ok_or_else(unreadable)
    }
}
