//! Reduce-scatter with given chunks: rank `r` ends with the combination of all contributions to `spans[r]`.
//!
//! By messages it is the first half of the ring (see `ring`): `n - 1` steps, and each rank sends everything but
//! its own chunk once, the least possible. The rest of the work buffer is spoilt.
//!
//! Through windows every rank copies what others need into its window and folds its own chunk straight out of all
//! windows. The work goes in *rounds*: in each round, every rank's chunk advances by one *piece*, so that all ranks
//! fold all the time, and the pieces of all ranks together are one tile. Bytes copied into the window: everything but
//! the own chunk; bytes read: `n` times the own chunk.

use crate::algorithm::Tuning;
use crate::request::Rank;
use crate::ring;
use crate::schedule::{Buffer, Schedule, Span, Step};
use crate::team::{Team, ranks_by_host};
use crate::topology::Topology;
use crate::window::Rounds;

/// Steps of rank `me`; `spans[r]` is the chunk of rank `r` in the work buffer. Spans must not overlap.
pub fn reduce_scatter(spans: &[Span], topology: &Topology, me: Rank, tuning: &Tuning) -> Schedule {
    assert_eq!(spans.len(), topology.size(), "every rank has a chunk");
    let team = Team::by_host(topology, me);
    let chunks: Vec<Span> = ranks_by_host(topology).iter().map(|rank| spans[rank.index()]).collect();
    Schedule::new(ring::reduce_scatter(&team, &chunks, tuning))
}

/// As [`reduce_scatter`], through the windows of the one host on which all ranks run.
pub fn reduce_scatter_window(spans: &[Span], me: Rank, tuning: &Tuning) -> Schedule {
    let rounds = Rounds::new(spans, (tuning.tile_elems / spans.len() as u64).max(1), tuning);
    let mut steps = Vec::new();
    if spans.len() > 1 && rounds.count > 0 {
        rounds.reduce_scatter(me.index(), 0, &mut steps);
    }
    rounds.schedule(steps)
}

/// As [`reduce_scatter_window`], out of a source that stays as it is: the work buffer holds this rank's chunk alone,
/// and in it this rank's contribution to it.
pub fn reduce_scatter_window_apart(spans: &[Span], me: Rank, tuning: &Tuning) -> Schedule {
    let mut schedule = reduce_scatter_window(spans, me, tuning);
    for step in &mut schedule.steps {
        match step {
            Step::Stage { from, .. } => *from = Buffer::Source,
            Step::FoldChunk { chunk, .. } => chunk.start -= spans[me.index()].start,
            _ => {}
        }
    }
    schedule
}

impl Rounds {
    /// Steps of the rank with local rank `me`, whose tiles are numbered from `first_tile` on. A rank beyond the chunks
    /// hands in, but has nothing to fold.
    pub(crate) fn reduce_scatter(&self, me: usize, first_tile: u32, steps: &mut Vec<Step>) {
        for turn in 0..self.count + self.ahead {
            if turn < self.count {
                self.publish_for_others(turn, me, first_tile + turn, steps);
            }
            if let Some(round) = turn.checked_sub(self.ahead) {
                let tile = first_tile + round;
                let chunk = self.piece(round, me);
                if !chunk.is_empty() {
                    steps.push(Step::FoldChunk { tile, chunk, at: self.place(me) });
                }
                steps.push(Step::Release { tile });
            }
        }
    }

    fn publish_for_others(&self, round: u32, me: usize, tile: u32, steps: &mut Vec<Step>) {
        for owner in (0..self.members).filter(|&owner| owner != me) {
            let span = self.piece(round, owner);
            if !span.is_empty() {
                steps.push(Step::Stage { tile, from: Buffer::Work, span, at: self.place(owner) });
            }
        }
        let nothing = Span { start: 0, len: 0 };
        steps.push(Step::Publish { tile, span: nothing, except: nothing });
    }
}
