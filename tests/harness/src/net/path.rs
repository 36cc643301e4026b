//! One direction of a bad network: the fate of each packet, and its time of arrival.
//!
//! It does no I/O and reads no clock: packets and times in, packets out. A seed gives the chance,
//! so that two runs with the same packets lose the same ones. A packet waits in a bounded queue,
//! passes at the line's rate, may be lost, and arrives after the delay. A reordered one arrives
//! later still.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// The effects of a direction on packets. The default is a perfect one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    /// How long a packet is on its way, after it left the queue.
    pub delay: Duration,
    /// How many of all packets are lost by chance, 0 to 1.
    pub loss: f64,
    /// Bits in a second; without one, a packet takes no time to pass and none waits.
    pub rate: Option<u32>,
    /// The most bytes that wait for the line; further packets are dropped. No effect without a
    /// rate.
    pub queue: u32,
    /// How many of all packets arrive late, 0 to 1.
    pub reorder: f64,
    /// How much later those arrive.
    pub late_by: Duration,
}

impl Shape {
    /// 100 ms there and back, with this rate in Mbit/s, and a queue of 100 ms but of 64 KiB at
    /// least.
    pub fn far(rate_mbit: u32, loss: f64) -> Self {
        let queue = (rate_mbit * 12_500).max(64 * 1024);
        Self {
            delay: Duration::from_millis(50),
            loss,
            rate: Some(rate_mbit * 1_000_000),
            queue,
            ..Self::default()
        }
    }
}

/// The counts of packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that were offered.
    pub offered: u64,
    /// The bytes of these, with the headers of IP.
    pub bytes: u64,
    /// Of these, lost by chance.
    pub lost: u64,
    /// Of these, dropped because the queue was full.
    pub dropped: u64,
    /// Of these, made late by chance.
    pub late: u64,
}

/// The packets on their way in one direction.
pub struct Path {
    shape: Shape,
    chance: StdRng,
    /// When the line has sent all that waits.
    free_at: Option<Instant>,
    /// By time of arrival, then by order of departure.
    on_the_way: BTreeMap<(Instant, u64), Vec<u8>>,
    counts: Counts,
}

impl Path {
    /// Nothing on its way yet.
    pub fn new(shape: Shape, seed: u64) -> Self {
        let chance = StdRng::seed_from_u64(seed);
        Self {
            shape,
            chance,
            free_at: None,
            on_the_way: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Loses all packets from now on.
    pub fn swallow(&mut self) {
        self.shape.loss = 1.0;
    }

    /// Takes a packet.
    pub fn offer(&mut self, now: Instant, packet: &[u8]) {
        self.counts.offered += 1;
        self.counts.bytes += packet.len() as u64;
        // Drawn for every packet, so that the fate of one does not depend on the queue.
        let lost = self.chance.random_bool(self.shape.loss);
        let late = self.chance.random_bool(self.shape.reorder);
        let Some(sent) = self.queue(now, packet.len()) else {
            self.counts.dropped += 1;
            return;
        };
        if lost {
            self.counts.lost += 1;
            return;
        }
        let mut due = sent + self.shape.delay;
        if late {
            self.counts.late += 1;
            due += self.shape.late_by;
        }
        self.on_the_way.insert((due, self.counts.offered), packet.to_vec());
    }

    /// When the line will have sent a packet of this size; none if the queue is full.
    fn queue(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let Some(rate) = self.shape.rate else { return Some(now) };
        let begins = self.free_at.map_or(now, |free_at| free_at.max(now));
        let per_byte = 8.0 / f64::from(rate);
        let waiting = (begins - now).as_secs_f64() / per_byte;
        if waiting + bytes as f64 > f64::from(self.shape.queue) {
            return None;
        }
        let sent = begins + Duration::from_secs_f64(bytes as f64 * per_byte);
        self.free_at = Some(sent);
        Some(sent)
    }

    /// When the next packet arrives.
    pub fn next_due(&self) -> Option<Instant> {
        self.on_the_way.first_key_value().map(|((due, _), _)| *due)
    }

    /// The next packet that has arrived by now.
    pub fn arrived(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.next_due().filter(|due| *due <= now)?;
        self.on_the_way.pop_first().map(|(_, packet)| packet)
    }

    /// The counts of packets so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends numbered packets of 1,250 bytes, this far apart, and returns those that arrive with
    /// their times.
    fn sent(
        shape: Shape,
        seed: u64,
        packets: u32,
        apart: Duration,
    ) -> (Vec<(u32, Duration)>, Counts) {
        let begun = Instant::now();
        let mut path = Path::new(shape, seed);
        for n in 0..packets {
            let mut packet = n.to_be_bytes().to_vec();
            packet.resize(1250, 0);
            path.offer(begun + apart * n, &packet);
        }
        let mut arrived = Vec::new();
        while let Some(due) = path.next_due() {
            assert!(path.arrived(due - MS).is_none(), "nothing arrives too early");
            let packet = path.arrived(due).unwrap();
            arrived.push((u32::from_be_bytes(packet[..4].try_into().unwrap()), due - begun));
        }
        (arrived, path.counts())
    }

    #[test]
    fn a_packet_arrives_after_the_delay() {
        let shape = Shape { delay: 50 * MS, ..Shape::default() };
        assert_eq!(sent(shape, 1, 3, MS).0, [(0, 50 * MS), (1, 51 * MS), (2, 52 * MS)]);
    }

    #[test]
    fn a_line_passes_its_rate_and_its_queue_drops_what_comes_above_it() {
        // 1 ms for each packet, and room for ten.
        let shape = Shape { rate: Some(10_000_000), queue: 12_500, ..Shape::default() };
        let (arrived, counts) = sent(shape, 1, 100, Duration::ZERO);
        let expected: Vec<_> = (0..10).map(|n| (n, MS * (n + 1))).collect();
        assert_eq!((arrived, counts.dropped), (expected, 90));
        // At half the rate nothing waits; at twice the rate half is dropped once the queue is full.
        assert_eq!(sent(shape, 1, 1000, 2 * MS).1.dropped, 0);
        let dropped = sent(shape, 1, 1000, MS / 2).1.dropped;
        assert!((485..=495).contains(&dropped), "{dropped}");
    }

    #[test]
    fn what_is_lost_is_a_matter_of_chance_and_of_the_seed_alone() {
        let shape = Shape { loss: 0.01, ..Shape::default() };
        let (arrived, counts) = sent(shape, 7, 100_000, MS);
        assert!((850..1150).contains(&counts.lost), "{counts:?}");
        assert_eq!(arrived, sent(shape, 7, 100_000, MS).0);
        assert_ne!(arrived, sent(shape, 8, 100_000, MS).0);
    }

    #[test]
    fn a_late_packet_is_overtaken() {
        let shape = Shape { delay: 50 * MS, reorder: 0.1, late_by: 5 * MS, ..Shape::default() };
        let (arrived, counts) = sent(shape, 1, 1000, MS);
        assert!((50..150).contains(&counts.late), "{counts:?}");
        assert_eq!(arrived.len(), 1000);
        assert!(!arrived.is_sorted_by_key(|(n, _)| *n));
    }

    #[test]
    fn a_far_network_has_room_for_a_tenth_of_a_second() {
        assert_eq!(Shape::far(20, 0.01).queue, 250_000);
        assert_eq!(Shape::far(2, 0.01).queue, 65_536);
    }
}
