//! A running rank as others may see it: a small sample of what it does, about once in a second.
//!
//! A [`Sampler`] follows a rank's recorder and adds up what it finds; nothing is counted where events are recorded.
//! What comes out is a [`Sample`]: totals since the rank began ([`Counts`]), what it is doing right now, and its last
//! stall. It travels as bytes, so whoever passes it on need not know what is in it. [`Rates`] is what lies between two
//! of them.

mod sample;
mod sampler;

pub use sample::{Counts, Rates, Sample, Stall};
pub use sampler::Sampler;
