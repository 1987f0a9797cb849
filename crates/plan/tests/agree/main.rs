//! Agreement among simulated ranks.

mod programs;
mod sim;
mod stories;
