//! The program behind `make guest`, and the process that stands in for a guest in other tests.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use guest::{stand_in, vm};

/// Runtimes that mount direct volumes in the tests.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Vm(vm::command::Args),
    /// Mounts a published volume as a VM's guest does, and obeys lines on stdin
    StandIn(stand_in::Args),
}

fn main() -> ExitCode {
    let command = Args::parse().command;
    proto::host::program::run(|| match command {
        Command::Vm(args) => proto::host::program::runtime(2)?.block_on(vm::command::main(args)),
        Command::StandIn(args) => stand_in::run(&args),
    })
}
