//! The commands that ask a running csi-edge.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use proto::admin::output::Output;
use proto::config::places::{Places, SocketPlace};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Ask {
    /// Show this node at a glance: its link, its drivers, and what has announced itself.
    Status(Show),
    /// Show the drivers of this node: their sockets, their health, and how they were found. What
    /// was announced and is not used is shown too.
    Drivers(Show),
    /// Show what this node knows of its volumes.
    Volumes(Show),
    /// Show the calls in flight at the drivers, or the last ones of this node that ended.
    Calls(Calls),
}

/// What `calls` takes.
#[derive(Debug, Args)]
pub struct Calls {
    /// Instead of the calls in flight, the last 256 of the Node service at this node's sockets that
    /// ended, the newest first. Of those that only ask, only failures are kept. They end with
    /// csi-edge
    #[arg(long)]
    pub ended: bool,
    /// Which csi-edge is asked
    #[command(flatten)]
    pub show: Show,
}

/// Which csi-edge is asked, and how its answer is shown.
#[derive(Debug, Args)]
pub struct Show {
    /// The admin socket [default: what --config says, else the first that is there]
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
    /// The configuration of csi-edge, which names the admin socket
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// As a table or as JSON, whose field names do not change
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

impl Show {
    /// The admin socket, and the places that were looked at.
    pub fn socket(&self) -> SocketPlace {
        Places::edge().socket(self.admin.clone(), self.config.clone())
    }
}
