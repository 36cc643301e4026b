//! Checks that the installed runtimes take a direct volume as a device, by their configuration.
//!
//! With `disable_block_device_use = true`, as in a stock configuration of Kata's Go runtime, its
//! pods get the node's directory instead of the volume, and those of runtime-rs do not start.
//! runtime-rs before version 3.3 takes no direct volume from a bind mount.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::{Table, Value};

use super::installed;
use super::installed::Configuration;

/// The host's root, as a container in the host's PID namespace sees it.
pub const HOST: &str = "/proc/1/root";

/// Kata's runtime-rs, in a [`Finding`].
const RUNTIME_RS: &str = "kata-rs";
/// kata-deploy's directory, of which its note of the version speaks.
const DEPLOYED: &str = "/opt/kata";
/// The first version whose runtime-rs takes a direct volume that comes as a bind mount.
const RS_TAKES_BINDS: (u32, u32) = (3, 3);

/// The settings of a node's check of its runtimes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checks {
    /// The root of the host's files.
    pub root: PathBuf,
    /// True if a publication is refused unless the check has passed.
    pub required: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Self { root: HOST.into(), required: false }
    }
}

/// The findings, and if these runtimes are fit for direct volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// The reason why the host's files cannot be read, so that nothing else is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
    /// The installed version, if kata-deploy's note of it can be read.
    pub version: Option<String>,
    /// Each configuration in use.
    pub configurations: Vec<Finding>,
}

/// One configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Its path on the host.
    pub path: PathBuf,
    /// `kata-go` or `kata-rs`; none if the file cannot be read.
    pub runtime: Option<&'static str>,
    /// The reason why its pods would not get a direct volume, and what to set.
    pub fault: Option<String>,
}

/// The conclusion of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    /// There is a configuration, and none has a fault.
    Passed,
    /// The faults, for people.
    Failed(String),
    /// No configuration was found.
    Unknown,
}

impl CheckReport {
    /// Its conclusion.
    pub fn verdict(&self) -> CheckVerdict {
        if let Some(why) = &self.unread {
            return CheckVerdict::Failed(why.clone());
        }
        let fault = |finding: &Finding| {
            let path = finding.path.display();
            finding.fault.as_ref().map(|fault| format!("{path}: {fault}"))
        };
        let faults: Vec<_> = self.configurations.iter().filter_map(fault).collect();
        match (self.configurations.is_empty(), faults.is_empty()) {
            (true, _) => CheckVerdict::Unknown,
            (false, true) => CheckVerdict::Passed,
            (false, false) => CheckVerdict::Failed(faults.join("; ")),
        }
    }
}

/// Checks the runtimes that are installed below a root.
pub fn check(root: &Path) -> CheckReport {
    let version = installed::version(root);
    let found = |configuration| finding(configuration, version.as_deref());
    match installed::configurations(root, &installed::engines(root)) {
        Ok(all) => {
            let configurations = all.into_iter().map(found).collect();
            CheckReport { unread: None, version, configurations }
        }
        Err(error) => {
            let root = root.display();
            let why = format!(
                "the host's files cannot be read at {root} ({error}), so nothing is known of its \
                 runtimes; run csi-edge as root in the host's PID namespace, or set runtime_root"
            );
            CheckReport { unread: Some(why), version, configurations: Vec::new() }
        }
    }
}

/// The runtimes that a node's engines have for their pods.
#[derive(Debug, Default)]
pub(crate) struct NodeRuntimes {
    /// True if a configuration of runtime-rs is in use.
    pub(crate) has_runtime_rs: bool,
    /// True if NRI refuses the containers whose Pods require a plugin that is not there.
    pub(crate) validates: bool,
    /// Kata's handlers; true for those of runtime-rs, `None` where it cannot be told.
    handlers: BTreeMap<String, Option<bool>>,
}

impl NodeRuntimes {
    /// The runtimes that are installed below a root. A root that cannot be read counts as empty.
    pub(crate) fn below(root: &Path) -> Self {
        let engines = installed::engines(root);
        let Ok(all) = installed::configurations(root, &engines) else { return Self::default() };
        let mut kinds = BTreeMap::new();
        for Configuration { path, content } in all {
            let is_rs = content.ok().map(|table| runtime(&path, &table) == RUNTIME_RS);
            kinds.insert(path, is_rs);
        }
        let mut handlers: BTreeMap<String, Option<bool>> = BTreeMap::new();
        for (handler, path) in &engines.handlers {
            let is_rs = kinds.get(&Path::new("/").join(path)).copied().flatten();
            let there = handlers.entry(handler.clone()).or_insert(is_rs);
            // Two engines have it.
            if *there != is_rs && *there != Some(true) {
                *there = is_rs.filter(|is_rs| *is_rs);
            }
        }
        let has_runtime_rs = kinds.values().any(|is_rs| *is_rs == Some(true));
        Self { has_runtime_rs, validates: engines.validates(), handlers }
    }

    /// Whether pods of this handler are runtime-rs'; `None` if that is not known. A handler that is
    /// not among Kata's is another runtime's.
    pub(crate) fn is_runtime_rs(&self, handler: &str) -> Option<bool> {
        if self.handlers.is_empty() {
            return None;
        }
        self.handlers.get(handler).copied().unwrap_or(Some(false))
    }
}

fn finding(configuration: Configuration, version: Option<&str>) -> Finding {
    let Configuration { path, content } = configuration;
    match content {
        Err(fault) => Finding { path, runtime: None, fault: Some(fault) },
        Ok(table) => {
            let runtime = runtime(&path, &table);
            let too_old = version.filter(|_| path.starts_with(DEPLOYED));
            let too_old = too_old.and_then(|version| too_old_for_binds(runtime, version));
            let fault = too_old.or_else(|| fault(runtime, &table));
            Finding { path, runtime: Some(runtime), fault }
        }
    }
}

/// runtime-rs has files of its own, and names its hypervisor in them.
fn runtime(path: &Path, table: &Table) -> &'static str {
    let section = table.get("runtime").and_then(Value::as_table);
    let names = section.is_some_and(|section| section.contains_key("hypervisor_name"));
    if names || path.to_string_lossy().contains("runtime-rs") { RUNTIME_RS } else { "kata-go" }
}

/// The reason why a version of runtime-rs takes no direct volume. A version that cannot be read
/// says nothing.
fn too_old_for_binds(runtime: &str, version: &str) -> Option<String> {
    let mut numbers = version.trim_start_matches('v').split('.').map(|part| part.parse().ok());
    let version = (numbers.next()??, numbers.next()??);
    let (major, minor) = RS_TAKES_BINDS;
    (runtime == RUNTIME_RS && version < RS_TAKES_BINDS).then(|| {
        format!(
            "runtime-rs before {major}.{minor} takes no direct volume from a kubelet's mount; \
             upgrade Kata, or use its Go runtime"
        )
    })
}

/// The reason why this runtime does not take the device.
fn fault(runtime: &str, table: &Table) -> Option<String> {
    let hypervisors = table.get("hypervisor").and_then(Value::as_table);
    let Some(hypervisors) = hypervisors.filter(|hypervisors| !hypervisors.is_empty()) else {
        return Some("it has no section [hypervisor.NAME], so nothing is known of it".into());
    };
    for (name, settings) in hypervisors {
        if name == "remote" {
            return Some("[hypervisor.remote] has no block devices; use another one".into());
        }
        let disabled = settings.get("disable_block_device_use");
        match disabled.map(|value| (value, value.as_bool())) {
            Some((_, Some(true))) => {
                let instead = match runtime {
                    "kata-go" => "its pods get a directory of the node instead of the volume",
                    _ => "no container with a direct volume starts",
                };
                return Some(format!(
                    "[hypervisor.{name}] has disable_block_device_use = true, so {instead}; set it \
                     to false, in this file or in one of its config.d"
                ));
            }
            Some((value, None)) => {
                let kind = value.type_str();
                return Some(format!(
                    "[hypervisor.{name}] has disable_block_device_use as {kind}; set it to false"
                ));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
