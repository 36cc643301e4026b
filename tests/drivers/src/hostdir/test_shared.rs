//! Two drivers, as on two nodes, on what a file server has: here one directory.

use std::fs;
use std::path::Path;

use proto::csi::*;

use super::HostDir;
use super::core::{Core, Settings};
use super::test_core::{MIB, create, path, request};

fn at(state: &Path, node: &str) -> Core {
    let settings = Settings {
        name: "shared".to_owned(),
        node_id: node.to_owned(),
        attach_limit: 0,
        echo_preferred: false,
        capacity: 0,
        server: Some("127.0.0.1:1/srv".to_owned()),
    };
    Core::open(state, settings).unwrap()
}

/// A call as it comes from the socket.
fn call<A>(core: &Core, work: impl FnOnce(&Core) -> A) -> A {
    let _turn = core.turn().unwrap();
    work(core)
}

#[test]
fn a_driver_has_what_another_node_made_and_not_what_it_deleted() {
    let state = tempfile::tempdir().unwrap();
    let one = at(state.path(), "n1");
    let two = at(state.path(), "n2");
    let id = call(&one, |core| create(core, request("a", false)));
    assert_eq!(call(&two, |core| create(core, request("a", false))), id, "made twice");
    let shown = call(&two, |core| core.show(&core.volume(&id).unwrap()));
    assert!(shown.accessible_topology.is_empty());
    assert_eq!(shown.volume_context["server"], "127.0.0.1:1/srv");
    assert_eq!(shown.volume_context["share"], format!("/volumes/{id}/data"));
    let request = DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
    call(&two, |core| core.delete_volume(request)).unwrap();
    let gone = call(&one, |core| core.volume(&id)).err().unwrap();
    assert_eq!(gone.code(), tonic::Code::NotFound, "{gone}");
    assert!(gone.message().contains(&id), "{gone}");
}

#[test]
fn a_driver_that_starts_leaves_alone_what_another_node_is_making() {
    let state = tempfile::tempdir().unwrap();
    let one = at(state.path(), "n1");
    std::mem::forget(one.volumes.draft("x").unwrap());
    std::mem::forget(at(state.path(), "n2").volumes.draft("y").unwrap());
    drop(at(state.path(), "n2"));
    let entries = fs::read_dir(state.path().join("volumes")).unwrap();
    let left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".new-n1-x"]);
}

#[test]
fn a_server_that_cannot_be_read_has_lost_nothing() {
    let state = tempfile::tempdir().unwrap();
    let core = at(state.path(), "n1");
    let id = call(&core, |core| create(core, request("a", false)));
    fs::rename(state.path().join("volumes"), state.path().join("away")).unwrap();
    assert_eq!(core.turn().err().unwrap().code(), tonic::Code::Unavailable);
    fs::rename(state.path().join("away"), state.path().join("volumes")).unwrap();
    assert!(call(&core, |core| path(core, &id)).exists());
}

#[tokio::test]
async fn volumes_of_a_server_grow_and_are_no_devices() {
    let state = tempfile::tempdir().unwrap();
    let driver = HostDir(std::sync::Arc::new(at(state.path(), "n1")));
    let refused = driver.blocking(|core| core.create_volume(request("b", true))).await;
    assert_eq!(refused.err().unwrap().code(), tonic::Code::InvalidArgument);
    let id = driver.blocking(|core| Ok(create(core, request("a", false)))).await.unwrap();
    let request = ControllerExpandVolumeRequest {
        volume_id: id,
        capacity_range: Some(CapacityRange { required_bytes: 16 * MIB, limit_bytes: 0 }),
        ..Default::default()
    };
    let grown = driver.blocking(|core| core.expand_volume(request)).await.unwrap();
    assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (16 * MIB, false));
}
