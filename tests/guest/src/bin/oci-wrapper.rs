//! An OCI runtime for pods of the stand that are to be like those in a VM:
//! `tests/guest/src/wrapper`. It writes nothing of its own to stderr before it fails, since that
//! is its container's.

use std::process::ExitCode;

use guest::wrapper;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match wrapper::run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
