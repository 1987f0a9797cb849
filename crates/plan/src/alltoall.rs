//! Alltoall(v): rank `i`'s `j`-th part goes to rank `j` as its `i`-th part.
//!
//! Everybody has something different for everybody, so there is nothing to combine or to pass on: each part travels
//! directly. The input must stay as it is and the parts have different places on both sides, so sends read
//! [`Buffer::Source`] and receives write [`Buffer::Work`]; the part for this rank itself is copied.
//!
//! In turn `k` (from 1 to `n - 1`) a rank sends to the rank `k` places after it and receives from the rank `k` places
//! before it, so that at every moment each rank is the target of one other. All turns of one *round* carry one segment;
//! large parts take several rounds, so that no pair waits for another pair's large part to end.
//!
//! Steps: `n - 1` messages each way, all independent. Bytes sent: all parts but the own one.
//!
//! Through windows, the work goes in *rounds*: in each, every part advances by one *piece*, and the pieces of a rank
//! for all others are one tile. A rank publishes rounds `ahead` of those that it takes. It knows the lengths of its own
//! parts only, so it walks through as many rounds as its longest part has, and then says that it needs no further tile.
//! Bytes copied into the window: all parts but the own one; bytes read: as many.

use crate::algorithm::Tuning;
use crate::request::Rank;
use crate::schedule::{Arrival, Buffer, EVERY_TILE, Schedule, Span, Step};
use crate::team::segments;
use crate::window::Rounds;

/// Steps of rank `me`: `send[j]` (in the source) goes to rank `j`, `recv[i]` (in the work buffer) comes from rank `i`.
/// The sender's and the receiver's span of a part must have equal lengths.
pub fn alltoall(send: &[Span], recv: &[Span], me: Rank, tuning: &Tuning) -> Schedule {
    let n = send.len();
    assert_eq!(recv.len(), n, "as many parts come in as go out");
    let me = me.index();
    assert_eq!(send[me].len, recv[me].len, "the part of a rank for itself has one length");
    let cut = |span: Span| segments(span, tuning.segment_elems).collect::<Vec<_>>();
    let outgoing: Vec<Vec<Span>> = send.iter().map(|&span| cut(span)).collect();
    let incoming: Vec<Vec<Span>> = recv.iter().map(|&span| cut(span)).collect();
    let rounds = outgoing.iter().chain(&incoming).map(Vec::len).max().unwrap_or(0);

    let mut steps = Vec::new();
    let sends = |steps: &mut Vec<Step>, round: usize| {
        for turn in 1..n {
            let to = (me + turn) % n;
            if let Some(&span) = outgoing[to].get(round) {
                steps.push(Step::Send { to: Rank::from(to), from: Buffer::Source, span });
            }
        }
    };
    sends(&mut steps, 0);
    if !send[me].is_empty() {
        steps.push(Step::Copy { source: send[me], work: recv[me] });
    }
    for round in 0..rounds {
        // The next round is on its way before this one is waited for, so the links never run dry.
        sends(&mut steps, round + 1);
        for turn in 1..n {
            let from = (me + n - turn) % n;
            if let Some(&span) = incoming[from].get(round) {
                steps.push(Step::Recv { from: Rank::from(from), span, arrival: Arrival::Place });
            }
        }
    }
    Schedule::new(steps)
}

/// As [`alltoall`], through the windows of the one host on which all ranks run. A part may be left out on both sides.
pub fn alltoall_window(send: &[Span], recv: &[Span], me: Rank, tuning: &Tuning) -> Schedule {
    let n = send.len();
    assert_eq!(recv.len(), n, "as many parts come in as go out");
    let me = me.index();
    let others = |spans: &[Span]| -> Vec<Span> {
        let kept = |(peer, &span): (usize, &Span)| if peer == me { Span { start: span.start, len: 0 } } else { span };
        spans.iter().enumerate().map(kept).collect()
    };
    let piece_elems = (tuning.tile_elems / n as u64).max(1);
    let outgoing = Rounds::new(&others(send), piece_elems, tuning);
    let incoming = Rounds::new(&others(recv), piece_elems, tuning);
    let mut steps = Vec::new();
    if !send[me].is_empty() {
        steps.push(Step::Copy { source: send[me], work: recv[me] });
    }
    let nothing = Span { start: 0, len: 0 };
    for turn in 0..outgoing.count.max(incoming.count) + outgoing.ahead {
        if turn < outgoing.count {
            for to in (1..n).map(|offset| (me + offset) % n) {
                let span = outgoing.piece(turn, to);
                if !span.is_empty() {
                    steps.push(Step::Stage { tile: turn, from: Buffer::Source, span, at: outgoing.place(to) });
                }
            }
            steps.push(Step::Publish { tile: turn, span: nothing, except: nothing });
        }
        if let Some(tile) = turn.checked_sub(outgoing.ahead) {
            for from in (1..n).map(|offset| (me + offset) % n) {
                let span = incoming.piece(tile, from);
                if !span.is_empty() {
                    steps.push(Step::Take { tile, from: Rank::from(from), span, at: incoming.place(me) });
                }
            }
            steps.push(Step::Release { tile });
        }
    }
    steps.push(Step::Release { tile: EVERY_TILE });
    outgoing.schedule(steps)
}
