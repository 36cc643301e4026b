//! What the tests of direct volumes run as processes of their own: a guest, in a mount namespace of its own.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tests::direct::guest;

/// What the tests of direct volumes run.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Mounts a published volume as a VM's guest does, and obeys lines on stdin
    Guest(guest::Args),
}

fn main() -> ExitCode {
    let Command::Guest(args) = Args::parse().command;
    proto::host::program::run(|| guest::run(&args))
}
