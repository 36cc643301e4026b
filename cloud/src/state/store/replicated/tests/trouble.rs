//! etcd that is full, that has forgotten, or that is away.

use std::sync::Arc;

use parking_lot::RwLock;

use super::*;
use crate::etcd::api::CompactionRequest;
use crate::etcd::api::alarm_request::AlarmAction;
use crate::etcd::api::kv_client::KvClient;
use crate::etcd::api::maintenance_client::MaintenanceClient;
use crate::etcd::api::{AlarmMember, AlarmRequest, AlarmType};
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
    end_alarms(&server).await;
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
    let header = server.client().range(request::get(b"x")).await.unwrap().header.unwrap();
    let action = AlarmAction::Activate.into();
    let alarm = AlarmType::Nospace.into();
    let full = AlarmRequest { action, member_id: header.member_id, alarm };
    MaintenanceClient::new(server.channel()).alarm(full).await.unwrap();
    let refused = a.keep("v").await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    let trouble = || a.store.cluster().unwrap().trouble();
    until("it is said", || trouble().is_some_and(|why| why.contains("no space left"))).await;
    end_alarms(&server).await;
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

async fn end_alarms(server: &EtcdServer) {
    let mut etcd = MaintenanceClient::new(server.channel());
    let all = AlarmRequest { action: AlarmAction::Get.into(), ..AlarmRequest::default() };
    for alarm in etcd.alarm(all).await.unwrap().into_inner().alarms {
        let AlarmMember { member_id, alarm } = alarm;
        let action = AlarmAction::Deactivate.into();
        etcd.alarm(AlarmRequest { action, member_id, alarm }).await.unwrap();
    }
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
    let compact = CompactionRequest { revision, physical: true };
    KvClient::new(server.channel()).compact(compact).await.unwrap();
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
