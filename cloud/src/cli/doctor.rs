//! `csi-cloud doctor`: asks csi-cloud, and without it looks at what its configuration names.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use proto::admin::client::Client;
use proto::admin::command::{Command, Program};
use proto::admin::command_line::Local;
use proto::admin::doctor::{Finding, show};
use proto::admin::output::Output;
use proto::config::Flags;
use proto::config::places::Places;
use proto::host::chain;
use proto::host::program::runtime;
use tokio::time::timeout;

use crate::admin::admin_state::AdminState;
use crate::admin::doctor::{Examine, Findings};
use crate::config::Config;
use crate::config::serve_arguments::Serve;

/// The time limit for csi-cloud: each of its checks ends within 5 s, and few wait for another.
const PATIENCE: Duration = Duration::from_secs(30);

/// Look for what keeps an installation from working, and say what to do.
///
/// It reads only. It looks at certificates, the store, sockets, disks and the nodes' versions.
/// In Kubernetes it looks at csi-cloud's rights, the kinds of snapshots and the sidecars. If
/// csi-cloud does not answer, it looks at what --config names. The exit code is 1 if something
/// is at fault.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// The admin socket [default: what --config says, else the first that is there]
    #[arg(long, value_name = "PATH")]
    admin: Option<PathBuf>,
    /// The configuration of csi-cloud, which names the admin socket
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// As a table or as JSON, whose field names do not change
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
}

impl Local for Doctor {
    const NAME: &'static str = "doctor";

    fn run(self) -> anyhow::Result<()> {
        let findings = runtime(1)?.block_on(self.look());
        show::report(&mut io::stdout().lock(), self.output, &findings)
    }
}

impl Doctor {
    async fn look(&self) -> Vec<Finding> {
        let (socket, _) = AdminState::socket(self.admin.clone(), self.config.clone());
        match timeout(PATIENCE, ask(&socket)).await {
            Ok(Ok(findings)) => findings,
            Ok(Err(why)) => without(self.config.clone(), &socket, why).await,
            Err(_) => {
                let why = format!("no answer within {PATIENCE:?}");
                without(self.config.clone(), &socket, why).await
            }
        }
    }
}

async fn ask(socket: &Path) -> Result<Vec<Finding>, String> {
    let client = Client::connect(AdminState::NAME, socket).await;
    let mut client = client.map_err(|error| chain(&error))?;
    let path = <Examine as Command<AdminState>>::PATH;
    let answered: Result<Findings, _> = client.carry_out(path, &Examine {}).await;
    answered.map(|findings| findings.0).map_err(|error| chain(&error))
}

/// The findings without an answer of csi-cloud.
async fn without(config: Option<PathBuf>, socket: &Path, why: String) -> Vec<Finding> {
    let advice = "start it (`systemctl start csi-cloud`, or the StatefulSet csi-cloud), and look \
                  at its log";
    let mut findings =
        vec![Finding::fault(AdminState::NAME, socket.display().to_string(), why, advice)];
    let Some(file) = Places::cloud().configuration(config) else {
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
