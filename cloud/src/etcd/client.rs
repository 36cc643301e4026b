//! Requests to etcd, each to one member.
//!
//! There is one channel to each member. All requests take the same one until one of them gets no
//! answer; then the next member has its turn. A request whose token was refused is sent once more,
//! because etcd did nothing of it. No other request is sent again here.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::etcd::api::auth_client::AuthClient;
use crate::etcd::api::kv_client::KvClient;
use crate::etcd::api::lease_client::LeaseClient;
use crate::etcd::api::watch_client::WatchClient;
use crate::etcd::api::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest, RangeResponse,
    TxnRequest, TxnResponse, WatchCreateRequest,
};
use crate::etcd::error::EtcdError;
use crate::etcd::login::Login;
use crate::etcd::members::Members;
use crate::etcd::settings::{EtcdSettings, SettingsError};
use crate::etcd::watch::Watch;

/// The time for an answer. etcd itself gives a change up after some seconds.
const ANSWER: Duration = Duration::from_secs(5);
/// The time for a word about a lease: several must fit into its life.
const LEASE: Duration = Duration::from_secs(2);
/// The largest answer in bytes. A page of records is smaller, or asked for again in halves.
const LARGEST: usize = 64 << 20;
/// The metadata of the token.
const TOKEN: &str = "token";

/// A client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    members: Arc<Members>,
    login: Arc<Option<Login>>,
}

impl Client {
    /// A client of the members at these addresses. It connects when it is used.
    ///
    /// # Errors
    /// A file or an address cannot be used.
    pub fn new(hosts: &[String], settings: &EtcdSettings) -> Result<Self, SettingsError> {
        Ok(Self::over(settings.channels(hosts)?, settings.login()?))
    }

    /// A client over channels, one to each member; at least one.
    pub fn over(channels: Vec<Channel>, login: Option<Login>) -> Self {
        Self { members: Arc::new(Members::new(channels)), login: Arc::new(login) }
    }

    /// Reads keys.
    ///
    /// # Errors
    /// There is no answer, or a refusal.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
        self.call(ANSWER, request, |channel, request| async move {
            let mut kv = KvClient::new(channel).max_decoding_message_size(LARGEST);
            kv.range(request).await
        })
        .await
    }

    /// Does a transaction.
    ///
    /// # Errors
    /// There is no answer, or a refusal.
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, EtcdError> {
        self.call(ANSWER, request, |channel, request| async move {
            let mut kv = KvClient::new(channel).max_decoding_message_size(LARGEST);
            kv.txn(request).await
        })
        .await
    }

    /// Makes a lease of this many seconds, and says which.
    ///
    /// # Errors
    /// There is no answer, or a refusal.
    pub async fn grant(&self, seconds: i64) -> Result<i64, EtcdError> {
        let request = LeaseGrantRequest { ttl: seconds, id: 0 };
        let granted = self.call(LEASE, request, |channel, request| async move {
            LeaseClient::new(channel).lease_grant(request).await
        });
        Ok(granted.await?.id)
    }

    /// Keeps a lease alive, and says for how many seconds; 0 if it is gone.
    ///
    /// # Errors
    /// There is no answer, or a refusal.
    pub async fn keep_alive(&self, id: i64) -> Result<i64, EtcdError> {
        let request = LeaseKeepAliveRequest { id };
        let kept = self.call(LEASE, request, |channel, request: Request<_>| async move {
            let request = request.map(|one| stream::iter([one]));
            let answers = LeaseClient::new(channel).lease_keep_alive(request).await?;
            let first = answers.into_inner().message().await?;
            Ok(Response::new(first.ok_or_else(|| Status::new(Code::Unknown, "no answer"))?))
        });
        Ok(kept.await?.ttl)
    }

    /// Ends a lease and deletes its keys.
    ///
    /// # Errors
    /// There is no answer, or a refusal.
    pub async fn revoke(&self, id: i64) -> Result<(), EtcdError> {
        let request = LeaseRevokeRequest { id };
        let revoked = self.call(LEASE, request, |channel, request| async move {
            LeaseClient::new(channel).lease_revoke(request).await
        });
        revoked.await.map(drop)
    }

    /// Watches keys.
    ///
    /// # Errors
    /// There is no answer, or a refusal.
    pub async fn watch(&self, request: WatchCreateRequest) -> Result<Watch, EtcdError> {
        let (turn, _) = self.members.channel();
        let start = request.start_revision;
        let answers = self.call(ANSWER, request, |channel, request| async move {
            let mut watch = WatchClient::new(channel).max_decoding_message_size(LARGEST);
            watch.watch(Watch::request(request)).await
        });
        Ok(Watch::of(answers.await?, self.members.clone(), (turn, start)))
    }

    /// Sends a request to the member whose turn it is.
    async fn call<Q: Clone, A, S: Future<Output = Result<Response<A>, Status>>>(
        &self,
        limit: Duration,
        request: Q,
        send: impl Fn(Channel, Request<Q>) -> S,
    ) -> Result<A, EtcdError> {
        let again = self.login.is_some().then(|| request.clone());
        let sent = self.send(limit, request, &send).await;
        match (sent, again) {
            // Users were changed, or the token has ended. A new one shows which.
            (Err(EtcdError::Token(_)), Some(request)) => {
                self.forget_token();
                self.send(limit, request, &send).await
            }
            (sent, _) => sent,
        }
    }

    async fn send<Q, A, S: Future<Output = Result<Response<A>, Status>>>(
        &self,
        limit: Duration,
        request: Q,
        send: impl Fn(Channel, Request<Q>) -> S,
    ) -> Result<A, EtcdError> {
        let mut request = Request::new(request);
        if let Some(token) = self.token().await? {
            request.metadata_mut().insert(TOKEN, token);
        }
        let (turn, channel) = self.members.channel();
        self.within(limit, turn, send(channel, request)).await
    }

    async fn within<A>(
        &self,
        limit: Duration,
        turn: usize,
        answer: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, EtcdError> {
        let answer = match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.map(Response::into_inner).map_err(EtcdError::from),
            Err(_) => Err(EtcdError::Timeout(limit)),
        };
        if let Err(EtcdError::Timeout(_) | EtcdError::Lost(_)) = answer {
            self.members.leave(turn);
        }
        answer
    }

    /// The token of the user, if there is one. Asks for it if it is not known.
    async fn token(&self) -> Result<Option<MetadataValue<Ascii>>, EtcdError> {
        let Some(login) = &*self.login else { return Ok(None) };
        if let Some(token) = login.token() {
            return Ok(Some(token));
        }
        let (turn, channel) = self.members.channel();
        let request = login.request();
        let answer = async { AuthClient::new(channel).authenticate(request).await };
        let token = match self.within(ANSWER, turn, answer).await {
            Ok(answer) => answer.token.parse(),
            // It asks for no password, and so for no token.
            Err(EtcdError::Refused(why)) if why.contains("not enabled") => return Ok(None),
            Err(EtcdError::Token(why)) => return Err(EtcdError::Auth(why)),
            Err(error) => return Err(error),
        };
        let token = token.map_err(|_| EtcdError::Auth("its token is no token".into()))?;
        login.keep(Some(token));
        Ok(login.token())
    }

    fn forget_token(&self) {
        if let Some(login) = &*self.login {
            login.keep(None);
        }
    }
}
