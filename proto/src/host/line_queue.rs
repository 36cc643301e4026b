//! Lines of the log on their way out, so that whoever reads them holds up nothing.
//!
//! A thread of its own writes them, and lines that come within 10 ms together: under load, a thread
//! that is woken for each line costs more than the line. An error is written at once and before its
//! event goes on, so that an abort loses none, but nothing waits for more than 5 ms; other lines
//! wait for nobody. If the reader hangs or the disk is slow, lines wait in bounded memory; what
//! finds no room is dropped and counted, and the next line tells the count. Lines that peers cause
//! have a room of their own ([`super::peer_log`]), so they push out no other.

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::time::Instant;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::peer_log::is_peers;

/// The bytes of one sort of lines that wait.
const ROOM_BYTES: usize = 256 * 1024;
/// How long a line waits for others, to be written with them.
const TOGETHER: Duration = Duration::from_millis(10);
/// The longest time for which an error waits for its line.
const WAIT: Duration = Duration::from_millis(5);

/// The sorts of lines, each with room of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineSort {
    /// It has no budget: certificates, commands, homes, leases, disks.
    Own,
    /// A peer caused it.
    Peer,
}

/// The lines for one file. Clones share it.
#[derive(Clone, Default)]
pub struct LineQueue(Arc<LineState>);

#[derive(Default)]
struct LineState {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    /// What waits, as one text.
    waiting: Vec<u8>,
    /// The bytes that wait or are being written, by sort.
    bytes: [usize; 2],
    /// The lines that were dropped since the last one was written, by sort.
    dropped: [u64; 2],
    /// The lines that were taken, and those of them that were written.
    pushed: u64,
    written: u64,
    /// Somebody waits for them.
    is_awaited: bool,
    /// A line took longer than errors wait, and the queue has not been empty since.
    is_slow: bool,
    has_writer: bool,
}

/// Lines that are written together.
struct Batch {
    text: Vec<u8>,
    /// The bytes of the lines, by sort.
    bytes: [usize; 2],
    /// The lines that were taken, up to the last of these.
    pushed: u64,
}

/// Writes lines of one sort.
pub struct LineWriter {
    queue: LineQueue,
    sort: LineSort,
    waits: bool,
}

impl LineQueue {
    /// Begins to write the lines to `out`, in a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn begin(&self, mut out: impl Write + Send + 'static) -> io::Result<()> {
        let queue = self.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || {
            loop {
                let batch = queue.next();
                // Lines that cannot be written are lost: there is nobody to tell.
                let _ = out.write_all(&batch.text).and_then(|()| out.flush());
                queue.written(&batch);
            }
        })?;
        self.0.lines.lock().has_writer = true;
        Ok(())
    }

    /// Queues a line for whoever started the program.
    pub(super) fn tell(&self, line: &[u8]) {
        self.push(LineSort::Own, line, true);
    }

    /// Waits until every line is written, at most for `grace`.
    pub fn flush(&self, grace: Duration) {
        let mut lines = self.0.lines.lock();
        let all = lines.pushed;
        self.wait(&mut lines, all, grace);
    }

    /// Waits until so many lines are written, at most for `grace`. True if they are.
    fn wait(&self, lines: &mut MutexGuard<'_, Lines>, written: u64, grace: Duration) -> bool {
        let end = Instant::now() + grace;
        lines.is_awaited |= lines.written < written;
        self.0.changed.notify_all();
        while lines.has_writer && lines.written < written {
            if self.0.changed.wait_until(lines, end.into_std()).timed_out() {
                return false;
            }
        }
        true
    }

    /// Queues a line, and waits for it if that is wanted.
    fn push(&self, sort: LineSort, line: &[u8], waits: bool) {
        let mut lines = self.0.lines.lock();
        let place = sort as usize;
        if lines.bytes[place] + line.len() > ROOM_BYTES {
            lines.dropped[place] += 1;
            return;
        }
        lines.bytes[place] += line.len();
        let is_first = lines.waiting.is_empty();
        lines.waiting.extend_from_slice(line);
        lines.pushed += 1;
        if is_first {
            self.0.changed.notify_all();
        }
        let own = lines.pushed;
        if waits && !lines.is_slow && !self.wait(&mut lines, own, WAIT) {
            lines.is_slow = true;
        }
    }

    /// Notes that these were written.
    fn written(&self, batch: &Batch) {
        let mut lines = self.0.lines.lock();
        lines.written = batch.pushed;
        for (left, written) in lines.bytes.iter_mut().zip(batch.bytes) {
            *left -= written;
        }
        lines.is_slow &= !lines.waiting.is_empty();
        self.0.changed.notify_all();
    }

    /// Waits for the next lines.
    fn next(&self) -> Batch {
        let mut lines = self.0.lines.lock();
        self.0.changed.wait_while(&mut lines, |lines| lines.waiting.is_empty());
        self.0.changed.wait_while_for(&mut lines, |lines| !lines.is_awaited, TOGETHER);
        lines.is_awaited = false;
        let mut text = lines.told().unwrap_or_default();
        text.append(&mut std::mem::take(&mut lines.waiting));
        Batch { text, bytes: lines.bytes, pushed: lines.pushed }
    }
}

impl Lines {
    /// The line about those that were dropped; `None` if none were.
    fn told(&mut self) -> Option<Vec<u8>> {
        let [own, peers] = std::mem::take(&mut self.dropped);
        (own + peers > 0).then(|| {
            format!(
                "dropped {} lines of the log, {peers} of them by peers: its reader or disk was too \
                 slow\n",
                own + peers
            )
            .into_bytes()
        })
    }
}

impl MakeWriter<'_> for LineQueue {
    type Writer = LineWriter;

    fn make_writer(&self) -> LineWriter {
        LineWriter { queue: self.clone(), sort: LineSort::Own, waits: true }
    }

    fn make_writer_for(&self, line: &Metadata<'_>) -> LineWriter {
        let sort = if is_peers(line) { LineSort::Peer } else { LineSort::Own };
        LineWriter { queue: self.clone(), sort, waits: *line.level() == Level::ERROR }
    }
}

impl Write for LineWriter {
    /// Takes a whole line, as tracing's formatter writes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.queue.push(self.sort, line, self.waits);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use tracing::{info, warn};

    use super::*;
    use crate::host::peer_log::{LogPeer, peer_warn};

    const GRACE: Duration = Duration::from_secs(10);

    #[test]
    fn a_log_that_nobody_reads_holds_up_nothing_and_peers_push_out_no_other_line() {
        let (read, write) = io::pipe().unwrap();
        let queue = LineQueue::default();
        queue.begin(write).unwrap();
        let log = tracing_subscriber::fmt().with_writer(queue.clone()).with_ansi(false).finish();
        let begun = Instant::now();
        let mut own = 0;
        tracing::subscriber::with_default(log, || {
            for number in 0..20_000 {
                warn!(suppressed = Option::<u64>::None, number, "a peer's line");
                if number % 20 == 0 {
                    info!(number, "an own line");
                    own += 1;
                }
            }
            peer_warn!(LogPeer::Cloud, "the last line of a peer");
        });
        assert!(begun.elapsed() < GRACE, "{:?}", begun.elapsed());
        let lines = std::thread::spawn(move || {
            let lines = BufReader::new(read).lines().map(Result::unwrap);
            lines.take_while(|line| !line.contains("the end")).collect::<Vec<_>>()
        });
        queue.flush(GRACE);
        queue.tell(b"the end\n");
        let lines = lines.join().unwrap();
        assert_eq!(count(&lines, "an own line"), own);
        let written = count(&lines, "a peer's line");
        assert!((1000..19_000).contains(&written), "{written}");
        let told: Vec<_> = lines.iter().filter(|line| line.starts_with("dropped")).collect();
        let sum: usize = told.iter().map(|line| number_in(line)).sum();
        assert_eq!(sum, 20_001 - written - count(&lines, "the last line"), "{told:?}");
    }

    fn count(lines: &[String], text: &str) -> usize {
        lines.iter().filter(|line| line.contains(text)).count()
    }

    fn number_in(line: &str) -> usize {
        line.split(' ').nth(1).unwrap().parse().unwrap()
    }
}
