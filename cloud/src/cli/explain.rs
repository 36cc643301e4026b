//! `csi-cloud explain`. The verdict is the last line, since a terminal ends there.

use std::io;
use std::io::Write;

use proto::admin::cells::short;
use proto::admin::client::Client;
use proto::admin::output::{ListWriter, Output};

use crate::admin::explain::PATH;
use crate::cli::output::PROGRAM;
use crate::config::explain_arguments::ExplainCommand;
use crate::config::show_arguments::Show;
use crate::explain::answer::{Explanation, Step};
use crate::explain::subject::Subject;

const HEADERS: &[&str] = &["OBJECT", "STATE", "FOUND"];

/// Prints the chain and the verdict.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn run(command: ExplainCommand) -> anyhow::Result<()> {
    let (subject, show) = subject(command);
    let mut client = Client::connect(PROGRAM, &show.reach.socket()).await?;
    let explanation: Explanation = client.carry_out(PATH, &subject).await?;
    let mut out = io::stdout().lock();
    match show.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&explanation)?)?,
        Output::Table => table(&mut out, &explanation)?,
    }
    Ok(())
}

fn subject(command: ExplainCommand) -> (Subject, Show) {
    match command {
        ExplainCommand::Pvc { name, show } => (Subject::Pvc(name), show),
        ExplainCommand::Pv { name, show } => (Subject::Pv(name), show),
        ExplainCommand::Pod { name, show } => (Subject::Pod(name), show),
        ExplainCommand::Snapshot { name, show } => (Subject::Snapshot(name), show),
        ExplainCommand::Volume { driver, id, show } => (Subject::Volume { driver, id }, show),
        ExplainCommand::Node { node, show } => (Subject::Node(node), show),
        ExplainCommand::Driver { driver, show } => (Subject::Driver(driver), show),
    }
}

fn table(out: &mut impl Write, explanation: &Explanation) -> anyhow::Result<()> {
    if !explanation.steps.is_empty() {
        let mut writer = ListWriter::new(Output::Table, HEADERS);
        writer.add(out, &explanation.steps, row)?;
        writer.end(out)?;
        writeln!(out)?;
    }
    Ok(writeln!(out, "{}", explanation.verdict.sentence())?)
}

fn row(step: &Step) -> Vec<String> {
    vec![step.object.clone(), step.state.clone(), short(&step.found)]
}

#[cfg(test)]
mod tests {
    use crate::explain::answer::{Cause, Verdict};

    use super::*;

    #[test]
    fn the_verdict_is_the_last_line() {
        let verdict = Verdict {
            cause: Cause::NodeAway,
            node: Some("n1".parse().unwrap()),
            text: "node n1 has no link".into(),
            next: "look there".into(),
        };
        let step = Step { object: "node n1".into(), state: "away".into(), found: String::new() };
        let mut out = Vec::new();
        table(&mut out, &Explanation { steps: vec![step], verdict }).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().last(), Some("node n1 has no link; look there"));
        assert!(text.starts_with("OBJECT") && text.contains("node n1"), "{text}");
    }
}
