//! `csi-cloud doctor`. What to do stands below the table, since a column cannot hold it.

use std::io;
use std::io::Write;

use anyhow::bail;
use proto::admin::client::Client;
use proto::admin::output::Output;

use crate::admin::doctor::KUBEEDGE;
use crate::cli::output::{PROGRAM, no_parameters, print};
use crate::config::admin_arguments::DoctorCommand;
use crate::config::show_arguments::Show;
use crate::kubernetes::doctor::finding::{Finding, Verdict};

const HEADERS: &[&str] = &["CHECK", "OBJECT", "STATE", "FOUND"];

/// Prints what was found. It fails unless all is well.
pub(super) async fn run(command: &DoctorCommand) -> anyhow::Result<()> {
    match command {
        DoctorCommand::Kubeedge(show) => kubeedge(show).await,
    }
}

async fn kubeedge(show: &Show) -> anyhow::Result<()> {
    let mut client = Client::connect(PROGRAM, &show.reach.socket()).await?;
    let findings: Vec<Finding> = client.carry_out(KUBEEDGE, &no_parameters()).await?;
    print(show, &findings, HEADERS, row)?;
    if show.output == Output::Table {
        advise(&mut io::stdout().lock(), &findings)?;
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    match (count(Verdict::Problem), count(Verdict::Unknown)) {
        (0, 0) => Ok(()),
        (problems, unseen) => bail!("problems: {problems}; not to be seen: {unseen}"),
    }
}

fn row(finding: &Finding) -> Vec<String> {
    let state = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Problem => "problem",
        Verdict::Unknown => "unknown",
    };
    let cells = [finding.check.as_str(), &finding.about, state, &finding.found];
    cells.map(str::to_owned).to_vec()
}

fn advise(out: &mut impl Write, findings: &[Finding]) -> io::Result<()> {
    for finding in findings.iter().filter(|finding| !finding.advice.is_empty()) {
        writeln!(out, "\n{} ({}):\n  {}", finding.about, finding.check, finding.advice)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_stands_below_only_where_something_is_to_be_done() {
        let finding = |verdict, advice: &str| Finding {
            check: "c".into(),
            about: "ClusterRole x".into(),
            verdict,
            found: "f".into(),
            advice: advice.into(),
        };
        let findings = [finding(Verdict::Ok, ""), finding(Verdict::Problem, "apply it")];
        let mut out = Vec::new();
        advise(&mut out, &findings).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\nClusterRole x (c):\n  apply it\n");
        assert_eq!(row(&findings[1])[2], "problem");
    }
}
