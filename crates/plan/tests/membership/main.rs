//! The agreement on generations over a simulated network: thousands of jobs with faults, by seed, and some stories.
//!
//! `FARANDOLE_MEMBERSHIP_SEEDS=5000000` runs so many in each test, `FARANDOLE_MEMBERSHIP_SEED=17` one alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agents;
mod mutations;
mod network;
mod node;
mod random;
mod replays;
mod seeds;
mod sim;
mod stories;
mod watch;
mod weather;
