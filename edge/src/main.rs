//! The csi-edge program: reads its configuration and serves.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use edge::commands::{Cli, Command};
use edge::config::Config;
use proto::host::program;

// Each call makes dozens of small allocations; tests/bench/README.md has what this saves.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The time that work on devices has to end after the program.
const END: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    program::run(|| {
        program::forbid_core_dumps();
        match Cli::parse().command {
            Command::Serve { check, flags } => {
                let config = Config::load(*flags)?;
                if check {
                    program::tell("ok");
                    return Ok(());
                }
                let runtime = program::runtime(config.common.workers)?;
                let served = runtime.block_on(edge::serve(config));
                // A device that does not answer would hold the end.
                runtime.shutdown_timeout(END);
                served
            }
            Command::Ask(command) => command.run(),
            Command::Join(command) => {
                let mut out = std::io::stdout();
                program::runtime(1)?.block_on(edge::cli::join::run(command, &mut out))
            }
            Command::Doctor(command) => {
                let mut out = std::io::stdout();
                let runtime = program::runtime(1)?;
                let looked = runtime.block_on(edge::doctor::run(command, &mut out));
                // A name server or a disk that does not answer would hold the end.
                runtime.shutdown_background();
                looked
            }
            Command::Direct(command) => {
                let mut out = std::io::stdout();
                let runtime = program::runtime(1)?;
                let done = runtime.block_on(edge::cli::direct::run(command, &mut out));
                runtime.shutdown_timeout(END);
                done
            }
        }
    })
}
