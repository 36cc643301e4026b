//! What this node's kernel and its programs must have for the volumes of this configuration.
//!
//! A guest mounts a direct volume, and a driver any other one. So csi-edge itself needs a kernel
//! that can cover a direct volume's target, and the tools of its file system.

use std::path::{Path, PathBuf};

use edge_direct::records::published;
use edge_direct::runtimes::prerequisites::{CheckReport, CheckVerdict, Checks};
use proto::admin::doctor::Finding;

/// The first version of Linux that can cover a direct volume's target, and see who shares it.
const COVERS: (u32, u32) = (5, 6);
/// The file system of a direct volume whose class names none.
const DEFAULT: &str = "ext4";
/// The file systems that csi-edge makes, and the programs that it runs for each.
const TOOLS: [(&str, &[&str]); 2] = [
    (DEFAULT, &["blkid", "mkfs.ext4", "e2fsck", "tune2fs", "resize2fs"]),
    ("xfs", &["blkid", "mkfs.xfs", "xfs_repair", "xfs_admin"]),
];

/// How much direct volumes matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// There can be none.
    No,
    /// A runtime of VMs is installed.
    Possible,
    /// Some are handed over, or the configuration demands that they can be.
    Certain,
}

impl Need {
    /// By the state directory and by the runtimes.
    pub(super) fn of(state: Option<&Path>, checks: &Checks, report: &CheckReport) -> Self {
        let Some(state) = state else { return Self::No };
        // A damaged record is one of a direct volume too.
        let is_empty = published::all(state).is_ok_and(|records| records.is_empty());
        if checks.required || !is_empty {
            return Self::Certain;
        }
        if report.configurations.is_empty() { Self::No } else { Self::Possible }
    }

    fn finding(self, check: &str, about: &str, found: String, advice: &str) -> Finding {
        match self {
            Self::Certain => Finding::fault(check, about, found, advice),
            Self::Possible | Self::No => Finding::warning(check, about, found, advice),
        }
    }
}

/// Where the kernel and the programs are.
pub(super) struct Roots {
    /// `/proc`
    pub(super) proc: PathBuf,
    /// The host's root, below which its modules are.
    pub(super) host: PathBuf,
    /// The directories of `PATH`.
    pub(super) programs: Vec<PathBuf>,
}

impl Roots {
    /// This machine's, with the root of the host's files.
    pub(super) fn of(checks: &Checks) -> Self {
        let programs = std::env::var_os("PATH").unwrap_or_default();
        let programs = std::env::split_paths(&programs).collect();
        Self { proc: "/proc".into(), host: checks.root.clone(), programs }
    }
}

/// What is said of the kernel, its file systems and the tools.
pub(super) fn findings(roots: &Roots, need: Need, runtimes: &CheckVerdict) -> Vec<Finding> {
    let release = std::fs::read_to_string(roots.proc.join("sys/kernel/osrelease"));
    let release = release.unwrap_or_default();
    let release = release.trim();
    let mut findings = vec![kernel(release, need, runtimes), file_systems(roots, release)];
    if need != Need::No {
        findings.extend(TOOLS.map(|(name, programs)| tools(name, programs, roots, need)));
    }
    findings
}

/// The kernel's age.
fn kernel(release: &str, need: Need, runtimes: &CheckVerdict) -> Finding {
    const CHECK: &str = "kernel";
    let (major, minor) = COVERS;
    let found = format!("Linux {release}");
    if need == Need::No {
        return Finding::ok(CHECK, "this machine", found);
    }
    match version(release) {
        None => Finding::unknown(
            CHECK,
            "this machine",
            "its version cannot be read",
            format!("look with `uname -r`; direct volumes need Linux {major}.{minor}"),
        ),
        Some(version) if version >= COVERS => Finding::ok(CHECK, "this machine", found),
        Some(_) => {
            let found = format!("{found}, and direct volumes need {major}.{minor} for their cover");
            let advice = "upgrade the kernel; until then a direct volume is handed over only if \
                          `csi-edge direct check` passes";
            // Runtimes that passed their check get a volume without a cover.
            let need = if *runtimes == CheckVerdict::Passed { Need::Possible } else { need };
            need.finding(CHECK, "this machine", found, advice)
        }
    }
}

/// The first two numbers of a release: `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether the kernel mounts a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    /// It is in the kernel, or loaded.
    Present,
    /// The kernel loads it with the first mount.
    Module,
    /// Neither.
    Missing,
    /// It is not loaded, and whether there is a module cannot be seen.
    Unseen,
}

impl Support {
    fn of(roots: &Roots, release: &str, name: &str) -> Self {
        let listed = std::fs::read_to_string(roots.proc.join("filesystems")).unwrap_or_default();
        if listed.lines().any(|line| line.split_whitespace().last() == Some(name)) {
            return Self::Present;
        }
        let modules = roots.host.join("lib/modules").join(release);
        match std::fs::read_to_string(modules.join("modules.dep")) {
            Ok(modules) if has_module(&modules, name) => Self::Module,
            Ok(_) => Self::Missing,
            Err(_) => Self::Unseen,
        }
    }

    fn text(self, name: &str) -> String {
        match self {
            Self::Present => name.to_owned(),
            Self::Module => format!("{name} as a module"),
            Self::Missing => format!("no {name}"),
            Self::Unseen => format!("{name} is not loaded, and no modules can be seen"),
        }
    }
}

/// Whether depmod's list has a module: `kernel/fs/xfs/xfs.ko.xz: kernel/lib/libcrc32c.ko.xz`.
fn has_module(list: &str, name: &str) -> bool {
    let modules = list.lines().filter_map(|line| line.split(':').next()?.rsplit('/').next());
    let mut names = modules.filter_map(|file| file.split(".ko").next());
    names.any(|module| module == name)
}

/// Which file systems a driver can mount here. Only the default of drivers is judged, because the
/// configuration does not say which ones they mount.
fn file_systems(roots: &Roots, release: &str) -> Finding {
    const CHECK: &str = "file-systems";
    const ABOUT: &str = "ordinary volumes";
    const ADVICE: &str = "look on the host with `modinfo ext4`, and install the modules of its \
                          kernel if a driver mounts such volumes; direct volumes do not need them";
    let ext4 = Support::of(roots, release, "ext4");
    let xfs = Support::of(roots, release, "xfs");
    let found = format!("{}; {}", ext4.text("ext4"), xfs.text("xfs"));
    match ext4 {
        Support::Present | Support::Module => Finding::ok(CHECK, ABOUT, found),
        Support::Missing => Finding::warning(CHECK, ABOUT, found, ADVICE),
        Support::Unseen => Finding::unknown(CHECK, ABOUT, found, ADVICE),
    }
}

/// The tools with which csi-edge makes, checks and grows a direct volume's file system.
fn tools(name: &str, programs: &[&str], roots: &Roots, need: Need) -> Finding {
    const CHECK: &str = "file-system-tools";
    let is_there = |program: &str| roots.programs.iter().any(|at| at.join(program).is_file());
    let missing: Vec<_> = programs.iter().filter(|program| !is_there(program)).copied().collect();
    let about = format!("direct volumes with {name}");
    if missing.is_empty() {
        return Finding::ok(CHECK, about, "all are there");
    }
    let found = format!("not in PATH: {}", missing.join(", "));
    let advice = "install util-linux, e2fsprogs and, for xfs, xfsprogs where csi-edge runs; \
                  without them such a volume is UNAVAILABLE";
    // A class names xfs. Without it a volume has ext4.
    let need = if name == DEFAULT { need } else { Need::Possible };
    need.finding(CHECK, &about, found, advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use edge_direct::runtimes::prerequisites;
    use proto::admin::doctor::Verdict;
    use proto::host::publish::{Existing, publish};

    /// A machine in a directory.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(release: &str, filesystems: &str) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.has("proc/sys/kernel/osrelease", &format!("{release}\n"));
            machine.has("proc/filesystems", filesystems);
            machine
        }

        fn has(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            publish(&path, text.as_bytes(), 0o755, Existing::Replace).unwrap();
        }

        fn roots(&self) -> Roots {
            let at = |name| self.0.path().join(name);
            Roots { proc: at("proc"), host: at("host"), programs: vec![at("sbin"), at("bin")] }
        }

        fn says(&self, need: Need) -> Vec<(String, Verdict, String)> {
            let findings = findings(&self.roots(), need, &CheckVerdict::Unknown);
            let short = |finding: Finding| {
                assert_eq!(finding.advice.is_empty(), finding.verdict == Verdict::Ok);
                (finding.check, finding.verdict, finding.found)
            };
            findings.into_iter().map(short).collect()
        }
    }

    const LOADED: &str = "nodev\tproc\n\text4\n\txfs\n";

    #[test]
    fn a_kernel_is_judged_by_the_need_of_direct_volumes() {
        let passed = CheckVerdict::Passed;
        let unknown = CheckVerdict::Unknown;
        for (release, need, runtimes, verdict) in [
            ("5.6.0", Need::Certain, &unknown, Verdict::Ok),
            ("6.1.0-18-amd64", Need::Certain, &unknown, Verdict::Ok),
            ("10.0", Need::Certain, &unknown, Verdict::Ok),
            ("5.4.0-150-generic", Need::No, &unknown, Verdict::Ok),
            ("5.4.0-150-generic", Need::Possible, &unknown, Verdict::Warning),
            ("5.4.0-150-generic", Need::Certain, &unknown, Verdict::Fault),
            ("4.18.0", Need::Certain, &passed, Verdict::Warning),
            ("", Need::Certain, &unknown, Verdict::Unknown),
            ("5", Need::Possible, &unknown, Verdict::Unknown),
            ("99999999999.1", Need::Possible, &unknown, Verdict::Unknown),
        ] {
            let finding = kernel(release, need, runtimes);
            assert_eq!(finding.verdict, verdict, "{release}: {finding:?}");
        }
    }

    #[test]
    fn without_direct_volumes_no_tool_is_asked_for() {
        let machine = Machine::new("5.4.0", LOADED);
        let said = machine.says(Need::No);
        let checks: Vec<_> = said.iter().map(|(check, ..)| check.as_str()).collect();
        assert_eq!(checks, ["kernel", "file-systems"], "{said:?}");
        assert!(said.iter().all(|(_, verdict, _)| *verdict == Verdict::Ok), "{said:?}");
    }

    #[test]
    fn a_file_system_may_be_a_module() {
        let of = |machine: &Machine| machine.says(Need::No).pop().unwrap();
        let (_, verdict, found) = of(&Machine::new("6.1.0", LOADED));
        assert_eq!((verdict, found.as_str()), (Verdict::Ok, "ext4; xfs"));
        let bare = Machine::new("6.1.0", "nodev\tproc\n");
        let (_, verdict, found) = of(&bare);
        assert_eq!(verdict, Verdict::Unknown, "{found}");
        let list = "kernel/fs/ext4/ext4.ko.xz: kernel/fs/jbd2/jbd2.ko.xz\nkernel/fs/xfs2.ko:\n";
        bare.has("host/lib/modules/6.1.0/modules.dep", list);
        let (_, verdict, found) = of(&bare);
        assert_eq!((verdict, found.as_str()), (Verdict::Ok, "ext4 as a module; no xfs"));
        bare.has("host/lib/modules/6.1.0/modules.dep", "kernel/fs/xfs/xfs.ko: a/ext4.ko\n");
        let (_, verdict, found) = of(&bare);
        assert_eq!((verdict, found.as_str()), (Verdict::Warning, "no ext4; xfs as a module"));
    }

    #[test]
    fn tools_are_needed_by_direct_volumes() {
        let machine = Machine::new("6.1.0", LOADED);
        let tools = |need| machine.says(need).split_off(2);
        let [(_, ext4, found), (_, xfs, _)] = &tools(Need::Certain)[..] else { panic!() };
        assert_eq!((*ext4, *xfs), (Verdict::Fault, Verdict::Warning));
        assert!(found.ends_with("blkid, mkfs.ext4, e2fsck, tune2fs, resize2fs"), "{found}");
        assert_eq!(tools(Need::Possible)[0].1, Verdict::Warning);
        for (at, program) in
            [("sbin", "blkid"), ("bin", "mkfs.ext4"), ("sbin", "e2fsck"), ("bin", "tune2fs")]
        {
            machine.has(&format!("{at}/{program}"), "");
        }
        assert_eq!(tools(Need::Certain)[0].2, "not in PATH: resize2fs");
        machine.has("sbin/resize2fs", "");
        assert_eq!(tools(Need::Certain)[0].1, Verdict::Ok);
    }

    #[test]
    fn direct_volumes_are_needed_as_the_configuration_and_the_node_say() {
        let dir = tempfile::tempdir().unwrap();
        let checks = |required| Checks { root: dir.path().join("host"), required };
        let need = |state: Option<&Path>, required| {
            let checks = checks(required);
            Need::of(state, &checks, &prerequisites::check(&checks.root))
        };
        let state = dir.path().join("state");
        assert_eq!(need(None, true), Need::No, "they are refused");
        assert_eq!(
            (need(Some(&state), false), need(Some(&state), true)),
            (Need::No, Need::Certain)
        );
        let kata = dir.path().join("host/etc/kata-containers");
        std::fs::create_dir_all(&kata).unwrap();
        let text = b"[hypervisor.qemu]\n";
        publish(&kata.join("configuration.toml"), text, 0o644, Existing::Keep).unwrap();
        assert_eq!(need(Some(&state), false), Need::Possible);
        let records = state.join("direct/published");
        std::fs::create_dir_all(&records).unwrap();
        publish(&records.join("a.json"), b"damaged", 0o600, Existing::Keep).unwrap();
        assert_eq!(need(Some(&state), false), Need::Certain);
    }
}
