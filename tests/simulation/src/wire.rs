//! One connection of the simulated network: two lanes of bytes with a delay each. A lane has a
//! mishap after a number of bytes, or when the weather says so.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use proto::host::tasks::Tasks;
use proto::link::Io;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::time::Instant;
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;

use super::panics::INJECTED;

/// The buffer at an end of a connection before its writer must wait, in bytes.
const BUFFER: usize = 64 * 1024;
/// Chunks on their way in one lane; the sender waits for more.
const ON_THE_WAY: usize = 256;

/// The mishaps of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// It ends at once, for both ends.
    Cut,
    /// This lane stands still for a while; nothing is lost.
    Stall(Duration),
    /// From now on this lane swallows everything, its end included: half-open.
    Dead,
    /// Both lanes do.
    BothDead,
    /// The task panics that next reads what comes this way.
    Panic,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From who dialed.
    Up,
    /// To who dialed.
    Down,
}

/// How a connection behaves.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// How long a byte is on its way.
    pub delay: Duration,
    /// After this many bytes of a lane, this happens, once.
    pub mishap: Option<(Way, u64, Mishap)>,
}

/// A connection. It ends when it is cut, or when either of its owners ends.
pub struct Wire {
    cut: CancellationToken,
    up: Mutex<Lane>,
    down: Mutex<Lane>,
    delay: Duration,
}

#[derive(Default)]
struct Lane {
    passed: u64,
    mishap: Option<(u64, Mishap)>,
    stalled_until: Option<Instant>,
    dead: bool,
    /// Whether who reads it panics.
    panics: Arc<AtomicBool>,
}

/// The fate of a chunk.
enum Fate {
    Whole,
    Nothing,
    /// This many bytes of it pass, and then the connection is cut.
    Part(usize),
}

/// Makes a connection between two processes. The first end is who dials.
pub fn wire(
    plan: &Plan,
    owners: [CancellationToken; 2],
    tasks: &Tasks,
) -> (DuplexStream, DuplexStream, Arc<Wire>) {
    let (near, near_inner) = tokio::io::duplex(BUFFER);
    let (far, far_inner) = tokio::io::duplex(BUFFER);
    let lane = |way| {
        let mishap =
            plan.mishap.filter(|(at, ..)| *at == way).map(|(_, after, mishap)| (after, mishap));
        Mutex::new(Lane { mishap, ..Lane::default() })
    };
    let wire = Wire {
        cut: CancellationToken::new(),
        up: lane(Way::Up),
        down: lane(Way::Down),
        delay: plan.delay,
    };
    let wire = Arc::new(wire);
    let (near_read, near_write) = tokio::io::split(near_inner);
    let (far_read, far_write) = tokio::io::split(far_inner);
    let [one, other] = owners;
    let running = wire.clone();
    tasks.spawn("wire", async move {
        let up = running.forward(Way::Up, near_read, far_write);
        let down = running.forward(Way::Down, far_read, near_write);
        tokio::select! {
            biased;
            () = one.cancelled() => {}
            () = other.cancelled() => {}
            () = running.cut.cancelled() => {}
            _ = async { tokio::join!(up, down) } => {}
        }
        running.cut.cancel();
    });
    (near, far, wire)
}

/// Boxes the end of a link at the side that reads what comes this way.
pub fn end(io: DuplexStream, wire: &Wire, way: Way) -> Io {
    let panics = wire.lane(way).panics.clone();
    Box::new(InspectReader::new(io, move |_: &[u8]| {
        assert!(!panics.swap(false, Ordering::Relaxed), "{INJECTED} in a read");
    }))
}

/// Boxes an end for the product.
pub fn boxed(end: DuplexStream) -> Io {
    Box::new(end)
}

impl Wire {
    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.cut.is_cancelled()
    }

    /// Applies a mishap now.
    pub fn suffer(&self, way: Way, mishap: Mishap) {
        match mishap {
            Mishap::Cut => self.cut.cancel(),
            Mishap::Stall(time) => self.lane(way).stalled_until = Some(Instant::now() + time),
            Mishap::Dead => self.lane(way).dead = true,
            Mishap::Panic => self.lane(way).panics.store(true, Ordering::Relaxed),
            Mishap::BothDead => {
                [Way::Up, Way::Down].into_iter().for_each(|way| self.lane(way).dead = true)
            }
        }
    }

    /// Ends further mishaps; earlier ones stay.
    pub fn calm(&self) {
        [Way::Up, Way::Down].into_iter().for_each(|way| self.lane(way).mishap = None);
    }

    fn lane(&self, way: Way) -> MutexGuard<'_, Lane> {
        let lane = if way == Way::Up { &self.up } else { &self.down };
        lane.lock()
    }

    /// When a chunk may leave the lane that was due at this moment.
    fn due(&self, way: Way, due: Instant) -> Instant {
        self.lane(way).stalled_until.map_or(due, |until| until.max(due))
    }

    fn pass(&self, way: Way, length: usize) -> Fate {
        let mut lane = self.lane(way);
        let before = lane.passed;
        lane.passed += length as u64;
        if lane.dead {
            return Fate::Nothing;
        }
        let Some((after, mishap)) = lane.mishap.filter(|(after, _)| *after <= lane.passed) else {
            return Fate::Whole;
        };
        lane.mishap = None;
        drop(lane);
        if mishap == Mishap::Cut {
            return Fate::Part(
                usize::try_from(after.saturating_sub(before)).unwrap_or(length).min(length),
            );
        }
        self.suffer(way, mishap);
        // Bytes in transit are lost with a dead lane; a stall lets this chunk pass first.
        if matches!(mishap, Mishap::Stall(_)) { Fate::Whole } else { Fate::Nothing }
    }

    async fn forward(
        &self,
        way: Way,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
    ) {
        let mut on_the_way = VecDeque::<(Instant, Bytes)>::new();
        let mut chunk = vec![0; 8 * 1024];
        let mut ended = false;
        while !ended || !on_the_way.is_empty() {
            let may_read = !ended && on_the_way.len() < ON_THE_WAY;
            let due = on_the_way.front().map(|(due, _)| self.due(way, *due));
            tokio::select! {
                biased;
                read = from.read(&mut chunk), if may_read => match read {
                    Ok(length) if length > 0 => {
                        let bytes = Bytes::copy_from_slice(chunk.get(..length).unwrap_or_default());
                        on_the_way.push_back((Instant::now() + self.delay, bytes));
                    }
                    _ => ended = true,
                },
                () = until(due), if due.is_some() => {
                    // It may have been stalled while we waited.
                    if due.is_some_and(|due| self.due(way, due) > Instant::now()) {
                        continue;
                    }
                    let Some((_, bytes)) = on_the_way.pop_front() else { continue };
                    if !self.deliver(way, &bytes, &mut to).await {
                        break;
                    }
                }
            }
        }
        if self.lane(way).dead {
            // The other end never hears of the end.
            return std::future::pending().await;
        }
        let _ = to.shutdown().await;
    }

    /// Whether the lane continues.
    async fn deliver(&self, way: Way, bytes: &Bytes, to: &mut WriteHalf<DuplexStream>) -> bool {
        match self.pass(way, bytes.len()) {
            Fate::Whole => to.write_all(bytes).await.is_ok(),
            Fate::Nothing => true,
            Fate::Part(length) => {
                let _ = to.write_all(bytes.get(..length).unwrap_or_default()).await;
                self.cut.cancel();
                false
            }
        }
    }
}

async fn until(due: Option<Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(plan: &Plan) -> (DuplexStream, DuplexStream, Arc<Wire>, [CancellationToken; 2]) {
        let owners = [CancellationToken::new(), CancellationToken::new()];
        let (near, far, wire) = wire(plan, owners.clone(), &Tasks::default());
        (near, far, wire, owners)
    }

    async fn read(end: &mut DuplexStream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        end.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_take_their_time_and_keep_their_order() {
        let plan = Plan { delay: Duration::from_millis(30), mishap: None };
        let (mut near, mut far, _, _) = joined(&plan);
        let began = Instant::now();
        near.write_all(b"one").await.unwrap();
        near.write_all(b"two").await.unwrap();
        assert_eq!(read(&mut far, 6).await, b"onetwo");
        assert!(began.elapsed() >= plan.delay && began.elapsed() < plan.delay * 2);
        far.write_all(b"three").await.unwrap();
        assert_eq!(read(&mut near, 5).await, b"three");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_comes_at_its_byte_for_both_ends() {
        let plan = Plan { mishap: Some((Way::Up, 4, Mishap::Cut)), ..Plan::default() };
        let (mut near, mut far, wire, _) = joined(&plan);
        near.write_all(b"onetwo").await.unwrap();
        let mut came = Vec::new();
        far.read_to_end(&mut came).await.unwrap();
        assert_eq!(came, b"onet");
        assert_eq!(near.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(wire.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_lane_says_nothing_and_the_other_goes_on() {
        let plan = Plan { mishap: Some((Way::Up, 1, Mishap::Dead)), ..Plan::default() };
        let (mut near, mut far, _, _) = joined(&plan);
        near.write_all(b"lost").await.unwrap();
        far.write_all(b"here").await.unwrap();
        assert_eq!(read(&mut near, 4).await, b"here");
        drop(near);
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, far.read(&mut [0; 1])).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_delays_and_loses_nothing() {
        let (mut near, mut far, wire, _) = joined(&Plan::default());
        let stall = Duration::from_secs(7);
        wire.suffer(Way::Up, Mishap::Stall(stall));
        let began = Instant::now();
        near.write_all(b"late").await.unwrap();
        assert_eq!(read(&mut far, 4).await, b"late");
        assert!(began.elapsed() >= stall);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_with_its_owner() {
        let (mut near, mut far, _, owners) = joined(&Plan::default());
        owners[1].cancel();
        assert_eq!(near.read(&mut [0; 1]).await.unwrap(), 0);
        assert_eq!(far.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
