//! Which samples a rank takes in which step.
//!
//! In each epoch there is one order of all samples, made of the seed and the epoch's number and of nothing else. Step
//! `s` takes the *global batch*, the positions from `s * B` to `(s + 1) * B` of that order, where `B` is the batch of
//! one rank times the number of ranks with which training began; rank `r` takes the `r`-th of as many contiguous slices
//! of it as there are ranks. So two ranks with
//! batch 32 see together exactly what one rank sees with batch 64, and a run can go on with another number of ranks in
//! the middle of an epoch. The last global batch may be short. It is cut as evenly as can be, and a rank may get
//! nothing at all; but every rank knows how many steps there are, and how many samples all ranks have.
//!
//! The order is a bijection that is computed and never stored (a Feistel network, whose values beyond the number of
//! samples are sent through it again), so a data set of a billion samples needs no memory for it and starting at any
//! step is free.

use std::ops::Range;

use super::chance::{Chance, StreamPurpose, mix};

/// In what order samples come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOrder {
    /// Another one in each epoch.
    Shuffled,
    /// By their numbers.
    InOrder,
}

/// The share of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Shard {
    /// Which rank.
    pub rank: usize,
    /// Of how many; not zero.
    pub world_size: usize,
    /// Samples of all ranks in one step, but for the last one; not zero.
    pub global_batch: usize,
    /// Samples of the data set.
    pub length: usize,
}

impl Shard {
    /// Steps of an epoch: the same on all ranks.
    pub fn steps(&self) -> usize {
        self.length.div_ceil(self.global_batch)
    }

    /// The positions that all ranks together take in a step.
    pub fn global_positions(&self, step: usize) -> Range<usize> {
        let begin = step.saturating_mul(self.global_batch).min(self.length);
        begin..begin.saturating_add(self.global_batch).min(self.length)
    }

    /// The positions that this rank takes in a step.
    pub fn positions(&self, step: usize) -> Range<usize> {
        let global = self.global_positions(step);
        let cut = |rank: usize| {
            // As wide as the product can be: lengths are counted in 64 bits.
            global.start + (global.len() as u128 * rank as u128 / self.world_size as u128) as usize
        };
        cut(self.rank)..cut(self.rank + 1)
    }
}

/// Rounds of the network. Four make a permutation that looks random to whoever does not look for a pattern; small data
/// sets have small halves, which need some more.
const ROUNDS: usize = 8;

/// Which sample stands at which position of an epoch. See the module's text.
#[derive(Clone, Debug)]
pub struct Permutation {
    length: u64,
    /// Bits of each of the two halves.
    half_bits: u32,
    keys: Option<[u64; ROUNDS]>,
}

impl Permutation {
    /// The order of so many samples in an epoch.
    pub fn new(order: SampleOrder, seed: u64, epoch: u64, length: usize) -> Permutation {
        let mut chance = Chance::new(seed, StreamPurpose::Order, epoch, length as u64);
        let keys = (order == SampleOrder::Shuffled).then(|| std::array::from_fn(|_| chance.bits()));
        let length = length as u64;
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        Permutation { length, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// The sample at a position.
    ///
    /// # Panics
    /// If there is no such position.
    pub fn at(&self, position: usize) -> usize {
        assert!((position as u64) < self.length, "positions of an epoch end with its samples");
        let Some(keys) = &self.keys else { return position };
        let mut value = position as u64;
        loop {
            // At most four times the length has values, so this takes four turns on average at worst, and ends: the
            // network is a bijection, and following it from a valid value leads to a valid one.
            value = self.network(keys, value);
            if value < self.length {
                return value as usize;
            }
        }
    }

    fn network(&self, keys: &[u64; ROUNDS], value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in keys {
            (left, right) = (right, left ^ (mix(right.wrapping_add(*key)) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shard(rank: usize, world_size: usize, batch: usize, length: usize) -> Shard {
        Shard { rank, world_size, global_batch: batch * world_size, length }
    }

    proptest! {
        #[test]
        fn ranks_together_take_what_one_rank_takes(world_size in 1usize..9, batch in 1usize..12, length in 0usize..300) {
            let alone = shard(0, 1, batch * world_size, length);
            let ranks: Vec<Shard> = (0..world_size).map(|rank| shard(rank, world_size, batch, length)).collect();
            let mut next = 0;
            for step in 0..alone.steps() {
                prop_assert_eq!(alone.positions(step), alone.global_positions(step));
                let counts: Vec<usize> = ranks.iter().map(|rank| rank.positions(step).len()).collect();
                for rank in &ranks {
                    prop_assert_eq!(rank.steps(), alone.steps());
                    prop_assert_eq!(rank.global_positions(step), alone.positions(step));
                    prop_assert_eq!(rank.positions(step).start, next, "slices lie side by side");
                    prop_assert!(rank.positions(step).len() <= batch);
                    next = rank.positions(step).end;
                }
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                prop_assert!(most - least <= 1, "cut evenly: {:?}", counts);
            }
            prop_assert_eq!(next, length, "every position once");
        }

        #[test]
        fn every_sample_comes_once_in_an_epoch(length in 1usize..2_000, seed: u64, epoch: u64) {
            let order = Permutation::new(SampleOrder::Shuffled, seed, epoch, length);
            let mut seen = vec![false; length];
            for position in 0..length {
                prop_assert!(!std::mem::replace(&mut seen[order.at(position)], true));
            }
        }
    }

    #[test]
    fn orders_differ_by_epoch_and_by_seed_and_mix_well() {
        let take = |seed, epoch| -> Vec<usize> {
            let order = Permutation::new(SampleOrder::Shuffled, seed, epoch, 1_000);
            (0..1_000).map(|position| order.at(position)).collect()
        };
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
        let fixed = take(1, 0).iter().enumerate().filter(|(position, sample)| position == *sample).count();
        assert!(fixed < 10, "{fixed} of 1000 samples stayed where they were");
        // Neighbours are far apart: the mean distance of two random places is a third of the length.
        let distance: usize = take(3, 0).windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum();
        assert!((300..370).contains(&(distance / 999)), "{}", distance / 999);
        assert_eq!(Permutation::new(SampleOrder::InOrder, 1, 1, 10).at(7), 7);
    }

    #[test]
    fn even_three_samples_come_in_all_orders() {
        let orders: std::collections::BTreeSet<[usize; 3]> = (0..200)
            .map(|epoch| {
                let order = Permutation::new(SampleOrder::Shuffled, 5, epoch, 3);
                [order.at(0), order.at(1), order.at(2)]
            })
            .collect();
        assert_eq!(orders.len(), 6);
    }

    #[test]
    fn a_billion_samples_need_no_memory() {
        let length = 1_000_000_007;
        let order = Permutation::new(SampleOrder::Shuffled, 1, 0, length);
        let rank = shard(3, 7, 64, length);
        let last = rank.steps() - 1;
        assert!(rank.positions(last).end <= length);
        assert!(order.at(length - 1) < length);
    }
}
