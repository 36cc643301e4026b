//! What the tests of direct volumes run as processes of their own: a guest, in a mount namespace of its own.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use guest::stand_in;

/// What the tests of direct volumes run.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Mounts a published volume as a VM's guest does, and obeys lines on stdin
    Guest(stand_in::Args),
}

fn main() -> ExitCode {
    let Command::Guest(args) = Args::parse().command;
    proto::program::run(|| stand_in::run(&args))
}
