//! The programs behind `make sanity`, `make chaos`, `make powercut`, `make twin` and
//! `make demo`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use conformance::{chaos, demo, powercut, sanity, twin};

/// Tests of what callers and drivers can rely on, with real programs.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Sanity(sanity::command::Args),
    Chaos(chaos::command::Args),
    Powercut(powercut::command::Args),
    Twin(twin::command::Args),
    /// Starts csi-cloud and three csi-edge with a real driver each, one over QUIC. A volume goes
    /// through its life at each node: create, attach, stage, mount, write, and back
    ///
    /// Everything happens in a temporary directory and in mount namespaces of the drivers' own, and
    /// is gone when the demo ends.
    Demo,
}

fn main() -> ExitCode {
    let command = Args::parse().command;
    proto::host::program::run(|| match command {
        Command::Sanity(args) => {
            proto::host::program::runtime(2)?.block_on(sanity::command::main(args))
        }
        Command::Chaos(args) => {
            proto::host::program::runtime(1)?.block_on(chaos::command::main(args))
        }
        Command::Powercut(args) => {
            proto::host::program::runtime(1)?.block_on(powercut::command::main(args))
        }
        Command::Twin(args) => {
            proto::host::program::runtime(2)?.block_on(twin::command::main(args))
        }
        Command::Demo => proto::host::program::runtime(2)?.block_on(demo::main()),
    })
}
