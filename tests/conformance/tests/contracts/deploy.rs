//! deploy/ and the guide agree with the programs.
//!
//! Configurations are read as the programs read them. The dashboard and the guide name every metric
//! of csi-cloud and no other. `tests/go/manifests` checks that the manifests are complete.

#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Parser;
use proto::host::publish::{Existing, publish};

/// A path below the repository's root.
pub(crate) fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join(path)
}

pub(crate) fn text(path: &str) -> String {
    std::fs::read_to_string(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every name in the text that could be a metric's.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("edge_csi_")).collect()
}

/// The metrics that csi-cloud registers. Its source is asked, since a metric that was never counted
/// is not written.
fn metrics() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut directories = vec![at("cloud/src")];
    while let Some(directory) = directories.pop() {
        for path in directory.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                directories.push(path);
            } else {
                registered(&std::fs::read_to_string(path).unwrap(), &mut names);
            }
        }
    }
    names
}

fn registered(source: &str, names: &mut BTreeSet<String>) {
    for after in source.split("registry.register(").skip(1) {
        let name = after.trim_start().strip_prefix('"').and_then(|name| name.split_once('"'));
        let (name, _) =
            name.unwrap_or_else(|| panic!("no name after registry.register( in {after:.80}"));
        names.insert(format!("edge_csi_{name}"));
    }
}

/// The metric of a name in a query, without the suffixes of counters and histograms.
fn metric(name: &str) -> String {
    let parts = ["_total", "_bucket", "_sum", "_count"];
    parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name).to_owned()
}

#[test]
fn what_is_written_is_what_is_registered() {
    let now = cloud::telemetry::metrics::Now {
        nodes: (0, 0),
        links: vec![("wss", 0)],
        link_ups: 0,
        link_looks_untrusted: 0,
        not_taken: (0, 0),
        quota_refusals: vec![("drivers", 0)],
        log_suppressed: vec![("node", 0)],
        records_bytes: (1, 2),
        certificates: vec![("ca", 0)],
        links_ending: 0,
        store_older: false,
        clock_doubted: true,
        certificates_shared: 0,
        queue: 0,
        drivers: Vec::new(),
        replica: cloud::telemetry::metrics::ReplicaNow::default(),
    };
    let text = cloud::telemetry::metrics::Metrics::default().text(&now);
    let written: BTreeSet<String> = named(&text).into_iter().map(metric).collect();
    let registered = metrics();
    assert!(written.len() > 5 && written.is_subset(&registered), "{written:?} {registered:?}");
}

#[test]
fn the_dashboard_and_the_guide_have_every_metric_and_no_other() {
    let metrics = metrics();
    assert!(metrics.contains("edge_csi_calls") && metrics.len() > 15, "{metrics:?}");
    for (file, all) in [
        ("deploy/helm/edge-csi/files/dashboard.json", true),
        ("docs/reference/metrics.md", true),
        ("deploy/helm/edge-csi/files/alerts.yaml", false),
    ] {
        let text = text(file);
        let named: BTreeSet<String> = named(&text).into_iter().map(metric).collect();
        let unknown: Vec<_> = named.difference(&metrics).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}, which csi-cloud does not have");
        let missing: Vec<_> = metrics.difference(&named).collect();
        assert!(!all || missing.is_empty(), "{file} has nothing of {missing:?}");
    }
}

/// What the chart renders, of which `make check` proves that it is rendered.
const RENDERED: [&str; 4] = [
    "deploy/manifests/plain.yaml",
    "deploy/manifests/three.yaml",
    "deploy/manifests/kubeedge.yaml",
    "tests/go/manifests/testdata/changed.yaml",
];

/// A file of a ConfigMap in rendered manifests.
fn configuration(manifests: &str, file: &str) -> String {
    let start = format!("  {file}: |\n");
    let (_, after) = manifests.split_once(&start).unwrap_or_else(|| panic!("there is no {file}"));
    let lines: Vec<_> = after.lines().map_while(|line| line.strip_prefix("    ")).collect();
    lines.join("\n")
}

#[test]
fn every_configuration_can_be_read() {
    cloud_config(&at("deploy/cloud.toml"));
    edge_config(&at("deploy/edge.toml"));
    let dir = tempfile::tempdir().unwrap();
    for manifests in RENDERED {
        let [cloud, edge] = ["cloud.toml", "edge.toml"].map(|file| {
            let path = dir.path().join(file);
            let content = configuration(&text(manifests), file);
            publish(&path, content.as_bytes(), 0o600, Existing::Replace).unwrap();
            path
        });
        cloud_config(&cloud);
        edge_config(&edge);
    }
}

/// The text of a configuration in which no key is commented out, and the number of these keys.
fn uncommented(file: &str) -> (String, usize) {
    let mut count = 0;
    let whole = text(file);
    let lines = whole.lines().map(|line| {
        let code = line.strip_prefix("# ").unwrap_or(line);
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let is_key =
            code.trim_start_matches(is_name).starts_with(" = ") && code.starts_with(is_name);
        let is_code = is_key || code.starts_with('[');
        count += usize::from(is_key && code != line);
        if is_code { format!("{code}\n") } else { format!("{line}\n") }
    });
    (lines.collect(), count)
}

/// Every key that `deploy/*.toml` shows is known and has a value of its form. Some contradict each
/// other, which is said of them, and of no others.
#[test]
fn every_key_that_is_commented_out_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.toml");
    let (cloud, keys) = uncommented("deploy/cloud.toml");
    assert!(keys > 55, "{keys} keys of cloud.toml");
    publish(&path, cloud.as_bytes(), 0o600, Existing::Replace).unwrap();
    let problems = cloud::config::Config::load(flags(&path)).unwrap_err().0;
    let expected = ["has both node_days and node_life", "controllers are for scope \"shared\""];
    contain(&problems, &expected);
    let (edge, keys) = uncommented("deploy/edge.toml");
    assert!(keys > 20, "{keys} keys of edge.toml");
    publish(&path, edge.as_bytes(), 0o600, Existing::Replace).unwrap();
    let problems = edge::config::Config::load(flags(&path)).unwrap_err().0;
    // The hash is a placeholder, for which nothing can stand in an example.
    let expected = ["leave out [tls]", "\"sha256:...\"", "(--ca-hash) is missing"];
    contain(&problems, &expected);
}

/// These problems, and no others.
fn contain(problems: &[String], expected: &[&str]) {
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for expected in expected {
        assert!(problems.iter().any(|problem| problem.contains(expected)), "{problems:#?}");
    }
}

/// The flags of either program's `serve`.
#[derive(Parser)]
struct Only<F: clap::Args> {
    #[command(flatten)]
    flags: F,
}

fn flags<F: clap::Args>(file: &Path) -> F {
    Only::try_parse_from([Path::new("serve"), Path::new("--config"), file])
        .unwrap_or_else(|e| panic!("{e}"))
        .flags
}

fn cloud_config(file: &Path) {
    if let Err(problems) = cloud::config::Config::load(flags(file)) {
        panic!("{problems}");
    }
}

fn edge_config(file: &Path) {
    if let Err(problems) = edge::config::Config::load(flags(file)) {
        panic!("{problems}");
    }
}

/// Where today's version stands: the file, the text before it, and how often.
const VERSIONED: [(&str, &str, usize); 25] = [
    ("deploy/helm/edge-csi/Chart.yaml", "version: ", 1),
    ("deploy/helm/edge-csi/Chart.yaml", "appVersion: ", 1),
    ("deploy/helm/edge-csi/values.yaml", "tag: ", 5),
    ("deploy/Dockerfile", "csi-cloud:", 1),
    ("docs/reference/configuration.md", "edge-csi-", 1),
    ("docs/start/install.md", "csi-cloud-", 1),
    ("docs/start/install.md", "csi-edge-", 1),
    ("docs/start/install.md", "csi-cloud:", 1),
    ("docs/start/install.md", "csi-edge:", 1),
    ("docs/start/install.md", "edge-csi-", 2),
    ("docs/how-to/systemd.md", "csi-cloud_", 1),
    ("docs/how-to/systemd.md", "csi-edge_", 1),
    ("docs/how-to/manifests.md", "csi-cloud-", 2),
    ("docs/how-to/add-driver.md", "edge-csi-", 3),
    ("docs/how-to/backup-restore.md", "edge-csi-", 2),
    ("docs/how-to/monitor.md", "edge-csi-", 2),
    ("docs/how-to/high-availability.md", "edge-csi-", 1),
    ("docs/how-to/join.md", "edge-csi-", 1),
    ("docs/how-to/migrate.md", "edge-csi-", 1),
    ("README.md", "**State: ", 1),
    ("tests/cluster/src/stand/shipped.rs", "csi-cloud:", 2),
    ("tests/cluster/src/stand/shipped.rs", "csi-edge:", 2),
    ("tests/go/manifests/bundle_test.go", "csi-edge-direct:", 1),
    (".github/ISSUE_TEMPLATE/bug.yml", "csi-cloud ", 1),
    (".github/ISSUE_TEMPLATE/bug.yml", "csi-edge ", 1),
];

/// The versions in a text that stand right after a word.
fn versions<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let is_outside = |c: char| !c.is_ascii_digit() && c != '.';
    let after = text.split(word).skip(1);
    let numbers = after.map(|after| after.split(is_outside).next().unwrap_or_default());
    let numbers = numbers.map(|number| number.trim_end_matches('.'));
    numbers.filter(|number| number.split('.').count() == 3).collect()
}

/// A build that is named like an older one looks equal to it.
#[test]
fn manifests_and_guide_name_the_version_of_the_programs() {
    let now = env!("CARGO_PKG_VERSION");
    for (file, word, count) in VERSIONED {
        assert_eq!(versions(&text(file), word), vec![now; count], "{file}: {word}");
    }
    assert!(text("CHANGELOG.md").contains(&format!("\n## {now} - ")));
    assert_eq!(versions("a-1.2.3-amd64, a-b, a-4.5.6.", "a-"), ["1.2.3", "4.5.6"]);
}

/// Adds the text of all sources and pages in a directory.
fn sources(directory: &Path, all: &mut String) {
    for path in directory.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "md") {
            all.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

/// `csi-edge direct …` finds its directories by itself, so what the programs and the guide print
/// can be run as it stands there.
#[test]
fn printed_commands_about_direct_volumes_can_be_run() {
    let mut all = String::new();
    for directory in ["cloud/src", "edge/src", "edge/direct/src", "docs"] {
        sources(&at(directory), &mut all);
    }
    let is_outside = |c: char| !c.is_ascii_lowercase();
    let after = all.split("csi-edge direct ").skip(1);
    let printed: BTreeSet<_> = after
        .filter_map(|after| after.split(is_outside).next())
        .filter(|word| !word.is_empty())
        .collect();
    assert!(printed.len() > 4, "{printed:?}");
    for command in printed {
        let rest: &[&str] = match command {
            "inspect" => &["volume-1"],
            "nri" => &["--vm-handler", "kata"],
            _ => &[],
        };
        let line = [&["csi-edge", "direct", command][..], rest].concat();
        if let Err(error) = edge::commands::Cli::try_parse_from(line) {
            panic!("csi-edge direct {command}: {error}");
        }
    }
}

/// The manifests have what the configuration of nodes that join names: the CA, the token and the
/// right to ask.
#[test]
fn a_daemon_set_joins_without_a_person() {
    let plain = text("deploy/manifests/plain.yaml");
    for line in [
        "mountPath: /etc/edge-csi-ca,",
        "cert = \"/etc/edge-csi-ca/tls.crt\"",
        "key = \"/etc/edge-csi-ca/tls.key\"",
        "join_service_account = \"edge-csi/csi-edge\"",
        "mountPath: /var/run/secrets/edge-csi,",
        "token_file = \"/var/run/secrets/edge-csi/token\"",
        "serviceAccountToken: {path: token,",
        "resources: [tokenreviews]\n    verbs: [create]",
    ] {
        assert!(plain.contains(line), "{line}");
    }
    let reviewer = text("cloud/src/kubernetes/token_review.rs");
    let audience = reviewer.split("const AUDIENCE: &str = \"").nth(1).unwrap();
    let audience = audience.split_once('"').unwrap().0;
    assert!(plain.contains(&format!("audience: {audience},")));
}

/// A Secret's files have mode 0644 by default, and such a key is refused.
#[test]
fn secrets_with_keys_are_mounted_for_their_group_only() {
    for file in ["cloud.yaml", "sidecars.yaml"] {
        let template = text(&format!("deploy/helm/edge-csi/templates/{file}"));
        let secrets: Vec<_> = template.split("secretName: ").skip(1).collect();
        assert!(!secrets.is_empty(), "{file}");
        for secret in secrets {
            let line = secret.lines().next().unwrap();
            assert!(line.contains("defaultMode: 0440"), "{file}: of the Secret {line}");
        }
        assert!(template.contains("edge-csi.central"), "{file}");
    }
    assert!(text("deploy/helm/edge-csi/templates/_parts.tpl").contains("fsGroup: 65532"));
}
