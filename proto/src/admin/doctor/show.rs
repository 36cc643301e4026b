//! Findings as a table with what to do below it, since a column cannot hold that, or as JSON.

use std::io;
use std::io::Write;

use anyhow::ensure;

use super::finding::{Finding, Verdict};
use crate::admin::output::{ListWriter, Output};
use crate::host::plain;

/// The columns.
const HEADERS: &[&str] = &["CHECK", "ABOUT", "STATE", "FOUND"];

/// Writes all findings.
///
/// # Errors
/// They cannot be written, or one is a fault.
pub fn report(out: &mut impl Write, output: Output, findings: &[Finding]) -> anyhow::Result<()> {
    let mut writer = ListWriter::new(output, HEADERS);
    writer.add(out, findings, row)?;
    writer.end(out)?;
    if output == Output::Table {
        advise(out, findings)?;
    }
    let faults = findings.iter().filter(|finding| finding.verdict == Verdict::Fault).count();
    ensure!(faults == 0, "faults: {faults}");
    Ok(())
}

fn row(finding: &Finding) -> Vec<String> {
    let Finding { check, about, verdict, found, .. } = finding;
    [check, about, verdict.word(), found].map(str::to_owned).to_vec()
}

fn advise(out: &mut impl Write, findings: &[Finding]) -> io::Result<()> {
    for finding in findings.iter().filter(|finding| !finding.advice.is_empty()) {
        let Finding { check, about, advice, .. } = finding;
        writeln!(out, "\n{} ({}):\n  {}", plain(about), plain(check), plain(advice))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(output: Output, findings: &[Finding]) -> (String, bool) {
        let mut out = Vec::new();
        let reported = report(&mut out, output, findings);
        (String::from_utf8(out).unwrap(), reported.is_ok())
    }

    #[test]
    fn what_to_do_stands_below_only_where_something_is_to_be_done() {
        let findings =
            [Finding::ok("c", "thing x", "f"), Finding::warning("c", "thing y", "g", "mend it")];
        let (text, is_well) = shown(Output::Table, &findings);
        let table = "CHECK   ABOUT     STATE     FOUND\n\
                     c       thing x   ok        f\n\
                     c       thing y   warning   g\n";
        assert_eq!(text, format!("{table}\nthing y (c):\n  mend it\n"));
        assert!(is_well, "a warning is no failure");
    }

    #[test]
    fn a_fault_fails_and_what_cannot_be_seen_does_not() {
        let unknown = Finding::unknown("c", "a", "f", "look");
        let (text, is_well) = shown(Output::Json, std::slice::from_ref(&unknown));
        assert!(is_well);
        assert_eq!(serde_json::from_str::<Vec<Finding>>(&text).unwrap(), [unknown]);
        let (_, is_well) = shown(Output::Json, &[Finding::fault("c", "a", "f", "mend")]);
        assert!(!is_well);
    }
}
