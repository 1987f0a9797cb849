//! Makes samples of a rank from its records.
//!
//! Most records are about single tensors and are skipped by their first byte. The rest goes into totals, and into a
//! small table of what has begun and not yet ended: operations, and the phases of each thread. Where records were
//! overwritten before they were read, the table is cleared, since the end of anything may be among them.
//!
//! **Invariant:** totals never fall. A wait that is under way counts as far as it has come; when its record is there,
//! the record takes over.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

use super::sample::{Counts, LiveSample, Stall};
use crate::clock::now_ns;
use crate::compact::{self, Template};
use crate::event::{Event, GroupNumber, NameId, OperationNumber, Phase, Record, ThreadId};
use crate::recorder::Recorder;

/// Kinds of records that are of no use here: submitted, arrived, fused, done, failed; steps of an operation; cycles;
/// what devices did; changes of generation. Nearly all there are.
const SKIPPED_KINDS: [u8; 16] = [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 25, 26, 27, 28, 29, 30];

/// Operations under way and threads with phases that are remembered: far more than there ever are. A program that
/// forgets to end its phases must not fill the memory.
const MOST_REMEMBERED: usize = 1024;

/// Room for records that is kept from one look to the next.
const KEPT_RECORDS: usize = 1 << 14;

/// See the module's text.
#[derive(Debug)]
pub struct Sampler {
    recorder: Arc<Recorder>,
    /// For each ring the number of the next record.
    next: Vec<u64>,
    words: Vec<[u64; 4]>,
    templates: Vec<Template>,
    counts: Counts,
    iteration: Option<u64>,
    epoch: Option<u64>,
    stall: Option<Stall>,
    /// Operations that have started.
    running: HashMap<(GroupNumber, OperationNumber), Running>,
    /// Whom the engine waits for, in which group.
    waits: Option<(GroupNumber, Option<u32>)>,
    /// Phases that each thread is in, innermost last.
    phases: HashMap<ThreadId, Vec<Open>>,
    /// The thread that marks iterations or, without any, the last one that marked a phase.
    program: Option<ThreadId>,
    marks_iterations: bool,
    /// Time that has passed in waits that are over, without those under way.
    waited_ns: u64,
    input_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    since_ns: u64,
    requests: u32,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    phase: Phase,
    name: NameId,
    since_ns: u64,
}

impl Sampler {
    /// Follows this recorder from its first record on.
    pub fn new(recorder: Arc<Recorder>) -> Sampler {
        Sampler {
            recorder,
            next: Vec::new(),
            words: Vec::new(),
            templates: Vec::new(),
            counts: Counts::default(),
            iteration: None,
            epoch: None,
            stall: None,
            running: HashMap::new(),
            waits: None,
            phases: HashMap::new(),
            program: None,
            marks_iterations: false,
            waited_ns: 0,
            input_ns: 0,
        }
    }

    /// What there is to say now.
    pub fn sample(&mut self) -> LiveSample {
        // Before the records: a wait that ends in between has left its record by then, and is known by its beginning.
        let blocked_since_ns = self.recorder.blocked_since_ns();
        let closed = self.follow(blocked_since_ns);
        let now_ns = now_ns();
        let ticket_ns = blocked_since_ns.filter(|_| !closed).map(|since_ns| now_ns.saturating_sub(since_ns));
        let direct = self.running.iter().filter(|((group, _), _)| *group == GroupNumber::DIRECT);
        let direct_ns = direct.map(|(_, running)| now_ns.saturating_sub(running.since_ns)).max();
        let open = self.program.and_then(|thread| self.phases.get(&thread)?.last().copied());
        let starving = open.filter(|open| open.phase == Phase::InputWait);
        let starving_ns = starving.map_or(0, |open| now_ns.saturating_sub(open.since_ns));
        let blocked_ns = ticket_ns.max(direct_ns).unwrap_or(0);
        let waited_ns = self.waited_ns + ticket_ns.unwrap_or(0) + direct_ns.unwrap_or(0);
        let counts = &mut self.counts;
        counts.time_ns = now_ns;
        counts.waited_ns = counts.waited_ns.max(waited_ns);
        counts.input_ns = counts.input_ns.max(self.input_ns + starving_ns);
        (counts.cpu_ns, counts.rss_bytes) = (cpu_ns(), rss_bytes());
        LiveSample {
            counts: *counts,
            iteration: self.iteration,
            epoch: self.epoch,
            blocked_ns,
            peer: self.waits.and_then(|(group, peer)| self.in_world(group, peer?)),
            phase: open.map_or(String::new(), |open| self.word_for(open)),
            stall: self.stall.clone(),
        }
    }

    /// Takes in what is new. Says whether the wait that began at this moment is over.
    fn follow(&mut self, blocked_since_ns: Option<u64>) -> bool {
        let rings = self.recorder.rings();
        self.next.resize(rings.len(), 0);
        let mut closed = false;
        for (index, ring) in rings.iter().enumerate() {
            let mut words = std::mem::take(&mut self.words);
            let (until, dropped) = ring.read(self.next[index], &mut words);
            self.next[index] = until;
            if dropped > 0 {
                self.counts.dropped += dropped;
                self.running.clear();
                self.phases.clear();
                self.waits = None;
            }
            // After the records, because a writer enters the template before the record.
            self.templates.extend(self.recorder.templates_since(self.templates.len()));
            for words in words.drain(..) {
                if let Some(decoded) = compact::decode(words, &self.templates) {
                    let (started, finished) = (decoded.started, decoded.finished);
                    started.into_iter().chain(finished).for_each(|record| self.take(record));
                    continue;
                }
                if SKIPPED_KINDS.contains(&(words[1] as u8)) {
                    continue;
                }
                let Some(record) = Record::from_words(words) else { continue };
                if let Event::Waited { since_ns, .. } = record.event {
                    closed |= Some(since_ns) == blocked_since_ns;
                }
                self.take(record);
            }
            words.shrink_to(KEPT_RECORDS);
            self.words = words;
        }
        closed
    }

    fn take(&mut self, Record { time_ns, thread, event }: Record) {
        match event {
            Event::Started { group, operation, requests, bytes, .. } if self.running.len() < MOST_REMEMBERED => {
                self.running.insert((group, operation), Running { since_ns: time_ns, requests, bytes });
            }
            Event::Waiting { group, peer, .. } => self.waits = Some((group, peer)),
            Event::Resumed { .. } => self.waits = None,
            Event::Finished { group, operation } => {
                self.waits = None;
                if let Some(running) = self.running.remove(&(group, operation)) {
                    self.counts.operations += 1;
                    self.counts.requests += u64::from(running.requests);
                    self.counts.bytes += running.bytes;
                    if group == GroupNumber::DIRECT {
                        self.waited_ns += time_ns.saturating_sub(running.since_ns);
                    }
                }
            }
            Event::Abandoned { group, operation } => {
                self.waits = None;
                self.running.remove(&(group, operation));
            }
            Event::Skipped { calls, bytes, .. } => {
                self.counts.operations += u64::from(calls);
                self.counts.bytes += bytes;
            }
            Event::Waited { since_ns, .. } => self.waited_ns += time_ns.saturating_sub(since_ns),
            Event::PhaseBegin { phase, name } => self.enter(thread, Open { phase, name, since_ns: time_ns }),
            Event::PhaseEnd { phase, name } => self.leave(thread, phase, name, time_ns),
            Event::Iteration { number } => {
                (self.program, self.marks_iterations) = (Some(thread), true);
                self.iteration = Some(number);
                self.counts.iterations += 1;
                self.counts.iteration_ns = time_ns;
            }
            Event::Epoch { number } => self.epoch = Some(number),
            Event::Stalled { name, missing, rank, .. } => {
                self.counts.stalls += 1;
                self.stall = Some(Stall { time_ns, name: self.name(name), missing, rank });
            }
            // Nothing of this rank goes on any more.
            Event::Aborted { .. } => {
                self.running.clear();
                self.waits = None;
            }
            _ => {}
        }
    }

    fn enter(&mut self, thread: ThreadId, open: Open) {
        if !self.marks_iterations {
            self.program = Some(thread);
        }
        let threads = self.phases.len();
        let open_phases = self.phases.entry(thread).or_default();
        if threads <= MOST_REMEMBERED && open_phases.len() < MOST_REMEMBERED {
            open_phases.push(open);
        }
    }

    /// Ends the innermost phase of this name, and those inside that the program has forgotten.
    fn leave(&mut self, thread: ThreadId, phase: Phase, name: NameId, time_ns: u64) {
        let Some(open_phases) = self.phases.get_mut(&thread) else { return };
        let Some(at) = open_phases.iter().rposition(|open| (open.phase, open.name) == (phase, name)) else { return };
        if phase == Phase::InputWait && self.program == Some(thread) {
            self.input_ns += time_ns.saturating_sub(open_phases[at].since_ns);
        }
        open_phases.truncate(at);
        if open_phases.is_empty() {
            self.phases.remove(&thread);
        }
    }

    fn word_for(&self, open: Open) -> String {
        match open.phase {
            Phase::User => self.name(open.name),
            phase => phase.word().to_owned(),
        }
    }

    fn name(&self, id: NameId) -> String {
        let (first, names) = self.recorder.names_since(id);
        names.first().filter(|_| first == id).map_or(String::new(), |named| named.text.to_string())
    }

    /// A rank of a group by its number in the world.
    fn in_world(&self, group: GroupNumber, peer: u32) -> Option<u32> {
        if matches!(group, GroupNumber::WORLD | GroupNumber::DIRECT) {
            return Some(peer);
        }
        let groups = self.recorder.groups_since(0);
        let (_, ranks) = groups.into_iter().rev().find(|(number, _)| *number == group)?;
        ranks.get(peer as usize).copied()
    }
}

/// Time that this process had on processors.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Memory of this process that is in use; zero where it cannot be known.
fn rss_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Collective, Dtype};
    use crate::recorder::Identity;

    fn recorder() -> Arc<Recorder> {
        Recorder::new(Identity { size: 4, ..Identity::default() }, 10_000)
    }

    fn started(group: GroupNumber, operation: u64, bytes: u64) -> Event {
        let (collective, dtype) = (Collective::Allreduce, Dtype::F32);
        Event::Started { group, operation: OperationNumber(operation), collective, dtype, requests: 3, bytes }
    }

    #[test]
    fn what_is_done_is_counted_once() {
        let recorder = recorder();
        let mut writer = recorder.ring_writer();
        let mut sampler = Sampler::new(Arc::clone(&recorder));
        for operation in 0..10 {
            writer.write(operation, started(GroupNumber::WORLD, operation, 100));
            writer
                .write(operation, Event::Finished { group: GroupNumber::WORLD, operation: OperationNumber(operation) });
        }
        writer.write(20, started(GroupNumber::WORLD, 11, 1));
        let group = GroupNumber::DIRECT;
        writer.write(21, Event::Skipped { group, operation: OperationNumber(5), calls: 7, bytes: 28 });
        for _ in 0..2 {
            let Counts { operations, requests, bytes, .. } = sampler.sample().counts;
            assert_eq!((operations, requests, bytes), (17, 30, 1028));
        }
        writer.write(22, Event::Finished { group: GroupNumber::WORLD, operation: OperationNumber(11) });
        assert_eq!(sampler.sample().counts.bytes, 1029);
    }

    #[test]
    fn buckets_that_come_again_count_although_their_records_are_short() {
        use crate::compact::BucketTimes;
        use crate::event::TemplateEntry;
        let recorder = recorder();
        let mut writer = recorder.ring_writer();
        let mut sampler = Sampler::new(Arc::clone(&recorder));
        let template = recorder.template([TemplateEntry { name: NameId(1), bytes: 40 }; 2], 100).unwrap();
        let group = GroupNumber::WORLD;
        writer.write_edge(1, started(group, 1, 100), template);
        writer.write_edge(2, Event::Finished { group, operation: OperationNumber(1) }, template);
        let times = BucketTimes { entered: false, packed_ns: 3, finished_ns: 4 };
        assert!(writer.write_bucket(3, started(group, 2, 100), template, times));
        let Counts { operations, requests, bytes, .. } = sampler.sample().counts;
        assert_eq!((operations, requests, bytes), (2, 4, 200));
    }

    #[test]
    fn the_phase_is_that_of_the_thread_with_the_iterations() {
        let recorder = recorder();
        let mut sampler = Sampler::new(Arc::clone(&recorder));
        recorder.mark(Event::Iteration { number: 41 });
        recorder.mark(Event::Epoch { number: 3 });
        let forward = recorder.phase(Phase::Forward);
        let loader = Arc::clone(&recorder);
        std::thread::spawn(move || loader.begin_phase("augment")).join().unwrap();
        let sample = sampler.sample();
        assert_eq!((sample.phase.as_str(), sample.iteration, sample.epoch), ("forward", Some(41), Some(3)));
        drop(forward);
        assert_eq!(sampler.sample().phase, "");
        let _augment = recorder.user_phase("augment");
        assert_eq!(sampler.sample().phase, "augment");
    }

    #[test]
    fn a_wait_counts_while_it_lasts_and_not_twice_afterwards() {
        let recorder = recorder();
        let mut sampler = Sampler::new(Arc::clone(&recorder));
        let since_ns = now_ns() - 1_000_000_000;
        recorder.block(since_ns);
        let sample = sampler.sample();
        assert!(sample.blocked_ns >= 1_000_000_000 && sample.counts.waited_ns >= 1_000_000_000, "{sample:?}");
        // The wait has left its record and is about to say that it is over.
        recorder.mark(Event::Waited { name: NameId::NONE, since_ns });
        let over = sampler.sample();
        assert_eq!(over.blocked_ns, 0);
        assert!(over.counts.waited_ns < 2_000_000_000, "{over:?}");
        recorder.unblock();
        assert_eq!(sampler.sample().counts.waited_ns, over.counts.waited_ns);
    }

    #[test]
    fn a_direct_call_is_a_wait_for_a_rank() {
        let recorder = recorder();
        let mut writer = recorder.ring_writer();
        let mut sampler = Sampler::new(Arc::clone(&recorder));
        let (group, operation) = (GroupNumber::DIRECT, OperationNumber(1));
        writer.write(now_ns() - 5_000, started(group, 1, 8));
        writer.write(now_ns(), Event::Waiting { group, operation, peer: Some(2) });
        let sample = sampler.sample();
        assert_eq!(sample.peer, Some(2));
        assert!(sample.blocked_ns >= 5_000);
        writer.write(now_ns(), Event::Finished { group, operation });
        let sample = sampler.sample();
        assert_eq!((sample.peer, sample.blocked_ns), (None, 0));
        assert!(sample.counts.waited_ns >= 5_000);
    }

    #[test]
    fn peers_of_a_group_are_named_by_their_rank_in_the_world() {
        let recorder = recorder();
        recorder.note_group(GroupNumber(5), vec![1, 3]);
        let mut writer = recorder.ring_writer();
        writer.write(1, Event::Waiting { group: GroupNumber(5), operation: OperationNumber(1), peer: Some(1) });
        assert_eq!(Sampler::new(Arc::clone(&recorder)).sample().peer, Some(3));
    }

    #[test]
    fn the_last_stall_is_remembered() {
        let recorder = recorder();
        let name = recorder.intern(&"layer.7".into(), &[]);
        recorder.mark(Event::Stalled { name, group: GroupNumber::WORLD, missing: 2, rank: 1 });
        let sample = Sampler::new(Arc::clone(&recorder)).sample();
        let stall = sample.stall.unwrap();
        assert_eq!((stall.name.as_str(), stall.missing, stall.rank, sample.counts.stalls), ("layer.7", 2, 1, 1));
    }

    #[test]
    fn records_that_were_overwritten_are_told_and_end_nothing_by_mistake() {
        let recorder = Recorder::new(Identity::default(), 10);
        let mut writer = recorder.ring_writer();
        let mut sampler = Sampler::new(Arc::clone(&recorder));
        writer.write(1, started(GroupNumber::DIRECT, 1, 8));
        assert!(sampler.sample().blocked_ns > 0);
        for number in 0..10_000 {
            writer.write(number, Event::Cycle);
        }
        let sample = sampler.sample();
        assert!(sample.counts.dropped > 0);
        assert_eq!(sample.blocked_ns, 0, "its end may be among what was lost");
    }

    #[test]
    fn the_process_itself_is_seen() {
        let counts = Sampler::new(recorder()).sample().counts;
        assert!(counts.rss_bytes > 1 << 20 && counts.cpu_ns > 0, "{counts:?}");
    }
}
