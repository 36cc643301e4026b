//! The way of one request through the driver: record, overlap check, fault, handler.
//!
//! It sits below the generated services, at HTTP, so that it works for any RPC. When nothing of it
//! is switched on, a request goes straight to the generated service, because the driver is also a
//! benchmark's baseline.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Incoming};
use prost::Message as _;
use proto::csi;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, StdError};

use super::core::{Core, Optional};
use super::fault::{Fault, Pages};
use super::keys::FUTURE_METHOD;
use super::lock::lock;
use super::{answer, record};

/// The generated services, all on one core.
pub(super) struct Routes {
    core: Arc<Core>,
    identity: crate::grpc::identity_server::IdentityServer<Core>,
    controller: crate::grpc::controller_server::ControllerServer<Core>,
    group: crate::grpc::group_controller_server::GroupControllerServer<Core>,
    metadata: crate::grpc::snapshot_metadata_server::SnapshotMetadataServer<Core>,
    node: crate::grpc::node_server::NodeServer<Core>,
}

impl Routes {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            identity: crate::grpc::identity_server::IdentityServer::from_arc(Arc::clone(&core)),
            controller: crate::grpc::controller_server::ControllerServer::from_arc(Arc::clone(
                &core,
            )),
            group: crate::grpc::group_controller_server::GroupControllerServer::from_arc(
                Arc::clone(&core),
            ),
            metadata: crate::grpc::snapshot_metadata_server::SnapshotMetadataServer::from_arc(
                Arc::clone(&core),
            ),
            node: crate::grpc::node_server::NodeServer::from_arc(Arc::clone(&core)),
            core,
        }
    }

    /// The driver that they are of.
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Answers one request of this connection.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: CancellationToken,
    ) -> Response<Body> {
        if self.core.watches() {
            // Boxed, so that the fast path is not as large as the slow one.
            return Box::pin(self.answer_watched(request, connection)).await;
        }
        self.route(request).await
    }

    async fn answer_watched(
        &self,
        request: Request<Incoming>,
        connection: CancellationToken,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            return Status::cancelled("the request broke off").into_http();
        };
        let framed = body.to_bytes();
        let message = answer::unframe(&framed);
        let path = head.uri.path().to_owned();
        let method = record::method_of(&path);
        let recording = self.core.recording.load(Ordering::Relaxed);
        let ticket = recording
            .then(|| self.core.log.arrive(path.clone(), message.clone(), head.headers.clone()));
        let response = self.checked(method, &message, (head, framed), &connection).await;
        let Some(ticket) = ticket else {
            return response;
        };
        if method.starts_with("GetMetadata") {
            return answer::watched(response, ticket);
        }
        ticket.finish(answer::code(&response));
        response
    }

    async fn checked(
        &self,
        method: &str,
        message: &Bytes,
        request: (Parts, Bytes),
        connection: &CancellationToken,
    ) -> Response<Body> {
        let check = self.core.refuse_overlaps.load(Ordering::Relaxed);
        // Held to the end of this call, also when it is dropped.
        let claim = match check.then(|| self.core.overlaps.claim(method, message)).transpose() {
            Ok(claim) => claim,
            Err(refused) => return refused.into_http(),
        };
        let response = match self.core.script.take(method) {
            Some(fault) => self.faulty(fault, request, connection).await,
            None => self.work_slowly(method, request).await,
        };
        drop(claim);
        response
    }

    async fn faulty(
        &self,
        fault: Fault,
        request: (Parts, Bytes),
        connection: &CancellationToken,
    ) -> Response<Body> {
        match fault {
            Fault::Delay(time) => tokio::time::sleep(time).await,
            Fault::Hang => self.core.script.hang().await,
            Fault::Gate(gate) => gate.pass().await,
            Fault::Error { code, message } => return Status::new(code, message).into_http(),
            Fault::Status(status) => return status.into_http(),
            Fault::Raw { message, headers, trailers } => {
                return answer::raw(&message, headers, trailers);
            }
            Fault::Pages(pages) => return page_of(&pages, &request.1),
            Fault::NotGrpc => return answer::not_grpc(),
            Fault::NoStatus => return answer::without_status(self.work(request).await).await,
            Fault::DieInBody => {
                return answer::half_of(self.work(request).await, connection.clone()).await;
            }
            Fault::Die => return die(connection).await,
            Fault::DieAfterWork => {
                // Dropped unsent.
                drop(self.work(request).await);
                return die(connection).await;
            }
            Fault::Exit(code) => std::process::exit(code),
            Fault::Refuse { code, message } => {
                let (head, framed) = &request;
                if !self.core.made(record::method_of(head.uri.path()), &answer::unframe(framed)) {
                    return Status::new(code, message).into_http();
                }
            }
            Fault::AfterWork(status) => {
                drop(self.work(request).await);
                return status.into_http();
            }
            Fault::Late(time) => {
                let answer = self.work(request).await;
                tokio::time::sleep(time).await;
                return answer;
            }
        }
        self.work(request).await
    }

    async fn work_slowly(&self, method: &str, request: (Parts, Bytes)) -> Response<Body> {
        let (before, after) = *lock(&self.core.slow);
        let reads = ["Get", "List", "Probe"].iter().any(|what| method.contains(what));
        if reads || (before + after).is_zero() {
            return self.work(request).await;
        }
        tokio::time::sleep(before).await;
        let answer = self.work(request).await;
        tokio::time::sleep(after).await;
        answer
    }

    async fn work(&self, (head, framed): (Parts, Bytes)) -> Response<Body> {
        self.route(Request::from_parts(head, Full::new(framed))).await
    }

    async fn route<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        let path = request.uri().path();
        let Some((service, method)) =
            path.strip_prefix("/csi.v1.").and_then(|rest| rest.split_once('/'))
        else {
            return Status::unimplemented("").into_http();
        };
        if Optional::of(service).is_some_and(|service| !self.core.offers(service)) {
            return Status::unimplemented(format!("{service} is switched off")).into_http();
        }
        let answered = match service {
            "Controller" if method == FUTURE_METHOD => return echo(request).await,
            "Identity" => self.identity.clone().call(request).await,
            "Controller" => self.controller.clone().call(request).await,
            "GroupController" => self.group.clone().call(request).await,
            "SnapshotMetadata" => self.metadata.clone().call(request).await,
            "Node" => self.node.clone().call(request).await,
            _ => return Status::unimplemented("").into_http(),
        };
        let Ok(response) = answered;
        response
    }
}

/// The page that a list asks for. The requests of all lists have their token in one field.
fn page_of(pages: &Pages, framed: &Bytes) -> Response<Body> {
    let request = csi::ListVolumesRequest::decode(answer::unframe(framed)).unwrap_or_default();
    let page = pages(request.starting_token.parse().unwrap_or_default());
    answer::raw(&page, HeaderMap::new(), HeaderMap::new())
}

async fn echo<B: HttpBody<Data = Bytes>>(request: Request<B>) -> Response<Body> {
    match request.into_body().collect().await {
        Ok(body) => {
            answer::raw(&answer::unframe(&body.to_bytes()), HeaderMap::new(), HeaderMap::new())
        }
        Err(_) => Status::cancelled("the request broke off").into_http(),
    }
}

/// Breaks the connection and never returns: the task of this call is dropped with the connection.
async fn die(connection: &CancellationToken) -> Response<Body> {
    connection.cancel();
    std::future::pending().await
}
