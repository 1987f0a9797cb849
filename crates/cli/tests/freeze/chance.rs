//! Numbers by chance that a seed repeats (SplitMix64).

/// A sequence of numbers.
pub(crate) struct Chance(u64);

impl Chance {
    /// Another sequence for each seed and number.
    pub(crate) fn new(seed: u64, number: u64) -> Chance {
        let mut chance = Chance(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        chance.next();
        chance
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most.max(least) - least + 1)
    }

    /// Whether a case has come that comes once in so many.
    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.between(1, many) == 1
    }

    /// Brings things into any order.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.between(0, last as u64) as usize);
        }
    }
}
