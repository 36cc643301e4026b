//! etcd's services. What csi-cloud does not use is not implemented.

use std::pin::Pin;

use crate::etcd::api::auth_server::Auth;
use crate::etcd::api::kv_server::Kv;
use crate::etcd::api::lease_server::Lease;
use crate::etcd::api::{
    AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use futures_util::stream::{self, Stream};
use tonic::{Code, Request, Response, Status, Streaming};

use super::core::{Etcd, State};
use super::fate::Kind;
use super::keys::refusal;
use super::leases::not_found;
use super::transactions;

#[tonic::async_trait]
impl Kv for Etcd {
    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        let read = move |state: &mut State| {
            let answer = state.keys.range(&request)?;
            Ok(Response::new(RangeResponse { header: state.header(), ..answer }))
        };
        self.submit(Kind::Read, read).await
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        let kind = if transactions::is_write(&request) { Kind::Write } else { Kind::Read };
        let run = move |state: &mut State| {
            let answer = transactions::run(&mut state.keys, &mut state.leases, &request)?;
            state.keys.commit();
            Ok(Response::new(TxnResponse { header: state.header(), ..answer }))
        };
        self.submit(kind, run).await
    }
}

#[tonic::async_trait]
impl Lease for Etcd {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let LeaseGrantRequest { ttl, id } = request.into_inner();
        let grant = move |state: &mut State| {
            let id = state.leases.grant(id, ttl)?;
            let header = state.header();
            Ok(Response::new(LeaseGrantResponse { header, id, ttl, error: String::new() }))
        };
        self.submit(Kind::Lease, grant).await
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let id = request.into_inner().id;
        let revoke = move |state: &mut State| {
            if !state.end_lease(id) {
                return Err(not_found());
            }
            Ok(Response::new(LeaseRevokeResponse { header: state.header() }))
        };
        self.submit(Kind::Lease, revoke).await
    }

    type LeaseKeepAliveStream =
        Pin<Box<dyn Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let begin = (self.clone(), request.into_inner());
        let answers = stream::try_unfold(begin, async |(etcd, mut requests)| {
            let Some(LeaseKeepAliveRequest { id }) = requests.message().await? else {
                return Ok(None);
            };
            let keep = move |state: &mut State| {
                let ttl = state.leases.keep_alive(id);
                Ok(LeaseKeepAliveResponse { header: state.header(), id, ttl })
            };
            let answer = etcd.submit(Kind::Lease, keep).await?;
            Ok(Some((answer, (etcd, requests))))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

#[tonic::async_trait]
impl Auth for Etcd {
    async fn authenticate(
        &self,
        _: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        Err(refusal(Code::FailedPrecondition, "authentication is not enabled"))
    }
}
