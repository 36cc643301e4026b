//! A member of etcd that is behind the others, and an etcd that was put back to an older state.

use std::future::ready;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use parking_lot::RwLock;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::*;
use crate::etcd::api::kv_client::KvClient;
use crate::etcd::api::watch_client::WatchClient;
use crate::etcd::api::{
    RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use crate::etcd::test_servers::kv_server::{Kv, KvServer};
use crate::etcd::test_servers::watch_server::{Watch, WatchServer};
use crate::state::known::State;
use crate::state::store::replicated::follow::Follower;
use crate::state::store::replicated::lease::Lease;

/// Passes requests on to etcd, and says of some answers that they are from an earlier revision.
#[derive(Clone)]
struct Lagging {
    etcd: Channel,
    /// The watches that are yet to begin behind.
    watches: Arc<AtomicUsize>,
    /// Whether reads are from the past too. Those of a member that is only behind are not.
    is_put_back: Arc<AtomicBool>,
    /// The pages that were read.
    pages: Arc<AtomicUsize>,
}

#[async_trait]
impl Kv for Lagging {
    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        self.pages.fetch_add(1, Ordering::SeqCst);
        KvClient::new(self.etcd.clone()).range(request.into_inner()).await
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let mut answer = KvClient::new(self.etcd.clone()).txn(request.into_inner()).await?;
        if self.is_put_back.load(Ordering::SeqCst)
            && let Some(header) = &mut answer.get_mut().header
        {
            header.revision = 1;
        }
        Ok(answer)
    }
}

#[async_trait]
impl Watch for Lagging {
    type WatchStream = BoxStream<'static, Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let asked = request.into_inner().filter_map(|asked| ready(asked.ok()));
        let answers = WatchClient::new(self.etcd.clone()).watch(asked).await?.into_inner();
        let left = |left: usize| left.checked_sub(1);
        let lags = self.watches.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok();
        let behind = move |mut answer: WatchResponse| {
            if let Some(header) = answer.header.as_mut().filter(|_| lags) {
                header.revision = 0;
            }
            answer
        };
        Ok(Response::new(answers.map(move |answer| answer.map(behind)).boxed()))
    }
}

impl Lagging {
    fn over(server: &EtcdServer, watches: usize) -> Self {
        let watches = Arc::new(watches.into());
        Self { etcd: server.channel(), watches, is_put_back: Arc::default(), pages: Arc::default() }
    }

    fn client(&self, tasks: &Tasks) -> Client {
        let lagging = self.clone();
        let services = tower::service_fn(move |request: http::Request<Body>| {
            let lagging = lagging.clone();
            async move {
                if request.uri().path().starts_with("/etcdserverpb.Watch/") {
                    return WatchServer::new(lagging).call(request).await;
                }
                KvServer::new(lagging).call(request).await
            }
        });
        Client::over(vec![in_memory(services, tasks)], None)
    }
}

type Shared = Arc<RwLock<State>>;

async fn follower(client: Client) -> (Follower, Shared) {
    let cluster = in_etcd(client);
    let lease = Arc::new(Lease::new(cluster.clone()));
    let state = Shared::default();
    (Follower::warm(cluster, lease, state.clone()).await.unwrap(), state)
}

fn has(state: &Shared, volume: &str) -> bool {
    let id = Id::Volume(volume.into());
    let state = state.read();
    state.driver(&d()).is_some_and(|of| of.home(&id).is_some())
}

#[tokio::test]
async fn a_member_that_is_behind_costs_a_follower_no_second_reading() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    a.keep("v").await.unwrap();
    let tasks = Tasks::default();
    let lagging = Lagging::over(&server, 2);
    let (mut follower, state) = follower(lagging.client(&tasks)).await;
    let pages = lagging.pages.load(Ordering::SeqCst);
    assert!(has(&state, "v") && pages > 0);
    a.keep("w").await.unwrap();
    tokio::select! {
        biased;
        _ = follower.until_won() => panic!("it has no lease"),
        () = until("it goes on", || has(&state, "w")) => {}
    }
    assert_eq!(lagging.watches.load(Ordering::SeqCst), 0, "no watch was behind");
    assert_eq!(lagging.pages.load(Ordering::SeqCst), pages, "it was read again");
}

#[tokio::test]
async fn a_follower_of_an_etcd_that_was_put_back_reads_it_again() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    a.keep("v").await.unwrap();
    let tasks = Tasks::default();
    let lagging = Lagging::over(&server, usize::MAX);
    let (mut follower, state) = follower(lagging.client(&tasks)).await;
    assert!(has(&state, "v"));
    lagging.is_put_back.store(true, Ordering::SeqCst);
    tokio::select! {
        biased;
        _ = follower.until_won() => panic!("it has no lease"),
        () = until("it is as etcd is", || !has(&state, "v")) => {}
    }
}
