//! Live samples of a running rank, about one in a second.
//!
//! A [`Sampler`] follows a rank's recorder and adds up what it finds; nothing is counted where events are recorded. It
//! makes a [`LiveSample`]: totals since the rank began ([`Counts`]), what it is doing right now, and its last stall. It
//! travels as bytes, so the processes that forward it need not decode it. [`SampleRates`] is what lies between two of
//! them.

mod sample;
mod sampler;

pub use sample::{Counts, LiveSample, SampleRates, Stall};
pub use sampler::Sampler;
