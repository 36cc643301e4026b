//! The systemd units in deploy/ keep their sandbox, and each capability has a reason.

#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use harness::tier;

use crate::deploy::{at, text};

const UNITS: [&str; 3] = ["csi-cloud", "csi-page", "csi-edge"];
const DIRECT: &str = "deploy/systemd/csi-edge.service.d/direct.conf";
/// What all units must say. An empty value gives nothing.
const SANDBOX: [(&str, &[&str]); 25] = [
    ("AmbientCapabilities", &[]),
    ("CapabilityBoundingSet", &[]),
    ("LimitCORE", &["0"]),
    ("LockPersonality", &["yes"]),
    ("MemoryDenyWriteExecute", &["yes"]),
    ("NoNewPrivileges", &["yes"]),
    ("PrivateDevices", &["yes"]),
    ("PrivateTmp", &["yes"]),
    ("ProtectClock", &["yes"]),
    ("ProtectControlGroups", &["yes"]),
    ("ProtectHome", &["yes"]),
    ("ProtectHostname", &["yes"]),
    ("ProtectKernelLogs", &["yes"]),
    ("ProtectKernelModules", &["yes"]),
    ("ProtectKernelTunables", &["yes"]),
    ("ProtectProc", &["invisible"]),
    ("ProtectSystem", &["strict"]),
    ("RestrictAddressFamilies", &["AF_UNIX AF_INET AF_INET6"]),
    ("RestrictNamespaces", &["yes"]),
    ("RestrictRealtime", &["yes"]),
    ("RestrictSUIDSGID", &["yes"]),
    ("SystemCallArchitectures", &["native"]),
    ("SystemCallErrorNumber", &["EPERM"]),
    ("SystemCallFilter", &["@system-service", "~@privileged"]),
    ("UMask", &["0077"]),
];
/// What direct volumes take back, and no more.
const TAKEN_BACK: [&str; 12] = [
    "CapabilityBoundingSet",
    "PrivateDevices",
    "PrivateTmp",
    "ProtectClock",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadWritePaths",
];
const CAPABILITIES: [&str; 3] = ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"];

/// The settings of a unit, each with its values. An empty value takes back those before it.
fn settings(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut settings = BTreeMap::<_, Vec<_>>::new();
    let lines = text.lines().filter(|line| !line.starts_with(['#', '[']) && !line.is_empty());
    for line in lines {
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("no setting: {line}"));
        let values = settings.entry(key).or_default();
        match value {
            "" => values.clear(),
            value => values.push(value),
        }
    }
    settings
}

fn unit(name: &str) -> String {
    text(&format!("deploy/systemd/{name}.service"))
}

#[test]
fn both_units_have_the_whole_sandbox() {
    for name in UNITS {
        let unit = unit(name);
        let settings = settings(&unit);
        for (key, expected) in SANDBOX {
            let found = settings.get(key).map(Vec::as_slice);
            assert_eq!(found, Some(expected), "{key} of {name}.service");
        }
        let program = match name {
            "csi-page" => format!("/usr/bin/{name} --view /run/edge-csi-view/"),
            _ => format!("/usr/bin/{name} serve --config /etc/edge-csi/"),
        };
        assert!(settings["ExecStart"][0].starts_with(&program), "{name}");
    }
    assert_eq!(settings(&unit("csi-cloud"))["User"], ["edge-csi"]);
    assert_eq!(settings(&unit("csi-page"))["User"], ["edge-csi-page"]);
}

#[test]
fn direct_volumes_take_back_what_is_listed_and_each_capability_has_its_reason() {
    let text = text(DIRECT);
    let mut direct = settings(&text);
    assert_eq!(direct["CapabilityBoundingSet"], CAPABILITIES);
    assert_eq!(direct.remove("SystemCallFilter").unwrap(), ["@system-service @mount"]);
    assert_eq!(direct.into_keys().collect::<Vec<_>>(), TAKEN_BACK);
    let lines: Vec<_> = text.lines().collect();
    for pair in lines.windows(2) {
        let Some(capability) = pair[1].strip_prefix("CapabilityBoundingSet=") else { continue };
        assert!(pair[0].starts_with(&format!("# {capability}: ")), "{capability} has no reason");
    }
}

/// systemd itself knows each setting, where it is installed.
#[test]
fn systemd_can_read_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        tier::skipped("units", "systemd-analyze is not installed", true).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let drop_in = dir.path().join("csi-edge.service.d");
    std::fs::create_dir(&drop_in).unwrap();
    std::fs::copy(at(DIRECT), drop_in.join("direct.conf")).unwrap();
    for name in UNITS {
        // The programs are not installed here, and one that is missing is an error.
        let text = unit(name).replace(&format!("/usr/bin/{name}"), "/bin/true");
        let path = dir.path().join(format!("{name}.service"));
        write(&path, &text);
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).arg(&path);
        let output = verify.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains(name), "{name}: {said}");
        assert_low_exposure(name, &text);
    }
}

/// The exposure is from 0 to 10 by systemd's own table; 2.0 is the limit. The drop-in for direct
/// volumes is not counted.
fn assert_low_exposure(name: &str, text: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("{name}.service"));
    write(&path, text);
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold=20"]).arg(&path);
    let output = security.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // Before version 250 it asks a running systemd only.
    if errors.contains("unrecognized option") {
        tier::skipped("units", "systemd-analyze has no --offline", true).unwrap();
        return;
    }
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {table} {errors}");
}

fn write(path: &Path, text: &str) {
    let keep = proto::host::publish::Existing::Keep;
    proto::host::publish::publish(path, text.as_bytes(), 0o644, keep).unwrap();
}
