//! Which requests share a run, which answers are kept, and which requests are refused.

use super::*;
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::status::ToStatus;
use tokio::sync::oneshot::error::TryRecvError;
use tonic::Code;

fn operation(method: &str, message: &[u8], id: Option<Uuid>) -> Operation {
    let method = Method::of_name(method).unwrap();
    let subjects = method.subjects(&method.key(message).unwrap());
    Operation { method, body: frame::frame(message), subjects, id }
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

fn run(runs: &Runs, operation: Operation) -> Ticket {
    match runs.begin(operation) {
        Ok(Begin::Run(ticket)) => ticket,
        Ok(Begin::Wait(_)) => panic!("it was joined"),
        Ok(Begin::Done(_)) => panic!("it was answered"),
        Err(error) => panic!("{error}"),
    }
}

fn refused(runs: &Runs, operation: Operation) -> bool {
    runs.begin(operation).is_err_and(|error| error.code() == Code::Aborted)
}

fn failed() -> CallResult {
    Err(Error::LinkReplaced.into())
}

#[tokio::test]
async fn who_asks_the_same_waits_for_the_run_and_who_asks_otherwise_is_refused() {
    let runs = Runs::default();
    let ticket = run(&runs, operation(PUBLISH, &publish("v", "n1"), None));
    let Ok(Begin::Wait(mut joined)) = runs.begin(operation(PUBLISH, &publish("v", "n1"), None))
    else {
        panic!()
    };
    assert!(refused(&runs, operation(PUBLISH, &publish("v", "n2"), None)));
    assert!(refused(&runs, operation("NodeStageVolume", &publish("v", ""), None)));
    let other = run(&runs, operation(PUBLISH, &publish("other", "n1"), None));
    let early = joined.try_recv().err();
    assert_eq!(early, Some(TryRecvError::Empty), "the run has not ended");
    ticket.end(&failed());
    assert_eq!(joined.await.unwrap().err().unwrap().code(), Code::Unavailable, "the run's failure");
    drop(run(&runs, operation(PUBLISH, &publish("v", "n2"), None)));
    drop(other);
}

#[tokio::test]
async fn a_run_that_is_given_up_makes_room_and_leaves_nobody_waiting() {
    let runs = Runs::default();
    let ticket = run(&runs, operation(PUBLISH, &publish("v", "n1"), None));
    let Ok(Begin::Wait(joined)) = runs.begin(operation(PUBLISH, &publish("v", "n1"), None)) else {
        panic!()
    };
    drop(ticket);
    assert!(joined.await.is_err());
    drop(run(&runs, operation(PUBLISH, &publish("v", "n1"), None)));
}

#[test]
fn a_group_holds_all_of_its_volumes() {
    let runs = Runs::default();
    let ticket = run(&runs, operation("CreateVolumeGroupSnapshot", &cut(&["a", "b"]), None));
    for volume in ["a", "b"] {
        assert!(refused(&runs, operation(PUBLISH, &publish(volume, "n1"), None)), "{volume}");
    }
    assert!(refused(&runs, operation("CreateVolumeGroupSnapshot", &cut(&["c"]), None)), "its name");
    ticket.end(&failed());
    let first = run(&runs, operation(PUBLISH, &publish("b", "n1"), None));
    assert!(refused(&runs, operation("CreateVolumeGroupSnapshot", &cut(&["a", "b"]), None)));
    drop(first);
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
    matches!(runs.begin(operation(PUBLISH, message, Some(id))), Ok(Begin::Done(_)))
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_kept_for_the_calls_that_it_answered_and_for_a_time() {
    let runs = Runs::default();
    let one = Uuid::now_v7();
    let two = Uuid::now_v7();
    let three = Uuid::now_v7();
    let message = publish("v", "n1");
    let ticket = run(&runs, operation(PUBLISH, &message, Some(one)));
    let _joined = runs.begin(operation(PUBLISH, &message, Some(two))).unwrap();
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
    let mut operation = operation(PUBLISH, &message, Some(id));
    let read = Bytes::from([operation.body.as_ref(), &[0; 64 * 1024]].concat());
    operation.body = read.slice(..operation.body.len());
    run(&runs, operation).end(&Ok(Answer::of(read.slice(8..16))));
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
    assert!(
        inner.kept.bytes <= MAX_KEPT_BYTES && inner.kept.by_call.len() == inner.kept.oldest.len()
    );
    assert!(inner.running.is_empty() && inner.by_subject.is_empty());
}
