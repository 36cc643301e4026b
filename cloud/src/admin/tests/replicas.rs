//! The commands about replicas, over a real etcd.

use std::time::Duration;

use http_body_util::BodyExt;
use proto::control::leader::LeaderEpoch;

use super::*;
use crate::admin::replicas::ReplicaView;
use crate::state::store::file::File;
use crate::state::store::replica::Replica;
use crate::state::store::replicated::Joining;
use crate::state::store::tests::etcd_server::EtcdServer;
use crate::telemetry::metrics::Metrics;

/// The state of a csi-cloud that shares a store in this etcd.
async fn join(server: &EtcdServer, name: &str, tasks: &Tasks) -> AdminState {
    let endpoints = vec!["wss://a:1".parse().unwrap()];
    let replica = Replica { name: name.into(), endpoints };
    let commits = Box::new(Metrics::default().commits());
    let joining = Joining::new(&server.at("edge-csi"), replica, commits).unwrap();
    admin_state_over(Store::join(joining.cluster(), tasks).await.unwrap(), tasks)
}

/// The csi-clouds a, which leads, and b, which follows.
pub(crate) async fn pair(server: &EtcdServer, tasks: &Tasks) -> [AdminState; 2] {
    let a = join(server, "a", tasks).await;
    a.store.leadership().leading().await;
    [a, join(server, "b", tasks).await]
}

async fn list(state: &AdminState) -> Vec<ReplicaView> {
    let answer = server::answer(state, "/replicas", b"").await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn a_csi_cloud_with_a_store_of_its_own_has_no_replicas() {
    let tasks = Tasks::default();
    let state = admin_state(&tasks);
    let refused = server::answer(&state, "/replicas", b"").await.unwrap_err();
    assert_eq!(refused.status, 409);
    let text = state.metrics();
    assert!(text.contains("edge_csi_replica_leads 1"), "{text}");
}

#[tokio::test]
async fn the_epoch_is_raised_on_any_store_and_never_lowered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let now = proto::host::clock::now() / 1000;
    let raise = |to: u64| format!("{{\"to\":{to}}}").into_bytes();
    let tasks = Tasks::default();
    let state = admin_state_into(Box::new(File::open(&path).unwrap()), &tasks);
    assert_eq!(state.store.leadership().epoch(), None);
    for late in [u64::MAX, now + 31 * 24 * 3600] {
        let refused = server::answer(&state, "/replicas/raise", &raise(late)).await.unwrap_err();
        assert!(refused.text.contains("30 days"), "{}", refused.text);
    }
    server::answer(&state, "/replicas/raise", &raise(now)).await.unwrap();
    let resigned = state.store.leadership().resigning();
    tokio::time::timeout(Duration::from_secs(30), resigned).await.unwrap();
    for lower in [now, 1] {
        let refused = server::answer(&state, "/replicas/raise", &raise(lower)).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.text.contains("already")), (409, true));
    }
    drop(state);
    tasks.finish(Duration::from_secs(5)).await;
    let tasks = Tasks::default();
    let again = admin_state_into(Box::new(File::open(&path).unwrap()), &tasks);
    assert_eq!(again.store.leadership().epoch(), Some(LeaderEpoch(now)));
}

#[tokio::test]
async fn replicas_are_listed_and_take_orders() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let tasks = Tasks::default();
    let [a, b] = pair(&server, &tasks).await;
    let listed = async {
        loop {
            let all = list(&b).await;
            // Each says how far it is every 2.5 s.
            if all.len() == 2 && all.iter().all(|replica| replica.lag == 0) {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let all = tokio::time::timeout(Duration::from_secs(30), listed).await.unwrap();
    let epoch = a.store.leadership().epoch().map(|epoch| epoch.0);
    let seen: Vec<_> = all.iter().map(|of| (&*of.name, of.leads, of.epoch, of.this)).collect();
    assert_eq!(seen, [("a", true, epoch, false), ("b", false, None, true)]);
    assert_eq!(all[1].version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(all[1].endpoints, ["wss://a:1"]);
    let elsewhere = server::answer(&b, "/nodes", b"").await.unwrap_err();
    assert_eq!((elsewhere.status.as_u16(), elsewhere.text.contains("follows a")), (409, true));
    server::answer(&a, "/nodes", b"").await.unwrap();
    server::answer(&b, "/volumes", b"").await.unwrap();
    let unknown = server::answer(&a, "/replicas/drain", br#"{"name":"x"}"#).await.unwrap_err();
    assert_eq!((unknown.status.as_u16(), unknown.text.contains("a, b")), (404, true));
    server::answer(&a, "/replicas/drain", br#"{"name":"b"}"#).await.unwrap();
    assert!(list(&a).await[1].drained);
    let drained = server::answer(&b, "/replicas/promote", br#"{"name":"b"}"#).await.unwrap_err();
    assert_eq!(drained.status, 409);
    server::answer(&b, "/replicas/undrain", br#"{"name":"b"}"#).await.unwrap();
    server::answer(&b, "/replicas/promote", br#"{"name":"b"}"#).await.unwrap();
    let resigned = a.store.leadership().resigning();
    tokio::time::timeout(Duration::from_secs(30), resigned).await.unwrap();
}
