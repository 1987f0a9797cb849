//! Phases of the program: on this thread, on another one, or in another process.

use std::sync::Arc;

use super::{Recorder, lock};
use crate::clock;
use crate::event::{Event, NameId, Phase, Record, ThreadId};

/// The row of what a rank's device does in a phase that is over for its program.
pub const DEVICE_ROW: &str = "device of this rank";

/// Which end of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// It begins.
    Begins,
    /// It ends.
    Ends,
}

impl Recorder {
    /// A phase of the program begins on this thread, and lasts until the guard is dropped.
    pub fn phase(self: &Arc<Recorder>, phase: Phase) -> PhaseGuard {
        self.begin(phase, NameId::NONE)
    }

    /// A phase with a name of the user's.
    pub fn user_phase(self: &Arc<Recorder>, name: &str) -> PhaseGuard {
        let name = self.intern(&name.into(), &[]);
        self.begin(Phase::User, name)
    }

    fn begin(self: &Arc<Recorder>, phase: Phase, name: NameId) -> PhaseGuard {
        self.mark(Event::PhaseBegin { phase, name });
        PhaseGuard { recorder: Arc::clone(self), phase, name }
    }

    /// A phase by the word that people use for it: one of the known ones, or one of the user's. For front ends in other
    /// languages, which end it with [`Recorder::end_phase`].
    pub fn begin_phase(&self, word: &str) {
        let (phase, name) = self.phase_of(word);
        self.mark(Event::PhaseBegin { phase, name });
    }

    /// Ends what [`Recorder::begin_phase`] began.
    pub fn end_phase(&self, word: &str) {
        let (phase, name) = self.phase_of(word);
        self.mark(Event::PhaseEnd { phase, name });
    }

    /// A phase begins or ends on another thread than this one, which knows that it is inside a call there.
    pub fn mark_phase_on(&self, thread: ThreadId, word: &str, edge: Edge) {
        if self.is_on() {
            let (phase, name) = self.phase_of(word);
            self.mark_on(
                thread,
                match edge {
                    Edge::Begins => Event::PhaseBegin { phase, name },
                    Edge::Ends => Event::PhaseEnd { phase, name },
                },
            );
        }
    }

    /// Records what happens on another thread than this one, which knows of it.
    pub fn mark_on(&self, thread: ThreadId, event: Event) {
        self.count_iteration(&event);
        if self.is_on() {
            lock(&self.marks).write(Record { time_ns: clock::now_ns(), thread, event }.to_words());
        }
    }

    /// Records a phase of another process, such as a worker of a data loader, or of a device ([`DEVICE_ROW`]), when it
    /// is over: in a row of this name.
    pub fn note_phase_of(&self, row: &str, word: &str, begin_ns: u64, end_ns: u64) {
        if self.is_on() && begin_ns <= end_ns {
            let thread = ThreadId::of_external(row);
            let (phase, name) = self.phase_of(word);
            let mut marks = lock(&self.marks);
            for (time_ns, event) in
                [(begin_ns, Event::PhaseBegin { phase, name }), (end_ns, Event::PhaseEnd { phase, name })]
            {
                marks.write(Record { time_ns, thread, event }.to_words());
            }
        }
    }

    fn phase_of(&self, word: &str) -> (Phase, NameId) {
        let known = Phase::ALL.iter().find(|phase| **phase != Phase::User && phase.word() == word);
        known.map_or_else(|| (Phase::User, self.intern(&word.into(), &[])), |phase| (*phase, NameId::NONE))
    }
}

/// A phase of the program, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "a phase ends when its guard is dropped"]
pub struct PhaseGuard {
    recorder: Arc<Recorder>,
    phase: Phase,
    name: NameId,
}

impl Drop for PhaseGuard {
    fn drop(&mut self) {
        self.recorder.mark(Event::PhaseEnd { phase: self.phase, name: self.name });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Identity;

    #[test]
    fn a_thread_marks_a_phase_of_another_that_waits_for_it() {
        let recorder = Recorder::new(Identity::default(), 100);
        recorder.begin_phase("training step");
        let program = ThreadId::current();
        let of_graph = Arc::clone(&recorder);
        let graph = std::thread::spawn(move || {
            of_graph.mark_phase_on(program, "input wait", Edge::Begins);
            of_graph.mark_phase_on(program, "input wait", Edge::Ends);
        });
        graph.join().unwrap();
        recorder.end_phase("training step");
        let trace = recorder.snapshot("test");
        let (step, input, name) = (Phase::TrainingStep, Phase::InputWait, NameId::NONE);
        let events: Vec<Event> =
            trace.records.iter().filter(|record| record.thread == program).map(|record| record.event).collect();
        assert_eq!(
            events,
            [
                Event::PhaseBegin { phase: step, name },
                Event::PhaseBegin { phase: input, name },
                Event::PhaseEnd { phase: input, name },
                Event::PhaseEnd { phase: step, name },
            ]
        );
    }
}
