//! Start and end of both programs: logs on stderr, one error with its causes, exit code 1.

use std::io;
use std::io::IsTerminal;
use std::process::ExitCode;

use tracing::error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Runs a program's work. Logs go to stderr, filtered by `RUST_LOG` (default: info).
pub fn run(work: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!("{failure:#}");
            ExitCode::FAILURE
        }
    }
}

/// A runtime with this many worker threads.
///
/// # Errors
/// The system gives no threads.
pub fn runtime(workers: u16) -> io::Result<tokio::runtime::Runtime> {
    if workers == 1 {
        // Without a queue shared between threads, which is the fastest.
        return tokio::runtime::Builder::new_current_thread().enable_all().build();
    }
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers.into()).enable_all().build()
}
