//! Runs a command.

use std::io;

use proto::host::program::runtime;
use proto::names::certificate::Subject;

use crate::admin::adopt_volume::AdoptVolume;
use crate::admin::driver_profile::SetProfile;
use crate::admin::forget_volume::ForgetVolume;
use crate::admin::node_purge::PurgeNode;
use crate::admin::node_removal::{AdmitNode, RemoveNode};
use crate::admin::release_volume::ReleaseVolume;
use crate::admin::resolve_intent::ResolveIntent;
use crate::admin::revocation::Revoke;
use crate::admin::{
    adopt_volume, driver_profile, forget_volume, node_purge, node_removal, release_volume,
    resolve_intent, revocation,
};
use crate::cli::output::change;
use crate::cli::{
    ca, calls, doctor, drivers, explain, homes, intents, leases, nodes, replicas, rotation, store,
    tokens, top, volumes,
};
use crate::config::admin_arguments::{
    Ask, DriverCommand, HomesCommand, IntentCommand, NodeCommand, VolumeCommand,
};
use crate::config::arguments::{CaCommand, Tool};
use crate::relay;

/// Runs a command.
///
/// # Errors
/// The command fails; the text says why and what to do.
pub fn run(tool: Tool) -> anyhow::Result<()> {
    match tool {
        Tool::Front(front) => runtime(1)?.block_on(relay::run::run(front.into())),
        Tool::Ca(CaCommand::Rotate(step)) => runtime(1)?.block_on(rotation::run(step)),
        Tool::Ca(command) => ca::run(command),
        Tool::Store(command) => store::run(command),
        Tool::Ask(command) => match runtime(1)?.block_on(ask(command)) {
            // A reader of the output that has gone, `head` say, is no error.
            Err(error) if is_broken_pipe(&error) => Ok(()),
            result => result,
        },
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Asks a running csi-cloud over its admin socket, and prints the answer.
async fn ask(command: Ask) -> anyhow::Result<()> {
    match command {
        Ask::Nodes(show) => nodes::run(&show).await,
        Ask::Drivers(show) => drivers::run(&show).await,
        Ask::Doctor(command) => doctor::run(&command).await,
        Ask::Explain(command) => explain::run(command).await,
        Ask::Volumes { driver, node, all, show } => volumes::run(driver, node, all, &show).await,
        Ask::Owners { driver, node, show } => leases::run(driver, node, &show).await,
        Ask::Intents(list) | Ask::Intent(IntentCommand::List(list)) => intents::run(list).await,
        Ask::Calls(list) => calls::run(list).await,
        Ask::Replicas(command) => replicas::run(command).await,
        Ask::Top { interval, count, show } => top::run(&show, interval, count).await,
        Ask::Node(NodeCommand::Remove { node, yes, reach }) => {
            change(&reach, node_removal::REMOVE, &RemoveNode { node, yes }).await
        }
        Ask::Node(NodeCommand::Admit { node, reach }) => {
            change(&reach, node_removal::ADMIT, &AdmitNode { node }).await
        }
        Ask::Node(NodeCommand::Revoke { node, front, reach }) => {
            let name = match (node, front) {
                (_, Some(front)) => Subject::Front(front),
                (Some(node), None) => Subject::Node(node),
                // clap requires one of them.
                (None, None) => return Ok(()),
            };
            change(&reach, revocation::PATH, &Revoke { name }).await
        }
        Ask::Token(command) => tokens::run(command).await,
        Ask::Driver(DriverCommand::Profile { driver, from, reach }) => {
            change(&reach, driver_profile::PATH, &SetProfile { driver, from }).await
        }
        Ask::Node(NodeCommand::Purge { node, forget, reach }) => {
            change(&reach, node_purge::PATH, &PurgeNode { node, forget }).await
        }
        Ask::Intent(IntentCommand::Resolve { driver, name, method, made, reach, .. }) => {
            let request = ResolveIntent { driver, method, name, made };
            change(&reach, resolve_intent::PATH, &request).await
        }
        Ask::Volume(VolumeCommand::Forget { driver, id, kind, force, reach }) => {
            let request = ForgetVolume { driver, kind, id, force };
            change(&reach, forget_volume::PATH, &request).await
        }
        Ask::Volume(VolumeCommand::Adopt { driver, id, node, kind, reach }) => {
            let request = AdoptVolume { driver, kind, id, node };
            change(&reach, adopt_volume::PATH, &request).await
        }
        Ask::Volume(VolumeCommand::Release { driver, id, node, yes, reach }) => {
            let request = ReleaseVolume { driver, id, node, yes };
            change(&reach, release_volume::PATH, &request).await
        }
        Ask::Homes(HomesCommand::Rebuild { driver, from, reach }) => {
            homes::rebuild(driver, from.as_deref(), &reach).await
        }
    }
}
