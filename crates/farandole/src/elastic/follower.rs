//! A process that gets the state of a member before it joins: the glue between a stream and a training.
//!
//! The *follower* asks one member after the other, until one is there. A thread receives; the training's thread, to
//! which the state belongs, takes over what has come. It is ready to join when little is left at the source. From then
//! on it makes the steps of the members a moment after them, until it is one.
//!
//! Invariant: a state that was taken over is whole, and [`Follower::standing`] says which it is. Whatever goes wrong
//! leaves the process as one that gets the whole state when it is let in.

use std::io;
use std::time::Duration;

use farandole_cluster::streaming::Streamed;

use super::sources::{Sources, StateStream};
use super::standing::Standing;
use super::state::{ElasticState, misfit};
use super::streamed::Replay;
use crate::error::Result;

/// So many members are asked; after that, losses are too frequent for streams.
const MOST_SOURCES: usize = 3;

/// Little is left if it is at most one update, or this part of the state.
const LITTLE: u64 = 16;

/// In a change of the job, for the last updates. They are on their way, or they do not come.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Follower<S> {
    replay: Replay<S>,
    stream: StateStream,
    /// Which state was taken over last.
    standing: Option<Standing>,
    state_bytes: u64,
    stage: Stage,
    /// Whether the state has changed at the source without an update, and another copy of it is to come.
    is_stale: bool,
    /// How often in a row the source had nothing to send.
    idle: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Much is to come.
    Behind,
    /// Little is left.
    Close,
    /// The stream has ended: nothing more comes.
    Over,
    /// The source is lost.
    Lost,
}

impl<S: ElasticState> Follower<S> {
    /// Gets a state, until this process is to join. `None`: it joins without one.
    pub(super) fn follow(sources: &Sources, replay: Replay<S>, state: &mut S) -> Option<Follower<S>> {
        let mut last = None;
        for number in 0..sources.count().min(MOST_SOURCES) {
            let mut follower = match sources.connect(number) {
                Ok(stream) => Follower::new(stream, replay),
                Err(error) => {
                    log::info!("a member that may have the state cannot be asked for it: {error}");
                    continue;
                }
            };
            follower.take_until(state, None, |follower| follower.stage != Stage::Behind);
            let stage = follower.stage;
            last = Some(follower).filter(|follower| follower.standing.is_some()).or(last);
            if stage != Stage::Lost {
                break;
            }
        }
        last
    }

    fn new(stream: StateStream, replay: Replay<S>) -> Follower<S> {
        Follower { replay, stream, standing: None, state_bytes: 0, stage: Stage::Behind, is_stale: false, idle: 0 }
    }

    /// Which state this process has; `None`: its own.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.standing
    }

    /// Takes over what comes in this time.
    pub(super) fn take_for(&mut self, state: &mut S, time: Duration) {
        self.take_until(state, Some(time), |_| false);
    }

    /// Takes over what is left until the state has completed so many blocks. Whether it has.
    pub(super) fn catch_up(&mut self, state: &mut S, completed: Option<u64>) -> bool {
        self.idle = 0;
        self.take_until(state, Some(LAST_PATIENCE), |follower| {
            let is_there = follower.standing.is_some_and(|standing| standing.completed >= completed);
            // All updates were handed over before the members came together: what has not come does not come. One word
            // of waiting may be older than the last update.
            is_there || follower.is_stale || follower.idle > 1
        });
        self.standing.is_some_and(|standing| standing.completed == completed)
    }

    /// Takes over what comes, in so much time, until it is enough; that is asked first, and after each word.
    fn take_until(&mut self, state: &mut S, time: Option<Duration>, mut is_enough: impl FnMut(&Follower<S>) -> bool) {
        let began = std::time::Instant::now();
        while !is_enough(self) && !matches!(self.stage, Stage::Over | Stage::Lost) {
            let left = time.map_or(Duration::MAX, |time| time.saturating_sub(began.elapsed()));
            match self.stream.receive(left) {
                Some(word) => self.take(state, word),
                None => return,
            }
        }
    }

    fn take(&mut self, state: &mut S, word: io::Result<Streamed>) {
        self.idle = if matches!(word, Ok(Streamed::Wait)) { self.idle + 1 } else { 0 };
        match word {
            Ok(Streamed::Wait) => {}
            Ok(Streamed::Again) => (self.stage, self.is_stale) = (Stage::Behind, true),
            Ok(Streamed::JoinNow(why)) => {
                log::info!("this process joins without the rest of the state: {why}");
                self.stage = Stage::Over;
            }
            Ok(Streamed::Snapshot { note, state: saved, left_bytes }) => {
                (self.state_bytes, self.is_stale) = (saved.len() as u64, false);
                let restored = state.restore(&saved);
                self.note(restored, &note, left_bytes, 0);
            }
            Ok(Streamed::Update { note, update, left_bytes }) => {
                let applied = (self.replay.apply)(state, &update);
                self.note(applied, &note, left_bytes, update.len() as u64);
            }
            Err(error) => {
                log::info!("the member that sent its state is lost: {error}");
                self.stage = Stage::Lost;
            }
        }
    }

    /// The state is the one of the note, unless what was sent does not fit; then it is what it was.
    fn note(&mut self, taken: Result<()>, note: &[u8], left_bytes: u64, update_bytes: u64) {
        let standing = Standing::from_note(note).ok_or_else(|| misfit("a note says nothing"));
        match taken.and(standing) {
            Ok(standing) => {
                self.standing = Some(standing);
                let is_little = left_bytes <= update_bytes || left_bytes.saturating_mul(LITTLE) <= self.state_bytes;
                self.stage = if is_little { Stage::Close } else { Stage::Behind };
            }
            Err(error) => {
                log::warn!("this process joins without the rest of the state: {error}");
                self.stage = Stage::Over;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use farandole_testing::Deadline;

    use farandole_cluster::streaming::{StateSource, StreamLimits, StreamPeer};
    use farandole_transport::{JobId, Key};

    use super::super::samples::SamplePlace;
    use super::super::streamed::Streaming;
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn peer(member: u64) -> StreamPeer {
        let (key, job) = (Key::from_bytes([9; 32]), JobId::named("followers"));
        StreamPeer { key, job, host: "here".to_owned(), member }
    }

    fn source() -> (StateSource, Vec<u8>) {
        let source = StateSource::new(StreamLimits { least_bytes: 1, most_log: 4, bytes_per_second: None });
        let contact = source.listen(&peer(0), &[]).unwrap();
        (source, contact)
    }

    fn note(completed: u64) -> Vec<u8> {
        Standing { completed: Some(completed), ..Standing::of_nobody(SamplePlace::default()) }.note()
    }

    fn replay() -> Replay<Vec<u64>> {
        let apply = |state: &mut Vec<u64>, update: &[u8]| {
            state[0] += u64::from(*update.first().ok_or_else(|| misfit("an update is empty"))?);
            Ok(())
        };
        Replay { streaming: Streaming::default(), apply }
    }

    /// Does what the training of a source does, as soon as somebody follows.
    fn serve(source: &StateSource, then: impl FnOnce()) {
        let until = Instant::now() + DEADLINE;
        while !source.wants_snapshot() {
            assert!(Instant::now() < until, "nobody asks");
            std::thread::yield_now();
        }
        then();
    }

    fn follow(
        contacts: Vec<Vec<u8>>,
        source: &StateSource,
        then: impl FnOnce() + Send,
    ) -> (Vec<u64>, Follower<Vec<u64>>) {
        let mut state = vec![0u64; 4];
        let follower = std::thread::scope(|scope| {
            scope.spawn(|| serve(source, then));
            Follower::follow(&Sources { own: peer(1), contacts }, replay(), &mut state)
        });
        (state, follower.expect("a state"))
    }

    #[test]
    fn a_follower_takes_over_the_state_and_every_update_until_it_is_where_the_members_are() {
        let (source, contact) = source();
        let (mut state, mut follower) = follow(vec![contact], &source, || {
            source.give_snapshot(&note(5), as_state(&[10, 2, 3, 4]));
        });
        assert_eq!(state, [10, 2, 3, 4]);
        source.give_update(&note(6), vec![1]);
        source.give_update(&note(7), vec![2]);
        assert!(follower.catch_up(&mut state, Some(7)));
        assert_eq!((state[0], follower.standing().unwrap().completed), (13, Some(7)));
        assert!(!follower.catch_up(&mut state, Some(8)), "an update that does not come is not waited for");
        source.give_update(&note(8), Vec::new());
        assert!(!follower.catch_up(&mut state, Some(8)), "it does not fit");
        assert_eq!((state[0], follower.standing().unwrap().completed), (13, Some(7)), "and changes nothing");
    }

    #[test]
    fn a_state_that_has_changed_otherwise_is_out_of_date_at_once() {
        let (source, contact) = source();
        let (mut state, mut follower) = follow(vec![contact], &source, || {
            source.give_snapshot(&note(5), as_state(&[1; 4]));
        });
        source.begin_anew();
        let deadline = Deadline::after(DEADLINE);
        assert!(!follower.catch_up(&mut state, Some(6)));
        source.give_snapshot(&note(6), as_state(&[2; 4]));
        while follower.standing().unwrap().completed == Some(5) {
            deadline.check("the next snapshot");
            follower.take_for(&mut state, Duration::from_millis(5));
        }
        assert!(follower.catch_up(&mut state, Some(6)) && state == [2; 4]);
    }

    #[test]
    fn members_that_are_gone_are_passed_over() {
        let (source, contact) = source();
        let gone = contact.iter().map(|byte| if *byte == b'-' { b'+' } else { *byte }).collect();
        let (state, follower) = follow(vec![gone, contact], &source, || {
            source.give_snapshot(&note(5), as_state(&[7; 4]));
        });
        assert_eq!((state, follower.standing().unwrap().completed), (vec![7; 4], Some(5)));
    }

    #[test]
    fn a_process_that_is_refused_keeps_what_it_had() {
        let (source, contact) = source();
        let mut state = vec![3u64; 4];
        let follower = std::thread::scope(|scope| {
            scope.spawn(|| serve(&source, || source.refuse("the job is full")));
            Follower::follow(&Sources { own: peer(1), contacts: vec![contact] }, replay(), &mut state)
        });
        assert!(follower.is_none() && state == [3; 4]);
    }

    fn as_state(numbers: &[u64]) -> Vec<u8> {
        numbers.to_vec().save().unwrap()
    }
}
