//! Allgather(v): rank `r` starts with `spans[r]` in its place and all ranks end with all spans.
//!
//! Two ways by messages, both for any lengths:
//! - *Ring*, for large sizes: the second half of `ring`. `n - 1` steps; each rank sends everything but one chunk.
//! - *Growing* (the exchange pattern of Bruck, without his rotation), for small sizes: at distance `d = 1, 2, 4, …` a
//!   member that holds the `d` chunks from its own on sends them to the member `d` places before it and receives as
//!   many from the member `d` places after it, which hold the following chunks. The last exchange carries only what is
//!   still missing, so every `n` works. `ceil(log2 n)` steps; the same bytes. Chunks that touch travel as one message.
//!
//! Through windows, each rank publishes its chunk tile by tile and takes everybody else's: bytes copied into the
//! window: the own chunk; bytes read: everybody else's.

use crate::algorithm::Tuning;
use crate::request::Rank;
use crate::ring;
use crate::schedule::{Arrival, Buffer, Schedule, Span, Step};
use crate::team::{Team, joined, ranks_by_host, segments};
use crate::topology::Topology;
use crate::window::Rounds;

/// Steps of rank `me`; `spans[r]` is the place of rank `r`'s part in everybody's work buffer. Spans must not overlap.
pub fn allgather(spans: &[Span], topology: &Topology, me: Rank, tuning: &Tuning) -> Schedule {
    assert_eq!(spans.len(), topology.size(), "every rank has a part");
    let team = Team::by_host(topology, me);
    let chunks: Vec<Span> = ranks_by_host(topology).iter().map(|rank| spans[rank.index()]).collect();
    let total: u64 = spans.iter().map(|span| span.len).sum();
    let steps = if total <= tuning.small_elems {
        growing(&team, &chunks, tuning)
    } else {
        ring::allgather(&team, &chunks, tuning)
    };
    Schedule::new(steps)
}

/// As [`allgather`], through the windows of the one host on which all ranks run.
pub fn allgather_window(spans: &[Span], me: Rank, tuning: &Tuning) -> Schedule {
    let rounds = Rounds::new(spans, tuning.tile_elems, tuning);
    let members: Vec<Rank> = (0..spans.len()).map(Rank::from).collect();
    let mut steps = Vec::new();
    if spans.len() > 1 && rounds.count > 0 {
        rounds.allgather(&members, me.index(), 0, &mut steps);
    }
    rounds.schedule(steps)
}

fn growing(team: &Team, chunks: &[Span], tuning: &Tuning) -> Vec<Step> {
    let n = team.size();
    let mut steps = Vec::new();
    let mut distance = 1;
    while distance < n {
        let count = distance.min(n - distance);
        let (before, after) = (team.before(distance), team.after(distance));
        let held_from = |first: usize| joined((0..count).map(|offset| chunks[(first + offset) % n]));
        for span in held_from(team.me) {
            for segment in segments(span, tuning.segment_elems) {
                steps.push(Step::Send { to: team.rank(before), from: Buffer::Work, span: segment });
            }
        }
        for span in held_from(after) {
            for segment in segments(span, tuning.segment_elems) {
                steps.push(Step::Recv { from: team.rank(after), span: segment, arrival: Arrival::Place });
            }
        }
        distance *= 2;
    }
    steps
}

impl Rounds {
    /// Steps of `locals[me]`, whose tiles are numbered from `first_tile` on. The chunks belong to the first of the
    /// `locals`; a rank beyond them has nothing to give, but takes.
    pub(crate) fn allgather(&self, locals: &[Rank], me: usize, first_tile: u32, steps: &mut Vec<Step>) {
        for turn in 0..self.count + self.ahead {
            let own = if turn < self.count { self.piece(turn, me) } else { Span { start: 0, len: 0 } };
            if !own.is_empty() {
                let except = Span { start: own.start, len: 0 };
                steps.push(Step::Publish { tile: first_tile + turn, span: own, except });
            }
            if let Some(round) = turn.checked_sub(self.ahead) {
                let tile = first_tile + round;
                // Each starts with the member after it, so that readers spread over the windows.
                for owner in (1..=self.members).map(|offset| (me + offset) % self.members) {
                    let span = self.piece(round, owner);
                    if owner != me && !span.is_empty() {
                        steps.push(Step::Take { tile, from: locals[owner], span, at: 0 });
                    }
                }
                steps.push(Step::Release { tile });
            }
        }
    }
}
