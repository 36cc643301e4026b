//! Shows direct volumes to people.

use std::io;
use std::io::Write;
use std::path::Path;

use super::volumes::DirectVolume;
use crate::lease::record::Lease;
use crate::runtimes::backend;
use crate::runtimes::prerequisites::CheckReport;

const HEADERS: [&str; 7] = ["VOLUME", "DRIVER", "STANDING", "KIND", "DEVICE", "HOLDER", "TARGET"];

/// Writes a table, one line per volume.
///
/// # Errors
/// The writer's.
pub fn table(out: &mut impl Write, volumes: &[DirectVolume]) -> io::Result<()> {
    let rows: Vec<_> =
        volumes.iter().map(|volume| cells(volume).map(|cell| printable(&cell))).collect();
    let headers = HEADERS.map(str::to_owned);
    let mut widths = [0; HEADERS.len()];
    for row in rows.iter().chain([&headers]) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in [&headers].into_iter().chain(&rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}   "));
        writeln!(out, "{}", cells.collect::<String>().trim_end())?;
    }
    faults(out, volumes)
}

/// Writes the faults, if there are any, under the table.
fn faults(out: &mut impl Write, volumes: &[DirectVolume]) -> io::Result<()> {
    let damaged: Vec<_> = volumes.iter().filter(|volume| volume.damage.is_some()).collect();
    if damaged.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{} of {} are damaged:", damaged.len(), volumes.len())?;
    for volume in damaged {
        let name = printable(&volume.volume_id);
        writeln!(out, "{name}: {}", printable(volume.damage.as_deref().unwrap_or_default()))?;
    }
    Ok(())
}

/// Writes everything known of each volume.
///
/// # Errors
/// The writer's.
pub fn details(out: &mut impl Write, volumes: &[DirectVolume]) -> io::Result<()> {
    for volume in volumes {
        for (name, cell) in HEADERS.iter().zip(cells(volume)) {
            writeln!(out, "{:<10} {}", format!("{name}:"), printable(&cell))?;
        }
        if !volume.stale.is_empty() {
            writeln!(out, "{:<10} {}", "GONE:", volume.stale.join(" "))?;
        }
        if let Some(lease) = &volume.lease {
            writeln!(out, "{:<10} {}", "OWNER:", printable(&owner(lease)))?;
        }
        if let Some(damage) = &volume.damage {
            writeln!(out, "{:<10} {}", "DAMAGE:", printable(damage))?;
        }
        if let Some(fault) = &volume.fault {
            writeln!(out, "{:<10} not known: {}", "OWNER:", printable(fault))?;
        }
        if let Some(at) = &volume.shared_at {
            writeln!(out, "{:<10} {}", "SHARED AT:", printable(&at.display().to_string()))?;
        }
        let Some(guest) = &volume.guest else { continue };
        for (name, numbers) in [("BYTES", guest.bytes), ("INODES", guest.inodes)] {
            if let Some([total, used, available]) = numbers {
                writeln!(
                    out,
                    "{:<10} {used} of {total} used, {available} free",
                    format!("{name}:")
                )?;
            }
        }
        for (name, text) in [("ABNORMAL", &guest.abnormal), ("GUEST", &guest.silent)] {
            if let Some(text) = text {
                writeln!(out, "{:<10} {}", format!("{name}:"), printable(text))?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Writes the findings about the installed runtimes, one line per configuration.
///
/// # Errors
/// The writer's.
pub fn report(out: &mut impl Write, report: &CheckReport) -> io::Result<()> {
    if let Some(version) = &report.version {
        writeln!(out, "Kata {} is installed", printable(version))?;
    }
    if let Some(why) = &report.unread {
        writeln!(out, "{}", printable(why))?;
    } else if report.configurations.is_empty() {
        writeln!(out, "no configuration of a VM runtime was found, so nothing is known")?;
    }
    for finding in &report.configurations {
        let path = printable(&finding.path.display().to_string());
        let runtime = finding.runtime.unwrap_or("-");
        let fault = finding.fault.as_deref().map_or_else(|| "ok".to_owned(), printable);
        writeln!(out, "{path}   {runtime}   {fault}")?;
    }
    Ok(())
}

fn owner(lease: &Lease) -> String {
    match lease {
        Lease::Held { epoch, .. } => format!("this node, epoch {epoch}"),
        Lease::LetGo { epoch, .. } => format!("this node, epoch {epoch}; it lets go"),
        Lease::Unsettled => "not known; csi-cloud is asked".into(),
        Lease::Fenced { epoch, why } => {
            format!("taken from this node, which had epoch {epoch}: {why}")
        }
    }
}

/// A cell without terminal control characters: ids come from drivers.
pub fn printable(cell: &str) -> String {
    if cell.is_empty() { "-".into() } else { backend::printable(cell) }
}

fn cells(volume: &DirectVolume) -> [String; 7] {
    let shown = |path: &Path| path.display().to_string();
    let kind = volume.kind.map(|kind| format!("{kind:?}").to_lowercase()).unwrap_or_default();
    let has = volume
        .runtime
        .zip(volume.sandbox.as_ref())
        .map(|(runtime, sandbox)| format!("{runtime}/{sandbox}"));
    let process = volume.process.as_ref().map(|process| format!("process {process}"));
    let has = has.or(process).unwrap_or_else(|| match volume.stale.len() {
        0 => String::new(),
        n => format!("{n} gone"),
    });
    let mut standing = volume.standing.name().to_owned();
    if volume.fault.is_some() {
        standing.push_str(", owner not known");
    }
    [
        volume.volume_id.clone(),
        volume.driver.clone(),
        standing,
        kind,
        shown(&volume.device),
        has,
        shown(&volume.target),
    ]
}
