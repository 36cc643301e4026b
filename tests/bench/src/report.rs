//! How every measurement ends: its rows in a file, its table, and whether the targets are met.

use std::fmt::Display;
use std::path::Path;

use proto::host::publish::{Existing, publish};
use serde::Serialize;

/// Targets, each with what was reached, and whether all are met.
pub struct Targets {
    /// A line for each.
    pub text: String,
    /// All are met, and no call failed.
    pub met: bool,
}

impl Default for Targets {
    fn default() -> Self {
        Self { text: String::new(), met: true }
    }
}

impl Targets {
    /// Adds a target.
    pub fn add(&mut self, what: impl Display, reached: impl Display, met: bool) {
        let word = if met { "met" } else { "MISSED" };
        self.text += &format!("target {what}: {reached} {word}\n");
        self.met &= met;
    }

    /// Adds how many calls failed, which is none if all is well.
    pub fn errors(&mut self, errors: u64) {
        self.text += &format!("errors: {errors}\n");
        self.met &= errors == 0;
    }
}

/// Writes the rows as JSON, one a line, and prints the table and the targets.
///
/// # Errors
/// The rows cannot be written, or a target is missed.
pub fn finish(
    rows: &[impl Serialize],
    table: &str,
    targets: &Targets,
    out: &Path,
) -> anyhow::Result<()> {
    let lines: Result<Vec<_>, _> = rows.iter().map(serde_json::to_string).collect();
    std::fs::create_dir_all(out.parent().unwrap_or_else(|| Path::new(".")))?;
    publish(out, (lines?.join("\n") + "\n").as_bytes(), 0o644, Existing::Replace)?;
    println!("{table}\n{}rows: {}", targets.text, out.display());
    anyhow::ensure!(targets.met, "a target is missed, or a call failed; see above");
    Ok(())
}

/// The middle value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
