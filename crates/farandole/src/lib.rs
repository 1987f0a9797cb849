//! Data parallelism for Rust programs: collectives over many processes.
