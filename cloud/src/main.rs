//! The csi-cloud program: reads what it is told, and does it.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use cloud::config::Config;
use cloud::config::arguments::{Ca, Cli, Command, Keep};
use cloud::pki::ca;
use cloud::state::store::transfer;

// Each call allocates some dozens of small things; docs/performance.md has what this saves.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    proto::host::program::run(|| match Cli::parse().command {
        Command::Serve(flags) => {
            let config = Config::load(*flags)?;
            proto::host::program::runtime(config.common.workers)?.block_on(cloud::serve(config))
        }
        Command::Ask(ask) => proto::host::program::runtime(1)?.block_on(cloud::cli::show::run(ask)),
        Command::Ca(Ca::Init { dir, hosts, days }) => ca::init(&dir, &hosts, days),
        Command::Front(flags) => proto::host::program::runtime(1)?.block_on(cloud::relay::run::run(flags.into())),
        Command::Ca(Ca::Issue { node, front, dir, days }) => match (node, front) {
            (_, Some(front)) => ca::issue_front(&dir, &front, days),
            (Some(node), None) => ca::issue(&dir, &node, days),
            // One of them is required.
            (None, None) => Ok(()),
        },
        Command::Store(Keep::Check { store, output }) => {
            transfer::check(&store, output, &mut io::stdout().lock())
        }
        Command::Store(Keep::Export { store }) => transfer::export(&store, &mut io::stdout().lock()),
        Command::Store(Keep::Import { store, file }) => transfer::import(&store, &file),
    })
}
