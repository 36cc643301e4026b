//! `csi-cloud explain cause`: what the manual says of a cause, without a network.

use std::io::Write;

use anyhow::Context;
use clap::{Args, ValueEnum};
use proto::admin::command_line::Local;

use crate::explain::answer::Cause;

/// The page, which has one heading for each cause.
const PAGE: &str = include_str!("../../../docs/troubleshoot/causes.md");

/// Print what the manual says of a cause; works without a running csi-cloud.
#[derive(Debug, Args)]
pub(super) struct ExplainCause {
    /// The cause, as `csi-cloud explain -o json` and Events name it
    #[arg(hide_possible_values = true)]
    cause: Cause,
}

impl Local for ExplainCause {
    const NAME: &'static str = "explain cause";

    fn run(self) -> anyhow::Result<()> {
        let name = self.cause.to_possible_value().context("a cause without a name")?;
        let text = entry(name.get_name()).context("the manual says nothing of this cause")?;
        Ok(writeln!(std::io::stdout(), "{}", text.trim_end())?)
    }
}

/// The entry of a cause, with its heading.
fn entry(name: &str) -> Option<String> {
    let begin = format!("## {name}");
    let mut lines = PAGE.lines().skip_while(|line| *line != begin);
    let heading = lines.next()?;
    let rest = lines.take_while(|line| !line.starts_with("## "));
    Some([heading].into_iter().chain(rest).flat_map(|line| [line, "\n"]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_an_entry_for_each_cause_and_no_other() {
        let names = Cause::value_variants().iter().filter_map(Cause::to_possible_value);
        let names: Vec<_> = names.map(|name| name.get_name().to_owned()).collect();
        for name in &names {
            let text = entry(name).unwrap_or_else(|| panic!("no entry for {name}"));
            assert!(text.split_whitespace().count() > 15, "{text}");
        }
        let headings = PAGE.lines().filter_map(|line| line.strip_prefix("## "));
        let is_cause = |heading: &&str| !heading.contains(' ') && heading.contains('-');
        let unknown: Vec<_> =
            headings.filter(is_cause).filter(|name| !names.iter().any(|n| n == name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
