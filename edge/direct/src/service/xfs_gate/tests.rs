use std::path::Path;
use std::sync::Arc;

use edge_calls::metadata::Receiving;
use proto::control::metadata::{Object, Part, Pod, Position, RuntimeClass};
use proto::host::publish::{Existing, publish};

use super::*;
use crate::device::host::Host;
use crate::runtimes::mount_info::Root;
use crate::runtimes::prerequisites::Checks;

const GO: &str = "opt/kata/share/defaults/kata-containers/configuration-qemu.toml";
const RS: &str = "opt/kata/share/defaults/kata-containers/runtime-rs/configuration.toml";
const DROP_IN: &str = "opt/kata/containerd/config.d/kata-deploy.toml";
const NRI: &str = "etc/containerd/conf.d/nri.toml";

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    publish(&path, text.as_bytes(), 0o600, Existing::Replace).unwrap();
}

/// A node with both runtimes, as kata-deploy installs them.
fn with_both() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for path in [GO, RS] {
        write(root.path(), path, "[hypervisor.qemu]\n");
    }
    let handlers = [("kata-qemu", GO), ("kata-rs", RS), ("kata-other", "")];
    let handlers = handlers.map(|(name, path)| {
        let options = match path {
            "" => String::new(),
            path => format!("[plugins.cri.runtimes.{name}.options]\nConfigPath = \"/{path}\"\n"),
        };
        format!(
            "[plugins.cri.runtimes.{name}]\nruntime_type = \"io.containerd.kata.v2\"\n{options}"
        )
    });
    write(root.path(), DROP_IN, &handlers.concat());
    root
}

fn enable_validator(root: &Path, is_on: bool) {
    let text =
        format!("[plugins.'io.containerd.nri.v1.nri'.default_validator]\nenable = {is_on}\n");
    write(root, NRI, &text);
}

/// The refusal for a pod with this handler; without one, no pod is known.
async fn refused(root: &Path, handler: Option<&str>, requires_plugin: bool) -> Option<String> {
    let checks = Checks { root: root.to_owned(), required: false };
    let node = Node::new(None, Host::default(), Root::new(root.join("entries")));
    let node = node.with_checks(checks);
    let metadata = Arc::new(Metadata::default());
    if let Some(handler) = handler {
        let [name, handler]: [Box<str>; 2] = ["class".into(), handler.into()];
        let runtime_class = Some(name.clone());
        let pod = Pod { uid: "u-1".into(), runtime_class, requires_plugin, ..Pod::default() };
        let class = RuntimeClass { name, handler, direct: true, added: false };
        let objects = vec![Object::Pod(pod), Object::RuntimeClass(class)];
        let to = Position { epoch: 1, revision: 1 };
        let part = Part { to, last: true, objects, ..Part::default() };
        metadata.take(&mut Receiving::default(), part).await;
    }
    refusal(&node, &metadata, "u-1").await
}

#[tokio::test]
async fn an_xfs_goes_to_runtime_rs_only_where_the_plugin_is_required() {
    let root = with_both();
    let root = root.path();
    for (handler, words) in [
        (Some("kata-rs"), "handler kata-rs is Kata's runtime-rs"),
        (Some("kata-other"), "not known whether handler kata-other is"),
        (None, "the pod's handler is not known"),
    ] {
        let why = refused(root, handler, false).await.unwrap();
        assert!(why.contains(words) && why.contains("by its annotation"), "{why}");
    }
    for other in ["kata-qemu", "wrapped"] {
        assert_eq!(refused(root, Some(other), false).await, None, "{other}");
    }
    let why = refused(root, Some("kata-rs"), true).await.unwrap();
    assert!(why.contains("validator is not enabled"), "{why}");
    enable_validator(root, true);
    assert_eq!(refused(root, Some("kata-rs"), true).await, None);
    assert!(refused(root, Some("kata-rs"), false).await.is_some());
    // Two files differ, and only the engine knows which one counts.
    write(
        root,
        "etc/crio/crio.conf",
        "[crio.nri.default_validator]\n\
          nri_enable_default_validator = false\n",
    );
    assert!(refused(root, Some("kata-rs"), true).await.is_some());
}

#[tokio::test]
async fn without_runtime_rs_a_handler_need_not_be_known() {
    let root = with_both();
    let root = root.path();
    let only_go = "[plugins.cri.runtimes.kata]\nruntime_type = \"io.containerd.kata.v2\"\n";
    write(root, DROP_IN, only_go);
    assert_eq!(refused(root, None, false).await, None);
    // A runtime's own default, which no engine names.
    std::fs::remove_file(root.join(DROP_IN)).unwrap();
    write(root, "etc/kata-containers/runtime-rs/configuration.toml", "[hypervisor.qemu]\n");
    assert!(refused(root, Some("kata"), false).await.is_some());
    assert_eq!(refused(&root.join("nowhere"), Some("kata"), false).await, None);
}

#[test]
fn a_handler_of_two_engines_is_runtime_rs_if_one_says_so() {
    let root = with_both();
    let with = |path: &str| {
        write(
            root.path(),
            "etc/crio/crio.conf",
            &format!(
                "[crio.runtime.runtimes.kata-qemu]\nruntime_path = \"/opt/kata/bin/shim\"\n\
                 runtime_config_path = \"/{path}\"\n"
            ),
        );
        NodeRuntimes::below(root.path()).is_runtime_rs("kata-qemu")
    };
    assert_eq!(with(GO), Some(false));
    assert_eq!(with(RS), Some(true));
    assert_eq!(with("missing"), None);
}
