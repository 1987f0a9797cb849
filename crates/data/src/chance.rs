//! Numbers by chance that are the same everywhere.
//!
//! A [`Chance`] is a stream of numbers that is named by words: a seed, an epoch, the number of a sample. Equal words
//! give equal streams, on every rank and in every thread, and streams of different words have nothing to do with each
//! other, so that a sample can be made without any other having been made. The n-th number is a hash of the stream's
//! key and of n, by the mixing function of SplitMix64: no state to warm up, and a few cycles for 64 bits.
//!
//! What is deliberately not here: anything that has to stay secret.

/// What a stream is for. Streams of one seed with different purposes are different ones. The numbers decide what all
/// generated data looks like.
#[derive(Clone, Copy, Debug)]
pub enum StreamPurpose {
    /// The order of samples in an epoch.
    Order = 1,
    /// How a sample is changed before it is learned from.
    Augmentation = 2,
    /// What a generated sample of the training split is.
    TrainSample = 3,
    /// What a generated sample of the test split is.
    TestSample = 4,
    /// What is the same for all samples of a generated data set, such as the spectrum of a kind of land.
    World = 5,
    /// Which files of a folder are for tests.
    Split = 6,
    /// Which files of a folder are used, where not all are wanted.
    Choice = 7,
}

/// A stream of numbers. See the module's text.
#[derive(Clone, Debug)]
pub struct Chance {
    key: u64,
    drawn: u64,
}

/// 2^64 divided by the golden ratio, odd: multiples of it spread evenly over all 64-bit numbers.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The mixing function of SplitMix64: a bijection in which every bit of the input changes about half of the output's.
pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Chance {
    /// The stream of a seed, a purpose and two more words.
    pub fn new(seed: u64, purpose: StreamPurpose, first: u64, second: u64) -> Chance {
        let words = [seed, purpose as u64, first, second];
        let key =
            words.into_iter().fold(0, |key: u64, word| mix(key.wrapping_add(STRIDE) ^ mix(word.wrapping_add(STRIDE))));
        Chance { key, drawn: 0 }
    }

    /// A stream of its own for each number, which has nothing to do with the others or with what this one draws next.
    pub fn stream(&self, number: u64) -> Chance {
        let words = [self.drawn, number];
        let key = words.into_iter().fold(self.key, |key, word| mix(key.wrapping_add(STRIDE) ^ mix(word ^ STRIDE)));
        Chance { key, drawn: 0 }
    }

    /// 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(STRIDE);
        mix(self.key.wrapping_add(self.drawn))
    }

    /// A number from 0 up to, but not, 1.
    #[inline]
    pub fn share(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// A number between two others.
    #[inline]
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.share()
    }

    /// One of the numbers below `count`, which is not zero.
    #[inline]
    pub fn below(&mut self, count: usize) -> usize {
        // The upper half of the product: uniform up to 2^-64 times `count`, which nobody can see.
        ((u128::from(self.bits()) * count as u128) >> 64) as usize
    }

    /// Whether something happens that has this probability.
    #[inline]
    pub fn happens(&mut self, probability: f32) -> bool {
        self.share() < probability
    }

    /// A direction: cosine and sine of any angle.
    pub fn direction(&mut self) -> (f32, f32) {
        let angle = self.between(0.0, std::f32::consts::TAU);
        (angle.cos(), angle.sin())
    }

    /// About normal, with zero mean and unit deviation: the sum of the four quarters of a word. Never beyond 3.5, which
    /// does for noise.
    #[inline]
    pub fn noise(&mut self) -> f32 {
        let word = self.bits();
        let sum = (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
        // Each quarter has the variance 65536^2 / 12, so the sum has the deviation 65536 / sqrt(3).
        (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
    }

    /// Normal, with zero mean and unit deviation (Box and Muller).
    pub fn normal(&mut self) -> f32 {
        let (radius, angle) = (1.0 - self.share(), self.between(0.0, std::f32::consts::TAU));
        (-2.0 * radius.ln()).sqrt() * angle.cos()
    }

    /// From the Beta distribution with both parameters `alpha` > 0: near 0 or 1 for a small `alpha`, around a half for
    /// a large one.
    pub fn beta(&mut self, alpha: f32) -> f32 {
        let (first, second) = (self.log_gamma_variate(alpha), self.log_gamma_variate(alpha));
        // With a tiny `alpha` both variates are too small for a float, but their ratio is not.
        1.0 / (1.0 + (second - first).exp())
    }

    /// The logarithm of a variate of the Gamma distribution (Marsaglia and Tsang; below 1 by way of `alpha + 1`).
    fn log_gamma_variate(&mut self, alpha: f32) -> f32 {
        if alpha < 1.0 {
            let power = (1.0 - self.share()).ln() / alpha;
            return self.log_gamma_variate(alpha + 1.0) + power;
        }
        let d = alpha - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.share()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return (d * v).ln();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: impl Iterator<Item = f32>) -> (f64, f64) {
        let values: Vec<f64> = values.map(f64::from).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance)
    }

    #[test]
    fn streams_are_told_apart_by_each_of_their_words() {
        let first = |seed, purpose, a, b| Chance::new(seed, purpose, a, b).bits();
        let all = [
            first(1, StreamPurpose::Order, 2, 3),
            first(2, StreamPurpose::Order, 2, 3),
            first(1, StreamPurpose::Split, 2, 3),
            first(1, StreamPurpose::Order, 3, 2),
            first(1, StreamPurpose::Order, 2, 4),
        ];
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(all[0], first(1, StreamPurpose::Order, 2, 3));
    }

    #[test]
    fn streams_of_a_stream_are_told_apart_by_number_and_by_what_was_drawn_before() {
        let mut chance = Chance::new(1, StreamPurpose::Augmentation, 2, 3);
        let mut all: Vec<u64> = (0..100).map(|number| chance.stream(number).bits()).collect();
        assert_eq!(all[7], chance.stream(7).bits());
        all.push(chance.bits());
        all.extend((0..100).map(|number| chance.stream(number).bits()));
        let distinct: std::collections::BTreeSet<u64> = all.iter().copied().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn distributions_have_their_moments() {
        let mut chance = Chance::new(7, StreamPurpose::World, 0, 0);
        let (mean, variance) = moments((0..40_000).map(|_| chance.share()));
        assert!((mean - 0.5).abs() < 0.01 && (variance - 1.0 / 12.0).abs() < 0.003, "{mean} {variance}");
        let (mean, variance) = moments((0..40_000).map(|_| chance.noise()));
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
        let (mean, variance) = moments((0..40_000).map(|_| chance.normal()));
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
        for alpha in [0.001, 0.2, 1.0, 4.0] {
            let (mean, variance) = moments((0..40_000).map(|_| chance.beta(alpha)));
            let expected = 1.0 / (4.0 * (2.0 * f64::from(alpha) + 1.0));
            assert!((mean - 0.5).abs() < 0.02 && (variance - expected).abs() < 0.01, "{alpha}: {mean} {variance}");
        }
    }

    #[test]
    fn below_reaches_every_number_and_no_other() {
        let mut chance = Chance::new(7, StreamPurpose::World, 0, 0);
        let mut seen = [0; 7];
        (0..7_000).for_each(|_| seen[chance.below(7)] += 1);
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
    }
}
