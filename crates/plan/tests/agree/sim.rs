//! A world of members over a simulated network.
//!
//! Messages are encoded, delivered in order for each pair of ranks and in any order between pairs, and decoded. A
//! bucket finishes on a rank as early as the protocol allows at all: one that holds until all ranks have entered, or
//! that has an entry barrier, when all have; any other at any time. So an assumption of the protocol that does not hold
//! shows.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::agree::{Action, Bucket, Member, Operation, RequestId, Settings};
use farandole_plan::message::Message;
use farandole_plan::request::Request;
use farandole_plan::{Collective, Rank};

/// Small, quick, good enough: every test prints its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }
}

/// What a rank's program does next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Submit(Request),
    /// Goes on when all requests but the last so many have ended.
    WaitAllBut(usize),
    Close,
}

/// How a request ended on a rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    Ran(Operation),
    Refused(Arc<str>),
    Joined(Rank),
}

struct RankState {
    member: Member,
    script: VecDeque<Step>,
    /// In order of submission: name, and end if it has ended.
    requests: Vec<(Arc<str>, Option<End>)>,
    by_id: HashMap<RequestId, usize>,
    running: Option<Bucket>,
    ran: Vec<(Operation, u64)>,
    replayed: usize,
    closed: Option<Arc<str>>,
}

pub(crate) struct Sim {
    ranks: Vec<RankState>,
    links: Vec<Vec<VecDeque<Vec<u8>>>>,
    entered: BTreeMap<Operation, (u64, Vec<bool>)>,
    pub(crate) now: Duration,
    pub(crate) random: Random,
    pub(crate) messages: usize,
    pub(crate) abandoned: usize,
    /// Whether threads that wait say so to the agreement, as a thread that submits does and others do not.
    pub(crate) tells_waits: bool,
    /// One in so many chances a rank's program takes its next step; greater is slower.
    pub(crate) slowness: Vec<usize>,
}

impl Sim {
    pub(crate) fn new(size: usize, settings: &Settings, seed: u64) -> Sim {
        let rank = |rank| RankState {
            member: Member::new(Rank::from(rank), size, settings.clone()),
            script: VecDeque::new(),
            requests: Vec::new(),
            by_id: HashMap::new(),
            running: None,
            ran: Vec::new(),
            replayed: 0,
            closed: None,
        };
        Sim {
            ranks: (0..size).map(rank).collect(),
            links: vec![vec![VecDeque::new(); size]; size],
            entered: BTreeMap::new(),
            now: Duration::ZERO,
            random: Random(seed),
            messages: 0,
            abandoned: 0,
            tells_waits: false,
            slowness: vec![1; size],
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    pub(crate) fn push(&mut self, rank: usize, steps: impl IntoIterator<Item = Step>) {
        self.ranks[rank].script.extend(steps);
    }

    pub(crate) fn member(&mut self, rank: usize) -> &mut Member {
        &mut self.ranks[rank].member
    }

    pub(crate) fn ends(&self, rank: usize) -> Vec<(Arc<str>, Option<End>)> {
        self.ranks[rank].requests.clone()
    }

    pub(crate) fn ran(&self, rank: usize) -> &[(Operation, u64)] {
        &self.ranks[rank].ran
    }

    pub(crate) fn replayed(&self, rank: usize) -> usize {
        self.ranks[rank].replayed
    }

    pub(crate) fn closed(&self, rank: usize) -> Option<Arc<str>> {
        self.ranks[rank].closed.clone()
    }

    /// Runs until nothing moves. Panics if a script is not done by then.
    pub(crate) fn run(&mut self) {
        self.run_until_quiet();
        let left: Vec<_> = self.ranks.iter().map(|rank| (&rank.member, rank.script.front())).collect();
        assert!(self.ranks.iter().all(|rank| rank.script.is_empty()), "stuck: {left:#?}");
    }

    /// Runs until nothing moves.
    pub(crate) fn run_until_quiet(&mut self) {
        for _ in 0..4_000_000_u64 {
            if !self.step() && !self.pass_time() {
                return;
            }
        }
        panic!("no end in sight");
    }

    /// Lets something happen, somewhere; false if nothing can.
    fn step(&mut self) -> bool {
        let size = self.size();
        let mut moves: Vec<(usize, usize)> =
            (0..size * (size + 2)).map(|at| (at / (size + 2), at % (size + 2))).collect();
        self.random.shuffle(&mut moves);
        for (rank, what) in moves {
            self.now += Duration::from_nanos(10);
            let moved = match what {
                _ if what < size => self.deliver(what, rank),
                _ if what == size => self.finish(rank),
                _ => {
                    let slowness = self.slowness[rank];
                    self.random.one_in(slowness) && self.take_script_step(rank)
                }
            };
            if moved {
                // Sometimes the driver is slow to look; messages and actions are then fetched together later.
                if !self.random.one_in(3) {
                    self.poll(rank);
                }
                return true;
            }
        }
        (0..size).any(|rank| self.poll(rank)) || (0..size).any(|rank| self.take_script_step(rank))
    }

    /// Nothing can happen now: moves the clock to the next timeout.
    fn pass_time(&mut self) -> bool {
        let Some(at) = self.ranks.iter().filter_map(|rank| rank.member.next_timeout()).min() else { return false };
        self.now = self.now.max(at);
        let now = self.now;
        self.ranks.iter_mut().for_each(|rank| rank.member.handle_timeout(now));
        true
    }

    fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(bytes) = self.links[from][to].pop_front() else { return false };
        let message = Message::decode(&bytes).expect("what was encoded can be decoded");
        let now = self.now;
        self.ranks[to].member.receive(Rank::from(from), message, now).expect("all ranks keep the protocol");
        true
    }

    fn poll(&mut self, at: usize) -> bool {
        let mut moved = false;
        loop {
            let now = self.now;
            let rank = &mut self.ranks[at];
            let send_first = self.random.one_in(2);
            if send_first && let Some((to, message)) = rank.member.poll_send(now) {
                self.send(at, to, &message);
            } else if let Some(action) = rank.member.poll_action(now) {
                self.act(at, action);
            } else if let Some((to, message)) = rank.member.poll_send(now) {
                self.send(at, to, &message);
            } else {
                return moved;
            }
            moved = true;
        }
    }

    fn send(&mut self, from: usize, to: Rank, message: &Message) {
        assert_ne!(from, to.index(), "messages to oneself stay inside");
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.links[from][to.index()].push_back(bytes);
        self.messages += 1;
    }

    fn act(&mut self, at: usize, action: Action) {
        let size = self.size();
        let rank = &mut self.ranks[at];
        let mut end = |id: RequestId, end: End| {
            let number = rank.by_id.remove(&id).expect("an id is used while it is valid");
            let old = rank.requests[number].1.replace(end);
            assert_eq!(old, None, "a request ends once");
        };
        match action {
            Action::Run(bucket) => {
                assert!(rank.running.is_none(), "buckets run one at a time");
                assert!(!bucket.entry_barrier || bucket.replayed);
                let hash = bucket.plan.hash;
                let entered = self.entered.entry(bucket.operation).or_insert_with(|| (hash, vec![false; size]));
                assert_eq!(entered.0, hash, "ranks disagree on bucket {}", bucket.operation);
                assert!(!std::mem::replace(&mut entered.1[at], true), "bucket {} runs once", bucket.operation);
                rank.running = Some(bucket);
            }
            Action::Abandon { operation } => {
                let bucket = rank.running.take().expect("only a running bucket is abandoned");
                assert_eq!(bucket.operation, operation);
                assert!(bucket.replayed, "what was negotiated runs");
                self.abandoned += 1;
            }
            Action::Refuse { requests, reason } => {
                requests.into_iter().for_each(|id| end(id, End::Refused(Arc::clone(&reason))));
            }
            Action::Joined { request, last } => end(request, End::Joined(last)),
            Action::Closed { cause } => rank.closed = Some(cause),
        }
    }

    fn finish(&mut self, at: usize) -> bool {
        let rank = &mut self.ranks[at];
        let Some(bucket) = &rank.running else { return false };
        let all_entered = self.entered[&bucket.operation].1.iter().all(|entered| *entered);
        let may_run_ahead = !bucket.entry_barrier && !bucket.plan.holds_until_all_entered();
        if !all_entered && !may_run_ahead {
            return false;
        }
        let bucket = rank.running.take().expect("it was there just now");
        rank.member.finished(bucket.operation, self.now);
        rank.ran.push((bucket.operation, bucket.plan.hash));
        rank.replayed += usize::from(bucket.replayed);
        for id in bucket.requests.into_iter().flatten() {
            let number = rank.by_id.remove(&id).expect("an id is used while it is valid");
            assert_eq!(rank.requests[number].1.replace(End::Ran(bucket.operation)), None, "a request ends once");
        }
        true
    }

    fn take_script_step(&mut self, at: usize) -> bool {
        let now = self.now;
        let rank = &mut self.ranks[at];
        match rank.script.front() {
            None => false,
            Some(Step::WaitAllBut(last)) => {
                let waited_for = rank.requests.len().saturating_sub(*last);
                let left = rank.requests[..waited_for].iter().find(|(_, end)| end.is_none());
                match left {
                    None => drop(rank.script.pop_front()),
                    Some((name, _)) if self.tells_waits => rank.member.awaits(name),
                    Some(_) => {}
                }
                left.is_none()
            }
            Some(Step::Close) => {
                rank.member.close(None);
                rank.script.pop_front();
                true
            }
            Some(Step::Submit(request)) => {
                let name = Arc::clone(&request.name);
                let number = rank.requests.len();
                match rank.member.submit(request.clone(), now) {
                    Ok(id) => {
                        rank.requests.push((name, None));
                        assert!(rank.by_id.insert(id, number).is_none(), "ids in flight are distinct");
                    }
                    Err(refusal) => rank.requests.push((name, Some(End::Refused(refusal.reason)))),
                }
                rank.script.pop_front();
                true
            }
        }
    }

    /// What must hold at the end of every run: all ranks ran the same buckets in the same order, every request ended,
    /// and requests that belong together ended alike.
    pub(crate) fn check(&self) {
        for rank in &self.ranks[1..] {
            assert_eq!(rank.ran, self.ranks[0].ran, "ranks ran different buckets");
        }
        // The n-th request under a name on one rank belongs to the n-th under that name on the others.
        let mut ends: HashMap<(Arc<str>, usize), End> = HashMap::new();
        for rank in &self.ranks {
            let mut times: HashMap<Arc<str>, usize> = HashMap::new();
            for (name, end) in &rank.requests {
                let time = times.entry(Arc::clone(name)).or_default();
                *time += 1;
                let end = end.clone().unwrap_or_else(|| panic!("{name} never ended"));
                let same = ends.entry((Arc::clone(name), *time)).or_insert_with(|| end.clone());
                // A rank that closes the group need not wait until the others know of an earlier refusal.
                let shut_down = |end: &End| matches!(end, End::Refused(why) if why.contains("has been shut down"));
                let refused = |end: &End| matches!(end, End::Refused(_));
                let overtaken = refused(same) && refused(&end) && (shut_down(same) || shut_down(&end));
                assert!(*same == end || overtaken, "{name} ended as {same:?} and as {end:?}");
            }
            assert!(rank.by_id.is_empty() && rank.member.in_flight() == 0);
        }
    }
}

/// An allreduce of one dimension.
pub(crate) fn allreduce(name: &str, elems: u64) -> Request {
    let collective = Collective::Allreduce { op: farandole_plan::ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    request(name, collective, vec![elems])
}

pub(crate) fn request(name: &str, collective: Collective, shape: Vec<u64>) -> Request {
    Request::new(name, collective, farandole_plan::Dtype::F32, shape)
}
