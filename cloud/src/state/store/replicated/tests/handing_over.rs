//! Who leads, and what the others have: clean stops, lost leases, orders.

use tokio::time::Instant;

use super::*;
use crate::etcd::api::TxnRequest;
use crate::etcd::request;
use crate::state::store::leadership::Role;
use crate::state::store::replicated::cluster::OrderError;

/// The key of the leader.
const LEADER: &[u8] = b"/edge-csi/leader";

#[tokio::test]
async fn a_follower_is_warm_and_leads_when_the_leader_stops() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    let b = Running::join(&server, "b").await;
    a.keep("v").await.unwrap();
    until("b has it", || b.has("v")).await;
    let refused = b.keep("w").await.unwrap_err();
    assert!(matches!(&refused, StoreError::Follows { leader } if **leader == *"a"), "{refused}");
    let Role::Following(Some(leader)) = b.store.leadership().role() else { panic!("no leader") };
    assert_eq!(leader.endpoints[0].to_string(), "wss://a:1");
    let epoch = a.store.leadership().epoch().unwrap();
    assert_eq!(leader.epoch, epoch);
    let stopped = Instant::now();
    a.stop().await;
    soon("b leads", b.store.leadership().leading()).await;
    let took = stopped.elapsed();
    assert!(took < Duration::from_millis(1500), "{took:?}");
    assert!(b.store.leadership().epoch().unwrap() > epoch);
    b.keep("w").await.unwrap();
    assert!(b.has("v") && b.has("w"));
}

#[tokio::test]
async fn who_lost_its_lease_commits_nothing_and_another_one_leads() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    let b = Running::join(&server, "b").await;
    a.keep("v").await.unwrap();
    let found = server.client().range(request::get(LEADER)).await.unwrap();
    server.client().revoke(found.kvs[0].lease).await.unwrap();
    soon("a is deposed", a.store.leadership().deposed()).await;
    assert!(matches!(a.keep("late").await, Err(StoreError::Deposed)));
    soon("b leads", b.store.leadership().leading()).await;
    b.keep("w").await.unwrap();
    assert!(b.has("v") && !b.has("late"));
}

/// A leader that does not know that it was deposed, as after a pause.
#[tokio::test]
async fn a_deposed_leader_commits_nothing_even_before_it_knows() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    a.keep("v").await.unwrap();
    let client = server.client();
    let usurp = TxnRequest { success: vec![request::delete(LEADER)], ..TxnRequest::default() };
    // Nothing else of `a` runs between this answer and its next commit.
    let (usurped, kept) = tokio::join!(client.txn(usurp), async {
        let mut outcome = a.keep("w").await;
        while outcome.is_ok() {
            outcome = a.keep("w").await;
        }
        outcome
    });
    usurped.unwrap();
    assert!(matches!(kept, Err(StoreError::Deposed | StoreError::Closed)));
    assert!(!a.store.leadership().leads());
}

#[tokio::test]
async fn a_promoted_replica_leads_and_a_drained_one_does_not() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::leading(&server, "a").await;
    let b = Running::join(&server, "b").await;
    let c = Running::join(&server, "c").await;
    let orders = a.store.cluster().unwrap();
    until_running(&a, 3).await;
    let unknown = orders.promote("x").await.unwrap_err().to_string();
    assert!(unknown.contains("there are a, b, c"), "{unknown}");
    orders.drain("b").await.unwrap();
    let drained = orders.promote("b").await.unwrap_err();
    assert!(matches!(&drained, OrderError::Drained(name) if name == "b"), "{drained}");
    orders.promote("c").await.unwrap();
    soon("a resigns", a.store.leadership().resigning()).await;
    a.stop().await;
    soon("c leads", c.store.leadership().leading()).await;
    // A drained leader hands over too; but the only other one is drained.
    let orders = c.store.cluster().unwrap();
    orders.undrain("b").await.unwrap();
    orders.drain("c").await.unwrap();
    soon("c resigns", c.store.leadership().resigning()).await;
    c.stop().await;
    soon("b leads", b.store.leadership().leading()).await;
    let replicas = b.store.cluster().unwrap().replicas().await.unwrap();
    let seen: Vec<_> = replicas
        .by_name
        .iter()
        .map(|(name, replica)| (&**name, replica.leads, replica.drained, replica.version.is_some()))
        .collect();
    assert_eq!(seen, [("b", true, false, true), ("c", false, true, false)]);
}

async fn until_running(of: &Running, count: usize) {
    let looking = async {
        loop {
            let replicas = of.store.cluster().unwrap().replicas().await.unwrap();
            if replicas.by_name.values().filter(|of| of.version.is_some()).count() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("they run", looking).await;
}

#[tokio::test]
async fn secret_keys_are_made_once_by_the_leader() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let a = Running::join(&server, "a").await;
    let b = Running::join(&server, "b").await;
    let (of_a, of_b) =
        soon("keys", futures_util::future::join(a.store.secrets(), b.store.secrets())).await;
    assert_eq!(of_a.unwrap().resets.expose(), of_b.unwrap().resets.expose());
}
