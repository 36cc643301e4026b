//! Commits whose answer, or whose request, is lost on the way, and commits of whom was deposed.

use std::sync::Arc;

use parking_lot::Mutex;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, async_trait};

use super::*;
use crate::etcd::api::kv_client::KvClient;
use crate::etcd::api::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use crate::etcd::client::Client;
use crate::etcd::request;
use crate::etcd::test_servers::kv_server::{Kv, KvServer};
use crate::state::store::format::Needs;
use crate::state::store::replicated::commit::{CommitRight, Committer};
use crate::state::store::replicated::lease::Lease;
use crate::state::store::replicated::load::load;

/// What happens to the next transactions that change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// It is done, and its answer is lost.
    Answer,
    /// It is lost.
    Request,
    /// It is held back.
    Late,
    /// It is done, and answered as by an etcd that is full.
    Full,
    /// It is not done, and answered so.
    NoSpace,
}

/// Passes requests on to etcd, and loses some.
#[derive(Clone)]
struct Lossy {
    etcd: KvClient<Channel>,
    losses: Arc<Mutex<Vec<Loss>>>,
    late: Arc<Mutex<Vec<TxnRequest>>>,
}

#[async_trait]
impl Kv for Lossy {
    async fn range(&self, _: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        Err(Status::unimplemented("no commit reads a range alone"))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let mut etcd = self.etcd.clone();
        let request = request.into_inner();
        let changes = !request.compare.is_empty();
        let loss = if changes { self.losses.lock().pop() } else { None };
        match loss {
            None | Some(Loss::Nothing) => return etcd.txn(request).await,
            Some(Loss::Answer) => drop(etcd.txn(request).await?),
            Some(Loss::Request) => {}
            Some(Loss::Late) => self.late.lock().push(request),
            Some(full @ (Loss::Full | Loss::NoSpace)) => {
                if full == Loss::Full {
                    etcd.txn(request).await?;
                }
                let why = "etcdserver: mvcc: database space exceeded";
                return Err(Status::resource_exhausted(why));
            }
        }
        Err(Status::unavailable("the connection broke"))
    }
}

impl Lossy {
    async fn over(server: &EtcdServer, losses: &[Loss]) -> Self {
        server.ready().await;
        let etcd = KvClient::new(server.channel());
        let losses = losses.iter().rev().copied().collect();
        Self { etcd, losses: Arc::new(Mutex::new(losses)), late: Arc::default() }
    }

    /// A channel to it in memory.
    fn channel(&self, tasks: &Tasks) -> Channel {
        in_memory(KvServer::new(self.clone()), tasks)
    }
}

#[tokio::test]
async fn a_lost_answer_is_read_back_and_a_late_attempt_does_nothing() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let losses = [Loss::Answer, Loss::Request, Loss::Request, Loss::Nothing, Loss::Late];
    let lossy = Lossy::over(&server, &losses).await;
    let tasks = Tasks::default();
    let direct = in_etcd(server.client());
    let begun = load(&direct, &mut |_| panic!("it is empty")).await.unwrap();
    let over = in_etcd(Client::over(vec![lossy.channel(&tasks)], None));
    let mut committer = Committer::new(over.clone(), None, (begun.position, Needs::of_empty()));
    let changes = ["answer", "request", "late"].map(volume);
    let mut read_backs = Vec::new();
    for change in &changes {
        let (durable, outcome) = committer.commit(vec![change.clone()]).await;
        outcome.unwrap();
        assert_eq!(durable, std::slice::from_ref(change));
        read_backs.push(over.read_backs());
    }
    assert_eq!(read_backs, [1, 3, 4], "each loss is read back");
    // The attempt that was held back is done now, after the one that was sent again.
    let late = lossy.late.lock().pop().unwrap();
    assert!(!server.client().txn(late).await.unwrap().succeeded);
    let mut kept = Vec::new();
    let loaded = load(&direct, &mut |change| kept.push(change)).await.unwrap();
    assert_eq!(kept.len(), changes.len());
    assert!(changes.iter().all(|change| kept.contains(change)));
    assert_eq!(loaded.position, *committer.position(), "none was made twice");
}

/// etcd looks at its size after it has a request, carries it out, and answers that it is full.
#[tokio::test]
async fn what_a_full_etcd_did_is_read_back_and_another_commit_is_not_taken_for_it() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let losses = [Loss::Full, Loss::NoSpace, Loss::Request, Loss::Nothing];
    let lossy = Lossy::over(&server, &losses).await;
    let tasks = Tasks::default();
    let direct = in_etcd(server.client());
    let begun = load(&direct, &mut |_| panic!("it is empty")).await.unwrap();
    let over = in_etcd(Client::over(vec![lossy.channel(&tasks)], None));
    let mut committer = Committer::new(over.clone(), None, (begun.position, Needs::of_empty()));
    committer.commit(vec![volume("done")]).await.1.unwrap();
    let (durable, outcome) = committer.commit(vec![volume("refused")]).await;
    assert!(durable.is_empty() && matches!(outcome, Err(StoreError::Refused(_))), "{outcome:?}");
    committer.commit(vec![volume("lost")]).await.1.unwrap();
    let mut kept = Vec::new();
    load(&direct, &mut |change| kept.push(change)).await.unwrap();
    assert_eq!(kept, [volume("done"), volume("lost")]);
}

/// Puts the key of a leader anew, and says when that was.
async fn usurp(client: &Client) -> i64 {
    let key = b"/edge-csi/leader";
    for success in [request::delete(key), request::put(key, b"{}".to_vec(), 0)] {
        let request = TxnRequest { success: vec![success], ..TxnRequest::default() };
        client.txn(request).await.unwrap();
    }
    client.range(request::get(key)).await.unwrap().kvs[0].create_revision
}

/// It does not know that it was deposed, as after a pause.
#[tokio::test]
async fn a_commit_needs_the_key_of_its_leader() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    server.ready().await;
    let client = server.client();
    let cluster = in_etcd(client.clone());
    let lease = Arc::new(Lease::new(cluster.clone()));
    let committer = |created, position| {
        let right = CommitRight { lease: lease.clone(), id: 1, created };
        Committer::new(cluster.clone(), Some(right), (position, Needs::of_empty()))
    };
    let begun = load(&cluster, &mut |_| panic!("it is empty")).await.unwrap().position;
    let mut first = committer(usurp(&client).await, begun);
    first.commit(vec![volume("v")]).await.1.unwrap();
    let mut second = committer(usurp(&client).await, first.position().clone());
    let (durable, outcome) = first.commit(vec![volume("late")]).await;
    assert!(durable.is_empty() && matches!(outcome, Err(StoreError::Deposed)));
    second.commit(vec![volume("w")]).await.1.unwrap();
    // Nor may a command change it while somebody leads.
    let at = (second.position().clone(), Needs::of_empty());
    let outcome = Committer::new(cluster.clone(), None, at).commit(vec![volume("x")]).await.1;
    assert!(matches!(outcome, Err(StoreError::Busy)));
    let mut kept = Vec::new();
    load(&cluster, &mut |change| kept.push(change)).await.unwrap();
    assert_eq!(kept, [volume("v"), volume("w")]);
}
