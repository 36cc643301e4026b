//! The events of a run in their order: the model's, the faults, and the product's own log. Each
//! line has its virtual time.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::host::peer_log::is_peers;
use tokio::time::Instant;
use tracing::Level;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry;

/// More lines than this are dropped: a run that has more goes round in circles.
const MOST: usize = 200_000;

/// The lines of a run. A clone is the same trace.
#[derive(Clone)]
pub struct Trace {
    began: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Trace {
    /// A trace that begins now.
    pub fn begin() -> Self {
        Self { began: Instant::now(), lines: Arc::default() }
    }

    /// Adds a line.
    pub fn say(&self, text: impl Display) {
        let at = self.began.elapsed();
        let mut lines = self.lines.lock();
        if lines.len() < MOST {
            lines.push(format!("{:>11.4}  {text}", at.as_secs_f64()));
        }
    }

    /// A moment of this run in seconds.
    pub fn at(&self, moment: Instant) -> String {
        format!("{:.4} s", moment.saturating_duration_since(self.began).as_secs_f64())
    }

    /// The moments of the lines with this text.
    pub(super) fn moments(&self, text: &str) -> Vec<Instant> {
        self.moments_of(|line| line.contains(text))
    }

    /// The moments of the lines with this text that the product logged about a node.
    pub(super) fn moments_at(&self, node: &str, text: &str) -> Vec<Instant> {
        let field = format!("node={node}");
        let is_at = |line: &str| line.split_whitespace().any(|word| word == field);
        self.moments_of(|line| line.contains(text) && is_at(line))
    }

    fn moments_of(&self, is: impl Fn(&str) -> bool) -> Vec<Instant> {
        let lines = self.lines.lock();
        let of = lines.iter().filter(|line| is(line));
        let seconds = of.filter_map(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        let moments = seconds.filter_map(|s| Duration::try_from_secs_f64(s).ok());
        moments.map(|since| self.began + since).collect()
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    /// Sends what the product logs on this thread into the trace, until the guard is dropped.
    ///
    /// The log's budget is one for all runs of this program, and a run is judged by its lines. So
    /// the lines that the budget leaves out are in the trace too.
    #[must_use]
    pub fn log(&self) -> tracing::subscriber::DefaultGuard {
        let is_line = filter_fn(|event| *event.level() <= Level::INFO || is_peers(event));
        let lines = fmt::layer().with_writer(self.clone()).with_ansi(false).without_time();
        tracing::subscriber::set_default(registry().with(lines.with_filter(is_line)))
    }
}

impl<'a> MakeWriter<'a> for Trace {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl io::Write for &Trace {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.say(format_args!("    | {}", text.trim_end()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proto::host::peer_log::{LogPeer, peer_info};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_trace_has_the_lines_that_the_budget_leaves_out() {
        let trace = Trace::begin();
        let log = trace.log();
        for number in 0..100 {
            peer_info!(LogPeer::Stranger, number, "knocked");
        }
        tracing::debug!("said at debug");
        drop(log);
        assert_eq!(trace.moments("knocked").len(), 100);
        assert_eq!(trace.moments("said at debug"), []);
    }
}
