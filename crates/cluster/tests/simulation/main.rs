//! Whole jobs over a simulated network: thousands of runs with faults, by seed, and some stories.
//!
//! Each process runs the production endpoint (`farandole_cluster::membership`) without its thread: state machine,
//! connections, handshakes, queues and encodings are those of a real job. The first rank of each generation publishes
//! checkpoints with the production steps (`farandole_cluster::publish`). The network, the kernels, the disk and the
//! clock are simulated. One seed determines a run; a run has no threads and waits for nothing.
//!
//! Checked: one history of generations and one at work, each sample learned once, the end of each wait, and checkpoints
//! that are whole and of the history of their generation, also after a power cut.
//!
//! `FARANDOLE_SIMULATION_SEEDS=100000` runs as many seeds in each test, on all cores. `FARANDOLE_SIMULATION_SEED=17`
//! runs one seed and prints its events.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod channel;
mod disk;
mod faults;
mod kernel;
mod node;
#[path = "../../../plan/tests/membership/random.rs"]
mod random;
mod seeds;
mod witness;
mod world;
