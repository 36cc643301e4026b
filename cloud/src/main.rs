//! The csi-cloud program: reads what it is told, and does it.

use std::process::ExitCode;

use clap::Parser;
use cloud::ca;
use cloud::cli::{Ca, Cli, Command};
use cloud::config::Config;

fn main() -> ExitCode {
    proto::program::run(|| match Cli::parse().command {
        Command::Serve(flags) => {
            let config = Config::load(flags)?;
            proto::program::runtime(config.workers)?.block_on(cloud::serve(config))
        }
        Command::Ca(Ca::Init { dir, hosts, days }) => ca::init(&dir, &hosts, days),
        Command::Ca(Ca::Issue { node, dir, days }) => ca::issue(&dir, &node, days),
    })
}
