//! The command line of csi-edge, and the list of the commands that ask a running csi-edge.
//!
//! It may use `cli` and `admin`.

use clap::{Parser, Subcommand};
use proto::admin::command_line::{CommandList, Entry, Parsed};

use crate::admin::server::COMMANDS;
use crate::cli::direct::Direct;
use crate::cli::join::Join;
use crate::cli::{Doctor, Serve};

/// Carries CSI calls from the cloud out against the drivers of this node.
///
/// csi-edge dials csi-cloud, so it needs no open port. It shows a certificate that names this node,
/// and then serves the calls that the cloud sends, against the drivers that it is given.
#[derive(Parser)]
#[command(name = "csi-edge", version, after_help = EXAMPLE)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLE: &str = "\
Example: get this node's certificate with a token, once; then serve
  printf %s ID.SECRET | csi-edge join --cloud wss://cloud.example:7443 \\
    --ca-hash sha256:HEX --token-file -
  csi-edge serve --cloud quic://cloud.example:7443 --cloud wss://cloud.example:7443 \\
    --driver hostdir.edge-csi.io=/run/hostdir/csi.sock \\
    --identity /etc/edge-csi --fronts /run/edge-csi --state /var/lib/edge-csi
  csi-edge status

With files of `csi-cloud ca issue`: --ca ca.crt --cert node-1.crt --key node-1.key instead of
--identity.

RUST_LOG sets what is logged, for example RUST_LOG=debug or RUST_LOG=edge=debug,info.";

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Link to the cloud and serve until told to stop (SIGTERM, SIGINT).
    Serve {
        /// Only read the configuration and the flags: print ok, or every fault. Nothing else is
        /// touched, neither files nor sockets
        #[arg(long)]
        check: bool,
        /// Where and how to serve
        #[command(flatten)]
        flags: Box<Serve>,
    },
    /// Ask a csi-edge that runs.
    #[command(flatten)]
    Ask(Parsed<Commands>),
    /// Get this node's certificate from csi-cloud, with a token.
    ///
    /// `csi-cloud token create NODE` prints this command with all that it needs. The key is made
    /// here and never leaves this node. Nothing is sent before csi-cloud has shown a certificate of
    /// the CA with the hash. A token is good for one node and one use; if the answer was lost, the
    /// same command can be run again.
    Join(Join),
    /// Look for what keeps this node from serving volumes, and say what to do.
    ///
    /// It reads what `serve` reads, changes nothing, and needs no csi-edge that runs. Take the
    /// flags, the environment and the user of `serve`. It looks at the configuration, the identity,
    /// the clock, the drivers' sockets, the directories and the runtimes of VMs. It looks at the
    /// way to each endpoint of the cloud: names, proxy, TCP or UDP, TLS, round trip. It asks
    /// csi-cloud for no link, so a link in use stays. The exit code is 1 if something is at fault.
    Doctor(Doctor),
    /// Look after the volumes that are handed to VMs directly.
    #[command(subcommand)]
    Direct(Direct),
}

/// The commands that ask a running csi-edge.
pub struct Commands;

impl CommandList for Commands {
    const GROUPS: &'static [(&'static str, &'static str)] = &[];

    fn entries() -> impl Iterator<Item = &'static Entry> {
        COMMANDS.iter().map(|served| &served.entry)
    }
}
