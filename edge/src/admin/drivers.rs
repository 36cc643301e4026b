//! `csi-edge drivers`: the drivers of this node, and announcements that are not used.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use edge_calls::drivers::{Driver, FoundBy};
use proto::admin::cells::{age, optional};
use proto::admin::command::{Command, Refusal, Row};
use proto::control::health::HealthState;
use serde::{Deserialize, Serialize};

use super::state::AdminState;
use crate::discovery::table::{AnnouncementState, Registration};

/// Show the drivers of this node: their sockets, their health, and how they were found. What was
/// announced and is not used is shown too.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
pub struct ListDrivers {}

impl Command<AdminState> for ListDrivers {
    const NAME: &'static str = "drivers";
    const PATH: &'static str = "/drivers";
    const READS: bool = true;
    type Answer = Vec<DriverView>;

    async fn carry_out(self, state: &AdminState) -> Result<Vec<DriverView>, Refusal> {
        Ok(state.drivers())
    }
}

/// A driver, or an announcement of one.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverView {
    /// Its CSI name; empty if a registrar could not be asked.
    pub name: String,
    /// Its socket.
    pub socket: PathBuf,
    /// The socket of its controller's half, if that is another one.
    pub controller_socket: Option<PathBuf>,
    /// `up`, `starting`, `failing` or `gone`; none if it is not used.
    pub health: Option<HealthState>,
    /// For how long it has been so.
    pub health_s: Option<u64>,
    /// Why it is not up, or not used; empty otherwise.
    pub why: String,
    /// `configuration`, or the socket of the registrar that announced it.
    pub found_by: String,
    /// How its announcement stands; none for a driver that the configuration names.
    pub announcement: Option<AnnouncementState>,
    /// Whether the node's operator lets it be used.
    pub allowed: bool,
}

impl Row for DriverView {
    const HEADERS: &'static [&'static str] =
        &["NAME", "HEALTH", "SINCE", "SOCKET", "CONTROLLER", "FOUND BY", "ALLOWED", "WHY"];

    fn row(&self) -> Vec<String> {
        let standing = self.announcement.map(standing_name).unwrap_or("-");
        let health = self.health.map(health_name).unwrap_or(standing);
        vec![
            self.name.clone(),
            health.into(),
            optional(self.health_s.map(seconds_text)),
            path_text(&self.socket),
            optional(self.controller_socket.as_deref().map(path_text)),
            self.found_by.clone(),
            if self.allowed { "yes" } else { "no" }.into(),
            self.why.clone(),
        ]
    }
}

impl AdminState {
    /// The drivers by name, and then what is announced and not used.
    pub(super) fn drivers(&self) -> Vec<DriverView> {
        let announced = self.registrations.all();
        let drivers = self.drivers.all();
        let used = drivers.iter().map(|driver| used(driver, &announced));
        let is_unused = |registration: &&Registration| match registration.standing {
            AnnouncementState::NotAllowed
            | AnnouncementState::Refused
            | AnnouncementState::Waiting => true,
            // Nobody asked for those, and those that are used were shown.
            AnnouncementState::Ignored | AnnouncementState::Used | AnnouncementState::Gone => false,
        };
        used.chain(announced.iter().filter(is_unused).map(unused)).collect()
    }
}

fn used(driver: &Driver, announced: &[Registration]) -> DriverView {
    let health = driver.health();
    let sockets = driver.sockets();
    let (found_by, announcement) = match driver.found_by() {
        FoundBy::Configuration => ("configuration".to_owned(), None),
        FoundBy::Registration(socket) => {
            let registration = announced.iter().find(|of| of.socket == socket);
            (socket.display().to_string(), registration.map(|of| of.standing))
        }
    };
    DriverView {
        name: driver.name.to_string(),
        socket: sockets.socket,
        controller_socket: sockets.controller,
        health: Some(health.state),
        health_s: Some(health.seconds),
        why: health.why,
        found_by,
        announcement,
        allowed: true,
    }
}

fn unused(registration: &Registration) -> DriverView {
    let Registration { socket, driver, endpoint, standing, why } = registration.clone();
    DriverView {
        name: driver,
        socket: endpoint.into(),
        controller_socket: None,
        health: None,
        health_s: None,
        why,
        found_by: socket.display().to_string(),
        announcement: Some(standing),
        allowed: standing != AnnouncementState::NotAllowed,
    }
}

fn health_name(state: HealthState) -> &'static str {
    match state {
        HealthState::Up => "up",
        HealthState::Starting => "starting",
        HealthState::Gone => "gone",
        HealthState::Failing => "failing",
    }
}

pub(super) fn standing_name(standing: AnnouncementState) -> &'static str {
    match standing {
        AnnouncementState::Used => "used",
        AnnouncementState::Gone => "registrar gone",
        AnnouncementState::Ignored => "ignored",
        AnnouncementState::NotAllowed => "not allowed",
        AnnouncementState::Refused => "refused",
        AnnouncementState::Waiting => "waiting",
    }
}

pub(super) fn path_text(path: &Path) -> String {
    path.display().to_string()
}

pub(super) fn seconds_text(seconds: u64) -> String {
    age(Duration::from_secs(seconds))
}
