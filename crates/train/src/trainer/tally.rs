//! What ranks tell each other in every step: a few numbers, added up.
//!
//! They leave before backward begins and have long arrived when it is over, so that they cost nothing. They are sums in
//! `f64`, the same on all ranks bit by bit, which is why all ranks may decide by them.

use farandole::{Pending, ReduceOp, World};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The name under which the numbers travel.
const NAME: &str = "farandole.train.tally";

/// Sums over ranks, and over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sums {
    /// The losses of all samples.
    pub(super) losses: f64,
    /// How many samples there were.
    pub(super) samples: f64,
    /// Samples that could not be read.
    pub(super) replaced: f64,
    /// Ranks that were asked to stop.
    pub(super) stops: f64,
    /// Ranks whose own loss is not finite.
    pub(super) infinite: f64,
    /// How long this rank took; not a sum over ranks.
    pub(super) seconds: f64,
}

impl Sums {
    /// The mean loss of a sample.
    pub(super) fn loss(&self) -> f64 {
        self.losses / self.samples.max(1.0)
    }

    /// Adds another step.
    pub(super) fn add(&mut self, other: &Sums) {
        self.losses += other.losses;
        self.samples += other.samples;
        self.replaced += other.replaced;
        self.stops += other.stops;
        self.infinite += other.infinite;
        self.seconds += other.seconds;
    }
}

/// Numbers on their way.
pub(super) struct Tally {
    sums: Pending<Vec<f64>>,
    seconds: f64,
}

impl Tally {
    /// Sends this rank's numbers.
    pub(super) fn send(world: &World, own: &Sums) -> Result<Tally> {
        let numbers = vec![own.losses, own.samples, own.replaced, own.stops, own.infinite];
        let sums = world.named(NAME).allreduce(numbers, ReduceOp::Sum)?;
        Ok(Tally { sums, seconds: own.seconds })
    }

    /// Waits for the sums of all ranks.
    pub(super) fn wait(self) -> Result<Sums> {
        let sums = self.sums.wait()?;
        let [losses, samples, replaced, stops, infinite] = sums[..] else {
            unreachable!("invariant: sums are as many as there were numbers")
        };
        Ok(Sums { losses, samples, replaced, stops, infinite, seconds: self.seconds })
    }
}

/// The error that all ranks end with when a loss is not finite; they call this together.
pub(super) fn not_finite(world: &mut World, epoch: u64, step: u64, own: bool) -> Error {
    let mut guilty = vec![0_u8; world.size()];
    guilty[world.rank()] = u8::from(own);
    match world.allreduce(&mut guilty, ReduceOp::Sum) {
        Err(error) => error.into(),
        Ok(()) => {
            let ranks = guilty.iter().enumerate().filter(|(_, guilty)| **guilty > 0).map(|(rank, _)| rank).collect();
            Error::NotFinite { epoch: epoch + 1, step: step + 1, ranks }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_is_that_of_a_sample_whatever_the_steps_were() {
        let mut sums = Sums::default();
        assert_eq!(sums.loss(), 0.0);
        sums.add(&Sums { losses: 30.0, samples: 10.0, ..Sums::default() });
        sums.add(&Sums { losses: 0.0, samples: 5.0, ..Sums::default() });
        assert!((sums.loss() - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_world_of_one_adds_up_to_itself() {
        let mut world = farandole::init().unwrap();
        let own = Sums { losses: 1.5, samples: 2.0, stops: 1.0, seconds: 0.25, ..Sums::default() };
        assert_eq!(Tally::send(&world, &own).unwrap().wait().unwrap(), own);
        let error = not_finite(&mut world, 2, 6, true).to_string();
        assert!(error.contains("step 7 of epoch 3") && error.contains("rank 0"), "{error}");
    }
}
