//! The command line of the commands that ask a running csi-cloud.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use proto::csi::{Method, Resource};
use proto::link::endpoint::Endpoint;
use proto::names::{DriverName, FrontName, NodeName};

use crate::admin::ended_calls::MOST;
use crate::admin::tokens::{LONGEST, SHORTEST};
use crate::config::doctor_arguments::Doctor;
use crate::config::duration::duration;
use crate::config::explain_arguments::ExplainCommand;
use crate::config::replica_arguments::Replicas;
use crate::config::show_arguments::{Reach, Show};
use crate::state::trust::TokenId;

/// The commands that ask a running csi-cloud.
#[derive(Debug, Subcommand)]
pub enum Ask {
    /// Show the nodes.
    Nodes(Show),
    /// Show the drivers: scope, placement, capabilities, where nodes differ.
    Drivers(Show),
    /// Look for what keeps an installation from working, and say what to do.
    ///
    /// It reads only. It looks at certificates, the store, sockets, disks and the nodes' versions.
    /// In Kubernetes it looks at csi-cloud's rights, the kinds of snapshots and the sidecars. If
    /// csi-cloud does not answer, it looks at what --config names. The exit code is 1 if something
    /// is at fault.
    Doctor(Doctor),
    /// Say why a pod, claim, snapshot, volume, node or driver waits, and what to do next.
    ///
    /// It follows the chain to the node: claim, class, the scheduler's choice, volume, attachment,
    /// link, driver. The last line is the verdict. It reads only.
    #[command(subcommand)]
    Explain(ExplainCommand),
    /// Show where volumes live.
    Volumes {
        /// Of this driver only
        #[arg(long, value_name = "NAME")]
        driver: Option<DriverName>,
        /// At this node only
        #[arg(long, value_name = "NODE")]
        node: Option<NodeName>,
        /// Snapshots and groups as well
        #[arg(long)]
        all: bool,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// Show which node has each direct volume, and from which nodes one was taken.
    Owners {
        /// Of this driver only
        #[arg(long, value_name = "NAME")]
        driver: Option<DriverName>,
        /// At this node only
        #[arg(long, value_name = "NODE")]
        node: Option<NodeName>,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// Show creates with an unknown outcome.
    Intents(Intents),
    /// Show the calls in flight, or the last ones that ended.
    Calls(Calls),
    /// Show the csi-clouds that share a store in etcd, or say which of them leads.
    Replicas(Replicas),
    /// Show everything at a glance, again and again, until ctrl-c.
    Top {
        /// How often, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 2)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
        interval: u64,
        /// End after this many times
        #[arg(long, value_name = "N")]
        count: Option<u64>,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// Remove a node that is gone for good, forget it, admit it again, or revoke its certificates.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Make, list and revoke the tokens with which nodes join.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Change what a driver's front reports.
    #[command(subcommand)]
    Driver(DriverCommand),
    /// Show creates with an unknown outcome, or state the outcome of one.
    #[command(subcommand)]
    Intent(IntentCommand),
    /// Say or forget where a volume lives, or take one from a node that is off.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Learn where volumes live.
    #[command(subcommand)]
    Homes(HomesCommand),
}

/// The flags of `intents`.
#[derive(Debug, Args)]
pub struct Intents {
    /// Of this driver only
    #[arg(long, value_name = "NAME")]
    pub driver: Option<DriverName>,
    /// Creates with a known outcome as well
    #[arg(long)]
    pub all: bool,
    /// How to show it
    #[command(flatten)]
    pub show: Show,
}

/// The flags of `calls`.
#[derive(Debug, Args)]
pub struct Calls {
    /// The last calls that ended, the newest first, instead of those in flight
    #[arg(long)]
    pub ended: bool,
    /// Of this driver only
    #[arg(long, value_name = "NAME", requires = "ended")]
    pub driver: Option<DriverName>,
    /// Last sent to this node only
    #[arg(long, value_name = "NODE", requires = "ended")]
    pub node: Option<NodeName>,
    /// With this text in the volume's id, name or claim only
    #[arg(long, value_name = "TEXT", requires = "ended")]
    pub subject: Option<String>,
    /// Without those that were carried out
    #[arg(long, requires = "ended")]
    pub failed: bool,
    /// The most calls that are shown
    #[arg(long, value_name = "N", requires = "ended", default_value_t = MOST)]
    pub limit: usize,
    /// How to show it
    #[command(flatten)]
    pub show: Show,
}

/// The commands about one node.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Remove a node for good: its link is refused, its volumes are lost, unpublishing them is OK.
    Remove {
        /// Its name
        node: NodeName,
        /// Do it, and not only say what it would do
        #[arg(long)]
        yes: bool,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
    /// Forget all that a removed node ever said. It stays removed; leases of volumes that live
    /// elsewhere stay.
    Purge {
        /// Its name
        node: NodeName,
        /// Purge; the number must equal the count of volumes and snapshots that are forgotten
        #[arg(long, value_name = "NUMBER")]
        forget: Option<usize>,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
    /// Revoke all certificates that a node has now, for example as its key was stolen.
    ///
    /// Its link ends at once, and its calls fail until it joins again. It joins only with a token
    /// that is made after this (`csi-cloud token create`). `node admit` does not undo it. Its
    /// volumes keep their home.
    Revoke {
        /// Its name
        #[arg(required_unless_present = "front")]
        node: Option<NodeName>,
        /// Instead of a node's: those of the socket relay (`csi-cloud front`) of this name
        #[arg(long, value_name = "NAME", conflicts_with = "node")]
        front: Option<FrontName>,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
    /// Admit a removed node again; its volumes are no longer lost.
    Admit {
        /// Its name
        node: NodeName,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
}

/// The commands about tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token for one node, and print the command that joins it, to be run there.
    ///
    /// It lets that node join once, with one key. Whoever has it can be that node: hand it over as
    /// you would a password.
    Create {
        /// The node's name, as Kubernetes knows it
        node: NodeName,
        /// How long it is valid: 1m to 7d
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = token_life)]
        ttl: Duration,
        /// Where the edge reaches csi-cloud [default: `advertise` of csi-cloud's configuration]
        #[arg(long, value_name = "wss://HOST:PORT")]
        cloud: Option<Endpoint>,
        /// How to show it
        #[command(flatten)]
        show: Show,
    },
    /// Show all tokens, without their secrets.
    List(Show),
    /// Revoke a token. A certificate that was issued for it stays.
    Revoke {
        /// Its id, as `token list` shows it
        id: TokenId,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
}

/// The life of a token.
fn token_life(text: &str) -> Result<Duration, String> {
    let life = duration(text)?;
    if !(SHORTEST..=LONGEST).contains(&life.as_secs()) {
        return Err("a token lives for 1 minute to 7 days".into());
    }
    Ok(life)
}

/// The commands about one driver.
#[derive(Debug, Subcommand)]
pub enum DriverCommand {
    /// Report what the driver at this node says it can, for example after an upgrade everywhere.
    ///
    /// Sidecars read that once: the answer says which ones are to be started again. Nodes whose
    /// driver can less are set apart.
    Profile {
        /// Its name
        driver: DriverName,
        /// The node whose driver says what the front is to report
        #[arg(long, value_name = "NODE")]
        from: NodeName,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
}

/// The commands about one create.
#[derive(Debug, Subcommand)]
pub enum IntentCommand {
    /// Show creates with an unknown outcome.
    List(Intents),
    /// State the outcome of a create, after a look at its node.
    #[command(group = clap::ArgGroup::new("outcome").required(true))]
    Resolve {
        /// Its driver
        driver: DriverName,
        /// The name that was to be created
        name: String,
        /// Its RPC
        #[arg(long, value_name = "RPC", default_value = Method::creating(Resource::Volume).name())]
        #[arg(value_parser = creating_methods())]
        method: String,
        /// It created nothing, so another node may create the name
        #[arg(long, group = "outcome")]
        not_made: bool,
        /// It created this
        #[arg(long, group = "outcome", value_name = "ID")]
        made: Option<String>,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
}

/// The commands about one volume.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Forget where a lost or absent volume lives. Nothing is deleted.
    Forget {
        /// Its driver
        driver: DriverName,
        /// Its id
        id: String,
        /// Its kind
        #[arg(long, value_parser = ["volume", "snapshot", "group"], default_value = "volume")]
        kind: String,
        /// Also if it is neither lost nor absent
        #[arg(long)]
        force: bool,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
    /// Say at which node a volume lives that several nodes claim, or that cannot be asked for.
    ///
    /// Look at the node first: all calls for the volume go there from now on, with their secrets.
    Adopt {
        /// Its driver
        driver: DriverName,
        /// Its id
        id: String,
        /// The node that has it
        #[arg(long, value_name = "NODE")]
        node: NodeName,
        /// Its kind
        #[arg(long, value_parser = ["volume", "snapshot", "group"], default_value = "volume")]
        kind: String,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
    /// Take a direct volume from a node that does not release it, so another node can have it.
    ///
    /// Only you can know that no guest at that node still writes to the volume. First power the
    /// machine off, or end the guest and cut the machine from the storage. If two guests write, the
    /// volume's data is destroyed. The node is told only when it links again. Keep it off the
    /// storage until `csi-edge direct list` there says that the volume is fenced, or does not have
    /// it. A node that was removed (`node remove`), or whose csi-edge does not say what it has, is
    /// not told at all: unpublish the volume there first.
    Release {
        /// Its driver
        driver: DriverName,
        /// Its id
        id: String,
        /// The node that has it, as `csi-cloud owners` says
        #[arg(long, value_name = "NODE")]
        node: NodeName,
        /// Do it, and not only say what it would do
        #[arg(long)]
        yes: bool,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
}

/// The commands about homes.
#[derive(Debug, Subcommand)]
pub enum HomesCommand {
    /// Learn where volumes live: from the nodes, or from a file.
    Rebuild {
        /// Of this driver only
        #[arg(long, value_name = "NAME")]
        driver: Option<DriverName>,
        /// Lines of DRIVER NODE ID; empty lines and those that begin with # are skipped
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
        /// Which csi-cloud
        #[command(flatten)]
        reach: Reach,
    },
}

/// The names of the methods that create something.
fn creating_methods() -> PossibleValuesParser {
    PossibleValuesParser::new(Resource::ALL.map(|kind| Method::creating(kind).name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::config::ADMIN;
    use proto::host::publish::{Existing, publish};
    use std::path::Path;

    #[test]
    fn a_life_of_a_token_is_a_number_and_a_unit() {
        assert_eq!(token_life("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(token_life("7d"), Ok(Duration::from_secs(604_800)));
        for text in ["", "1", "h", "1h30m", "-1h", "59s", "8d", "1é", "99999999999999999999d"] {
            assert!(token_life(text).is_err(), "{text}");
        }
    }

    fn reach(admin: Option<&str>, config: Option<PathBuf>) -> Reach {
        Reach { admin: admin.map(Into::into), config }
    }

    #[test]
    fn the_socket_is_where_csi_cloud_makes_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cloud.toml");
        let said = |text: &str| {
            publish(&file, text.as_bytes(), 0o600, Existing::Replace).unwrap();
            reach(None, Some(file.clone())).socket()
        };
        // Other keys do not matter here.
        assert_eq!(said("fronts = \"/f\"\nlisten = [\"wss://h:1\"]"), Path::new("/f/_admin.sock"));
        assert_eq!(said("fronts = \"f\"\nadmin = \"a.sock\""), dir.path().join("a.sock"));
        assert_eq!(said("listen = []"), Path::new(ADMIN));
        assert_eq!(reach(Some("/x"), Some(file)).socket(), Path::new("/x"));
    }
}

/// The steps in which another CA takes over.
#[derive(Debug, Subcommand)]
pub enum RotateCommand {
    /// Trust a new CA beside the old one, and let it issue to nodes. Edges are told to renew.
    Start {
        /// The certificate of the CA that is to issue, and those between it and the root, PEM
        #[arg(long, value_name = "FILE")]
        cert: PathBuf,
        /// Its private key: PKCS #8, PEM
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The root, PEM; not needed if --cert is one
        #[arg(long, value_name = "FILE")]
        root: Option<PathBuf>,
        /// Where csi-cloud is
        #[command(flatten)]
        reach: Reach,
    },
    /// Show which nodes still have the old CA.
    Status(Show),
    /// Take the old CA away. Refused while a node would be locked out.
    Finish {
        /// Also if nodes are locked out; they join again with tokens
        #[arg(long)]
        yes_lock_out: bool,
        /// Where csi-cloud is
        #[command(flatten)]
        reach: Reach,
    },
}
