//! The command line of `csi-cloud doctor`.

use clap::{Args, Subcommand};

use crate::config::show_arguments::Show;

/// What `doctor` takes.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Doctor {
    /// A kind of installation, instead of csi-cloud itself
    #[command(subcommand)]
    pub of: Option<DoctorCommand>,
    /// How to show it
    #[command(flatten)]
    pub show: Show,
}

/// The installations that can be looked at.
#[derive(Debug, Subcommand)]
pub enum DoctorCommand {
    /// Nodes whose kubelet is KubeEdge's: rights, policies, CSINodes, the node's front, expansion.
    ///
    /// It reads only. The exit code is 0 if all is well, and 1 if there is a problem or something
    /// cannot be seen. Its rights are those of deploy/kustomize/components/kubeedge.
    Kubeedge(Show),
}
