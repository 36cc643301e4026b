//! The flags that say which csi-cloud is asked, and how its answer is shown.

use std::path::PathBuf;

use clap::Args;
use proto::admin::output::Output;
use proto::config::admin_socket;

/// The flags of every command that shows something.
#[derive(Debug, Args)]
pub struct Show {
    /// Which csi-cloud
    #[command(flatten)]
    pub reach: Reach,
    /// As a table or as JSON, whose field names do not change
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// The flags that say which csi-cloud is asked.
#[derive(Debug, Args)]
pub struct Reach {
    /// The admin socket [default: what --config says, else /run/edge-csi/_admin.sock]
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
    /// The configuration of csi-cloud, which names the admin socket
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl Reach {
    /// The admin socket.
    pub fn socket(&self) -> PathBuf {
        admin_socket(self.admin.clone(), self.config.as_deref())
    }
}
