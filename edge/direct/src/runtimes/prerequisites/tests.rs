use std::os::unix::fs::symlink;

use super::*;
use proto::host::publish::{Existing, publish};

const STOCK: &str =
    "[hypervisor.qemu]\npath = \"/q\"\ndisable_block_device_use = true\n[x]\ny = 1\n";
const GOOD: &str = "[hypervisor.qemu]\ndisable_block_device_use = false\n";
/// The section by which runtime-rs is known.
const OF_RS: &str = "[runtime]\nhypervisor_name = \"qemu\"\n";

struct Root(tempfile::TempDir);

impl Root {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        for (path, text) in files {
            root.write(path, text);
        }
        root
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        publish(&path, text.as_bytes(), 0o600, Existing::Replace).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn report(&self) -> CheckReport {
        check(self.0.path())
    }

    /// The faults, or what else the verdict is.
    fn verdict(&self) -> String {
        match self.report().verdict() {
            CheckVerdict::Failed(why) => why,
            other => format!("{other:?}"),
        }
    }
}

const ETC: &str = "etc/kata-containers/configuration.toml";
const DEPLOYED: &str = "opt/kata/share/defaults/kata-containers/configuration-qemu.toml";
const RS: &str = "opt/kata/share/defaults/kata-containers/runtime-rs/configuration-dragonball.toml";

#[test]
fn a_stock_go_runtime_is_a_fault_that_says_what_to_set() {
    assert_eq!(Root::new(&[]).verdict(), "Unknown");
    let root = Root::new(&[(ETC, STOCK)]);
    let why = root.verdict();
    for word in ["/etc/kata-containers/configuration.toml", "[hypervisor.qemu]", "set it to false"]
    {
        assert!(why.contains(word), "{word} is not in {why}");
    }
    root.write(ETC, GOOD);
    assert_eq!(root.verdict(), "Passed");
    assert_eq!(root.report().configurations[0].runtime, Some("kata-go"));
    // Go's bool is false without the key.
    root.write(ETC, "[hypervisor.clh]\n");
    assert_eq!(root.verdict(), "Passed");
    root.write(ETC, "[hypervisor.remote]\n");
    assert!(root.verdict().contains("no block devices"));
}

#[test]
fn a_root_that_cannot_be_read_is_one_fault() {
    let root = Root::new(&[]);
    let report = check(&root.path("proc/1/root"));
    assert_eq!(report.configurations, []);
    let CheckVerdict::Failed(why) = report.verdict() else { panic!("{report:?}") };
    assert!(why.contains("proc/1/root (No such file") && why.contains("runtime_root"), "{why}");
}

#[test]
fn drop_in_files_override_in_their_order() {
    let root = Root::new(&[(ETC, STOCK), ("etc/kata-containers/config.d/10-a.toml", GOOD)]);
    assert_eq!(root.verdict(), "Passed");
    root.write("etc/kata-containers/config.d/20-b.toml", STOCK);
    root.write("etc/kata-containers/config.d/30-c.toml.bak", GOOD);
    assert!(root.verdict().contains("disable_block_device_use"));
    root.write("etc/kata-containers/config.d/20-b.toml", "[hypervisor");
    assert!(root.verdict().contains("config.d/20-b.toml is no TOML"));
}

#[test]
fn the_files_of_the_engines_handlers_are_judged_and_others_are_not() {
    let engine = format!(
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\n\
         runtime_type = \"io.containerd.kata-qemu.v2\"\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata.options]\n\
         ConfigPath = \"/{DEPLOYED}\"\n"
    );
    let root = Root::new(&[
        (DEPLOYED, STOCK),
        (ETC, GOOD),
        ("opt/kata/VERSION", "4.1.0\n"),
        ("opt/kata/containerd/config.d/kata-deploy.toml", &engine),
    ]);
    let report = root.report();
    assert_eq!(report.version.as_deref(), Some("4.1.0"));
    assert_eq!(report.configurations.len(), 1);
    assert!(root.verdict().starts_with("/opt/kata/"), "{}", root.verdict());
    root.write(RS, &format!("{STOCK}{OF_RS}"));
    root.write("opt/kata/containerd/config.d/kata-deploy.toml", &engine.replace(DEPLOYED, RS));
    assert!(root.verdict().contains("no container with a direct volume starts"));
    root.write(RS, &format!("{GOOD}{OF_RS}"));
    assert_eq!(root.verdict(), "Passed");
    assert_eq!(root.report().configurations[0].runtime, Some("kata-rs"));
    let crio =
        "[crio.runtime.runtimes.kata]\nruntime_path = \"/usr/bin/containerd-shim-kata-v2\"\n";
    root.write("etc/crio/crio.conf.d/50-kata.conf", crio);
    root.write(ETC, STOCK);
    assert!(root.verdict().contains("/etc/kata-containers"), "a handler without a file of its own");
}

#[test]
fn a_damaged_file_is_a_fault_with_its_name_and_nothing_is_waited_for() {
    let root = Root::new(&[(ETC, "[hypervisor.qemu\n")]);
    assert!(root.verdict().contains("configuration.toml: is no TOML"), "{}", root.verdict());
    root.write(ETC, "x = 1\n");
    assert!(root.verdict().contains("no section"));
    root.write(ETC, "[hypervisor.qemu]\ndisable_block_device_use = \"yes\"\n");
    assert!(root.verdict().contains("as string"));
    root.write(ETC, &"#".repeat((1 << 20) + 1));
    assert!(root.verdict().contains("1 MiB"));
    std::fs::remove_file(root.path(ETC)).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(root.path(ETC)).status().unwrap();
    assert!(fifo.success());
    // A read of it would never end.
    assert!(root.verdict().contains("no regular file"));
    std::fs::remove_file(root.path(ETC)).unwrap();
    publish(&root.path(ETC), &[0xff, 0xfe], 0o600, Existing::Keep).unwrap();
    assert!(root.verdict().contains("cannot be read"));
}

/// containerd's section of a handler with this file.
fn handler(path: &str) -> String {
    format!(
        "[plugins.cri.runtimes.kata]\nruntime_type = \"io.containerd.kata.v2\"\n\
         [plugins.cri.runtimes.kata.options]\nConfigPath = \"/{path}\"\n"
    )
}

#[test]
fn symlinks_lead_within_the_root_and_drop_ins_are_beside_the_file_itself() {
    let root = Root::new(&[(DEPLOYED, STOCK)]);
    std::fs::create_dir_all(root.path("etc/kata-containers")).unwrap();
    symlink(format!("/{DEPLOYED}"), root.path(ETC)).unwrap();
    assert!(root.verdict().contains("disable_block_device_use"));
    root.write("etc/kata-containers/config.d/10-a.toml", GOOD);
    assert!(root.verdict().contains("disable_block_device_use"), "Kata does not read this one");
    root.write("opt/kata/share/defaults/kata-containers/config.d/10-a.toml", GOOD);
    assert_eq!(root.verdict(), "Passed");
    // Also a link that leads from its own directory, and a circle, which is there and unreadable.
    std::fs::remove_file(root.path(ETC)).unwrap();
    symlink(format!("../../{DEPLOYED}"), root.path(ETC)).unwrap();
    assert_eq!(root.verdict(), "Passed");
    std::fs::remove_file(root.path(ETC)).unwrap();
    symlink("configuration.toml", root.path(ETC)).unwrap();
    assert!(root.verdict().contains("cannot be read"), "{}", root.verdict());
}

#[test]
fn handlers_are_found_wherever_kata_deploy_writes_them() {
    for engine in [
        "etc/containerd/config.toml",
        "etc/k0s/containerd.d/kata-deploy.toml",
        "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        "var/snap/microk8s/current/args/containerd-template.toml",
    ] {
        let root = Root::new(&[(DEPLOYED, STOCK), (engine, &handler(DEPLOYED))]);
        assert!(root.verdict().starts_with("/opt/kata/"), "{engine}: {}", root.verdict());
    }
    // Installed, and no engine is known to use it: nothing is known.
    let root = Root::new(&[("opt/kata/share/defaults/kata-containers/configuration.toml", GOOD)]);
    assert_eq!(root.verdict(), "Unknown");
}

#[test]
fn a_runtime_rs_that_takes_no_bind_mounts_is_a_fault() {
    let handler = handler(RS);
    let engine = ("etc/containerd/config.toml", handler.as_str());
    let runtime = (RS, "[hypervisor.dragonball]\n[runtime]\nhypervisor_name = \"dragonball\"\n");
    for (version, is_fault) in [
        ("3.2.0", true),
        ("v2.5.1", true),
        ("3.3.0", false),
        ("4.1.0", false),
        ("3", false),
        ("main", false),
    ] {
        let root = Root::new(&[engine, runtime, ("opt/kata/VERSION", version)]);
        assert_eq!(root.report().configurations[0].runtime, Some("kata-rs"));
        assert_eq!(
            root.verdict().contains("before 3.3"),
            is_fault,
            "{version}: {}",
            root.verdict()
        );
    }
    let root = Root::new(&[(ETC, GOOD), ("opt/kata/VERSION", "3.2.0")]);
    assert_eq!(root.verdict(), "Passed", "it is the Go runtime");
}
