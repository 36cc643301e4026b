//! Questions of our own to a node's driver: lists, capacity, whether it has a volume.

use std::sync::Arc;

use crate::error::Error;
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

use crate::nodes::links::Links;
use crate::nodes::node_call::NodeCall;

/// Asks the nodes of one driver. Clones ask the same.
#[derive(Clone)]
pub struct NodeQueries {
    /// The driver.
    pub driver: DriverName,
    authority: Authority,
    links: Arc<Links>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The driver's own word.
    #[error("the driver at {node} answered {:?}: {}", .status.code(), .status.message())]
    Driver {
        /// Where.
        node: NodeName,
        /// What it said.
        status: Status,
    },
    /// It was not reached, or its answer did not come back.
    #[error(transparent)]
    Call(#[from] Error),
    /// It answered what cannot be read.
    #[error("the driver at {node} answered {method} with what is not its message")]
    Unreadable {
        /// Where.
        node: NodeName,
        /// The RPC's method name.
        method: &'static str,
    },
}

impl QueryError {
    /// The code that it would be answered with.
    pub fn code(&self) -> Code {
        match self {
            Self::Driver { status, .. } => status.code(),
            Self::Call(error) => error.code(),
            Self::Unreadable { .. } => Code::Unavailable,
        }
    }
}

impl NodeQueries {
    /// Asks nodes that have this driver.
    pub fn new(driver: DriverName, links: Arc<Links>) -> Self {
        // A driver's name is made of the characters of a host name.
        let authority =
            driver.as_str().parse().unwrap_or_else(|_| Authority::from_static("invalid"));
        Self { driver, authority, links }
    }

    /// The driver's name as the edge reads it.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// All links.
    pub fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Asks a node's driver, as any caller would, and gives back its (unframed) answer. A node without a link is
    /// not waited for.
    ///
    /// # Errors
    /// See [`QueryError`]. The deadline is kept by the far end only; who asks waits no longer than it wants.
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
        let Self { driver, authority, links } = self;
        let passage = NodeCall {
            links,
            driver,
            authority,
            node,
            method,
            deadline: Some(deadline),
            call: None,
        };
        let answer = proto::http2::forward::until(Some(deadline), passage.unary(&mut call)).await?;
        if let Some(status) = answer.failure() {
            return Err(QueryError::Driver { node: node.clone(), status });
        }
        let unreadable = || QueryError::Unreadable { node: node.clone(), method: method.name() };
        answer.ok().and_then(|body| frame::message(body).ok()).ok_or_else(unreadable)
    }
}
