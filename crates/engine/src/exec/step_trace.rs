//! Where a walk through a schedule has been, and when: for large operations, whose steps are worth a look at the clock.
//!
//! A run that carries [`StepTrace`] notes each step as it is taken; steps of one kind with the same peer that follow
//! each other become one note, and meetings for which all others were there already leave none. Whoever drives the run
//! takes the notes after each call and records them. The run itself knows nothing of recording.

use farandole_plan::{Arrival, Rank, Step};
use farandole_trace::clock::now_ns;
use farandole_trace::event::StepKind;

/// Operations from this size on have their steps traced. A step then handles tens of kilobytes and takes some
/// microseconds, a hundred times as long as looking at the clock and writing it down.
pub(crate) const FROM_BYTES: u64 = 512 << 10;

/// Steps of one kind, taken one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepNote {
    /// When the last of them was over.
    pub(crate) time_ns: u64,
    pub(crate) kind: StepKind,
    /// The one peer of all of them, if there is one.
    pub(crate) peer: Option<Rank>,
    pub(crate) bytes: u64,
}

/// Whether a step had been tried before it could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    AtOnce,
    AfterAWait,
}

/// The notes that nobody has taken yet.
#[derive(Debug)]
pub(crate) struct StepTrace {
    notes: Vec<StepNote>,
}

/// Notes that there is room for at first: more than the steps that are taken before somebody must be waited for.
const ROOM: usize = 32;

impl Default for StepTrace {
    fn default() -> StepTrace {
        StepTrace { notes: Vec::with_capacity(ROOM) }
    }
}

impl StepTrace {
    /// A step is taken.
    pub(crate) fn note(&mut self, step: &Step, elem_bytes: usize, taken: Taken) {
        let Some((kind, peer, elems)) = kind_of(step) else { return };
        if kind == StepKind::Meet && taken == Taken::AtOnce {
            return;
        }
        let (time_ns, bytes) = (now_ns(), elems * elem_bytes as u64);
        match self.notes.last_mut() {
            Some(last) if last.kind == kind && last.peer == peer => {
                last.time_ns = time_ns;
                last.bytes += bytes;
            }
            _ => self.notes.push(StepNote { time_ns, kind, peer, bytes }),
        }
    }

    /// Takes all notes.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = StepNote> + '_ {
        self.notes.drain(..)
    }
}

/// What a step does, with whom, to how many elements; `None` if it is over as soon as it is begun.
fn kind_of(step: &Step) -> Option<(StepKind, Option<Rank>, u64)> {
    Some(match *step {
        Step::Send { to, span, .. } => (StepKind::Send, Some(to), span.len),
        Step::Recv { from, span, arrival: Arrival::Place } => (StepKind::Receive, Some(from), span.len),
        Step::Recv { from, span, arrival: Arrival::Fold } => (StepKind::Reduce, Some(from), span.len),
        Step::Copy { work, .. } => (StepKind::Receive, None, work.len),
        Step::Publish { span, except, .. } => (StepKind::Send, None, span.len - except.len),
        Step::Stage { span, .. } => (StepKind::Send, None, span.len),
        Step::FoldTile { chunk, .. } | Step::FoldChunk { chunk, .. } => (StepKind::Reduce, None, chunk.len),
        Step::FoldWhole { span, .. } | Step::FoldAcross { span } => (StepKind::Reduce, None, span.len),
        Step::Fetch { from, chunk, .. } => (StepKind::Receive, Some(from), chunk.len),
        Step::Take { from, span, .. } => (StepKind::Receive, Some(from), span.len),
        Step::Drain { .. } | Step::Settle => (StepKind::Meet, None, 0),
        Step::Release { .. } | Step::Expose => return None,
    })
}

#[cfg(test)]
mod tests {
    use farandole_plan::Span;

    use super::*;

    #[test]
    fn steps_of_one_kind_become_one_note() {
        let mut step_trace = StepTrace::default();
        let span = Span { start: 0, len: 8 };
        let fetch = |tile, from| Step::Fetch { tile, span, from: Rank(from), chunk: span };
        for step in [fetch(0, 1), fetch(1, 1), fetch(1, 2), Step::Release { tile: 1 }, Step::Settle] {
            step_trace.note(&step, 4, Taken::AtOnce);
        }
        step_trace.note(&Step::Settle, 4, Taken::AfterAWait);
        let notes: Vec<_> = step_trace.drain().map(|note| (note.kind, note.peer, note.bytes)).collect();
        let receive = StepKind::Receive;
        assert_eq!(notes, [(receive, Some(Rank(1)), 64), (receive, Some(Rank(2)), 32), (StepKind::Meet, None, 0)]);
        assert_eq!(step_trace.drain().count(), 0);
    }
}
