//! Schedules of all ranks are run symbolically: those that the crate makes are right, and spoilt ones are found out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod flaws;
mod proofs;
mod verify;
