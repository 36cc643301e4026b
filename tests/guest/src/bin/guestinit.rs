//! Process 1 of the guest of `make guest`. It is built for this machine, and is of no use here.

use std::process::ExitCode;

fn main() -> ExitCode {
    match guest::vm::inside::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
