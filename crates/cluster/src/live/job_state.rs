//! Where everything that is known of a running job is written up.
//!
//! The host of the rendezvous writes; the endpoint reads. The lock between them is held to update one
//! rank, or to copy all of them; never while anybody talks to a socket.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farandole_trace::live::{Counts, LiveSample, SampleRates};

use super::snapshot::{FORMAT, JobView, LastStall, LiveState, RankView, Snapshot, Totals};

/// So many samples are remembered for rates: about ten seconds. Long enough for a figure that can be read, short enough
/// to see something change.
const REMEMBERED: usize = 11;

/// A rank whose samples have not come for so long is called silent: two may be late on a crowded machine.
const SILENCE: Duration = Duration::from_millis(3500);

/// See the module's text.
#[derive(Debug)]
pub struct JobState {
    job: JobView,
    began: Instant,
    ranks: Mutex<Vec<Entry>>,
    /// Of an elastic job.
    generation: Mutex<Option<Generation>>,
}

/// Which generation an elastic job is in.
#[derive(Clone, Copy, Debug)]
struct Generation {
    number: u64,
    size: usize,
    recoveries: u64,
}

/// What is known of one rank.
#[derive(Clone, Debug, Default)]
struct Entry {
    host: String,
    pid: Option<u32>,
    stopped: bool,
    /// How it ended.
    ended: Option<(LiveState, String)>,
    sample: Option<(Instant, LiveSample)>,
    /// Totals of the last samples, oldest first.
    counts: VecDeque<Counts>,
}

impl JobState {
    /// The state of a job that begins now, with the host of each rank as far as these are known.
    pub fn new(job: JobView, hosts: &[String]) -> JobState {
        let entry = |rank: usize| Entry { host: hosts.get(rank).cloned().unwrap_or_default(), ..Entry::default() };
        let ranks = Mutex::new((0..job.size).map(entry).collect());
        JobState { job, began: Instant::now(), ranks, generation: Mutex::new(None) }
    }

    fn ranks(&self) -> MutexGuard<'_, Vec<Entry>> {
        // Valid between any two statements, also if a holder panicked.
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers come from other processes: one that no rank has changes nothing.
    fn change(&self, rank: u32, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.ranks().get_mut(rank as usize) {
            change(entry);
        }
    }

    /// A rank's process is there. What was known of an earlier one is forgotten.
    pub fn started(&self, rank: u32, pid: u32, host: Option<&str>) {
        self.change(rank, |entry| {
            let host = host.map_or_else(|| std::mem::take(&mut entry.host), str::to_owned);
            *entry = Entry { host, pid: Some(pid), ..Entry::default() };
        });
    }

    /// A process with this number is about to be started on this host: a member of an elastic job.
    pub fn add(&self, number: u32, host: &str) {
        let mut ranks = self.ranks();
        let count = ranks.len().max(number as usize + 1);
        ranks.resize_with(count, Entry::default);
        ranks[number as usize].host = host.to_owned();
    }

    /// An elastic job is in the generation with this number, which has so many ranks. Earlier ones, of which some hear
    /// late, change nothing.
    pub fn entered(&self, number: u64, size: usize) {
        let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *generation {
            Some(known) if known.number >= number => {}
            Some(known) => *known = Generation { number, size, recoveries: known.recoveries + 1 },
            None => *generation = Some(Generation { number, size, recoveries: 0 }),
        }
    }

    /// A signal has stopped it.
    pub fn stopped(&self, rank: u32) {
        self.change(rank, |entry| entry.stopped = true);
    }

    /// It goes on.
    pub fn continued(&self, rank: u32) {
        self.change(rank, |entry| entry.stopped = false);
    }

    /// It has left the job, or its process has ended, in these words.
    pub fn ended(&self, rank: u32, state: LiveState, how: impl Into<String>) {
        self.change(rank, |entry| entry.ended = Some((state, how.into())));
    }

    /// It has sent a sample. Bytes that are none are passed over.
    pub fn sampled(&self, rank: u32, sample: &[u8], now: Instant) {
        let Some(sample) = LiveSample::decode(sample) else { return };
        self.change(rank, |entry| {
            // A rank that left may come to the next meeting.
            if entry.ended.as_ref().is_some_and(|(state, _)| *state == LiveState::Left) {
                entry.ended = None;
            }
            if entry.counts.back().is_some_and(|last| SampleRates::between(last, &sample.counts).is_none()) {
                entry.counts.clear();
            }
            if entry.counts.len() == REMEMBERED {
                entry.counts.pop_front();
            }
            entry.counts.push_back(sample.counts);
            entry.sample = Some((now, sample));
        });
    }

    /// Everything that is known now.
    pub fn snapshot(&self, now: Instant) -> Snapshot {
        let running_seconds = now.saturating_duration_since(self.began).as_secs_f64();
        let entries = self.ranks().clone();
        let ranks = entries.into_iter().zip(0..).map(|(entry, rank)| entry.view(rank, now)).collect();
        let mut job = JobView { running_seconds, ..self.job.clone() };
        if let Some(known) = *self.generation.lock().unwrap_or_else(PoisonError::into_inner) {
            (job.generation, job.size, job.recoveries) = (known.number, known.size, known.recoveries);
        }
        Snapshot { format: FORMAT, job, ranks }
    }
}

impl Entry {
    fn view(self, rank: u32, now: Instant) -> RankView {
        let age = self.sample.as_ref().map(|(heard, _)| now.saturating_duration_since(*heard));
        let (state, ending) = match self.ended {
            Some((state, how)) => (state, Some(how).filter(|how| !how.is_empty())),
            None if self.stopped => (LiveState::Stopped, None),
            None if age.is_none() => (LiveState::Starting, None),
            None if age > Some(SILENCE) => (LiveState::Silent, None),
            None => (LiveState::Running, None),
        };
        let (host, pid) = (self.host, self.pid);
        let view = RankView { rank, host, pid, state, ending, ..RankView::default() };
        let (Some((_, sample)), Some(age)) = (self.sample, age) else { return view };
        let current = matches!(state, LiveState::Running);
        let rates =
            self.counts.front().and_then(|first| SampleRates::between(first, &sample.counts)).filter(|_| current);
        // A window may begin before the first iteration does.
        let marked = self.counts.iter().find(|counts| counts.iterations > 0);
        let paced = marked.and_then(|first| SampleRates::between(first, &sample.counts)).filter(|_| current);
        let Counts { time_ns, .. } = sample.counts;
        RankView {
            sample_age_seconds: Some(age.as_secs_f64()),
            iteration: sample.iteration,
            epoch: sample.epoch,
            iterations_per_second: paced.and_then(|rates| rates.iterations),
            operations_per_second: rates.map(|rates| rates.operations),
            bytes_per_second: rates.map(|rates| rates.bytes),
            waiting_share: rates.map(|rates| rates.waiting),
            input_share: rates.map(|rates| rates.input),
            cpu: rates.map(|rates| rates.cpu),
            rss_bytes: Some(sample.counts.rss_bytes).filter(|bytes| *bytes > 0 && ending_is_open(state)),
            phase: Some(sample.phase).filter(|phase| !phase.is_empty() && ending_is_open(state)),
            blocked_seconds: Some(seconds(sample.blocked_ns)).filter(|time| *time > 0.0 && ending_is_open(state)),
            waits_for: sample.peer.filter(|_| ending_is_open(state)),
            last_stall: sample.stall.map(|stall| LastStall {
                seconds_ago: seconds(time_ns.saturating_sub(stall.time_ns)) + age.as_secs_f64(),
                tensor: stall.name,
                missing_ranks: stall.missing,
                first_missing_rank: stall.rank,
            }),
            totals: totals(&sample.counts),
            ..view
        }
    }
}

/// Whether a rank in this state still does something.
fn ending_is_open(state: LiveState) -> bool {
    !matches!(state, LiveState::Left | LiveState::Ended)
}

fn totals(counts: &Counts) -> Totals {
    Totals {
        iterations: counts.iterations,
        operations: counts.operations,
        requests: counts.requests,
        bytes: counts.bytes,
        waiting_seconds: seconds(counts.waited_ns),
        input_seconds: seconds(counts.input_ns),
        cpu_seconds: seconds(counts.cpu_ns),
        stalls: counts.stalls,
        dropped_records: counts.dropped,
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(size: usize) -> JobState {
        JobState::new(JobView { size, ..JobView::default() }, &["a".to_owned(), "b".to_owned()])
    }

    fn sample(second: u64) -> Vec<u8> {
        let ns = second * 1_000_000_000;
        let counts =
            Counts { time_ns: ns, bytes: second * 1000, iterations: 2 * second, iteration_ns: ns, ..Counts::default() };
        LiveSample { counts, phase: "forward".into(), ..LiveSample::default() }.encode()
    }

    #[test]
    fn rates_are_those_of_the_last_samples() {
        let (state, now) = (state(2), Instant::now());
        for second in 1..=30 {
            state.sampled(0, &sample(second), now);
        }
        let snapshot = state.snapshot(now);
        let rank = &snapshot.ranks[0];
        assert_eq!((rank.bytes_per_second, rank.iterations_per_second), (Some(1000.0), Some(2.0)));
        assert_eq!((rank.totals.iterations, rank.state, rank.host.as_str()), (60, LiveState::Running, "a"));
        assert_eq!(snapshot.ranks[1].state, LiveState::Starting);
    }

    #[test]
    fn iterations_are_paced_from_the_first_on() {
        let (state, now) = (state(1), Instant::now());
        state.sampled(0, &LiveSample::default().encode(), now);
        (1..3).for_each(|second| state.sampled(0, &sample(second), now));
        assert_eq!(state.snapshot(now).ranks[0].iterations_per_second, Some(2.0));
    }

    #[test]
    fn a_rank_falls_silent_stops_and_ends() {
        let (state, now) = (state(1), Instant::now());
        state.started(0, 77, None);
        (1..4).for_each(|second| state.sampled(0, &sample(second), now));
        let at = |ms| state.snapshot(now + Duration::from_millis(ms)).ranks.remove(0);
        assert_eq!(at(1000).state, LiveState::Running);
        let silent = at(10_000);
        assert_eq!((silent.state, silent.bytes_per_second, silent.pid), (LiveState::Silent, None, Some(77)));
        assert_eq!(silent.phase.as_deref(), Some("forward"), "what it did last is worth knowing");
        state.stopped(0);
        assert_eq!(at(10_000).state, LiveState::Stopped);
        state.continued(0);
        state.ended(0, LiveState::Ended, "was killed by signal 9 (SIGKILL)");
        let ended = at(1000);
        assert_eq!((ended.state, ended.phase), (LiveState::Ended, None));
        assert_eq!(ended.ending.as_deref(), Some("was killed by signal 9 (SIGKILL)"));
        assert_eq!(ended.totals.bytes, 3000, "what it did stays known");
    }

    #[test]
    fn a_rank_that_comes_again_is_counted_anew() {
        let (state, now) = (state(1), Instant::now());
        (5..9).for_each(|second| state.sampled(0, &sample(second), now));
        state.ended(0, LiveState::Left, "");
        assert_eq!(state.snapshot(now).ranks[0].state, LiveState::Left);
        state.sampled(0, &sample(1), now);
        let rank = state.snapshot(now).ranks.remove(0);
        assert_eq!((rank.state, rank.bytes_per_second, rank.totals.bytes), (LiveState::Running, None, 1000));
    }

    #[test]
    fn an_elastic_job_counts_its_recoveries() {
        let (state, now) = (state(2), Instant::now());
        let at = || {
            let job = state.snapshot(now).job;
            (job.generation, job.size, job.recoveries)
        };
        assert_eq!(at(), (0, 2, 0));
        state.entered(1, 2);
        state.entered(3, 1);
        state.entered(3, 1);
        state.entered(1, 2);
        assert_eq!(at(), (3, 1, 1));
        state.entered(4, 2);
        assert_eq!(at(), (4, 2, 2));
    }

    #[test]
    fn garbage_and_ranks_that_are_none_change_nothing() {
        let (state, now) = (state(1), Instant::now());
        state.sampled(0, b"garbage", now);
        state.sampled(7, &sample(1), now);
        state.stopped(u32::MAX);
        let snapshot = state.snapshot(now);
        assert_eq!((snapshot.ranks.len(), snapshot.ranks[0].state), (1, LiveState::Starting));
    }
}
