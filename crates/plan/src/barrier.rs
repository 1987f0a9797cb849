//! Barrier: nobody leaves before everybody has come.
//!
//! Dissemination: in round `k`, at *distance* `d = 2^k`, every rank sends an empty message to the rank `d` places after
//! it and waits for one from the rank `d` places before it. A rank that has finished round `k` knows that the `2 d - 1`
//! ranks before it have come; after `ceil(log2 n)` rounds that is everybody, for every `n`.
//!
//! Steps: `ceil(log2 n)`. Bytes: none but headers. These are the only messages of length zero in the crate.

use crate::request::Rank;
use crate::schedule::{Arrival, Buffer, Schedule, Span, Step};

/// Steps of rank `me` in a barrier of `n` ranks.
pub fn barrier(n: usize, me: Rank) -> Schedule {
    let nothing = Span { start: 0, len: 0 };
    let mut steps = Vec::new();
    let mut distance = 1;
    while distance < n {
        let after = Rank::from((me.index() + distance) % n);
        let before = Rank::from((me.index() + n - distance) % n);
        steps.push(Step::Send { to: after, from: Buffer::Work, span: nothing });
        steps.push(Step::Recv { from: before, span: nothing, arrival: Arrival::Place });
        distance *= 2;
    }
    Schedule::new(steps)
}
