//! One run of csi-sanity at given sockets: all of its specs, or those of the controller, or the
//! others.
//!
//! The parts share no spec and leave none out, so two partial runs compare with one full run.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{bail, ensure};
use tokio::process::Command;

use super::report::{Report, Spec};
use harness::stand::Stand;
use proto::host::publish::{Existing, publish};

/// A part of the names of the suite's controller specs.
const CONTROLLER: &str = "[Controller Server]";
/// The same, as a regular expression.
const CONTROLLER_PATTERN: &str = r"\[Controller Server\]";

/// Which specs are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Every one.
    All,
    /// Those of the Controller service.
    Controller,
    /// All but those.
    Others,
}

/// The order in which the suite runs its specs: the same in all runs that are compared.
const SEED: u32 = 1;
/// Prints a new directory for each spec. A spec that fails may leave a mount in its own.
const FRESH: &str = "#!/bin/sh\nexec mktemp -d -p \"${1%/*}\"\n";

/// Says what is at a path, in the suite's words, which asks for it once directories are made so.
const KIND: &str = "#!/bin/sh\n\
    if [ -d \"$1\" ]; then echo directory; elif [ -f \"$1\" ]; then echo file; \
    elif [ -e \"$1\" ]; then echo other; else echo not_found; fi\n";

/// The suite.
pub(super) struct Suite {
    program: PathBuf,
    /// More flags of it.
    options: Vec<String>,
}

impl Part {
    /// Whether a spec is of this part.
    pub fn has(self, spec: &Spec) -> bool {
        let of_controller = spec.name.contains(CONTROLLER);
        match self {
            Self::All => true,
            Self::Controller => of_controller,
            Self::Others => !of_controller,
        }
    }
}

impl Suite {
    /// The suite that was built there, with more flags.
    ///
    /// # Errors
    /// It was not.
    pub(super) fn at(go_bin: &Path, options: &[String]) -> anyhow::Result<Self> {
        let program = std::path::absolute(go_bin.join("csi-sanity"))?;
        ensure!(program.exists(), "{} is not there; `make sanity` builds it", program.display());
        Ok(Self { program, options: options.to_vec() })
    }

    /// Runs a part of it at these sockets.
    ///
    /// # Errors
    /// It leaves no report.
    pub(super) async fn run(
        &self,
        stand: &Stand,
        part: Part,
        sockets: &[(&str, String)],
    ) -> anyhow::Result<Report> {
        let mutable = stand.at("mutable.yaml");
        let report = stand.at("report.json");
        let log = stand.at("sanity.log");
        tokio::fs::write(&mutable, "mutableKey: v\n").await?;
        let output = std::fs::File::create(&log)?;
        let mut command = Command::new(&self.program);
        command.args(sockets.iter().map(|(flag, socket)| format!("--csi.{flag}=unix://{socket}")));
        command.arg(format!("--csi.mountdir={}", stand.at("mount")));
        command.arg(format!("--csi.stagingdir={}", stand.at("stage")));
        command.arg(format!("--csi.testvolumemutableparameters={mutable}"));
        let fresh = stand.at("fresh");
        publish(fresh.as_ref(), FRESH.as_bytes(), 0o700, Existing::Replace)?;
        let kind = stand.at("kind");
        publish(kind.as_ref(), KIND.as_bytes(), 0o700, Existing::Replace)?;
        command.arg(format!("--csi.checkpathcmd={kind}"));
        command.arg(format!("--csi.createmountpathcmd={fresh}"));
        command.arg(format!("--csi.createstagingpathcmd={fresh}"));
        command.args(["--csi.testnodevolumeattachlimit", "--ginkgo.no-color"]);
        command.arg(format!("--ginkgo.seed={SEED}")).args(&self.options);
        command.arg(format!("--ginkgo.json-report={report}"));
        match part {
            Part::All => {}
            Part::Controller => drop(command.arg(format!("--ginkgo.focus={CONTROLLER_PATTERN}"))),
            Part::Others => drop(command.arg(format!("--ginkgo.skip={CONTROLLER_PATTERN}"))),
        }
        command
            .current_dir(stand.dir())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        // It fails when a spec does; the report says more.
        let status = command.kill_on_drop(true).status().await?;
        match tokio::fs::read(&report).await {
            // Those of the other part are in it as skipped.
            Ok(json) => Ok(Report::parse(&json)?.filtered(|spec| part.has(spec))),
            Err(error) => {
                let said = tokio::fs::read_to_string(&log).await.unwrap_or_default();
                bail!("csi-sanity ended with {status} and left no report ({error}):\n{said}")
            }
        }
    }
}
