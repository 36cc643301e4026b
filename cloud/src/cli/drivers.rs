//! `csi-cloud drivers`. The capabilities stand below the table, since a column cannot hold them.

use std::io;
use std::io::Write;

use proto::admin::output::Output;

use crate::admin::drivers::{DriverView, PATH};
use crate::cli::cells::health;
use crate::cli::output::whole;
use crate::config::show_arguments::Show;

const HEADERS: &[&str] = &[
    "NAME",
    "FRONT",
    "SCOPE",
    "PLACEMENT",
    "NODES",
    "LINKED",
    "NOT UP",
    "HOMES",
    "OPEN",
    "CALLS",
    "CSIDRIVER",
    "NODES DIFFER",
    "SET APART",
];
/// Capabilities on a line.
const ON_A_LINE: usize = 4;
/// Nodes of a driver that are named for one reason; `csi-cloud nodes` and JSON have all.
const SHOWN: usize = 20;

/// Prints the drivers.
///
/// # Errors
/// csi-cloud does not answer, or refuses; or the output fails.
pub(super) async fn run(show: &Show) -> anyhow::Result<()> {
    let drivers = whole(show, PATH, HEADERS, row).await?;
    if show.output == Output::Table {
        let mut out = io::stdout().lock();
        for driver in drivers {
            not_up(&mut out, &driver)?;
            set_apart(&mut out, &driver)?;
            more(&mut out, &driver)?;
            capabilities(&mut out, driver)?;
        }
    }
    Ok(())
}

fn not_up(out: &mut impl Write, driver: &DriverView) -> io::Result<()> {
    let DriverView { name, not_up, .. } = driver;
    if not_up.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{name} is not up, by the word of its node, at:")?;
    for (node, health) in not_up.iter().take(SHOWN) {
        writeln!(out, "  {node}: {}", self::health(health))?;
    }
    and_more(out, not_up.len())
}

fn and_more(out: &mut impl Write, all: usize) -> io::Result<()> {
    match all.saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}

fn set_apart(out: &mut impl Write, driver: &DriverView) -> io::Result<()> {
    let DriverView { name, set_apart, .. } = driver;
    if set_apart.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{name} gets no new volumes at:")?;
    for (node, reasons) in set_apart.iter().take(SHOWN) {
        writeln!(out, "  {node}: {}", reasons.join("; "))?;
    }
    and_more(out, set_apart.len())
}

fn more(out: &mut impl Write, driver: &DriverView) -> io::Result<()> {
    let name = &driver.name;
    let Some(profile) = driver.profile.as_ref().filter(|profile| !profile.more.is_empty()) else {
        return Ok(());
    };
    writeln!(
        out,
        "\n{name} can more at all nodes than its front says: {}; `csi-cloud driver profile {name} \
         --from NODE` takes that over",
        profile.more.join(", ")
    )
}

fn capabilities(out: &mut impl Write, driver: DriverView) -> io::Result<()> {
    writeln!(out, "\n{} says that it can:", driver.name)?;
    for (rpc, words) in driver.capabilities.into_iter().flatten() {
        if words.is_empty() {
            continue;
        }
        writeln!(out, "  {rpc}")?;
        for line in words.chunks(ON_A_LINE) {
            writeln!(out, "    {}", line.join(", "))?;
        }
    }
    Ok(())
}

fn row(driver: &DriverView) -> Vec<String> {
    let inferred = if driver.scope_inferred { " (inferred)" } else { "" };
    let elected = driver.elected.as_ref().map(|node| format!("elected {node}"));
    vec![
        driver.name.to_string(),
        if driver.front { "yes" } else { "no" }.into(),
        format!("{}{inferred}", driver.scope),
        elected.unwrap_or_else(|| driver.placement.clone()),
        driver.nodes.to_string(),
        driver.nodes_linked.to_string(),
        driver.not_up.len().to_string(),
        driver.homes.to_string(),
        driver.intents_open.to_string(),
        driver.calls.to_string(),
        driver.csidriver.clone().unwrap_or_default(),
        driver.mismatches.join("; "),
        driver.set_apart.len().to_string(),
    ]
}
