//! A simulated process: the production endpoint with a driver that is called instead of waiting, and its training.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farandole_cluster::membership::simulated::{
    After, BoundaryOutcome, Command, EndpointCore, MemberChannel as _, PeerProcess, Shared, Whereabouts,
};
use farandole_cluster::membership::{EndpointOptions, Generation, Limits, MemberId};
use farandole_plan::membership::Membership;
use farandole_transport::{AwakeClock, JobId};

use super::channel::KEY;
use super::kernel::{self, Nic};

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Training,
    /// At the boundary; the number tells one stay from the next.
    Waiting(u32),
    /// It sends its last words.
    Leaving,
    /// It has ended with a cause: evicted, out of patience, or in order.
    Ended,
}

/// What a process has learned: the samples below this position, as generations dealt them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Learned {
    pub(crate) position: u64,
    /// A hash of all steps that led here.
    pub(crate) digest: u64,
}

impl Learned {
    pub(crate) fn encode(self) -> Vec<u8> {
        [self.position.to_le_bytes(), self.digest.to_le_bytes()].concat()
    }

    pub(crate) fn decode(payload: &[u8]) -> Learned {
        let number =
            |at: usize| payload.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        Learned { position: number(0), digest: number(8) }
    }

    /// One step of a generation: its samples are the next ones.
    pub(crate) fn step(self, generation: &Generation) -> Learned {
        let words = [self.digest, generation.number, self.position, generation.members.len() as u64];
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Learned {
            position: self.position + generation.members.len() as u64,
            digest: words.into_iter().fold(self.digest, mix),
        }
    }
}

/// A process.
pub(crate) struct Node {
    pub(crate) core: Option<EndpointCore<Nic>>,
    pub(crate) shared: Arc<Shared>,
    /// Questions to the witness that have not been sent.
    pub(crate) questions: Arc<Mutex<Vec<Vec<u8>>>>,
    pub(crate) contact: Vec<u8>,
    clock: AwakeClock,
    /// How long the last wait was meant to take.
    meant: Duration,
    pub(crate) wake_at: u64,
    pub(crate) commands: Vec<Command>,
    pub(crate) doing: Doing,
    pub(crate) alive: bool,
    pub(crate) stopped: bool,
    pub(crate) stays: u32,
    pub(crate) learned: Learned,
    /// The last generation that the machine was seen in.
    pub(crate) entered: u64,
    /// The generation of which this process knows that it cannot continue.
    pub(crate) failed: u64,
    pub(crate) goodbye_until: u64,
}

/// A moment of the simulated clock.
pub(crate) fn instant(base: Instant, now: u64) -> Instant {
    base + Duration::from_micros(now)
}

impl Node {
    pub(crate) fn new(kernel: &kernel::Shared, host: usize, limits: Limits, base: Instant) -> Node {
        let node = kernel.borrow_mut().spawn(host);
        let now = instant(base, kernel.borrow().now);
        let host = format!("host {host}");
        let tcp = vec![format!("10.0.0.1:{}", node + 1).parse().unwrap()];
        let contact = Whereabouts { host: host.clone(), unix_name: node.to_string(), tcp }.encode();
        let options = EndpointOptions {
            key: KEY.clone(),
            job: JobId::named("simulated"),
            host,
            listen_at: Vec::new(),
            limits,
            record_in: None,
            votes_in: None,
        };
        let shared = Arc::<Shared>::default();
        let questions = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let asked = Arc::clone(&questions);
        shared.set_on_question(move |question| asked.lock().unwrap().push(question));
        let nic = Nic { kernel: Rc::clone(kernel), node };
        let core = EndpointCore::new(options, contact.clone(), nic, Arc::clone(&shared), now);
        Node {
            core: Some(core),
            shared,
            questions,
            contact,
            clock: AwakeClock::new(now).judging_by(limits.silence.unwrap_or_default()),
            meant: Duration::ZERO,
            wake_at: u64::MAX,
            commands: Vec::new(),
            doing: Doing::Training,
            alive: true,
            stopped: false,
            stays: 0,
            learned: Learned::default(),
            entered: 0,
            failed: 0,
            goodbye_until: 0,
        }
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.alive && !self.stopped
    }

    /// Whether it takes part in anything.
    pub(crate) fn is_up(&self) -> bool {
        self.alive && !matches!(self.doing, Doing::Leaving | Doing::Ended)
    }

    pub(crate) fn machine(&self) -> Option<&Membership> {
        self.core.as_ref().and_then(EndpointCore::machine)
    }

    /// The newest generation that this process knows.
    pub(crate) fn generation(&self) -> Option<&Arc<Generation>> {
        self.machine().map(Membership::generation)
    }

    pub(crate) fn number(&self) -> u64 {
        self.generation().map_or(0, |generation| generation.number)
    }

    /// One turn of the loop, as `endpoint_thread` makes it. Returns when the next one is due.
    pub(crate) fn turn(&mut self, base: Instant, now: u64) -> Option<u64> {
        let core = self.core.as_mut()?;
        let awake = self.clock.look(instant(base, now), self.meant);
        let ready: Vec<_> = core
            .connections()
            .filter_map(|(id, channel)| {
                let has_ended = channel.stream().has_process_ended();
                let wants_write = channel.wants_write();
                let process = if has_ended { PeerProcess::HasEnded } else { PeerProcess::Runs };
                (has_ended || channel.stream().is_ready(wants_write)).then_some((id, process))
            })
            .collect();
        if self.doing == Doing::Leaving
            || core.turn(awake, std::mem::take(&mut self.commands), &ready) == After::Nothing
        {
            let is_done = core.say_goodbye();
            if self.doing != Doing::Leaving {
                (self.doing, self.goodbye_until) = (Doing::Leaving, now + 500 * kernel::MILLISECOND);
            }
            if is_done || now >= self.goodbye_until {
                return None;
            }
            return Some(now + 20 * kernel::MILLISECOND);
        }
        self.meant = core.longest_wait(self.clock.last());
        Some(now + self.meant.as_micros() as u64 + kernel::MILLISECOND)
    }

    /// Comes to the boundary, as `Endpoint::next_generation` does.
    pub(crate) fn come(&mut self) {
        let mut state = self.shared.state();
        if !matches!(state.outcome, Some(BoundaryOutcome::Evicted { .. })) {
            state.outcome = None;
            self.commands.push(Command::Come(self.learned.encode()));
        }
    }
}

pub(crate) fn member(node: usize) -> MemberId {
    MemberId(node as u64)
}
