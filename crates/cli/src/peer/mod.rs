//! The contestants that farandole is measured against, and how each of them is started.
//!
//! A peer runs as its users run it: MPI ranks under its own `mpirun`, Gloo under PyTorch. Nothing is linked: an MPI
//! library is opened at run time by the hidden subcommand `bench-peer`, Gloo lives in a Python program that this binary
//! carries. How peers come onto a machine is no concern of this module; `cargo xtask peers` knows.

mod agent;
#[allow(unsafe_code)]
pub(crate) mod mpi;
pub(crate) mod once;
pub(crate) mod start;
