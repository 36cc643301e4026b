//! csi-cloud's own client against this etcd.

use std::io;
use std::time::Duration;

use crate::etcd::api::{RangeRequest, WatchCreateRequest};
use cloud::etcd::client::Client;
use cloud::etcd::error::EtcdError;
use cloud::etcd::request::{get, get_all, has_value, is_created_at, put};
use proto::host::tasks::Tasks;

use super::{Etcd, Fate, Kind, channel};

const BUFFER: usize = 64 * 1024;

fn etcd() -> (Etcd, Client) {
    let etcd = Etcd::new(3, Tasks::default());
    let to = |member: usize| {
        let etcd = etcd.clone();
        channel(move || {
            let (near, far) = tokio::io::duplex(BUFFER);
            let is_cut = etcd.is_cut(member);
            etcd.take(member, far);
            let connected =
                if is_cut { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(near) };
            async move { connected }
        })
    };
    let client = Client::over(vec![to(0), to(1), to(2)], None);
    (etcd, client)
}

fn sets(key: &str, value: &str, lease: i64) -> crate::etcd::api::TxnRequest {
    let success = vec![put(key.as_bytes(), value.into(), lease)];
    crate::etcd::api::TxnRequest { success, ..crate::etcd::api::TxnRequest::default() }
}

fn watch(prefix: &str, start_revision: i64) -> WatchCreateRequest {
    let RangeRequest { key, range_end, .. } = get_all(prefix.as_bytes());
    WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() }
}

#[tokio::test(start_paused = true)]
async fn a_key_has_the_revision_of_its_creation() {
    let (_etcd, client) = etcd();
    client.txn(sets("a/1", "one", 0)).await.unwrap();
    client.txn(sets("a/1", "two", 0)).await.unwrap();
    client.txn(sets("b", "other", 0)).await.unwrap();
    let range = client.range(get_all(b"a/")).await.unwrap();
    let kv = range.kvs.first().unwrap();
    assert_eq!((kv.create_revision, kv.mod_revision, kv.version), (2, 3, 2));
    assert_eq!(range.header.unwrap().revision, 4);
    let before = RangeRequest { revision: 2, ..get(b"a/1") };
    assert_eq!(client.range(before).await.unwrap().kvs.first().unwrap().value, b"one");
}

#[tokio::test(start_paused = true)]
async fn a_page_says_that_there_is_more() {
    let (_etcd, client) = etcd();
    for key in ["a/1", "a/2", "a/3"] {
        client.txn(sets(key, "x", 0)).await.unwrap();
    }
    let page = RangeRequest { limit: 2, ..get_all(b"a/") };
    let page = client.range(page).await.unwrap();
    assert_eq!((page.kvs.len(), page.more, page.count), (2, true, 3));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_compares() {
    let (_etcd, client) = etcd();
    let mut create = sets("leader", "a", 0);
    create.compare = vec![is_created_at(b"leader", 0)];
    assert!(client.txn(create.clone()).await.unwrap().succeeded);
    assert!(!client.txn(create).await.unwrap().succeeded);
    let mut count = sets("commit", "1", 0);
    count.compare = vec![is_created_at(b"leader", 2), has_value(b"leader", b"a".into())];
    assert!(client.txn(count.clone()).await.unwrap().succeeded);
    count.compare.push(has_value(b"nothing", Vec::new()));
    assert!(!client.txn(count).await.unwrap().succeeded, "a key that is not there has no value");
}

#[tokio::test(start_paused = true)]
async fn what_is_too_much_is_refused_whole() {
    let (etcd, client) = etcd();
    let mut many = sets("a", "x", 0);
    many.success = (0..129).map(|at: i32| put(&at.to_be_bytes(), Vec::new(), 0)).collect();
    assert!(matches!(client.txn(many.clone()).await, Err(EtcdError::Refused(_))));
    many.success.truncate(1);
    many.success.push(put(&0i32.to_be_bytes(), Vec::new(), 0));
    assert!(matches!(client.txn(many).await, Err(EtcdError::Refused(_))), "a key twice");
    etcd.fill(true);
    for (key, is_done) in [("b", true), ("c", false)] {
        assert!(matches!(client.txn(sets(key, "x", 0)).await, Err(EtcdError::NoSpace(_))));
        let found = client.range(get(key.as_bytes())).await.unwrap().kvs;
        assert_eq!(found.len(), usize::from(is_done), "{key}");
    }
    etcd.fill(false);
    client.txn(sets("a", "x", 0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_kept_takes_its_keys_along() {
    let (etcd, client) = etcd();
    let id = client.grant(10).await.unwrap();
    client.txn(sets("leader", "a", id)).await.unwrap();
    let mut watch = client.watch(watch("leader", 0)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(client.keep_alive(id).await.unwrap(), 10);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(etcd.value(b"leader").is_some());
    let events = watch.next().await.unwrap();
    assert_eq!(events.len(), 1);
    assert!(etcd.value(b"leader").is_none());
    assert_eq!(client.keep_alive(id).await.unwrap(), 0);
    let gone = client.txn(sets("leader", "a", id)).await.map(drop);
    let is_gone = |why: &String| why.contains("requested lease not found");
    assert!(matches!(&gone, Err(EtcdError::Refused(why)) if is_gone(why)), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_can_end_early() {
    let (etcd, client) = etcd();
    let id = client.grant(10).await.unwrap();
    client.txn(sets("leader", "a", id)).await.unwrap();
    etcd.leases().into_iter().for_each(|id| etcd.end_lease(id));
    assert!(etcd.value(b"leader").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_changes_in_order_and_ends_when_they_are_forgotten() {
    let (etcd, client) = etcd();
    client.txn(sets("a", "0", 0)).await.unwrap();
    let mut begun = client.watch(watch("a", 2)).await.unwrap();
    let mut many = sets("a/0", "x", 0);
    many.success = (0..40).map(|at| put(format!("a/{at}").as_bytes(), Vec::new(), 0)).collect();
    client.txn(many).await.unwrap();
    assert_eq!(begun.next().await.unwrap().len(), 1);
    assert_eq!(begun.next().await.unwrap().len(), 40, "a revision is told whole");
    etcd.compact();
    client.txn(sets("a", "1", 0)).await.unwrap();
    assert_eq!(begun.next().await.unwrap().len(), 1, "it was told all of it");
    let mut late = client.watch(watch("a", 2)).await.unwrap();
    assert!(matches!(late.next().await, Err(EtcdError::Compacted(_))));
    let old = RangeRequest { revision: 2, ..get(b"a") };
    assert!(matches!(client.range(old).await, Err(EtcdError::Compacted(_))));
}

#[tokio::test(start_paused = true)]
async fn an_answer_can_be_lost_before_and_after_the_change() {
    let (etcd, client) = etcd();
    for (fate, is_there) in [
        (Fate::Lost, false),
        (Fate::Failed, false),
        (Fate::Unheard, true),
        (Fate::DoneAndFailed, true),
    ] {
        etcd.fates(move |kind| if kind == Kind::Write { fate } else { Fate::Done });
        let lost = client.txn(sets(&format!("{fate:?}"), "x", 0)).await;
        assert!(lost.is_err_and(|error| !error.is_refusal()), "{fate:?}");
        assert_eq!(etcd.value(format!("{fate:?}").as_bytes()).is_some(), is_there, "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_can_come_late() {
    let (etcd, client) = etcd();
    etcd.fates(|_| Fate::Late(Duration::from_secs(60)));
    assert!(matches!(client.txn(sets("a", "x", 0)).await, Err(EtcdError::Timeout(_))));
    assert!(etcd.value(b"a").is_none());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(etcd.value(b"a").is_some());
}

#[tokio::test(start_paused = true)]
async fn without_most_of_its_members_nothing_is_done() {
    let (etcd, client) = etcd();
    client.txn(sets("a", "x", 0)).await.unwrap();
    etcd.cut(0, true);
    // The next member has its turn.
    let cut = client.txn(sets("a", "y", 0)).await.map(drop);
    assert!(matches!(cut, Err(EtcdError::Lost(_))), "{cut:?}");
    client.txn(sets("a", "y", 0)).await.unwrap();
    let lease = client.grant(10).await.unwrap();
    let mut watching = client.watch(watch("a", 0)).await.unwrap();
    etcd.cut(2, true);
    let without_most = client.txn(sets("a", "z", 0)).await.map(drop);
    assert!(matches!(without_most, Err(EtcdError::Lost(_))), "{without_most:?}");
    let watched = watching.next().await.map(drop);
    assert!(matches!(watched, Err(EtcdError::Lost(_))), "the member has no leader: {watched:?}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    etcd.cut(0, false);
    etcd.cut(2, false);
    assert_eq!(etcd.leases(), [lease], "no lease ends meanwhile");
    assert_eq!(etcd.value(b"a").unwrap(), b"y");
}
