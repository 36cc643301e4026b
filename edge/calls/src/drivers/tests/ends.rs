//! How calls end, and what keeps others waiting until then.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::error::GuardRefusal;
use crate::executor::{DeleteGuard, Executor};

const DELETE: &str = "/csi.v1.Controller/DeleteVolume";
const UNSTAGE: &str = "/csi.v1.Node/NodeUnstageVolume";

#[tokio::test(start_paused = true)]
async fn a_create_in_doubt_keeps_its_name_until_its_connection_has_ended() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.does(CREATE, Does::Babble);
    scene.process.starts(MAIN);
    scene.until(HealthState::Up).await;
    scene.process.does(PUBLISH, Does::Hang);
    let ends = Instant::now() + Duration::from_secs(5);
    let hangs = Validity::until(Some(ends)).of_run(Method::NodePublishVolume);
    let creating = async {
        sleep(Duration::from_secs(1)).await;
        let create = Validity::until(None).of_run(Method::CreateVolume);
        let created = scene.call_while(CREATE, &create).await;
        (created.err().unwrap(), Instant::now())
    };
    let others = async {
        sleep(Duration::from_secs(2)).await;
        scene.call(DELETE).await.unwrap();
        Instant::now()
    };
    let (_, (error, told), deleted) =
        tokio::join!(scene.call_while(PUBLISH, &hangs), creating, others);
    assert!(matches!(error, Error::DriverBroke { .. }), "{error}");
    assert!(told >= ends, "another call kept the connection open, and so the create may go on");
    assert!(told < ends + Duration::from_secs(1));
    assert!(deleted < ends, "other calls have a connection of their own meanwhile");
}

#[tokio::test(start_paused = true)]
async fn the_guard_of_a_delete_is_asked_when_what_it_waited_for_has_ended() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.does(UNSTAGE, Does::Late(Duration::from_millis(500)));
    scene.process.does(DELETE, Does::Ok(Vec::new));
    scene.process.starts(MAIN);
    scene.until(HealthState::Up).await;
    let is_used = Arc::new(AtomicBool::new(true));
    let used = is_used.clone();
    let refused = || GuardRefusal::of(&Error::too_late());
    let guard = DeleteGuard {
        check: Box::new(move |_, _| match used.load(Ordering::Relaxed) {
            true => Err(refused()),
            false => Ok(()),
        }),
        deleted: Box::new(|_, _| ()),
    };
    let executor = Executor::new(scene.drivers.clone(), scene.tasks.clone());
    let executor = executor.with_delete_guard(guard);
    let ask = async |path, request: Vec<u8>| {
        let path = http::uri::PathAndQuery::from_static(path);
        let call = Call { headers: HeaderMap::new(), path, body: frame::frame(&request) };
        executor.ask(NAME, call, None).await
    };
    let volume_id = "v".to_owned();
    let delete = csi::DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
    let delete = delete.encode_to_vec();
    assert!(ask(DELETE, delete.clone()).await.is_err(), "the node uses it");
    let staging_target_path = "/staged".to_owned();
    let unstage = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
    let unstaging = async {
        let unstaged = ask(UNSTAGE, unstage.encode_to_vec()).await;
        is_used.store(false, Ordering::Relaxed);
        unstaged
    };
    let deleting = async {
        sleep(Duration::from_millis(100)).await;
        ask(DELETE, delete).await
    };
    let (unstaged, deleted) = tokio::join!(unstaging, deleting);
    assert!(unstaged.is_ok());
    assert!(deleted.is_ok_and(|answer| answer.ok().is_some()));
    assert_eq!(scene.called(DELETE).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_large_is_no_failure_of_the_driver() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.does(DELETE, Does::Ok(|| vec![0; frame::MAX_MESSAGE + 1]));
    scene.process.starts(MAIN);
    scene.until(HealthState::Up).await;
    for _ in 0..4 {
        let error = scene.call(DELETE).await.err().unwrap();
        assert!(matches!(error, Error::DriverBroke { .. }), "{error}");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(scene.driver.health().state, HealthState::Up);
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_has_its_callers_leave_a_connection_stays_up() {
    let scene = Scene::new(PathBuf::from(MAIN));
    // Its answers do not come together.
    let late = Does::Late(Duration::from_millis(100));
    scene.process.does("/csi.v1.Node/NodeGetCapabilities", late);
    scene.process.starts(MAIN);
    scene.until(HealthState::Up).await;
    sleep(Duration::from_secs(1)).await;
    let mut changes = scene.drivers.changes();
    changes.mark_unchanged();
    let asked = scene.called("/csi.v1.Node/NodeGetCapabilities").len();
    scene.process.tells_to_leave(MAIN);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(scene.driver.health().state, HealthState::Up);
    sleep(Duration::from_secs(5)).await;
    assert!(scene.called("/csi.v1.Node/NodeGetCapabilities").len() > asked, "it was dialed anew");
    assert_eq!(scene.driver.health().state, HealthState::Up);
    scene.call(DELETE).await.unwrap();
}
