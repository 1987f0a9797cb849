//! The decisions of `farandole calibrate`: what competes with what ([`contest`]), who gets how many rounds
//! ([`rounds`]), what the times mean and the table that follows ([`verdict`]), and how it is shown ([`summary`]).

pub mod contest;
pub mod rounds;
pub mod summary;
pub mod verdict;
