//! The connections of an etcd. They need not be sockets.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;

use crate::etcd::api::auth_server::AuthServer;
use crate::etcd::api::kv_server::KvServer;
use crate::etcd::api::lease_server::LeaseServer;
use crate::etcd::api::watch_server::WatchServer;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::host::tasks::Tasks;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use super::core::Etcd;

impl Etcd {
    /// Serves a connection to one of the members, for as long as that is not cut off.
    pub fn take<I>(&self, member: usize, io: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let cut = self.member(member);
        let etcd = Arc::new(self.clone());
        let mut server = http2::Builder::new(Spawn(self.tasks.clone()));
        server.timer(TokioTimer::new());
        let serve = async move {
            let answer = service_fn(move |request| answer(etcd.clone(), request));
            // It ends as connections do, with an error or without.
            let _ = server.serve_connection(TokioIo::new(io), answer).await;
        };
        self.tasks.spawn_until_stop("etcd connection", async move {
            cut.run_until_cancelled(serve).await;
        });
    }
}

/// A channel to a member, over connections that this makes.
pub fn channel<F, R>(connect: F) -> Channel
where
    F: Fn() -> R + Send + Sync + 'static,
    R: Future<Output = io::Result<DuplexStream>> + Send + 'static,
{
    let connector = tower::service_fn(move |_: Uri| {
        let connected = connect();
        async move { connected.await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://etcd").connect_with_connector_lazy(connector)
}

/// Starts hyper's tasks.
#[derive(Clone)]
struct Spawn(Tasks);

impl<F> hyper::rt::Executor<F> for Spawn
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        self.0.spawn_until_stop("etcd stream", async move { drop(task.await) });
    }
}

async fn answer(etcd: Arc<Etcd>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let service = request.uri().path().rsplit_once('/').map(|(service, _)| service.to_owned());
    match service.as_deref() {
        Some("/etcdserverpb.KV") => KvServer::from_arc(etcd).call(request).await,
        Some("/etcdserverpb.Watch") => WatchServer::from_arc(etcd).call(request).await,
        Some("/etcdserverpb.Lease") => LeaseServer::from_arc(etcd).call(request).await,
        Some("/etcdserverpb.Auth") => AuthServer::from_arc(etcd).call(request).await,
        _ => Ok(Status::unimplemented("this etcd does not have it").into_http()),
    }
}
