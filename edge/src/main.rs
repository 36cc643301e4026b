//! The csi-edge program: reads what it is told, and serves.

use std::process::ExitCode;

use clap::Parser;
use edge::cli::{Cli, Command};
use edge::config::Config;

fn main() -> ExitCode {
    proto::program::run(|| {
        let Command::Serve(flags) = Cli::parse().command;
        let config = Config::load(flags)?;
        proto::program::runtime(config.workers)?.block_on(edge::serve(config))
    })
}
