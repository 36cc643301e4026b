//! The committed clients and servers are current with `proto/csi/v1/csi.proto`. `UPDATE=1` writes
//! them anew.

use std::path::Path;

/// Generates into a fresh directory and compares with the committed file.
#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().unwrap();
    let files = protox::compile(["csi/v1/csi.proto"], [root.join("../../proto")]).unwrap();
    tonic_prost_build::configure()
        .out_dir(out.path())
        .extern_path(".csi.v1", "::proto::csi")
        .emit_rerun_if_changed(false)
        .compile_fds(files)
        .unwrap();
    let fresh = out.path().join("csi.v1.rs");
    let committed = root.join("src/grpc/gen/csi.v1.rs");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::copy(&fresh, &committed).unwrap();
    }
    assert!(
        std::fs::read_to_string(fresh).unwrap()
            == std::fs::read_to_string(&committed).unwrap_or_default(),
        "{} is not what the .proto file generates; run \
         `UPDATE=1 cargo test -p drivers --test generated`",
        committed.display()
    );
}
