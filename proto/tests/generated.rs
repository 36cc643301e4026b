//! The committed messages are current with the `.proto` files. `UPDATE=1` writes them anew. The
//! clients and servers of CSI are in `tests/drivers`, since the products have no use for them.

use std::path::Path;

/// The `.proto` files, and what is generated from each.
const FILES: [(&str, &str); 2] = [
    ("csi/v1/csi.proto", "csi.v1.rs"),
    ("pluginregistration/v1/api.proto", "pluginregistration.rs"),
];

/// Generates into a fresh directory and compares each file with the committed one.
#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().unwrap();
    for (source, generated) in FILES {
        let files = protox::compile([source], [root]).unwrap();
        tonic_prost_build::configure()
            .out_dir(out.path())
            .build_client(false)
            .build_server(false)
            .skip_debug(["."])
            .emit_rerun_if_changed(false)
            .compile_fds(files)
            .unwrap();
        let fresh = out.path().join(generated);
        let committed = root.join("src/csi/gen").join(generated);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::copy(&fresh, &committed).unwrap();
        }
        assert!(
            std::fs::read_to_string(fresh).unwrap()
                == std::fs::read_to_string(&committed).unwrap_or_default(),
            "{} is not what the .proto file generates; run \
             `UPDATE=1 cargo test -p proto --test generated`",
            committed.display()
        );
    }
}
