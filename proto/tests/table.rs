//! The table of RPCs holds each RPC of the descriptor set exactly once, and treats it as it is declared.

use std::path::Path;

use proptest::prelude::*;
use proto::csi::rpc;
use proto::csi::rpc::RPCS;

/// `(path, server streaming)` of every RPC in `csi.proto`.
#[expect(clippy::unwrap_used, reason = "a helper of a test")]
fn declared() -> Vec<(String, bool)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile(["csi/v1/csi.proto"], [root]).unwrap();
    let csi = files.file.iter().find(|file| file.package() == "csi.v1").unwrap();
    let mut rpcs = Vec::new();
    for service in &csi.service {
        assert!(rpc::SERVICES.contains(&format!("csi.v1.{}", service.name()).as_str()));
        for method in &service.method {
            rpcs.push((format!("/csi.v1.{}/{}", service.name(), method.name()), method.server_streaming()));
        }
    }
    rpcs.sort();
    rpcs
}

#[test]
fn every_rpc_has_exactly_one_row() {
    let mut rows: Vec<_> = RPCS.iter().map(|rpc| (rpc.path.to_owned(), rpc.streaming)).collect();
    rows.sort();
    assert_eq!(rows, declared());
    assert_eq!(rows.len(), 36);
}

#[test]
fn a_path_is_of_a_driver_only_if_its_service_is() {
    assert!(rpc::of_driver("/csi.v1.Controller/CreateVolume"));
    assert!(rpc::of_driver("/csi.v1.Node/NodeOfTheFuture"));
    for path in [
        "",
        "/",
        "csi.v1.Node/X",
        "/csi.v1.Node/",
        "/csi.v1.Node/a/b",
        "/grpc.health.v1.Health/Check",
        "/csi.v2.Node/X",
    ] {
        assert!(!rpc::of_driver(path), "{path}");
    }
}

proptest! {
    /// Bytes from outside are a key or an error, never a panic; so are answers.
    #[test]
    fn any_bytes_are_a_key_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        for rpc in RPCS {
            if let Ok(key) = rpc.key(&bytes) {
                let _ = rpc.missing(&key);
            }
            let _ = rpc.incomplete(&bytes.clone().into());
            match rpc.learn {
                rpc::Learn::Nothing | rpc::Learn::Gone => {}
                rpc::Learn::Made(read) => drop(read(&bytes.clone().into())),
                rpc::Learn::Attached(read) | rpc::Learn::Detached(read) => drop(read(&bytes)),
                rpc::Learn::Resized(read) => drop(read(&bytes)),
            }
        }
    }
}
