//! Chance from the seed alone. Each part of a run has dice of its own, so that the draws of one do
//! not change another.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A source of chance.
pub struct Dice(StdRng);

impl Dice {
    /// The dice of one part of the run with this seed.
    pub fn new(seed: u64, part: &str) -> Self {
        // FNV-1a, so that the name is spread over all bits.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let part = part.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        Self(StdRng::seed_from_u64(part ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Chance for a part of the product.
    pub fn fork(&mut self) -> StdRng {
        StdRng::from_rng(&mut self.0)
    }

    /// True with this probability in percent.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n.max(1))
    }

    /// A number in `from..to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        self.0.random_range(from..to.max(from + 1))
    }

    /// A duration between two numbers of milliseconds.
    pub fn time(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.between(from, to))
    }

    /// One of these, of which there is at least one.
    pub fn pick<T: Clone, const N: usize>(&mut self, of: &[T; N]) -> T {
        const { assert!(N > 0) };
        of[self.below(N)].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: u64, part: &str) -> Vec<u64> {
        let mut dice = Dice::new(seed, part);
        (0..8).map(|_| dice.between(0, 1_000_000)).collect()
    }

    #[test]
    fn a_seed_gives_the_same_numbers_and_each_part_others() {
        assert_eq!(numbers(7, "net"), numbers(7, "net"));
        assert_ne!(numbers(7, "net"), numbers(7, "life"));
        assert_ne!(numbers(7, "net"), numbers(8, "net"));
    }

    #[test]
    fn an_empty_range_has_its_first_number() {
        let mut dice = Dice::new(0, "");
        assert_eq!((dice.below(0), dice.between(5, 5)), (0, 5));
    }
}
