//! etcd that is full, that has forgotten, or that is away.

use std::sync::Arc;

use parking_lot::RwLock;

use super::*;
use crate::etcd::request;
use crate::state::known::State;
use crate::state::store::leadership::Role;
use crate::state::store::replicated::cluster::Work;
use crate::state::store::replicated::follow::Follower;
use crate::state::store::replicated::lease::Lease;

#[tokio::test]
async fn a_full_etcd_refuses_and_the_store_stays_open() {
    let small = ["--quota-backend-bytes", "1048576"];
    let Some(mut server) = EtcdServer::start(&small) else { return };
    let a = Running::leading(&server, "a").await;
    let mut kept = 0;
    let refused = loop {
        let id = Id::Volume(format!("{kept}-{}", "x".repeat(200_000)));
        let write = a.store.write(move |txn: &mut Txn<'_>| {
            txn.set_home(&d(), &id, Some(home("n1")));
        });
        match write.await {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
    };
    let why = proto::host::chain(&refused);
    assert!(matches!(refused, StoreError::Refused(_)) && why.contains("no space left"), "{why}");
    assert!(a.store.is_open() && a.store.leadership().leads());
    let trouble = || a.store.cluster().unwrap().trouble();
    until("it is said", || trouble().is_some_and(|why| why.contains("no space left"))).await;
    server.restart(&[]);
    server.ready().await;
    alarm(&server, DEACTIVATE).await;
    let mut writer = a;
    soon("it can be written again", async {
        while writer.keep("v").await.is_err() {
            // On a busy machine its lease ends while etcd starts, and the next one goes on.
            if writer.store.leadership().role() == Role::Deposed {
                writer = Running::leading(&server, "b").await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let trouble = || writer.store.cluster().unwrap().trouble();
    until("nothing is wrong", || trouble().is_none()).await;
    assert!(writer.has("v"));
}

#[tokio::test]
async fn the_trouble_of_a_leader_that_has_nothing_to_commit_ends_with_its_cause() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    alarm(&server, ACTIVATE).await;
    let refused = a.keep("v").await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    let trouble = || a.store.cluster().unwrap().trouble();
    until("it is said", || trouble().is_some_and(|why| why.contains("no space left"))).await;
    alarm(&server, DEACTIVATE).await;
    until("nothing is wrong", || trouble().is_none()).await;
    assert!(a.store.leadership().leads());
}

#[tokio::test]
async fn the_trouble_of_a_replica_that_could_not_begin_to_lead_ends_when_another_one_leads() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    let cluster = in_etcd(server.client());
    cluster.set_trouble(Work::Stand, &StoreError::Deposed);
    let lease = Arc::new(Lease::new(cluster.clone()));
    Follower::warm(cluster.clone(), lease, Arc::default()).await.unwrap();
    assert!(!cluster.has_trouble(Work::Stand));
    a.stop().await;
}

/// An `AlarmRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct NoSpace {
    #[prost(int32, tag = "1")]
    action: i32,
    #[prost(uint64, tag = "2")]
    member: u64,
    #[prost(int32, tag = "3")]
    alarm: i32,
}

const ACTIVATE: i32 = 1;
const DEACTIVATE: i32 = 2;
const NO_SPACE: i32 = 1;

/// A `CompactionRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Compaction {
    #[prost(int64, tag = "1")]
    revision: i64,
    #[prost(bool, tag = "2")]
    physical: bool,
}

/// Asks for something that csi-cloud never asks for.
async fn ask(etcd: Channel, path: &'static str, request: impl prost::Message + 'static) {
    let mut etcd = tonic::client::Grpc::new(etcd);
    etcd.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<_, ()>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    etcd.unary(tonic::Request::new(request), path, codec).await.unwrap();
}

/// Raises or ends the alarm of the only member.
async fn alarm(server: &EtcdServer, action: i32) {
    let header = server.client().range(request::get(b"x")).await.unwrap().header.unwrap();
    let no_space = NoSpace { action, member: header.member_id, alarm: NO_SPACE };
    ask(server.channel(), "/etcdserverpb.Maintenance/Alarm", no_space).await;
}

#[tokio::test]
async fn a_follower_reads_anew_what_was_compacted_away() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    let b = Running::join(&server, "b").await;
    a.keep("v").await.unwrap();
    until("b has it", || b.has("v")).await;
    // A follower that was away: it has seen nothing since.
    let cluster = b.store.cluster().unwrap().clone();
    let lease = Arc::new(Lease::new(cluster.clone()));
    let state = Arc::<RwLock<State>>::default();
    let mut away = Follower::warm(cluster, lease, state.clone()).await.unwrap();
    for n in 0..20 {
        a.keep(n).await.unwrap();
    }
    let id = Id::Volume("v".into());
    a.store.write(move |txn: &mut Txn<'_>| txn.set_home(&d(), &id, None)).await.unwrap();
    let revision =
        server.client().range(request::get(b"x")).await.unwrap().header.unwrap().revision;
    let compaction = Compaction { revision, physical: true };
    ask(server.channel(), "/etcdserverpb.KV/Compact", compaction).await;
    let has = |id: &str| {
        let id = Id::Volume(id.into());
        let state = state.read();
        state.driver(&d()).is_some_and(|of| of.home(&id).is_some())
    };
    assert!(has("v") && !has("19"));
    tokio::select! {
        biased;
        _ = away.until_won() => panic!("it has no lease"),
        () = until("it has all", || !has("v") && has("19")) => {}
    }
    // And it goes on by watching.
    a.keep("more").await.unwrap();
    tokio::select! {
        biased;
        _ = away.until_won() => panic!("it has no lease"),
        () = until("it has more", || has("more")) => {}
    }
}

#[tokio::test]
async fn a_leader_survives_a_short_absence_of_etcd() {
    let Some(mut server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    a.keep("v").await.unwrap();
    server.stop();
    let (kept, ()) = tokio::join!(a.keep("w"), async { server.restart(&[]) });
    kept.unwrap();
    assert!(a.store.leadership().leads());
    assert!(a.store.cluster().unwrap().read_backs() > 0);
}

#[tokio::test]
async fn a_leader_without_etcd_is_deposed_before_its_lease_ends() {
    let Some(mut server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    server.stop();
    let deposed = soon("it is deposed", a.store.leadership().deposed());
    let (during, _) = tokio::join!(a.keep("v"), deposed);
    assert!(!a.store.leadership().leads());
    for outcome in [during, a.keep("w").await] {
        assert!(matches!(outcome, Err(StoreError::Deposed)), "{outcome:?}");
    }
    assert!(!a.has("v") && !a.has("w"));
    assert!(a.store.cluster().unwrap().trouble().is_some());
}
