//! The csi-cloud program: parses the command line, and serves or runs the command.

use std::process::ExitCode;

use clap::Parser;
use cloud::cli::{Cli, Command};
use cloud::config::Config;
use proto::host::program;

// Each call makes dozens of small allocations; tests/bench/README.md has what this saves.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    program::run(|| {
        program::forbid_core_dumps();
        match Cli::parse().command {
            Command::Serve { check, flags } => {
                let config = Config::load(*flags)?;
                if check {
                    program::tell("ok");
                    if let Some(change) = config.change() {
                        program::tell(change);
                    }
                    return Ok(());
                }
                program::runtime(config.common.workers)?.block_on(cloud::serve(config))
            }
            Command::Other(command) => command.run(),
        }
    })
}
