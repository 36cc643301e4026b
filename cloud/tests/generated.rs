//! The committed messages and clients of etcd's API are current with the `.proto` file. `UPDATE=1`
//! writes them anew. The servers are in `tests/harness`, since csi-cloud has no use for them.

use std::path::Path;

/// Generates into a fresh directory and compares with the committed file.
#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().unwrap();
    let files = protox::compile(["etcd/rpc.proto"], [root]).unwrap();
    tonic_prost_build::configure()
        .out_dir(out.path())
        .build_server(false)
        .skip_debug(["."])
        .emit_rerun_if_changed(false)
        .compile_fds(files)
        .unwrap();
    let fresh = out.path().join("etcdserverpb.rs");
    let committed = root.join("src/etcd/gen/etcdserverpb.rs");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::copy(&fresh, &committed).unwrap();
    }
    assert!(
        std::fs::read_to_string(fresh).unwrap()
            == std::fs::read_to_string(&committed).unwrap_or_default(),
        "{} is not what the .proto file generates; run \
         `UPDATE=1 cargo test -p cloud --test generated`",
        committed.display()
    );
}
