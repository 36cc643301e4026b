//! The rows of the tables.

use std::io;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use proto::admin::cells::{age, optional, short};
use proto::host::{clock, plain};

use crate::admin::calls::CallView;
use crate::admin::drivers::DriverView;
use crate::admin::ended_calls::EndedView;
use crate::admin::status::StatusView;
use crate::admin::volumes::VolumeView;
use crate::discovery::table::AnnouncementState;

pub(super) const DRIVERS: &[&str] =
    &["NAME", "HEALTH", "SINCE", "SOCKET", "CONTROLLER", "FOUND BY", "ALLOWED", "WHY"];
pub(super) const VOLUMES: &[&str] =
    &["KIND", "VOLUME", "DRIVER", "STANDING", "POD", "CLAIM", "DEVICE", "SANDBOX", "TARGET", "WHY"];
pub(super) const CALLS: &[&str] = &["RPC", "DRIVER", "SUBJECT", "AGE"];
pub(super) const ENDED: &[&str] = &["AGE", "RPC", "DRIVER", "SUBJECT", "CODE", "TOOK", "MESSAGE"];

pub(super) fn driver(driver: &DriverView) -> Vec<String> {
    let standing = driver.announcement.map(standing).unwrap_or("-");
    let health = driver.health.map(health).unwrap_or(standing);
    vec![
        driver.name.clone(),
        health.into(),
        optional(driver.health_s.map(seconds)),
        path(&driver.socket),
        optional(driver.controller_socket.as_deref().map(path)),
        driver.found_by.clone(),
        if driver.allowed { "yes" } else { "no" }.into(),
        driver.why.clone(),
    ]
}

pub(super) fn volume(volume: &VolumeView) -> Vec<String> {
    vec![
        volume.kind.clone(),
        short(&volume.volume),
        volume.driver.clone(),
        if volume.left_over {
            format!("{}, left over", volume.standing)
        } else {
            volume.standing.clone()
        },
        optional(volume.pod.as_ref()),
        optional(volume.claim.as_ref()),
        path(&volume.device),
        optional(volume.sandbox.as_ref()),
        path(&volume.target),
        volume.why.clone(),
    ]
}

pub(super) fn call(call: &CallView) -> Vec<String> {
    let age = lasted(call.age_ms);
    vec![call.rpc.clone(), call.driver.to_string(), short(&call.subject), age]
}

pub(super) fn ended(call: &EndedView) -> Vec<String> {
    let since = clock::now().saturating_sub(call.at_ms);
    vec![
        age(Duration::from_millis(since)),
        call.rpc.clone(),
        call.driver.to_string(),
        short(&call.subject),
        call.code.clone(),
        lasted(call.took_ms),
        short(&call.message),
    ]
}

/// A duration, which may be short.
fn lasted(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        _ => age(Duration::from_millis(ms)),
    }
}

/// Writes the status, a line for each fact.
///
/// # Errors
/// The writer's.
pub(super) fn status(out: &mut impl Write, status: &StatusView) -> io::Result<()> {
    let StatusView { node, version, runs_s, not_ready, drivers, drivers_up, calls, .. } = status;
    writeln!(out, "node {node}, csi-edge {version}, running for {}", seconds(*runs_s))?;
    match (&status.cloud, status.linked_s) {
        (Some(cloud), since) => {
            let since = seconds(since.unwrap_or_default());
            writeln!(out, "linked to {} for {since}", plain(cloud))?;
        }
        (None, _) => writeln!(out, "not linked to csi-cloud")?,
    }
    match not_ready.as_str() {
        "" => writeln!(out, "ready")?,
        why => writeln!(out, "not ready: {}", plain(why))?,
    }
    writeln!(out, "drivers: {drivers}, {drivers_up} up; calls in flight: {calls}")?;
    for of in &status.announcements {
        let named = plain(if of.driver.is_empty() { "-" } else { &of.driver });
        let why = if of.why.is_empty() { String::new() } else { format!(": {}", plain(&of.why)) };
        let registrar = plain(&path(&of.socket));
        writeln!(out, "announced: {named} by {registrar}, {}{why}", standing(of.standing))?;
    }
    Ok(())
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn seconds(seconds: u64) -> String {
    age(Duration::from_secs(seconds))
}

fn health(state: proto::control::health::HealthState) -> &'static str {
    use proto::control::health::HealthState;
    match state {
        HealthState::Up => "up",
        HealthState::Starting => "starting",
        HealthState::Gone => "gone",
        HealthState::Failing => "failing",
    }
}

fn standing(standing: AnnouncementState) -> &'static str {
    match standing {
        AnnouncementState::Used => "used",
        AnnouncementState::Gone => "registrar gone",
        AnnouncementState::Ignored => "ignored",
        AnnouncementState::NotAllowed => "not allowed",
        AnnouncementState::Refused => "refused",
        AnnouncementState::Waiting => "waiting",
    }
}
