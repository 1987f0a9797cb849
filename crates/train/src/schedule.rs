//! The learning rate of each step.
//!
//! A learning rate is given for one rank. Ranks that share a step make its batch larger, and a larger batch bears a
//! larger step: the *peak* is the learning rate times the number of ranks. It is not where training begins: during the
//! *warm-up* the rate rises to the peak in equal steps, afterwards it *decays*. Everything is a function of the number
//! of the step, so that a run that is resumed goes on with the rate at which it would have been anyway, and every rank
//! knows it without asking.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the learning rate falls once it has reached its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// It stays.
    None,
    /// To a tenth at one half, and to a hundredth at three quarters of all steps.
    Step,
    /// Along half a cosine, down to zero at the last step.
    Cosine,
}

/// What a step decay multiplies with at each of its places.
const STEP_FACTOR: f64 = 0.1;

/// Where a step decay falls, in parts of all steps: what the first residual networks were trained with.
const STEP_PLACES: [f64; 2] = [0.5, 0.75];

impl Decay {
    /// Every kind, by its name.
    pub const ALL: [(&'static str, Decay); 3] =
        [("none", Decay::None), ("step", Decay::Step), ("cosine", Decay::Cosine)];
}

impl FromStr for Decay {
    type Err = String;

    fn from_str(word: &str) -> Result<Decay, String> {
        let known = Decay::ALL.iter().find(|(name, _)| *name == word);
        known
            .map(|(_, decay)| *decay)
            .ok_or_else(|| format!("there is no decay `{word}`; there are none, step and cosine"))
    }
}

impl fmt::Display for Decay {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Decay::ALL.iter().find(|(_, decay)| decay == self).map_or("", |(name, _)| name);
        text.write_str(name)
    }
}

/// The learning rate of every step of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRateSchedule {
    /// The highest rate.
    pub peak: f64,
    /// Steps that it takes to get there.
    pub warmup_steps: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// How it falls afterwards.
    pub decay: Decay,
}

impl LearningRateSchedule {
    /// The rate at which a step is taken; steps count from zero. Steps beyond the last one have the rate of the last.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let step = step.min(self.total_steps.saturating_sub(1));
        match self.decay {
            Decay::None => self.peak,
            Decay::Step => {
                let done = step as f64 / self.total_steps.max(1) as f64;
                let falls = STEP_PLACES.iter().filter(|place| done >= **place).count();
                self.peak * STEP_FACTOR.powi(falls as i32)
            }
            Decay::Cosine => {
                // One more than there are, so that the last step still moves something.
                let length = (self.total_steps.saturating_sub(self.warmup_steps) + 1) as f64;
                let done = step.saturating_sub(self.warmup_steps) as f64 / length;
                self.peak * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decay: Decay) -> LearningRateSchedule {
        LearningRateSchedule { peak: 0.4, warmup_steps: 4, total_steps: 100, decay }
    }

    #[test]
    fn the_warm_up_rises_in_equal_steps_to_the_peak() {
        for decay in [Decay::None, Decay::Step, Decay::Cosine] {
            let rates: Vec<f64> = (0..5).map(|step| schedule(decay).rate(step)).collect();
            for (rate, expected) in rates.iter().zip([0.1, 0.2, 0.3, 0.4, 0.4]) {
                assert!((rate - expected).abs() < 1e-9, "{decay}: {rates:?}");
            }
        }
    }

    #[test]
    fn a_step_decay_falls_at_one_half_and_three_quarters() {
        let rate = |step| schedule(Decay::Step).rate(step);
        assert!((rate(49) - 0.4).abs() < 1e-12 && (rate(50) - 0.04).abs() < 1e-12 && (rate(75) - 0.004).abs() < 1e-12);
    }

    #[test]
    fn a_cosine_falls_all_the_way_and_the_last_step_still_counts() {
        let rates: Vec<f64> = (4..100).map(|step| schedule(Decay::Cosine).rate(step)).collect();
        assert!(rates.windows(2).all(|pair| pair[1] < pair[0]));
        assert!(rates[95] > 0.0 && rates[95] < 0.001, "{}", rates[95]);
        assert!((schedule(Decay::Cosine).rate(500) - rates[95]).abs() < 1e-15);
    }

    #[test]
    fn without_a_warm_up_the_first_step_has_the_peak() {
        let schedule = LearningRateSchedule { warmup_steps: 0, ..schedule(Decay::Cosine) };
        assert!((schedule.rate(0) - 0.4).abs() < 1e-12);
        assert!(LearningRateSchedule { total_steps: 0, ..schedule }.rate(0).is_finite());
    }

    #[test]
    fn names_of_decays_are_read_as_they_are_written() {
        for (name, decay) in Decay::ALL {
            assert_eq!((name.parse(), decay.to_string()), (Ok(decay), name.to_owned()));
        }
        assert!("linear".parse::<Decay>().unwrap_err().contains("cosine"));
    }
}
