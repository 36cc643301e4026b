//! Which requests share a run, which answers are kept, and which requests are refused.

use super::*;
use crate::error::DriverSocket;
use crate::kept_answers::{KEPT_FOR, MAX_KEPT};
use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::status::ToStatus;
use tokio::sync::oneshot::error::TryRecvError;
use tonic::Code;

fn operation(method: &str, message: &[u8], id: Option<Uuid>) -> Arc<Operation> {
    let method = Method::of_name(method).unwrap();
    let message = Bytes::copy_from_slice(message);
    let key = method.key(&message).unwrap();
    Arc::new(Operation::new(method, &key, &message, frame::frame(&message)).of_call(id))
}

fn publish(volume_id: &str, node_id: &str) -> Vec<u8> {
    let volume_id = volume_id.to_owned();
    let node_id = node_id.to_owned();
    csi::ControllerPublishVolumeRequest { volume_id, node_id, ..Default::default() }.encode_to_vec()
}

fn cut(volumes: &[&str]) -> Vec<u8> {
    let source_volume_ids = volumes.iter().map(|id| (*id).to_owned()).collect();
    csi::CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids,
        ..Default::default()
    }
    .encode_to_vec()
}

const PUBLISH: &str = "ControllerPublishVolume";

fn run(runs: &Runs, operation: Arc<Operation>) -> Ticket {
    match runs.begin(&operation) {
        Ok(Begin::Run(ticket)) => ticket,
        Ok(Begin::Wait(_)) => panic!("it was joined"),
        Ok(Begin::Done(_)) => panic!("it was answered"),
        Err(error) => panic!("{error}"),
    }
}

fn refused(runs: &Runs, operation: Arc<Operation>) -> bool {
    runs.begin(&operation).is_err_and(|error| error.code() == Code::Aborted)
}

fn failed() -> CallResult {
    Err(Error::LinkReplaced.into())
}

fn join(runs: &Runs, operation: Arc<Operation>) -> oneshot::Receiver<Option<CallResult>> {
    match runs.begin(&operation) {
        Ok(Begin::Wait(joined)) => joined,
        Ok(Begin::Run(_)) => panic!("it runs"),
        Ok(Begin::Done(_)) => panic!("it was answered"),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn who_asks_the_same_waits_for_the_run_and_who_wants_its_lock_is_refused() {
    let runs = Runs::default();
    let ticket = run(&runs, operation(PUBLISH, &publish("v", "n1"), None));
    let mut joined = join(&runs, operation(PUBLISH, &publish("v", "n1"), None));
    let detach = || operation("ControllerUnpublishVolume", &publish("v", "n1"), None);
    let error = runs.begin(&detach()).err().unwrap();
    assert_eq!(error.code(), Code::Aborted);
    let text = error.to_string();
    assert!(
        text.starts_with("ControllerPublishVolume of \"v\" has been running for 0 s"),
        "{text}"
    );
    assert!(refused(&runs, operation("DeleteVolume", &publish("v", ""), None)));
    let beside = [
        operation(PUBLISH, &publish("v", "n2"), None),
        operation(PUBLISH, &publish("other", "n1"), None),
        operation("NodeStageVolume", &publish("v", ""), None),
        operation("NodeGetVolumeStats", &publish("v", ""), None),
    ];
    let beside = beside.map(|operation| run(&runs, operation));
    let early = joined.try_recv().err();
    assert_eq!(early, Some(TryRecvError::Empty), "the run has not ended");
    ticket.end(&failed());
    let outcome = joined.await.unwrap().unwrap();
    assert_eq!(outcome.err().unwrap().code(), Code::Unavailable, "the run's failure");
    drop(run(&runs, detach()));
    drop(beside);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_a_second_for_its_lock() {
    let runs = Runs::default();
    let stage = || operation("NodeStageVolume", &publish("v", ""), None);
    let unstage = || operation("NodeUnstageVolume", &publish("v", ""), None);
    let ticket = run(&runs, stage());
    let begun = Instant::now();
    let late = runs.admit(&unstage()).await;
    assert!(late.is_err_and(|error| error.code() == Code::Aborted));
    assert_eq!(begun.elapsed(), LOCK_WAIT);
    let ends = async {
        tokio::time::sleep(LOCK_WAIT / 2).await;
        ticket.end(&failed());
    };
    let begun = Instant::now();
    let unstage = unstage();
    let (waited, ()) = tokio::join!(runs.admit(&unstage), ends);
    assert!(matches!(waited, Ok(Begin::Run(_))));
    assert_eq!(begun.elapsed(), LOCK_WAIT / 2);
}

#[tokio::test]
async fn who_joined_a_run_that_was_ended_or_given_up_begins_anew() {
    let runs = Runs::default();
    let publish = || operation(PUBLISH, &publish("v", "n1"), None);
    let at = DriverSocket {
        node: "n1".parse().unwrap(),
        driver: "d.example".parse().unwrap(),
        socket: "/d.sock".into(),
    };
    let ended = |ticket: Ticket| ticket.end(&Err(Error::Ended { at: Arc::new(at.clone()) }.into()));
    for end in [&ended as &dyn Fn(Ticket), &Ticket::give_up] {
        let ticket = run(&runs, publish());
        let joined = join(&runs, publish());
        end(ticket);
        assert!(joined.await.unwrap().is_none());
    }
    let ticket = run(&runs, publish());
    let joined = join(&runs, publish());
    drop(ticket);
    assert!(joined.await.is_err(), "csi-edge stops");
    assert!(runs.lock().running.is_empty() && runs.lock().held.is_empty());
}

#[tokio::test]
async fn what_follows_a_run_holds_none_of_its_locks_and_is_joined_all_the_same() {
    let runs = Runs::default();
    let stage = || operation("NodeStageVolume", &publish("v", ""), None);
    let ticket = run(&runs, stage());
    ticket.unlock();
    drop(run(&runs, operation("NodeExpandVolume", &publish("v", ""), None)));
    let joined = join(&runs, stage());
    ticket.end(&Ok(answer(1)));
    assert!(joined.await.unwrap().unwrap().is_ok());
}

#[test]
fn volumes_of_a_group_are_shared_and_its_name_is_not() {
    let runs = Runs::default();
    let ticket = run(&runs, operation("CreateVolumeGroupSnapshot", &cut(&["a", "b"]), None));
    for volume in ["a", "b"] {
        drop(run(&runs, operation(PUBLISH, &publish(volume, "n1"), None)));
        assert!(refused(&runs, operation("DeleteVolume", &publish(volume, ""), None)), "{volume}");
    }
    assert!(refused(&runs, operation("CreateVolumeGroupSnapshot", &cut(&["c"]), None)), "its name");
    ticket.end(&failed());
    let first = run(&runs, operation("DeleteVolume", &publish("b", ""), None));
    assert!(refused(&runs, operation("CreateVolumeGroupSnapshot", &cut(&["a", "b"]), None)));
    drop(first);
}

#[test]
fn a_name_waits_for_the_delete_of_what_it_made() {
    let runs = Runs::default();
    let request = csi::CreateVolumeRequest { name: "pvc".into(), ..Default::default() };
    let create = || operation("CreateVolume", &request.encode_to_vec(), None);
    let volume = csi::Volume { volume_id: "v".into(), ..Default::default() };
    let made = csi::CreateVolumeResponse { volume: Some(volume) };
    run(&runs, create()).end(&Ok(Answer::of(frame::frame(&made.encode_to_vec()))));
    let delete = |id: &str| operation("DeleteVolume", &publish(id, ""), None);
    let other = run(&runs, delete("w"));
    drop(run(&runs, create()));
    let ticket = run(&runs, delete("v"));
    assert!(refused(&runs, create()));
    ticket.end(&Ok(answer(0)));
    drop(run(&runs, create()));
    drop(other);
}

#[test]
fn lists_are_neither_joined_nor_refused() {
    let runs = Runs::default();
    let first = run(&runs, operation("ListVolumes", &[], None));
    drop(run(&runs, operation("ListVolumes", &[], None)));
    drop(first);
}

fn answer(size: usize) -> Answer {
    Answer::of(frame::frame(&vec![0; size]))
}

fn done(runs: &Runs, id: Uuid, message: &[u8]) -> bool {
    matches!(runs.begin(&operation(PUBLISH, message, Some(id))), Ok(Begin::Done(_)))
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_kept_for_the_calls_that_it_answered_and_for_a_time() {
    let runs = Runs::default();
    let one = Uuid::now_v7();
    let two = Uuid::now_v7();
    let three = Uuid::now_v7();
    let message = publish("v", "n1");
    let ticket = run(&runs, operation(PUBLISH, &message, Some(one)));
    let _joined = runs.begin(&operation(PUBLISH, &message, Some(two))).unwrap();
    ticket.end(&Ok(answer(10)));
    assert!(done(&runs, one, &message) && done(&runs, two, &message));
    assert!(!done(&runs, one, &publish("v", "n2")), "another request with the same id");
    assert!(!done(&runs, three, &message), "a new call is carried out anew");
    tokio::time::advance(KEPT_FOR).await;
    run(&runs, operation(PUBLISH, &message, Some(three))).end(&Ok(answer(10)));
    assert!(!done(&runs, one, &message) && done(&runs, three, &message));
}

#[test]
fn a_failure_of_ours_is_not_kept() {
    let runs = Runs::default();
    let id = Uuid::now_v7();
    let message = publish("v", "n1");
    run(&runs, operation(PUBLISH, &message, Some(id))).end(&failed());
    assert!(!done(&runs, id, &message));
}

#[test]
fn what_is_kept_does_not_keep_all_that_was_read_with_it() {
    let runs = Runs::default();
    let id = Uuid::now_v7();
    let message = publish("v", "n1");
    let body = frame::frame(&message);
    let read = Bytes::from([body.as_ref(), &[0; 64 * 1024]].concat());
    let key = Method::ControllerPublishVolume.key(&message).unwrap();
    let part = read.slice(..body.len());
    let method = Method::ControllerPublishVolume;
    let operation = Operation::new(method, &key, &frame::message(&part).unwrap(), part.clone());
    drop(part);
    run(&runs, Arc::new(operation.of_call(Some(id)))).end(&Ok(Answer::of(read.slice(8..16))));
    assert!(done(&runs, id, &message));
    assert!(read.is_unique());
}

#[test]
fn what_is_kept_is_bounded() {
    let runs = Runs::default();
    let keep = |size: usize| {
        let id = Uuid::now_v7();
        run(&runs, operation(PUBLISH, &publish("v", "n1"), Some(id))).end(&Ok(answer(size)));
        id
    };
    let first = keep(0);
    for _ in 0..MAX_KEPT {
        keep(0);
    }
    assert!(!done(&runs, first, &publish("v", "n1")));
    for _ in 0..20 {
        keep(4 << 20);
    }
    let inner = runs.lock();
    assert!(inner.kept.is_bounded());
    assert!(inner.running.is_empty() && inner.joinable.is_empty() && inner.held.is_empty());
}
