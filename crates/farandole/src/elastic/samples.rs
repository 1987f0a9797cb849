//! Which samples a rank takes, so that over an epoch every sample is used once, whoever leaves and joins.
//!
//! The *order* of an epoch is a permutation of all samples that follows from seed and epoch, so every rank has it. What
//! has been used is a [`SamplePlace`]: the samples before its position are in the state, those behind it are not. A
//! step takes the next samples of the order; of these, rank r of w takes every w-th, beginning with the r-th. So the
//! place says everything, and what lies behind it can be dealt to any other number of ranks.
//!
//! A rank without a sample has nothing to compute, so where the last step of an epoch would have fewer samples than
//! there are ranks, they go to the step before it. Only if ranks join in the last moment of an epoch, and fewer samples
//! than ranks are left of it, some ranks have none.
//!
//! Pure: no clock, no I/O; where a training is, is a parameter.

use crate::error::{Error, Result};

/// The samples of a training, and how many of them a step takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    count: usize,
    batch: BatchSize,
    seed: Option<u64>,
}

/// What becomes of the batch when the number of ranks changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchSize {
    EachRank(usize),
    Total(usize),
}

/// How far a training is in its samples. When the last sample of an epoch is used, the next epoch begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SamplePlace {
    /// Epochs that are complete.
    pub epoch: u64,
    /// Samples of the next one that are used, in its order.
    pub position: usize,
}

impl Samples {
    /// `count` samples, of which each rank takes `batch` in a step: with fewer ranks, the batch of all is smaller.
    /// Multiply the learning rate by [`StepBatch::rate_factor`] to scale it with the batch.
    pub fn for_each_rank(count: usize, batch: usize) -> Samples {
        Samples { count, batch: BatchSize::EachRank(batch), seed: None }
    }

    /// `count` samples, of which all ranks together take `total` in a step, however many there are: with fewer ranks,
    /// each takes more, in several passes if need be ([`StepBatch::passes`]). The learning rate stays.
    pub fn for_all_ranks(count: usize, total: usize) -> Samples {
        Samples { count, batch: BatchSize::Total(total), seed: None }
    }

    /// The same in another order in each epoch.
    pub fn shuffled(self, seed: u64) -> Samples {
        Samples { seed: Some(seed), ..self }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    pub(super) fn check(&self) -> Result<()> {
        let (BatchSize::EachRank(batch) | BatchSize::Total(batch)) = self.batch;
        if self.count == 0 || batch == 0 {
            let count = self.count;
            return Err(Error::Parts(format!("{count} samples in batches of {batch}: both must be 1 or more")));
        }
        Ok(())
    }

    /// The samples in the order of an epoch.
    pub(super) fn order(&self, epoch: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.count).collect();
        if let Some(seed) = self.seed {
            let mut random = seed ^ mixed(epoch.wrapping_add(1));
            for last in (1..order.len()).rev() {
                random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                // Which of the samples up to the last one comes last: a random fraction of their number.
                let chosen = (u128::from(mixed(random)) * (last as u128 + 1)) >> 64;
                order.swap(last, chosen as usize);
            }
        }
        order
    }

    /// Where the step ends that begins at a position.
    pub fn step_end(&self, position: usize, ranks: usize) -> usize {
        let length = match self.batch {
            BatchSize::EachRank(batch) => batch.saturating_mul(ranks),
            BatchSize::Total(total) => total,
        };
        let end = position.saturating_add(length);
        if end.saturating_add(ranks) > self.count { self.count } else { end }
    }

    /// How many steps the samples from the first one on make.
    pub fn steps(&self, ranks: usize) -> usize {
        let (mut position, mut steps) = (0, 0);
        while position < self.count {
            (position, steps) = (self.step_end(position, ranks), steps + 1);
        }
        steps
    }

    /// The place after a step.
    pub(super) fn after(&self, place: SamplePlace, ranks: usize) -> SamplePlace {
        match self.step_end(place.position, ranks) {
            end if end >= self.count => SamplePlace { epoch: place.epoch + 1, position: 0 },
            end => SamplePlace { position: end, ..place },
        }
    }

    /// By how much the batch of all has grown since the training began with `founders` ranks.
    fn growth(&self, ranks: usize, founders: usize) -> f64 {
        match self.batch {
            BatchSize::EachRank(_) => ranks as f64 / founders.max(1) as f64,
            BatchSize::Total(_) => 1.0,
        }
    }
}

/// SplitMix64's output function: every bit of the input changes about half of the output's.
fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// What one rank works on in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepBatch {
    /// Steps that were made before this one, since the training began.
    pub step: u64,
    /// The epoch, from zero.
    pub epoch: u64,
    /// The samples of this rank; none for a training without [`Samples`].
    pub samples: Vec<usize>,
    /// How many samples all ranks have together.
    pub total: usize,
    /// Number of ranks.
    pub ranks: usize,
    rate_factor: f64,
}

impl StepBatch {
    pub(super) fn of(
        samples: Option<&Samples>,
        order: &[usize],
        (rank, ranks, founders): (usize, usize, usize),
        (step, place): (u64, SamplePlace),
    ) -> StepBatch {
        let Some(samples) = samples else {
            let rate_factor = ranks as f64 / founders.max(1) as f64;
            return StepBatch { step, epoch: place.epoch, samples: Vec::new(), total: 0, ranks, rate_factor };
        };
        let all = order.get(place.position..samples.step_end(place.position, ranks)).unwrap_or(&[]);
        let own = all.iter().skip(rank).step_by(ranks).copied().collect();
        let rate_factor = samples.growth(ranks, founders);
        StepBatch { step, epoch: place.epoch, samples: own, total: all.len(), ranks, rate_factor }
    }

    /// This rank's samples in passes of `most` at most, for steps that accumulate gradients.
    pub fn passes(&self, most: usize) -> impl Iterator<Item = &[usize]> {
        self.samples.chunks(most.max(1))
    }

    /// What this rank multiplies its *mean* gradient by, so that the average over ranks is the mean over all samples of
    /// the step, also where ranks have different numbers of samples.
    pub fn weight(&self) -> f64 {
        if self.total == 0 { 1.0 } else { (self.samples.len() * self.ranks) as f64 / self.total as f64 }
    }

    /// What the learning rate is multiplied by to follow the batch of all ranks (linear scaling): ranks of now by ranks
    /// of the beginning, or 1 if the batch of all stays the same.
    pub fn rate_factor(&self) -> f64 {
        self.rate_factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks through epochs with as many ranks in each step as `ranks` says; returns how often each sample was used.
    fn walk(samples: &Samples, epochs: u64, mut ranks: impl FnMut(u64) -> usize) -> Vec<usize> {
        let (mut place, mut used, mut step) = (SamplePlace::default(), vec![0; samples.count()], 0);
        while place.epoch < epochs {
            let (order, now) = (samples.order(place.epoch), ranks(step));
            let batch = |rank| StepBatch::of(Some(samples), &order, (rank, now, 4), (step, place));
            let batches: Vec<StepBatch> = (0..now).map(batch).collect();
            let weights: f64 = batches.iter().map(StepBatch::weight).sum();
            assert!((weights - now as f64).abs() < 1e-9, "weights are one on average");
            assert_eq!(batches.iter().map(|batch| batch.samples.len()).sum::<usize>(), batches[0].total);
            batches.iter().flat_map(|batch| &batch.samples).for_each(|sample| used[*sample] += 1);
            let after = samples.after(place, now);
            assert!(after > place, "a step goes on");
            (place, step) = (after, step + 1);
        }
        used
    }

    #[test]
    fn every_sample_is_used_once_in_an_epoch_whoever_comes_and_goes() {
        for count in 1..120 {
            for size in [1, 3, 8] {
                for samples in [Samples::for_each_rank(count, size), Samples::for_all_ranks(count, 4 * size)] {
                    let samples = samples.shuffled(count as u64);
                    assert_eq!(walk(&samples, 3, |step| 1 + (step as usize * 7 + count) % 5), vec![3; count]);
                }
            }
        }
    }

    #[test]
    fn with_the_same_ranks_nobody_is_without_samples() {
        for count in 5..60 {
            let samples = Samples::for_each_rank(count, 4);
            let mut place = SamplePlace::default();
            while place.epoch == 0 {
                let order = samples.order(0);
                assert!((0..5).all(|rank| {
                    !StepBatch::of(Some(&samples), &order, (rank, 5, 5), (0, place)).samples.is_empty()
                }));
                place = samples.after(place, 5);
            }
        }
    }

    #[test]
    fn orders_differ_by_epoch_and_seed_and_are_permutations() {
        let samples = Samples::for_each_rank(100, 1).shuffled(7);
        let mut order = samples.order(0);
        assert_ne!(order, samples.order(1));
        assert_ne!(order, samples.shuffled(8).order(0));
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
        assert_eq!(Samples::for_each_rank(100, 1).order(5), order);
    }

    #[test]
    fn the_learning_rate_follows_the_batch_or_the_batch_stays() {
        let of = |samples: Samples, ranks| {
            StepBatch::of(Some(&samples), &samples.order(0), (0, ranks, 4), (0, SamplePlace::default()))
        };
        let (each, all) = (Samples::for_each_rank(64, 8), Samples::for_all_ranks(64, 32));
        assert_eq!((of(each, 2).total, of(each, 2).rate_factor()), (16, 0.5));
        assert_eq!((of(all, 2).total, of(all, 2).rate_factor()), (32, 1.0));
        assert_eq!(of(all, 2).passes(8).map(<[usize]>::len).collect::<Vec<_>>(), [8, 8]);
        let without = StepBatch::of(None, &[], (1, 3, 4), (5, SamplePlace::default()));
        assert_eq!((without.rate_factor(), without.weight()), (0.75, 1.0));
        assert!(Samples::for_each_rank(3, 0).check().is_err() && Samples::for_each_rank(0, 1).check().is_err());
    }
}
