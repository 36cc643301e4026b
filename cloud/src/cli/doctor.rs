//! `csi-cloud doctor`: asks csi-cloud, and without it looks at what its configuration names.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use proto::admin::client::Client;
use proto::admin::doctor::{Finding, Verdict, show};
use proto::config::Flags;
use proto::host::chain;
use tokio::time::timeout;

use crate::admin::doctor::{KUBEEDGE, PATH};
use crate::cli::output::{PROGRAM, no_parameters};
use crate::config::Config;
use crate::config::doctor_arguments::{Doctor, DoctorCommand};
use crate::config::serve_arguments::Serve;
use crate::config::show_arguments::Show;

/// The time limit for csi-cloud: each of its checks ends within 5 s, and few wait for another.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prints what was found.
///
/// # Errors
/// Something is at fault, or the output fails. For KubeEdge also if csi-cloud does not answer or
/// refuses, or something cannot be seen.
pub(super) async fn run(command: &Doctor) -> anyhow::Result<()> {
    match &command.of {
        Some(DoctorCommand::Kubeedge(asked)) => kubeedge(asked).await,
        None => installation(&command.show).await,
    }
}

async fn installation(asked: &Show) -> anyhow::Result<()> {
    let socket = asked.reach.socket();
    let findings = match timeout(PATIENCE, ask(&socket)).await {
        Ok(Ok(findings)) => findings,
        Ok(Err(why)) => without(asked, &socket, why).await,
        Err(_) => without(asked, &socket, format!("no answer within {PATIENCE:?}")).await,
    };
    show::report(&mut io::stdout().lock(), asked.output, &findings)
}

async fn ask(socket: &Path) -> Result<Vec<Finding>, String> {
    let client = Client::connect(PROGRAM, socket).await;
    let mut client = client.map_err(|error| chain(&error))?;
    client.carry_out(PATH, &no_parameters()).await.map_err(|error| chain(&error))
}

/// The findings without an answer of csi-cloud.
async fn without(asked: &Show, socket: &Path, why: String) -> Vec<Finding> {
    let advice = "start it (`systemctl start csi-cloud`, or the StatefulSet csi-cloud), and look \
                  at its log";
    let mut findings = vec![Finding::fault(PROGRAM, socket.display().to_string(), why, advice)];
    let Some(file) = asked.reach.config.clone() else {
        findings.push(Finding::unknown(
            "configuration",
            "no file",
            "without csi-cloud only its configuration can be looked at, and none is named",
            "name it: --config FILE",
        ));
        return findings;
    };
    let about = file.display().to_string();
    let common = Flags { config: Some(file), ..Flags::default() };
    match Config::load(Serve { common, ..Serve::default() }) {
        Ok(config) => {
            findings.push(Finding::ok("configuration", about, "it can be used"));
            let installation = config.installation();
            findings.extend(installation.look(SystemTime::now()).await);
            findings.push(installation.clock(SystemTime::now()).await);
        }
        Err(problems) => findings.push(Finding::fault(
            "configuration",
            about,
            problems.0.join("; "),
            "mend it; what csi-cloud is given by flags is not seen here",
        )),
    }
    findings
}

/// A cluster is ready for the walk only if all of it can be seen, so that fails as well.
async fn kubeedge(asked: &Show) -> anyhow::Result<()> {
    let mut client = Client::connect(PROGRAM, &asked.reach.socket()).await?;
    let findings: Vec<Finding> = client.carry_out(KUBEEDGE, &no_parameters()).await?;
    show::report(&mut io::stdout().lock(), asked.output, &findings)?;
    let unseen = findings.iter().filter(|finding| finding.verdict == Verdict::Unknown).count();
    ensure!(unseen == 0, "not to be seen: {unseen}");
    Ok(())
}
