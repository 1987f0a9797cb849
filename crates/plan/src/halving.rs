//! Recursive halving, then recursive doubling: least bytes in few steps.
//!
//! Extra members beyond a power of two `p` hand in first and get the result last, as in `doubling`. The active members
//! start with the whole span as their *share*. In round `k`, the two members whose seats differ in bit `k` cut their
//! common share into halves; the one with the lower seat keeps the first half, each sends the other the half it gives
//! up and folds what it gets into the half it keeps. After `log2 p` rounds, each has a complete `p`-th. Then the rounds
//! are undone in reverse: partners send each other their share and so have the double of it.
//!
//! The first round has the largest messages and the smallest distance, because neighbours tend to share a host.
//!
//! Steps: `2 log2 p`, and two more if there are extras. Bytes sent by each active member: `2 (p - 1) / p` of the span,
//! plus the span once for an extra and once for its stand-in. Every element is folded along one tree, so all ranks end
//! with the same bits.

use crate::algorithm::Tuning;
use crate::doubling::{Role, extra_steps, power_below, recv_all, role, seated, send_all};
use crate::schedule::{Arrival, Span, Step};
use crate::team::Team;

/// Allreduce of `span` among the team.
pub(crate) fn allreduce(team: &Team, span: Span, tuning: &Tuning) -> Vec<Step> {
    let (seat, extra) = match role(team) {
        Role::Extra { stand_in } => return extra_steps(stand_in, span, tuning),
        Role::Active { seat, extra } => (seat, extra),
    };
    let mut steps = Vec::new();
    if let Some(extra) = extra {
        recv_all(&mut steps, extra, span, Arrival::Fold, tuning);
    }
    let rounds = power_below(team.size()).ilog2();
    let mut share = span;
    // The half given up in each round, to be got back in reverse order.
    let mut given_up = Vec::new();
    for round in 0..rounds {
        let partner = seated(team, seat ^ (1 << round));
        let kept = (seat >> round) & 1;
        let (keep, give) = (share.piece(kept, 2), share.piece(1 - kept, 2));
        send_all(&mut steps, partner, give, tuning);
        recv_all(&mut steps, partner, keep, Arrival::Fold, tuning);
        given_up.push((partner, give));
        share = keep;
    }
    for (partner, give) in given_up.into_iter().rev() {
        send_all(&mut steps, partner, share, tuning);
        recv_all(&mut steps, partner, give, Arrival::Place, tuning);
        share = Span::between(share.start.min(give.start), share.end().max(give.end()));
    }
    if let Some(extra) = extra {
        send_all(&mut steps, extra, span, tuning);
    }
    steps
}
