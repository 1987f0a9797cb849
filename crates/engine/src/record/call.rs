//! What a communicator writes down about its calls.
//!
//! The shortest calls take less time than looking at the clock twice, so those that are over at the first looks are
//! *sampled*: one of [`SAMPLE`] is timed and recorded, the same one on all ranks, and the others are counted with it. A
//! call that waits longer than a few microseconds is always recorded, from the moment at which it begins to wait; so a
//! late rank shows. Larger calls are all recorded.

use std::sync::Arc;

use farandole_plan::RankProgress;
use farandole_trace::clock::now_ns;
use farandole_trace::event::{Collective, Dtype, GroupNumber, OperationNumber};
use farandole_trace::{DumpReason, Event, Recorder, RingWriter};

use super::progress;
use crate::direct::descriptor::Descriptor;
use crate::exec::step_trace::StepTrace;

/// One of so many of the shortest calls is timed: two looks at the clock and three records, 80 ns, over 128 calls of
/// 140 ns come to half a percent.
const SAMPLE: u64 = 128;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct CallRecord {
    writer: Option<RingWriter>,
    /// Calls since the last record that left none, and their bytes.
    skipped: u32,
    skipped_bytes: u64,
    /// The call that is under way, if it is recorded.
    running: Option<OperationNumber>,
    waiting: bool,
}

impl CallRecord {
    /// Records to this recorder from now on.
    pub(crate) fn record_with(&mut self, recorder: &Arc<Recorder>, ranks: u32) {
        recorder.note_group(GroupNumber::DIRECT, (0..ranks).collect());
        self.writer = Some(recorder.ring_writer());
    }

    fn is_on(&self) -> bool {
        self.writer.as_ref().is_some_and(RingWriter::is_on)
    }

    fn write(&mut self, time_ns: u64, event: Event) {
        if let Some(writer) = &mut self.writer {
            writer.write(time_ns, event);
        }
    }

    /// A short call begins. Answers with the time if it is one of those that are timed.
    #[inline]
    pub(crate) fn sample(&self, number: u64) -> Option<u64> {
        (number.is_multiple_of(SAMPLE) && self.is_on()).then(now_ns)
    }

    /// A short call is over.
    #[inline]
    pub(crate) fn sampled(&mut self, began_ns: Option<u64>, number: u64, descriptor: Descriptor, bytes: usize) {
        match began_ns {
            None => {
                self.skipped = self.skipped.wrapping_add(1);
                self.skipped_bytes += bytes as u64;
            }
            Some(began_ns) => {
                self.started_at(began_ns, number, descriptor, bytes);
                self.finished();
            }
        }
    }

    /// A call begins.
    pub(crate) fn started(&mut self, number: u64, descriptor: Descriptor, bytes: usize) {
        if self.is_on() {
            self.started_at(now_ns(), number, descriptor, bytes);
        }
    }

    fn started_at(&mut self, time_ns: u64, number: u64, descriptor: Descriptor, bytes: usize) {
        let (group, operation) = (GroupNumber::DIRECT, OperationNumber(number));
        if let Some(writer) = &mut self.writer {
            writer.bind_thread();
        }
        if self.skipped > 0 {
            let (calls, bytes) = (std::mem::take(&mut self.skipped), std::mem::take(&mut self.skipped_bytes));
            self.write(time_ns, Event::Skipped { group, operation, calls, bytes });
        }
        let (collective, dtype) = words(descriptor);
        self.write(time_ns, Event::Started { group, operation, collective, dtype, requests: 0, bytes: bytes as u64 });
        (self.running, self.waiting) = (Some(operation), false);
    }

    /// The call waits for a peer, which `peer` finds out; about to let others run.
    pub(crate) fn still(&mut self, peer: impl FnOnce() -> Option<u32>) {
        if let (Some(operation), false) = (self.running, self.waiting) {
            self.waiting = true;
            self.write(now_ns(), Event::Waiting { group: GroupNumber::DIRECT, operation, peer: peer() });
        }
    }

    /// Something could be done again.
    #[inline]
    pub(crate) fn moved(&mut self) {
        if let (Some(operation), true) = (self.running, self.waiting) {
            self.waiting = false;
            self.write(now_ns(), Event::Resumed { group: GroupNumber::DIRECT, operation });
        }
    }

    /// Whether the call under way is recorded.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Records the steps of the call under way.
    pub(crate) fn steps(&mut self, step_trace: &mut StepTrace) {
        let Some(operation) = self.running else { return };
        for note in step_trace.drain() {
            let (group, step, peer, bytes) = (GroupNumber::DIRECT, note.kind, note.peer.map(|peer| peer.0), note.bytes);
            self.write(note.time_ns, Event::Stepped { group, operation, step, peer, bytes });
        }
    }

    /// How far this rank is, by what it has recorded.
    pub(crate) fn progress(&self) -> RankProgress {
        self.writer.as_ref().map_or(RankProgress::default(), |writer| progress(writer.recorder()))
    }

    /// The call under way is over.
    pub(crate) fn finished(&mut self) {
        if let Some(writer) = &self.writer {
            writer.recorder().count_collectives(1);
        }
        if let Some(operation) = self.running.take() {
            self.write(now_ns(), Event::Finished { group: GroupNumber::DIRECT, operation });
        }
    }

    /// The communicator has failed.
    pub(crate) fn group_error(&mut self, cause: &str) {
        if let Some(writer) = &mut self.writer {
            let name = writer.recorder().intern(&cause.into(), &[]);
            writer.write(now_ns(), Event::Aborted { name });
            writer.recorder().request_dump(DumpReason::Abort);
        }
    }
}

/// What a descriptor says, in the words of `trace`.
fn words(descriptor: Descriptor) -> (Collective, Dtype) {
    use crate::direct::descriptor::Kind;
    let collective = match descriptor.kind() {
        Some(Kind::Allreduce | Kind::MappedAllreduce) => Collective::Allreduce,
        Some(Kind::Allgather) => Collective::Allgather,
        Some(Kind::Broadcast) => Collective::Broadcast,
        Some(Kind::Alltoall) => Collective::Alltoall,
        Some(Kind::ReduceScatter) => Collective::ReduceScatter,
        Some(Kind::Barrier) => Collective::Barrier,
        Some(Kind::Reserve) | None => Collective::Internal,
    };
    (collective, Dtype::from_code(descriptor.dtype_code()).unwrap_or(Dtype::U8))
}
