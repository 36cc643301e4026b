//! Tiers of the tests that lack what they need.

use std::io::Write;

use anyhow::ensure;

/// Says that a tier is skipped, and why. `make test` ends with these lines.
///
/// # Errors
/// No tier may be skipped in CI, `may_in_ci` aside.
pub fn skipped(tier: &str, why: &str, may_in_ci: bool) -> anyhow::Result<()> {
    // Not println!: the test harness would keep that to itself.
    writeln!(std::io::stderr(), "tier skipped: {tier}: {why}")?;
    let is_ci = std::env::var("CI").as_deref() == Ok("true");
    ensure!(may_in_ci || !is_ci, "no tier may be skipped in CI but as .ci/run says: {tier}: {why}");
    Ok(())
}

/// Whether `.ci/run` said that there is no Kubernetes, nor what it needs.
pub fn is_without_kubernetes() -> bool {
    std::env::var_os("WITHOUT_KUBERNETES").is_some()
}
