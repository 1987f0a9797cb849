//! Agreement among simulated ranks.

mod patterns;
mod programs;
mod sim;
mod stories;
