//! This machine: csi-edge's directories, the kubelet's, and the runtimes of VMs.

use std::io;
use std::path::{Path, PathBuf};

use edge_direct::runtimes::prerequisites;
use edge_direct::runtimes::prerequisites::{CheckVerdict, Checks};
use proto::admin::doctor::Finding;
use proto::admin::doctor::place;
use proto::admin::doctor::place::{Place, ROOM, Use};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::bound::PATIENCE;
use super::kernel;
use super::kernel::{Need, Roots};
use super::mounts;
use crate::config::Config;

/// Looks at the machine. Each look has a thread of its own, which a file system may hold.
pub(super) async fn look(config: &Config) -> Vec<Finding> {
    let state = config.state.clone();
    let fronts = config.fronts.clone();
    let targets = config.targets.clone();
    let checks = config.checks.clone();
    let kept = config.state.clone();
    let roots = Roots::of(&checks);
    let needed = checks.clone();
    let looks = tokio::join!(
        bounded("state", move || vec![state_directory(state.as_deref())]),
        bounded("sockets", move || fronts.iter().map(|fronts| own("sockets", fronts, 0)).collect()),
        bounded("kubelet", move || targets.iter().flat_map(kubelet).collect()),
        bounded("runtimes", move || vec![runtimes(&checks)]),
        bounded("kernel", move || kernel_and_tools(kept.as_deref(), &needed, &roots)),
    );
    let (state, sockets, kubelet, runtimes, kernel) = looks;
    [state, sockets, kubelet, runtimes, kernel].concat()
}

fn kernel_and_tools(state: Option<&Path>, checks: &Checks, roots: &Roots) -> Vec<Finding> {
    let report = prerequisites::check(&checks.root);
    kernel::findings(roots, Need::of(state, checks, &report), &report.verdict())
}

async fn bounded(
    check: &'static str,
    look: impl FnOnce() -> Vec<Finding> + Send + 'static,
) -> Vec<Finding> {
    match timeout(PATIENCE, spawn_blocking(look)).await {
        Ok(Ok(findings)) => findings,
        Ok(Err(error)) => vec![failed(check, &error.to_string())],
        Err(_) => vec![failed(check, &format!("the file system did not answer in {PATIENCE:?}"))],
    }
}

fn failed(check: &str, why: &str) -> Finding {
    let advice = "look at the disk, and at network file systems that are away (dmesg)";
    Finding::fault(check, "this machine", why, advice)
}

fn state_directory(state: Option<&Path>) -> Finding {
    match state {
        Some(state) => own("state", state, ROOM),
        None => Finding::warning(
            "state",
            "no directory",
            "none is configured, so nothing is kept over a restart",
            "set state (--state) to a directory on a disk that outlives a reboot; direct volumes \
             and expansion need it",
        ),
    }
}

/// A directory that csi-edge makes at its start.
fn own(check: &str, path: &Path, least: u64) -> Finding {
    own_as_seen(check, path, least, place::look)
}

fn own_as_seen(check: &str, path: &Path, least: u64, look: impl Fn(&Path) -> Place) -> Finding {
    let used = Use { check, path, least, missing: "" };
    let place = look(path);
    let mut above = path.ancestors().skip(1).map(above).map(|above| (above, look(above)));
    if !is_seen(&place)
        && let Some((above, found)) = above.find(|(_, place)| is_seen(place))
    {
        let judged = place::directory(Use { path: above, ..used }, &found);
        if !judged.advice.is_empty() {
            return judged;
        }
        let about = path.display().to_string();
        let found = "there is none yet; csi-edge makes it at its start";
        let advice = "start csi-edge; if it has run here before, what was in it is lost";
        return Finding::warning(check, about, found, advice);
    }
    place::directory(used, &place)
}

/// The directory that a relative path begins in is this one.
fn above(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn is_seen(place: &Place) -> bool {
    !matches!(place, Place::Unseen(io::ErrorKind::NotFound, _))
}

/// A directory of the kubelet's, where volumes are mounted.
fn kubelet(path: &PathBuf) -> Vec<Finding> {
    const CHECK: &str = "kubelet";
    let place = place::look(path);
    if !is_seen(&place) {
        return vec![Finding::unknown(
            CHECK,
            path.display().to_string(),
            "there is none here",
            "a pod without the component direct does not have it, and needs it for direct volumes \
             only; elsewhere name the kubelet's directory ([direct] targets)",
        )];
    }
    let used = Use { check: CHECK, path, least: ROOM, missing: "" };
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let propagation = mounts::propagation(&mountinfo, &real);
    vec![place::directory(used, &place), mounts::judged(path, propagation)]
}

/// The runtimes that take direct volumes; `csi-edge direct check` says more.
fn runtimes(checks: &Checks) -> Finding {
    const CHECK: &str = "runtimes";
    let about = checks.root.display().to_string();
    if let Err(error) = std::fs::read_dir(&checks.root) {
        let found = format!("their configurations cannot be seen: {error}");
        let advice = "run this as root; without direct volumes it does not matter";
        return Finding::unknown(CHECK, about, found, advice);
    }
    let report = prerequisites::check(&checks.root);
    let advice = "`csi-edge direct check` lists each configuration; without direct volumes it does \
                  not matter";
    match report.verdict() {
        CheckVerdict::Passed => {
            let found = format!("{} take direct volumes", report.configurations.len());
            Finding::ok(CHECK, about, found)
        }
        CheckVerdict::Failed(why) if checks.required => Finding::fault(CHECK, about, why, advice),
        CheckVerdict::Failed(why) => Finding::warning(CHECK, about, why, advice),
        CheckVerdict::Unknown if checks.required => {
            let found = "no runtime of VMs was found, and require_runtime_check is set";
            Finding::fault(CHECK, about, found, advice)
        }
        CheckVerdict::Unknown => {
            let found = "no runtime of VMs was found; only direct volumes need one";
            Finding::ok(CHECK, about, found)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;
    use proto::admin::doctor::place::Room;

    /// As it is, on a disk with much room.
    fn roomy(path: &Path) -> Place {
        match place::look(path) {
            Place::There { writable, .. } => {
                let room = Room { free: 1 << 40, total: 1 << 41, free_files: 0, total_files: 0 };
                Place::There { writable, room }
            }
            other => other,
        }
    }

    #[test]
    fn a_directory_that_csi_edge_makes_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let missing = own_as_seen("state", &dir.path().join("a/b"), 0, roomy);
        assert_eq!(missing.verdict, Verdict::Warning, "{missing:?}");
        assert!(missing.about.ends_with("a/b"), "{missing:?}");
        let file = dir.path().join("file");
        std::fs::File::create(&file).unwrap();
        assert_eq!(own_as_seen("state", &file, 0, roomy).verdict, Verdict::Fault);
        let full = own_as_seen("state", &dir.path().join("a"), u64::MAX, roomy);
        assert_eq!(full.verdict, Verdict::Fault, "{full:?}");
        assert_eq!(state_directory(None).verdict, Verdict::Warning);
    }

    #[test]
    fn a_node_without_the_kubelets_directory_is_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        let none = kubelet(&dir.path().join("none"));
        assert_eq!((none.len(), none[0].verdict), (1, Verdict::Unknown));
        let there = kubelet(&dir.path().to_owned());
        let checks: Vec<_> = there.iter().map(|finding| finding.check.as_str()).collect();
        assert_eq!(checks, ["kubelet", "mount-propagation"]);
    }

    #[test]
    fn runtimes_matter_as_much_as_the_configuration_says() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let of = |required| runtimes(&Checks { root: root.clone(), required }).verdict;
        assert_eq!((of(false), of(true)), (Verdict::Ok, Verdict::Fault));
        let kata = dir.path().join("etc/kata-containers");
        std::fs::create_dir_all(&kata).unwrap();
        let text = b"[hypervisor.qemu]\ndisable_block_device_use = true\n";
        let file = kata.join("configuration.toml");
        proto::host::publish::publish(&file, text, 0o644, proto::host::publish::Existing::Keep)
            .unwrap();
        assert_eq!((of(false), of(true)), (Verdict::Warning, Verdict::Fault));
    }
}
