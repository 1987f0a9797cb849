//! Recursive doubling: whole vectors are exchanged at doubling distances.
//!
//! Let `p` be the largest power of two that is at most `n`. The `n - p` *extra* members cannot take part directly: each
//! gives its contribution to the member after it before the exchange and gets the result after it. The first
//! `2 (n - p)` members form such pairs of an extra (even) and its *stand-in* (odd); the stand-ins and all later members
//! are the `p` *active* ones, numbered anew by their *seat*.
//!
//! In round `k` the two active members whose seats differ in bit `k` exchange everything they have and fold what they
//! get. Both compute the same combination, so after `log2 p` rounds all have the same bits. Each segment is sent on in
//! the next round as soon as it has been folded.
//!
//! Folding writes where a posted send still reads, so the driver's rule (wait until the send has left) matters here;
//! both partners have their segment under way before either waits.
//!
//! Steps: `log2 p`, and two more if there are extras. Bytes sent by each member: `log2 p` times the span.

use crate::algorithm::Tuning;
use crate::request::Rank;
use crate::schedule::{Arrival, Buffer, Span, Step};
use crate::team::{Team, segments};

/// What a member does in an algorithm that needs a power of two.
pub(crate) enum Role {
    /// It gives its contribution to the stand-in and gets the result from it.
    Extra {
        /// The member that takes part for it.
        stand_in: Rank,
    },
    /// It takes part.
    Active {
        /// Its number among the active members.
        seat: usize,
        /// The extra whose contribution it carries.
        extra: Option<Rank>,
    },
}

/// Largest power of two that is at most `n`.
pub(crate) fn power_below(n: usize) -> usize {
    1 << n.ilog2()
}

/// The role of this rank in its team.
pub(crate) fn role(team: &Team) -> Role {
    let extras = team.size() - power_below(team.size());
    let me = team.me;
    if me >= 2 * extras {
        Role::Active { seat: me - extras, extra: None }
    } else if me % 2 == 1 {
        Role::Active { seat: me / 2, extra: Some(team.rank(me - 1)) }
    } else {
        Role::Extra { stand_in: team.rank(me + 1) }
    }
}

/// The rank that has this seat.
pub(crate) fn seated(team: &Team, seat: usize) -> Rank {
    let extras = team.size() - power_below(team.size());
    team.rank(if seat < extras { 2 * seat + 1 } else { seat + extras })
}

/// Posts all segments of a span.
pub(crate) fn send_all(steps: &mut Vec<Step>, to: Rank, span: Span, tuning: &Tuning) {
    steps.extend(segments(span, tuning.segment_elems).map(|span| Step::Send { to, from: Buffer::Work, span }));
}

/// Waits for all segments of a span.
pub(crate) fn recv_all(steps: &mut Vec<Step>, from: Rank, span: Span, arrival: Arrival, tuning: &Tuning) {
    steps.extend(segments(span, tuning.segment_elems).map(|span| Step::Recv { from, span, arrival }));
}

/// Steps of an extra: it hands everything in and gets everything back.
pub(crate) fn extra_steps(stand_in: Rank, span: Span, tuning: &Tuning) -> Vec<Step> {
    let mut steps = Vec::new();
    send_all(&mut steps, stand_in, span, tuning);
    recv_all(&mut steps, stand_in, span, Arrival::Place, tuning);
    steps
}

/// Allreduce of `span` among the team.
pub(crate) fn allreduce(team: &Team, span: Span, tuning: &Tuning) -> Vec<Step> {
    let (seat, extra) = match role(team) {
        Role::Extra { stand_in } => return extra_steps(stand_in, span, tuning),
        Role::Active { seat, extra } => (seat, extra),
    };
    // Where the segments come from, in order, and with that where each goes after it has been folded.
    let rounds = power_below(team.size()).ilog2();
    let partners: Vec<Rank> = (0..rounds).map(|round| seated(team, seat ^ (1 << round))).collect();
    let sources: Vec<Rank> = extra.into_iter().chain(partners.iter().copied()).collect();
    let targets: Vec<Rank> = partners.into_iter().chain(extra).collect();

    let mut steps = Vec::new();
    // Without an extra the member starts by sending; with one, its first send follows the extra's contribution.
    let sent_before = usize::from(extra.is_none());
    if let (None, Some(&first)) = (extra, targets.first()) {
        send_all(&mut steps, first, span, tuning);
    }
    for (index, &from) in sources.iter().enumerate() {
        for segment in segments(span, tuning.segment_elems) {
            steps.push(Step::Recv { from, span: segment, arrival: Arrival::Fold });
            if let Some(&to) = targets.get(index + sent_before) {
                steps.push(Step::Send { to, from: Buffer::Work, span: segment });
            }
        }
    }
    steps
}
