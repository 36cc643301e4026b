//! Start and end of the programs: logs on stderr, one error with its causes, exit code 1, 70 or 75.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::env;
use std::fmt::Display;
use std::io;
use std::io::IsTerminal;
use std::panic;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use tracing::{error, warn};
use tracing_subscriber::EnvFilter;

use super::line_queue::LineQueue;
use super::tasks::Panicked;

/// What is logged of the libraries that read from peers: errors. Their warnings are a peer's to
/// cause, some for each frame. So `RUST_LOG` must name such a library to get more of it.
const LIBRARIES: &str = "h2=error,hyper=error,hyper_util=error,quinn=error,quinn_proto=error,\
    quinn_udp=error,rustls=error,tokio_tungstenite=error,tonic=error,tower=error,tungstenite=error";

/// The exit code after a panic: sysexits(3), EX_SOFTWARE.
const PANICKED: u8 = 70;
/// The exit code of a program that is to be started again: sysexits(3), EX_TEMPFAIL.
const START_AGAIN: u8 = 75;

/// What was at fault is good again, and only a new start can use it. As the end of a program it is
/// exit code 75.
#[derive(Debug, thiserror::Error)]
#[error("{0}; this program ends, so that it is started again")]
pub struct StartAgain(pub &'static str);

/// The time for the last lines to be read.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What goes to stderr, and to stdout.
static LOG: LazyLock<LineQueue> = LazyLock::new(LineQueue::default);
static TOLD: LazyLock<LineQueue> = LazyLock::new(LineQueue::default);

/// Runs a program's work. Logs go to stderr, filtered by `RUST_LOG` (default: `info`) and by
/// `LIBRARIES`. Whoever reads them, and stdout, may hang: see [`LineQueue`].
pub fn run(work: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    if let Err(error) = LOG.begin(io::stderr()).and_then(|()| TOLD.begin(io::stdout())) {
        return exit_code(&anyhow::Error::from(error));
    }
    tracing_subscriber::fmt()
        .with_env_filter(filter(env::var(EnvFilter::DEFAULT_ENV).ok().as_deref()))
        .with_writer(LOG.clone())
        .with_ansi(io::stderr().is_terminal())
        // It would print them with a macro that panics, if the disk of the log is full.
        .log_internal_errors(false)
        .init();
    panic::set_hook(Box::new(log_panic));
    let code = match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!("{failure:#}");
            exit_code(&failure)
        }
    };
    TOLD.flush(LAST_LINES);
    LOG.flush(LAST_LINES);
    code
}

/// Logs a panic. The standard hook writes to stderr itself, which may hang.
fn log_panic(panicked: &panic::PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => error!("{panicked}\n{backtrace}"),
        _ => error!("{panicked}"),
    }
}

/// The exit code of a program that failed.
fn exit_code(failure: &anyhow::Error) -> ExitCode {
    match failure {
        failure if failure.is::<Panicked>() => ExitCode::from(PANICKED),
        failure if failure.is::<StartAgain>() => ExitCode::from(START_AGAIN),
        _ => ExitCode::FAILURE,
    }
}

/// Writes a line to stdout, for whoever started the program. It is dropped if it cannot be written:
/// a disk is full, or the reader hangs or is gone.
pub fn tell(line: impl Display) {
    TOLD.tell(format!("{line}\n").as_bytes());
}

/// The filter of the log, from `RUST_LOG`.
fn filter(directives: Option<&str>) -> EnvFilter {
    let directives = directives.map(str::trim).filter(|directives| !directives.is_empty());
    match directives {
        Some("off") => EnvFilter::new("off"),
        // Of two directives for one target, the later one counts.
        given => EnvFilter::new(format!("{LIBRARIES},{}", given.unwrap_or("info"))),
    }
}

/// Forbids core dumps of this process, which would write its keys and requests to a disk.
///
/// It warns if the system refuses: storage without this protection is better than none.
pub fn forbid_core_dumps() {
    if let Err(error) = without_core_dumps() {
        warn!(%error, "core dumps cannot be forbidden; allow setrlimit and prctl in the sandbox");
    }
}

/// core(5): a program that `core_pattern` pipes to ignores the limit, so the flag is needed too.
/// The flag also keeps other processes of the same user from reading our memory.
fn without_core_dumps() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
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

#[cfg(test)]
mod tests {
    use tracing::{Level, enabled};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn of_what_reads_from_peers_only_errors_are_logged() {
        let with = |directives| tracing_subscriber::registry().with(filter(directives));
        tracing::subscriber::with_default(with(None), || {
            assert!(enabled!(target: "cloud::nodes::accept", Level::INFO));
            assert!(enabled!(target: "edge_calls::executor", Level::INFO));
            assert!(enabled!(target: "edge_direct::service", Level::INFO));
            assert!(enabled!(target: "edge::link::keep", Level::INFO));
            assert!(enabled!(target: "page::listen", Level::INFO));
            assert!(enabled!(target: "proto::link::ws", Level::INFO));
            assert!(!enabled!(target: "edge_calls::executor", Level::DEBUG));
            assert!(!enabled!(target: "h2::proto::ping_pong", Level::WARN));
            assert!(!enabled!(target: "quinn_proto::connection", Level::WARN));
            assert!(!enabled!(target: "tungstenite::protocol", Level::WARN));
            assert!(enabled!(target: "hyper::proto", Level::ERROR));
        });
    }

    #[test]
    fn an_operators_filter_counts_and_must_name_a_library_to_get_more_of_it() {
        let with = |directives| tracing_subscriber::registry().with(filter(Some(directives)));
        tracing::subscriber::with_default(with("debug"), || {
            assert!(enabled!(target: "cloud::nodes::accept", Level::DEBUG));
            assert!(enabled!(target: "kube_client::client", Level::DEBUG));
            assert!(!enabled!(target: "h2::proto::ping_pong", Level::WARN));
        });
        tracing::subscriber::with_default(with("cloud=debug,warn"), || {
            assert!(enabled!(target: "cloud::nodes::accept", Level::DEBUG));
            assert!(!enabled!(target: "proto::link::ws", Level::INFO));
        });
        tracing::subscriber::with_default(with("info,h2=debug"), || {
            assert!(enabled!(target: "h2::proto::ping_pong", Level::DEBUG));
            assert!(!enabled!(target: "hyper::proto", Level::WARN));
        });
        tracing::subscriber::with_default(with("off"), || {
            assert!(!enabled!(target: "hyper::proto", Level::ERROR));
            assert!(!enabled!(target: "cloud::nodes::accept", Level::ERROR));
        });
    }

    #[test]
    fn a_panic_and_a_wish_to_be_started_have_exit_codes_of_their_own() {
        let panicked = Panicked { task: "dial", why: "no more".into() };
        let again = anyhow::Error::from(StartAgain("it is good"));
        let [panicked, again, other] = [panicked.into(), again, anyhow::anyhow!("x")]
            .map(|failure| format!("{:?}", exit_code(&failure)));
        assert!(panicked.contains("70") && again.contains("75"), "{panicked} {again}");
        assert!(!other.contains("70"), "{other}");
    }

    #[test]
    fn core_dumps_are_forbidden_by_limit_and_by_flag() {
        without_core_dumps().unwrap();
        let limit = rustix::process::getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        let flag = rustix::process::dumpable_behavior().unwrap();
        assert!(matches!(flag, DumpableBehavior::NotDumpable), "{flag:?}");
    }
}
