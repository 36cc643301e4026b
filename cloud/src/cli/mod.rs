//! The command line of csi-cloud, and the commands that need no running csi-cloud.
//!
//! [`Commands`] is the list of all commands but `serve`.
//! May use: all rooms to its left in docs/design/code-map.md.

mod ca;
mod doctor;
mod explain_cause;
mod relay;
pub mod store;

use clap::{Parser, Subcommand};
use proto::admin::command_line::{CommandList, Entry, Parsed};

use self::doctor::Doctor;
use self::explain_cause::ExplainCause;
use self::relay::{FormerRelay, Relay};
use crate::admin::server::COMMANDS;
use crate::config::serve_arguments::Serve;

/// One CSI socket per driver in the cloud, carried out by the drivers of edge nodes.
///
/// csi-cloud serves CSI to the unmodified Kubernetes sidecars and passes each call to the csi-edge
/// of the node that it is for. Edges dial csi-cloud, so they may sit behind NAT.
#[derive(Parser)]
#[command(name = "csi-cloud", version, after_help = EXAMPLE)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLE: &str = "\
Example:
  csi-cloud ca init --dir pki --host cloud.example
  csi-cloud ca issue node-1 --dir pki
  csi-cloud serve --listen wss://0.0.0.0:7443 --driver hostdir.edge-csi.io --fronts /run/edge-csi \\
    --store file:/var/lib/edge-csi/cloud.redb \\
    --ca pki/ca.crt --cert pki/cloud.crt --key pki/cloud.key

  csi-cloud relay --fronts /run/csi --driver hostdir.edge-csi.io \\
    --to unix:/run/edge-csi/relays.sock

RUST_LOG sets what is logged, for example RUST_LOG=debug or RUST_LOG=cloud=debug,info.";

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Take links and serve CSI sockets until told to stop (SIGTERM, SIGINT).
    Serve {
        /// Only read the configuration and the flags: print ok, or every fault. Nothing else is
        /// touched, neither files nor sockets
        #[arg(long)]
        check: bool,
        /// Where and how to serve
        #[command(flatten)]
        flags: Box<Serve>,
    },
    /// The commands beside `serve`.
    #[command(flatten)]
    Other(Parsed<Commands>),
}

/// The commands beside `serve`.
pub struct Commands;

impl CommandList for Commands {
    const GROUPS: &'static [(&'static str, &'static str)] = &[
        ("ca", "Make the certificates of both ends"),
        ("ca rotate", "Let another CA take over, with both trusted for a time"),
        (
            "store",
            "Look after the store. All but `accept` need one that no csi-cloud has open; one in \
             etcd may be read at any time",
        ),
        (
            "node",
            "Remove a node that is gone for good, forget it, admit it again, or revoke its \
             certificates",
        ),
        ("token", "Make, list and revoke the tokens with which nodes join"),
        ("driver", "Change what a driver's front reports"),
        ("intent", "Show creates with an unknown outcome, or state the outcome of one"),
        ("volume", "Say or forget where a volume lives, or take one from a node that is off"),
        ("homes", "Learn where volumes live"),
    ];

    const GONE: &'static [(&'static str, &'static str)] =
        &[("top", "watch csi-cloud drivers"), ("owners", "csi-cloud leases")];

    fn entries() -> impl Iterator<Item = &'static Entry> {
        let served = COMMANDS.iter().map(|served| &served.entry);
        LOCAL.iter().chain(served).chain(&BELOW_SERVED)
    }
}

/// The commands that need no running csi-cloud.
static LOCAL: [Entry; 9] = [
    Entry::local::<Relay>(),
    Entry::local::<FormerRelay>(),
    Entry::local::<Doctor>(),
    Entry::local::<ca::Init>(),
    Entry::local::<ca::Issue>(),
    Entry::local::<ca::UseCa>(),
    Entry::local::<store::Check>(),
    Entry::local::<store::Export>(),
    Entry::local::<store::Import>(),
];

/// The same below commands that need one.
static BELOW_SERVED: [Entry; 1] = [Entry::local::<ExplainCause>()];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_consistent_and_has_help_for_each_command() {
        fn check(command: &clap::Command) {
            let name = command.get_name();
            assert!(command.is_hide_set() || command.get_about().is_some(), "{name}");
            command.get_subcommands().filter(|of| of.get_name() != "help").for_each(check);
        }
        Cli::command().debug_assert();
        check(&Cli::command());
    }

    #[test]
    fn each_command_takes_its_arguments_and_the_flags_of_all() {
        for line in [
            "csi-cloud nodes --admin /a -o json",
            "csi-cloud explain pvc shop/data -o json --config /c",
            "csi-cloud replicas -o json",
            "csi-cloud replicas promote b --admin /a",
            "csi-cloud doctor kubeedge -o json",
            "csi-cloud intent list --all",
            "csi-cloud intent resolve d.example v --not-made",
            "csi-cloud volume release d.example an-id --node n1 --yes",
            "csi-cloud calls --ended --limit 7",
            "csi-cloud node revoke --front relay-1",
            "csi-cloud ca rotate start --cert - --key k",
            "csi-cloud ca use --cert c --key - --dir d",
            "csi-cloud front --fronts /f --driver d.example --to unix:/s",
            "csi-cloud store import --store file:/s --move none",
        ] {
            let parsed = parse(line);
            assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
        }
        for line in [
            "csi-cloud node",
            "csi-cloud node remove",
            "csi-cloud node remove n1 -o json",
            "csi-cloud intent resolve d.example v",
            "csi-cloud calls --limit 7",
            "csi-cloud token create n1 --ttl 8d",
            "csi-cloud replicas -o json drain b",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_command_that_is_gone_names_its_replacement() {
        for (line, instead) in [
            ("csi-cloud top --count 1", "watch csi-cloud drivers"),
            ("csi-cloud owners -o json", "csi-cloud leases"),
        ] {
            let error = parse(line).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidSubcommand);
            assert!(error.to_string().contains(instead), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn a_path_that_changes_something_is_not_marked_as_one_that_reads() {
        let reads = COMMANDS.iter().filter(|served| served.reads).map(|served| served.path);
        let mut reads: Vec<_> = reads.collect();
        reads.sort_unstable();
        reads.dedup();
        let expected = [
            "/ca/rotate/status",
            "/calls",
            "/calls/ended",
            "/doctor",
            "/doctor/kubeedge",
            "/drivers",
            "/explain",
            "/intents",
            "/nodes",
            "/owners",
            "/replicas",
            "/tokens",
            "/volumes",
        ];
        assert_eq!(reads, expected);
    }
}
