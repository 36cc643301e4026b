//! `csi-edge doctor`: looks for what keeps this node from serving volumes, and says what to do.
//!
//! It runs in a process of its own, reads what `csi-edge serve` reads, and changes nothing. So it
//! works while csi-edge does not run or cannot link. What a fact means is decided by pure
//! functions. It may use `edge-calls`, `edge-direct`, `cli`, `config` and `admin`.

mod bound;
mod clock;
mod drivers;
mod endpoints;
mod host;
mod identity;
mod kernel;
mod mounts;
mod running;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use futures_util::future::join_all;
use proto::admin::doctor::{Finding, show};

use crate::cli::{Doctor, Serve};
use crate::config::Config;

/// The configuration that is read if none is named: where both the unit and the DaemonSet have it.
const CONFIG: &str = "/etc/edge-csi/edge.toml";

/// Looks at everything, and writes what it found.
///
/// # Errors
/// Something is at fault, or the findings cannot be written.
pub async fn run(command: Doctor, out: &mut impl Write) -> anyhow::Result<()> {
    let Doctor { serve, output } = command;
    let findings = look(usual(*serve, Path::new(CONFIG))).await;
    show::report(out, output, &findings)
}

/// The flags with the usual configuration, if they name none and no cloud either.
fn usual(mut flags: Serve, usual: &Path) -> Serve {
    if flags.common.config.is_none() && flags.cloud.is_empty() && usual.exists() {
        flags.common.config = Some(usual.to_owned());
    }
    flags
}

async fn look(flags: Serve) -> Vec<Finding> {
    let file = flags.common.config.clone();
    let config = match Config::load(flags) {
        Ok(config) => config,
        Err(problems) => return vec![unreadable(file, &problems.0)],
    };
    let now = SystemTime::now();
    let identity = identity::look(&config, now);
    let mut findings = vec![readable(file, &config)];
    findings.extend(identity.findings);
    let checks = config.cloud.iter();
    let checks =
        checks.map(|cloud| endpoints::look(cloud, &config.proxy, identity.credentials.as_ref()));
    let (checks, drivers, running, host) = tokio::join!(
        join_all(checks),
        drivers::look(&config),
        running::look(config.admin.as_deref()),
        host::look(&config),
    );
    findings.push(clock::finding(&checks, now));
    findings.extend(endpoints::findings(&checks, now));
    findings.extend(drivers);
    findings.extend(host);
    findings.push(running);
    findings
}

fn named(file: Option<PathBuf>) -> String {
    file.map_or_else(|| "flags".to_owned(), |file| file.display().to_string())
}

fn unreadable(file: Option<PathBuf>, problems: &[String]) -> Finding {
    let advice = match &file {
        Some(_) => "mend it; `csi-edge serve` refuses it with the same words",
        None => "name the configuration with --config, or give the flags of `csi-edge serve`",
    };
    Finding::fault("configuration", named(file), problems.join("; "), advice)
}

fn readable(file: Option<PathBuf>, config: &Config) -> Finding {
    let endpoints: Vec<_> = config.cloud.iter().map(ToString::to_string).collect();
    let found = format!("cloud {}; drivers: {}", endpoints.join(", "), config.drivers.len());
    Finding::ok("configuration", named(file), found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use proto::admin::doctor::Verdict;

    use crate::commands::{Cli, Command};

    fn flags(args: &[&str]) -> Serve {
        let args = ["csi-edge", "doctor"].iter().chain(args);
        let Command::Doctor(doctor) = Cli::parse_from(args).command else { panic!() };
        *doctor.serve
    }

    #[test]
    fn the_usual_configuration_is_read_if_nothing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("edge.toml");
        let config = |args: &[&str]| usual(flags(args), &file).common.config;
        assert_eq!(config(&[]), None);
        std::fs::File::create(&file).unwrap();
        assert_eq!(config(&[]), Some(file.clone()));
        assert_eq!(config(&["--config", "/other"]), Some("/other".into()));
        assert_eq!(config(&["--cloud", "wss://h:1"]), None);
    }

    #[tokio::test]
    async fn a_configuration_that_cannot_be_used_is_the_only_finding() {
        let findings = look(flags(&["--config", "/none.toml"])).await;
        let [finding] = findings.as_slice() else { panic!("{findings:?}") };
        assert_eq!((finding.check.as_str(), finding.verdict), ("configuration", Verdict::Fault));
        assert!(finding.found.contains("cannot be read"), "{finding:?}");
        let findings = look(flags(&[])).await;
        assert!(findings[0].advice.contains("--config"), "{findings:?}");
    }
}
