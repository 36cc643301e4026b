//! What deploy/ and the guide say agrees with the programs.
//!
//! Configurations are read as the programs read them, and every metric that csi-cloud has is on the dashboard and in
//! the guide, which name no other. Whether the manifests are whole is for `tests/go/manifests`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Parser;

/// A path below the repository's root.
fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every name in the text that could be a metric's.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("edge_csi_")).collect()
}

/// What csi-cloud says that it has, as a query writes it: a counter with its `_total`, a histogram without a part.
fn metrics() -> BTreeSet<String> {
    let now =
        cloud::metrics::Now { nodes: (0, 0), links: Vec::new(), link_ups: 0, queue: 0, drivers: Vec::new() };
    let text = cloud::metrics::Metrics::default().text(&now);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .map(|(name, kind)| if kind == "counter" { format!("{name}_total") } else { name.to_owned() })
        .collect()
}

/// The metric that a name in a query is of.
fn metric(name: &str) -> String {
    let parts = ["_bucket", "_sum", "_count"];
    parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name).to_owned()
}

#[test]
fn the_dashboard_and_the_guide_have_every_metric_and_no_other() {
    let metrics = metrics();
    assert!(metrics.contains("edge_csi_calls_total") && metrics.len() > 15, "{metrics:?}");
    for (file, all) in [
        ("deploy/kustomize/components/monitoring/dashboard.json", true),
        ("docs/operations.md", true),
        ("deploy/kustomize/components/monitoring/alerts.yaml", false),
    ] {
        let text = text(file);
        let named: BTreeSet<String> = named(&text).into_iter().map(metric).collect();
        let unknown: Vec<_> = named.difference(&metrics).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}, which csi-cloud does not have");
        let missing: Vec<_> = metrics.difference(&named).collect();
        assert!(!all || missing.is_empty(), "{file} has nothing of {missing:?}");
    }
}

#[test]
fn every_configuration_can_be_read() {
    let overlays = at("deploy/kustomize/overlays").read_dir().unwrap();
    let mut read = 0;
    for directory in overlays.map(|entry| entry.unwrap().path()).chain([at("deploy")]) {
        let (cloud, edge) = (directory.join("cloud.toml"), directory.join("edge.toml"));
        cloud_config(&cloud);
        edge_config(&edge);
        read += 1;
    }
    assert!(read > 3, "{read}");
}

fn cloud_config(file: &Path) {
    let args = ["csi-cloud", "serve", "--config", file.to_str().unwrap()];
    let cloud::cli::Command::Serve(flags) = cloud::cli::Cli::try_parse_from(args).unwrap().command else {
        panic!("no serve")
    };
    if let Err(problems) = cloud::config::Config::load(*flags) {
        panic!("{problems}");
    }
}

fn edge_config(file: &Path) {
    let args = ["csi-edge", "serve", "--config", file.to_str().unwrap()];
    let flags = match edge::cli::Cli::try_parse_from(args).unwrap().command {
        edge::cli::Command::Serve(flags) => flags,
        #[expect(unreachable_patterns, reason = "there may be other commands")]
        _ => panic!("no serve"),
    };
    if let Err(problems) = edge::config::Config::load(flags) {
        panic!("{problems}");
    }
}
