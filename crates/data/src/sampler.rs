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
//!
//! Where reading at random is slow, samples can be *shuffled with locality*: blocks of consecutive samples come in a
//! random order, and then the samples within each *window* of several blocks. At any time only the blocks of one window
//! are read from. Both are bijections of the same kind, so this is as free as the other.

use std::ops::Range;

use crate::chance::{Chance, StreamPurpose, mix};

/// In what order samples come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOrder {
    /// Another one in each epoch.
    Shuffled,
    /// By their numbers.
    InOrder,
    /// Another one in each epoch, in which samples that come at about the same time lie in few places. See the module's
    /// text.
    ShuffledNearby {
        /// Consecutive samples that stay in one window; not zero. What one read of the storage brings is sensible.
        block: usize,
        /// Blocks that are mixed with each other; not zero.
        window: usize,
    },
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
    law: Law,
}

#[derive(Clone, Debug)]
enum Law {
    InOrder,
    Shuffled(Feistel),
    Nearby(Nearby),
}

impl Permutation {
    /// The order of so many samples in an epoch.
    pub fn new(order: SampleOrder, seed: u64, epoch: u64, length: usize) -> Permutation {
        let length = length as u64;
        let mut chance = Chance::new(seed, StreamPurpose::Order, epoch, length);
        let law = match order {
            SampleOrder::InOrder => Law::InOrder,
            SampleOrder::Shuffled => Law::Shuffled(Feistel::new(length, &mut chance)),
            SampleOrder::ShuffledNearby { block, window } => {
                Law::Nearby(Nearby::new(length, block.max(1) as u64, window.max(1) as u64, chance))
            }
        };
        Permutation { length, law }
    }

    /// The sample at a position.
    ///
    /// # Panics
    /// If there is no such position.
    pub fn at(&self, position: usize) -> usize {
        let position = position as u64;
        assert!(position < self.length, "positions of an epoch end with its samples");
        let sample = match &self.law {
            Law::InOrder => position,
            Law::Shuffled(feistel) => feistel.forward(position),
            Law::Nearby(nearby) => nearby.at(position),
        };
        sample as usize
    }
}

/// Blocks in a random order, and samples in a random order within windows of blocks.
///
/// The blocks come in the order of `blocks`: in the *slot* `s` stands block `blocks(s)`, and a window is `window`
/// slots. The last block of the data set may be short. It stands in some slot, `short_slot`, and `gap` samples are
/// missing there; whatever comes behind it stands that much further in front than if all blocks were whole.
#[derive(Clone, Debug)]
struct Nearby {
    block: u64,
    /// Samples of a window without a gap.
    window_samples: u64,
    length: u64,
    blocks: Feistel,
    /// What the short block lacks; less than a block.
    gap: u64,
    /// Where its samples end in an order without gaps.
    short_end: u64,
    chance: Chance,
}

impl Nearby {
    fn new(length: u64, block: u64, window: u64, mut chance: Chance) -> Nearby {
        let count = length.div_ceil(block);
        let blocks = Feistel::new(count, &mut chance);
        let gap = (u128::from(count) * u128::from(block) - u128::from(length)) as u64;
        let short_slot = if count == 0 { 0 } else { blocks.backward(count - 1) };
        let short_end = (short_slot * block).saturating_add(block - gap);
        Nearby { block, window_samples: block.saturating_mul(window), length, blocks, gap, short_end, chance }
    }

    fn at(&self, position: u64) -> u64 {
        let window = self.spread(position) / self.window_samples;
        let begin = self.closed(window.saturating_mul(self.window_samples));
        let end = self.closed((window + 1).saturating_mul(self.window_samples)).min(self.length);
        // Windows have streams of their own, each named by a word of the order's stream.
        let mut chance = Chance::new(self.chance.clone().bits(), StreamPurpose::Order, window, end - begin);
        let within = Feistel::new(end - begin, &mut chance).forward(position - begin);
        let place = self.spread(begin + within);
        self.blocks.forward(place / self.block) * self.block + place % self.block
    }

    /// A place as if all blocks were whole.
    fn spread(&self, position: u64) -> u64 {
        if position < self.short_end { position } else { position + self.gap }
    }

    /// A slot's begin, as the blocks are.
    fn closed(&self, place: u64) -> u64 {
        if place < self.short_end { place } else { place - self.gap }
    }
}

/// A random bijection of the numbers below a length, by a Feistel network over twice half the bits of the length. Its
/// values beyond the length are sent through it again: at most four times the length has values, so this takes four
/// turns on average at worst, and ends, because following a bijection from a valid value leads to a valid one.
#[derive(Clone, Debug)]
struct Feistel {
    length: u64,
    /// Bits of each of the two halves.
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Feistel {
    fn new(length: u64, chance: &mut Chance) -> Feistel {
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        Feistel { length, half_bits: bits.div_ceil(2).max(1), keys: std::array::from_fn(|_| chance.bits()) }
    }

    fn forward(&self, mut value: u64) -> u64 {
        loop {
            value = self.network(value);
            if value < self.length {
                return value;
            }
        }
    }

    fn backward(&self, mut value: u64) -> u64 {
        loop {
            value = self.inverse(value);
            if value < self.length {
                return value;
            }
        }
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in &self.keys {
            (left, right) = (right, left ^ (mix(right.wrapping_add(*key)) & mask));
        }
        left << self.half_bits | right
    }

    fn inverse(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys.iter().rev() {
            (left, right) = (right ^ (mix(left.wrapping_add(*key)) & mask), left);
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

        #[test]
        fn samples_that_are_shuffled_nearby_come_once_and_lie_in_few_blocks(
            length in 1usize..2_000,
            block in 1usize..70,
            window in 1usize..9,
            seed: u64,
            epoch: u64,
        ) {
            let order = Permutation::new(SampleOrder::ShuffledNearby { block, window }, seed, epoch, length);
            let samples: Vec<usize> = (0..length).map(|position| order.at(position)).collect();
            let mut sorted = samples.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..length).collect::<Vec<_>>());
            // Each block's samples lie within one window, and no window has samples of more blocks than it may have.
            let mut of_block = vec![(usize::MAX, 0); length.div_ceil(block)];
            for (position, sample) in samples.iter().enumerate() {
                let (first, last) = &mut of_block[sample / block];
                (*first, *last) = ((*first).min(position), (*last).max(position));
            }
            for (first, last) in of_block {
                prop_assert!(last - first < block * window, "a block from {} to {}", first, last);
                let blocks: std::collections::BTreeSet<usize> = samples[first..=last].iter().map(|sample| sample / block).collect();
                prop_assert!(blocks.len() <= window, "{} blocks in a window", blocks.len());
            }
        }

        #[test]
        fn a_network_is_undone_backwards(length in 1u64..5_000, seed: u64) {
            let feistel = Feistel::new(length, &mut Chance::new(seed, StreamPurpose::Order, 0, 0));
            for value in 0..length.min(50) {
                prop_assert_eq!(feistel.backward(feistel.forward(value)), value);
            }
        }
    }

    #[test]
    fn orders_nearby_differ_by_epoch_and_mix_within_their_windows() {
        let take = |epoch| -> Vec<usize> {
            let order = SampleOrder::ShuffledNearby { block: 10, window: 10 };
            let order = Permutation::new(order, 1, epoch, 1_000);
            (0..1_000).map(|position| order.at(position)).collect()
        };
        let samples = take(0);
        assert_ne!(samples, take(1));
        assert_eq!(samples, take(0));
        // The first window is ten blocks from all over the data set, well mixed.
        let blocks: std::collections::BTreeSet<usize> = samples[..100].iter().map(|sample| sample / 10).collect();
        assert_eq!(blocks.len(), 10);
        assert!(blocks.last().unwrap() - blocks.first().unwrap() > 50, "{blocks:?}");
        let together = samples[..100].windows(2).filter(|pair| pair[0] / 10 == pair[1] / 10).count();
        assert!(together < 25, "{together} of 99 neighbours are of one block");
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
        let order = SampleOrder::ShuffledNearby { block: 4_096, window: 64 };
        assert!(Permutation::new(order, 1, 0, length).at(length - 1) < length);
        let order = SampleOrder::ShuffledNearby { block: usize::MAX, window: usize::MAX };
        assert!(Permutation::new(order, 1, 0, length).at(length - 1) < length);
    }
}
