//! The ring: chunks travel around a circle, first collecting contributions, then spreading the result.
//!
//! The `n` members of the team form a circle. The span is cut into `n` *chunks*; chunk `c` belongs to member `c`. In
//! the first half, chunk `c` starts at member `c + 1` and travels on from member to member; each folds it into its own
//! contribution and passes it on, so that it arrives complete at its owner, member `c`. In the second half it travels
//! around once more and replaces what is there.
//!
//! Seen from one member, all of this is a sequence of `2 (n - 1)` *hops*: in hop `h` it receives chunk `me - 2 - h`
//! from the member before it, folding in the first `n - 1` hops and placing in the rest, and passes it on at once to
//! the member after it. The very first thing it sends is its own contribution to chunk `me - 1`. Chunks are cut into
//! segments, and each segment is passed on as soon as it has been folded, so that all links are busy all the time.
//!
//! Steps: `2 (n - 1)` messages in sequence. Bytes sent by each member: `2 (n - 1) / n` of the span, the least possible.
//! Every element is folded along one path, so all ranks end with the same bits.

use crate::schedule::{Arrival, Buffer, Span, Step};
use crate::team::{Team, segments};

use crate::algorithm::Tuning;

/// Allreduce of `span` among the team.
pub(crate) fn allreduce(team: &Team, span: Span, tuning: &Tuning) -> Vec<Step> {
    let n = team.size();
    let chunks: Vec<Span> = (0..n).map(|member| span.piece(member, n)).collect();
    allreduce_chunks(team, &chunks, tuning)
}

/// Allreduce of these chunks, one for each member.
pub(crate) fn allreduce_chunks(team: &Team, chunks: &[Span], tuning: &Tuning) -> Vec<Step> {
    let hops = team.size() - 1;
    travel(team, chunks, Circuit { first_sent: 1, fold_hops: hops, place_hops: hops }, tuning)
}

/// Reduce-scatter: member `c` ends with the combination of all contributions to `chunks[c]`. What it had in other
/// chunks is spoilt. The first half of the allreduce.
pub(crate) fn reduce_scatter(team: &Team, chunks: &[Span], tuning: &Tuning) -> Vec<Step> {
    travel(team, chunks, Circuit { first_sent: 1, fold_hops: team.size() - 1, place_hops: 0 }, tuning)
}

/// Allgather: member `c` starts with `chunks[c]` and all end with all chunks. The second half of the allreduce.
pub(crate) fn allgather(team: &Team, chunks: &[Span], tuning: &Tuning) -> Vec<Step> {
    travel(team, chunks, Circuit { first_sent: 0, fold_hops: 0, place_hops: team.size() - 1 }, tuning)
}

/// Which part of the journey around the circle a collective needs.
struct Circuit {
    /// The first chunk a member sends is that of the member this many places before it.
    first_sent: usize,
    /// Hops in which arriving elements are folded.
    fold_hops: usize,
    /// Hops, after these, in which arriving elements replace what is there.
    place_hops: usize,
}

fn travel(team: &Team, chunks: &[Span], circuit: Circuit, tuning: &Tuning) -> Vec<Step> {
    let hops = circuit.fold_hops + circuit.place_hops;
    let mut steps = Vec::new();
    if hops == 0 {
        return steps;
    }
    let (previous, next) = (team.rank(team.before(1)), team.rank(team.after(1)));
    for segment in segments(chunks[team.before(circuit.first_sent)], tuning.segment_elems) {
        steps.push(Step::Send { to: next, from: Buffer::Work, span: segment });
    }
    for hop in 0..hops {
        let arrival = if hop < circuit.fold_hops { Arrival::Fold } else { Arrival::Place };
        for segment in segments(chunks[team.before(circuit.first_sent + 1 + hop)], tuning.segment_elems) {
            steps.push(Step::Recv { from: previous, span: segment, arrival });
            if hop + 1 < hops {
                steps.push(Step::Send { to: next, from: Buffer::Work, span: segment });
            }
        }
    }
    steps
}
