//! The programs behind `make stand`, `make stand-down`, `make e2e`, `make conformance` and `make
//! documents`, and the second half of `make twin`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cluster::stand::layout::{Layout, Tool};
use cluster::{conformance, documents, e2e, stand, twin};

/// A whole Kubernetes on this machine, with three edge nodes.
#[derive(Parser)]
struct Args {
    /// Where the running stand is remembered
    #[arg(long, default_value = "run/stand", global = true)]
    at: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start it and leave it up
    Up(Kind),
    /// End it
    Down,
    /// Start it and end it with this program
    Run(Kind),
    E2e(e2e::command::Args),
    Conformance(conformance::command::Args),
    Twin(twin::command::Args),
    Documents(documents::Args),
}

/// What runs in it
#[derive(clap::Args)]
struct Kind {
    /// Apply deploy/ with this tool, as pods, instead of starting our programs as processes
    #[arg(long)]
    deployed: Option<Tool>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    proto::host::program::run(|| {
        // Before any thread, as namespaces belong to threads.
        match &args.command {
            Command::Conformance(args) => args.enter()?,
            Command::E2e(args) => args.enter()?,
            Command::Documents(args) => args.enter()?,
            Command::Run(kind) => Layout::of(kind.deployed).enter()?,
            Command::Up(_) | Command::Down | Command::Twin(_) => {}
        }
        proto::host::program::runtime(2)?.block_on(run(args))
    })
}

async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Up(kind) => stand::command::up(&args.at, kind.deployed).await,
        Command::Down => stand::command::down(&args.at).await,
        Command::Run(kind) => stand::command::run(&args.at, Layout::of(kind.deployed)).await,
        Command::E2e(args) => e2e::command::main(args).await,
        Command::Conformance(args) => conformance::command::main(args).await,
        Command::Twin(args) => twin::command::main(args).await,
        Command::Documents(args) => documents::main(args).await,
    }
}
