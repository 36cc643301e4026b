//! The programs behind `make bench`, `make scale`, `make badnet`, `make hostile` and `make page`.

use std::process::ExitCode;

use bench::command::{Case, Options};
use bench::scale::machine::{Half, pin};
use bench::{badnet, command, hostile, idle, lives, page, replicas, scale};
use clap::{Parser, Subcommand};
use proto::host::program::runtime;

/// Measures csi-cloud and csi-edge. Fails if a target is missed or a call failed.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// All that needs neither a guest nor a network: calls, routing and durable
    All(Options),
    /// Calls, against calling the driver directly
    Calls(Options),
    /// csi-cloud with very many nodes and volumes
    Routing(Options),
    /// Creates with the store on a disk, against the store in memory
    Durable(Options),
    /// Several csi-clouds with a real etcd of three members: ends of leaders, commits, and starts
    Replicas(replicas::Options),
    /// A direct volume in a real guest, against a directory shared with it: `make guest` says what
    /// it needs
    Guest(Options),
    Idle(idle::Args),
    Lives(lives::Args),
    Scale(scale::command::Args),
    Badnet(badnet::command::Args),
    Hostile(hostile::command::Args),
    Page(page::command::Args),
}

fn main() -> ExitCode {
    let command = Args::parse().command;
    proto::host::program::run(|| match command {
        Command::All(options) => cases(&[Case::Calls, Case::Routing, Case::Durable], &options),
        Command::Calls(options) => cases(&[Case::Calls], &options),
        Command::Routing(options) => cases(&[Case::Routing], &options),
        Command::Durable(options) => cases(&[Case::Durable], &options),
        Command::Replicas(options) => runtime(2)?.block_on(replicas::main(&options)),
        Command::Guest(options) => cases(&[Case::Guest], &options),
        Command::Idle(args) => runtime(1)?.block_on(idle::main(args)),
        Command::Lives(args) => runtime(1)?.block_on(lives::main(args)),
        Command::Scale(args) => {
            // Before any thread, as affinity belongs to threads.
            pin(None, Half::Edges)?;
            runtime(1)?.block_on(scale::command::main(args))
        }
        Command::Hostile(args) => runtime(2)?.block_on(hostile::command::main(args)),
        Command::Page(args) => runtime(1)?.block_on(page::command::main(args)),
        Command::Badnet(args) => runtime(2)?.block_on(badnet::command::main(args)),
    })
}

fn cases(cases: &[Case], options: &Options) -> anyhow::Result<()> {
    runtime(2)?.block_on(command::main(cases, options))
}
