//! The command line of `csi-cloud replicas`.

use clap::{Args, Subcommand};

use crate::config::show_arguments::{Reach, Show};
use crate::state::store::replica::replica_name;

/// The flags of `replicas`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Replicas {
    /// What to order; without it they are shown
    #[command(subcommand)]
    pub command: Option<ReplicaCommand>,
    /// How to show them
    #[command(flatten)]
    pub show: Show,
}

/// The orders about one replica.
#[derive(Debug, Subcommand)]
pub enum ReplicaCommand {
    /// Have a replica lead: the one that leads stops when this one has all commits.
    Promote {
        /// Its name
        #[arg(value_parser = replica_name)]
        name: String,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
    /// Have a replica not lead, for example as its machine goes away; another one leads.
    Drain {
        /// Its name
        #[arg(value_parser = replica_name)]
        name: String,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
    /// Let a drained replica lead again.
    Undrain {
        /// Its name
        #[arg(value_parser = replica_name)]
        name: String,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
}
