//! The NRI plugin against NRI's own library, as containerd and CRI-O link it (`tests/go/nri`). The
//! tests compare the OCI mounts with which a container is started.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test's own functions, which clippy takes for others"
)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use edge_direct::nri::guard::Handlers;
use edge_direct::nri::plugin::Plugin;
use edge_direct::records::published::{Custody, PublicationState, Published};
use edge_direct::runtimes::entry;
use edge_direct::runtimes::{PATIENCE, Roots, Runtimes};
use harness::tier;
use proto::csi::direct::DeviceKind;
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const PODS: &str = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi";

/// A container runtime's side.
struct Runtime {
    _process: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Runtime {
    /// Nothing if it is not built, which a run in CI must not pass over.
    fn start(socket: &Path) -> Option<Self> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../go/bin/nri");
        if !program.exists() {
            let why = format!("{} is not built", program.display());
            tier::skipped("NRI's own library", &why, false).unwrap();
            return None;
        }
        let piped = std::process::Stdio::piped;
        let mut command = Command::new(program);
        let mut process =
            command.arg(socket).stdin(piped()).stdout(piped()).kill_on_drop(true).spawn().unwrap();
        let stdin = process.stdin.take().unwrap();
        let stdout = process.stdout.take().unwrap();
        Some(Self { _process: process, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// Waits until it listens and has the plugin, which may come as soon as there is a socket.
    async fn with_plugin(mut self) -> Self {
        let mut said = [self.next().await, self.next().await];
        said.sort_by_key(Value::to_string);
        assert_eq!(said, [json!({ "listening": true }), json!({ "plugin": true })]);
        self
    }

    async fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next_line().await.unwrap().unwrap()).unwrap()
    }

    async fn create(&mut self, handler: &str, sandbox: &str, source: &str) -> Value {
        self.create_named("c", (handler, sandbox), source).await
    }

    async fn create_named(
        &mut self,
        container: &str,
        (handler, sandbox): (&str, &str),
        source: &str,
    ) -> Value {
        let mounts = [
            json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
            json!({
                "destination": "/data", "type": "bind", "source": source,
                "options": ["rbind", "rprivate", "rw"],
            }),
        ];
        self.say(&json!({
            "handler": handler, "sandbox": sandbox, "container": container, "mounts": mounts,
        }))
        .await
    }

    /// A container has ended, or is removed.
    async fn end(&mut self, container: &str, how: &str) {
        let said = self.say(&json!({ "sandbox": "s-1", "container": container, "end": how })).await;
        assert_eq!(said, json!({}));
    }

    async fn say(&mut self, line: &Value) -> Value {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        self.next().await
    }
}

fn overwrite(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> io::Result<()> {
    publish(path.as_ref(), text.as_ref(), 0o600, Existing::Replace)
}

/// A node with a volume of each kind.
struct Node {
    dir: tempfile::TempDir,
    plugin: Plugin,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { entries: dir.path().join("entries"), ..Roots::default() };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let handlers = Handlers { vm: set(&["kata", "kata-rs"]), typed: set(&["kata-rs"]) };
        let runtimes = Arc::new(Runtimes::new(roots, PATIENCE));
        let plugin = Plugin::new(dir.path().to_owned(), "10".into(), handlers, runtimes);
        let node = Self { dir, plugin };
        for (name, kind) in
            [("block", DeviceKind::Block), ("vfio", DeviceKind::Vfio), ("spdk", DeviceKind::Spdk)]
        {
            node.publish(name, kind);
            let record = node.record(name, kind);
            entry::restore(&node.plugin.runtimes.root(), &record).unwrap();
        }
        node.publish("lost", DeviceKind::Block);
        node
    }

    fn publish(&self, name: &str, kind: DeviceKind) {
        self.record(name, kind).keep(self.dir.path()).unwrap();
    }

    fn record(&self, name: &str, kind: DeviceKind) -> Published {
        let target = PathBuf::from(target(name));
        let metadata = [("edge-csi.io/driver", "d.example"), ("edge-csi.io/volume-id", name)];
        Published {
            volume_id: name.into(),
            driver: "d.example".into(),
            target: target.clone(),
            target_as_given: target,
            staging: PathBuf::new(),
            private_path: PathBuf::new(),
            device: "/dev/x".into(),
            number: 0,
            boot: String::new(),
            uuid: String::new(),
            fstype: "ext4".into(),
            options: Vec::new(),
            metadata: metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            kind,
            state: PublicationState::Published,
            pod: None,
            unpublishing: false,
            custody: Custody::default(),
        }
    }

    fn entry(&self, name: &str) -> PathBuf {
        self.plugin.runtimes.entry(Path::new(&target(name))).unwrap()
    }
}

fn target(name: &str) -> String {
    format!("{PODS}/{name}/mount")
}

/// The type of the volume's mount, and nothing else changed.
fn kind(answer: &Value) -> &str {
    let mounts = answer["mounts"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let data: Vec<_> = mounts.iter().filter(|mount| mount["destination"] == "/data").collect();
    assert_eq!((mounts.len(), data.len()), (2, 1), "{answer}");
    assert_eq!(data[0]["options"], json!(["rbind", "rprivate", "rw"]), "{answer}");
    data[0]["type"].as_str().unwrap()
}

fn refused<'a>(answer: &'a Value, why: &str) -> &'a str {
    let error = answer["error"].as_str().unwrap_or_else(|| panic!("it was made: {answer}"));
    assert!(error.contains(why), "{error}");
    error
}

/// A typed handler's volume has one container, until that has ended or was not made.
async fn one_live_container(runtime: &mut Runtime) {
    let source = target("block");
    let typed = ("kata-rs", "sandbox-block-kata-rs");
    runtime.end("c", "stopped").await;
    assert_eq!(kind(&runtime.create_named("app", typed, &source).await), "bind");
    for how in ["removed", "stopped"] {
        let sidecar = runtime.create_named("sidecar", typed, &source).await;
        refused(&sidecar, "is used by container");
        runtime.end("app", how).await;
        assert_eq!(kind(&runtime.create_named("sidecar", typed, &source).await), "bind");
        runtime.end("sidecar", how).await;
        assert_eq!(kind(&runtime.create_named("app", typed, &source).await), "bind");
    }
    assert_eq!(kind(&runtime.create("kata", "sandbox-2", &source).await), "bind");
}

#[tokio::test]
async fn containers_get_their_typed_mounts_or_are_not_made() {
    let node = Node::new();
    let socket = node.dir.path().join("nri.sock");
    let Some(runtime) = Runtime::start(&socket) else { return };
    let tasks = Tasks::default();
    let plugin = node.plugin.clone();
    let path = socket.clone();
    tasks.spawn_until_stop("plugin", async move { plugin.keep(path).await });
    let mut runtime = runtime.with_plugin().await;

    for (name, handler, expected) in [
        ("vfio", "kata-rs", "vfiovol"),
        ("spdk", "kata-rs", "spdkvol"),
        ("block", "kata-rs", "bind"),
        ("block", "kata", "bind"),
    ] {
        let sandbox = format!("sandbox-{name}-{handler}");
        let answer = runtime.create(handler, &sandbox, &target(name)).await;
        assert_eq!(kind(&answer), expected, "{name} by {handler}");
        assert!(node.entry(name).join(&sandbox).is_file(), "{sandbox} is not recorded");
    }
    for handler in ["", "runc"] {
        let answer = runtime.create(handler, "sandbox-runc", &target("block")).await;
        refused(&answer, "is handed to VMs directly");
        assert!(
            !node.entry("block").join("sandbox-runc").exists(),
            "a sandbox that does not have it is recorded"
        );
    }
    refused(&runtime.create("kata", "sandbox-1", &target("vfio")).await, "typed mount");
    refused(&runtime.create("kata", "sandbox-1", &target("lost")).await, "reconcile");
    let part = "/var/lib/kubelet/pods/u-1/volume-subpaths/block/c/0";
    refused(&runtime.create("kata", "sandbox-1", part).await, "subPath");
    refused(&runtime.create("kata", "../x", &target("block")).await, "id");
    assert_eq!(kind(&runtime.create("runc", "sandbox-2", &target("other")).await), "bind");
    assert_eq!(kind(&runtime.create("runc", "sandbox-2", "/etc/hosts").await), "bind");

    // An entry that is there, and not what the record says.
    let file = node.entry("block").join("mountInfo.json");
    let whole = std::fs::read(&file).unwrap();
    overwrite(&file, &whole[..9]).unwrap();
    refused(&runtime.create("kata", "sandbox-1", &target("block")).await, "damaged");
    overwrite(&file, br#"{"volume-type":"blk","device":"/dev/y"}"#).unwrap();
    refused(&runtime.create("kata", "sandbox-1", &target("block")).await, "somebody else");
    overwrite(&file, &whole).unwrap();
    // A damaged record is the fault of its own volume.
    let records = node.dir.path().join("direct/published");
    std::fs::create_dir(records.join(format!("{0}-{0}.json", "0".repeat(32)))).unwrap();
    assert_eq!(kind(&runtime.create("kata", "sandbox-4", &target("block")).await), "bind");

    one_live_container(&mut runtime).await;

    // The container runtime is started again.
    drop(runtime);
    let mut runtime = Runtime::start(&socket).unwrap().with_plugin().await;
    refused(
        &runtime.create("runc", "sandbox-3", &target("block")).await,
        "is handed to VMs directly",
    );
    tasks.give_up();
}
