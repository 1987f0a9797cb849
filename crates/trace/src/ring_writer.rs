//! Writes events to a ring of its own: for the engine's driver and for communicators.

use std::sync::Arc;

use crate::compact::{self, BucketTimes};
use crate::event::{Event, Record, TemplateId, ThreadId};
use crate::recorder::Recorder;
use crate::ring::Producer;

/// Writes to one ring of a recorder. There is one writer for each ring.
#[derive(Debug)]
pub struct RingWriter {
    /// `Some` until the writer is dropped.
    producer: Option<Producer>,
    recorder: Arc<Recorder>,
    thread: ThreadId,
}

impl RingWriter {
    pub(crate) fn new(producer: Producer, recorder: Arc<Recorder>) -> RingWriter {
        RingWriter { producer: Some(producer), recorder, thread: ThreadId::current() }
    }

    /// The recorder behind it.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Whether records are taken. Ask before doing anything that only a record needs.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.recorder.is_on()
    }

    /// From now on the records are those of the calling thread.
    pub fn bind_thread(&mut self) {
        self.thread = ThreadId::current();
    }

    /// Records an event of the bound thread at a moment.
    #[inline]
    pub fn write(&mut self, time_ns: u64, event: Event) {
        self.write_for(self.thread, time_ns, event);
    }

    /// Records what another thread did.
    #[inline]
    pub fn write_for(&mut self, thread: ThreadId, time_ns: u64, event: Event) {
        if self.recorder.is_on()
            && let Some(producer) = &mut self.producer
        {
            producer.write(Record { time_ns, thread, event }.to_words());
        }
    }

    /// Records that a bucket begins or ends ([`Event::Started`], [`Event::Finished`]) and, in the same record, what
    /// that is for each of its requests ([`Event::Fused`], [`Event::Done`]).
    #[inline]
    pub fn write_edge(&mut self, time_ns: u64, event: Event, template: TemplateId) {
        if self.recorder.is_on()
            && let Some(producer) = &mut self.producer
        {
            producer.write(compact::encode_edge(Record { time_ns, thread: self.thread, event }, template));
        }
    }

    /// Records a bucket that was [`Event::Started`] at this moment and is over, with everything that it passed, in one
    /// record. Answers `false`, and records nothing, if it took too long for that.
    #[inline]
    pub fn write_bucket(&mut self, started_ns: u64, started: Event, template: TemplateId, times: BucketTimes) -> bool {
        let record = Record { time_ns: started_ns, thread: self.thread, event: started };
        let Some(words) = compact::encode_bucket(record, template, times) else { return false };
        if self.recorder.is_on()
            && let Some(producer) = &mut self.producer
        {
            producer.write(words);
        }
        true
    }
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        if let Some(producer) = self.producer.take() {
            self.recorder.reuse(producer);
        }
    }
}
