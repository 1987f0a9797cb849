//! The fault injector: makes a rank misbehave at a chosen step.
//!
//! [`Faults`] is a plan that all ranks of a test share. [`Faults::wrap`] puts it between a mesh and its driver. Every
//! frame that a rank begins to send or to receive is one *event*, and so is every point of an operation on windows
//! ([`crate::shm::Point`]: `steps` below); events are counted for each rank, over all its links and its windows. A
//! [`Fault`] names a rank, an event and what happens there, once. A test that wants to try everything raises the event
//! number until [`Faults::has_struck`] says that the run had no such event any more.
//!
//! A rank that is *killed* closes all its ends at once, as the kernel does for a dead process, and every call on its
//! own mesh fails from then on; its driver stops without telling anybody.

mod steps;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farandole_plan::{ErrorClass, Rank};

use crate::error::{Error, Result};
use crate::link::{Control, Link, Progress, RecvCursor, SendCursor, Tag};
use crate::mesh::{Mesh, Peer};
use crate::wait::Bell;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The frame gets lost: a sender believes that it has left, a receiver never sees it. In windows: the rank never
    /// gets past this point, and where it asks for memory, there is none.
    Drop,
    /// Nothing moves for so long.
    Delay(Duration),
    /// The connections between the two ranks break; in windows, which have none, those to the next rank of the group.
    Cut,
    /// The frame arrives damaged. On a receiving event, the next frame of this rank to that peer does. With checksums
    /// the damage is to the frame's bytes, and the receiver always notices. Without, it is to the header, which has a
    /// checksum always; damage to the payload would then go unnoticed, as it does in a network. Shared memory has
    /// nothing to damage and is left alone.
    Corrupt,
    /// The rank dies.
    Kill,
}

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At this event of the rank, counted from zero.
    Event(u64),
    /// At this event of the rank within one operation, counted from zero.
    Operation {
        /// The operation.
        operation: u64,
        /// The event within it.
        event: u64,
    },
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub rank: Rank,
    /// When.
    pub at: At,
    /// What.
    pub action: FaultAction,
}

/// A plan of faults that the ranks of a test share.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    waiting: Vec<Fault>,
    ranks: Vec<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    events: u64,
    operation: u64,
    events_in_operation: u64,
    life: Life,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Life {
    #[default]
    Alive,
    Killed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Ranks of a test may panic while others go on; the counts are valid after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    /// A plan of these faults.
    pub fn new(faults: impl IntoIterator<Item = Fault>) -> Faults {
        Faults(Arc::new(Mutex::new(Plan { waiting: faults.into_iter().collect(), ranks: Vec::new() })))
    }

    /// Whether every fault of the plan has happened.
    pub fn has_struck(&self) -> bool {
        lock(&self.0).waiting.is_empty()
    }

    /// Events of a rank so far.
    pub fn events(&self, rank: Rank) -> u64 {
        lock(&self.0).counts(rank).events
    }

    /// Whether this rank has been killed. Its driver must stop without a word.
    pub fn is_killed(&self, rank: Rank) -> bool {
        lock(&self.0).counts(rank).life == Life::Killed
    }

    /// Counts one event of a rank and says what happens there. [`Faults::wrap`] does this for every frame.
    pub fn step(&self, rank: Rank, operation: u64) -> Option<FaultAction> {
        let mut plan = lock(&self.0);
        let counts = plan.counts(rank);
        if counts.operation != operation {
            (counts.operation, counts.events_in_operation) = (operation, 0);
        }
        let now = *counts;
        counts.events += 1;
        counts.events_in_operation += 1;
        let due = |fault: &Fault| {
            fault.rank == rank
                && match fault.at {
                    At::Event(event) => event == now.events,
                    At::Operation { operation, event } => {
                        operation == now.operation && event == now.events_in_operation
                    }
                }
        };
        let position = plan.waiting.iter().position(due)?;
        Some(plan.waiting.remove(position).action)
    }

    /// Puts the plan between a mesh and its driver, whose bell rings when a delay is over.
    pub fn wrap(&self, mesh: Mesh, bell: &Bell) -> Mesh {
        let me = mesh.me();
        let everything: AllEnds = Arc::default();
        let mut mesh = mesh.map_peers(|Peer { rank, control, link, process }| {
            let ends = Arc::new(Mutex::new(Ends { control: Some(control), link: Some(link) }));
            lock(&everything).push(ends.clone());
            let control = FaultyControl { faults: self.clone(), me, peer: rank, ends: ends.clone() };
            let link = FaultyLink {
                faults: self.clone(),
                me,
                peer: rank,
                ends,
                all_ends: everything.clone(),
                bell: bell.clone(),
                sending: UnderWay::default(),
                receiving: UnderWay::default(),
            };
            Peer { rank, control: Box::new(control), link: Box::new(link), process }
        });
        if let Some(windows) = &mut mesh.windows {
            windows.set_gate(Box::new(steps::FaultyGate::new(self.clone(), me, everything)));
        }
        mesh
    }

    /// The error of a call on ends that are closed.
    fn gone(&self, me: Rank, peer: Rank) -> Error {
        if self.is_killed(me) {
            let source = io::Error::other("killed by the fault injector");
            return Error::local(format!("running rank {me}"), source);
        }
        Error::PeerGone { peer, how: "the fault injector cut the connection".to_owned() }
    }

    fn kill(&self, rank: Rank, ends: &AllEnds) {
        lock(&self.0).counts(rank).life = Life::Killed;
        lock(ends).iter().for_each(|ends| lock(ends).close());
    }
}

impl Plan {
    fn counts(&mut self, rank: Rank) -> &mut Counts {
        if self.ranks.len() <= rank.index() {
            self.ranks.resize(rank.index() + 1, Counts::default());
        }
        &mut self.ranks[rank.index()]
    }
}

/// Both ends to one peer, shared by the two wrappers so that either can close both. Only the rank's own driver locks
/// it.
struct Ends {
    control: Option<Box<dyn Control>>,
    link: Option<Box<dyn Link>>,
}

impl Ends {
    fn close(&mut self) {
        *self = Ends { control: None, link: None };
    }
}

/// The ends of one rank to all its peers, in the order of their ranks.
type AllEnds = Arc<Mutex<Vec<Arc<Mutex<Ends>>>>>;

/// The frame that is under way in one direction, and what has been done to it.
#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    /// Tags never repeat in one direction, so a new tag means a new frame.
    tag: Option<Tag>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, Default)]
enum Fate {
    #[default]
    Normal,
    /// Nothing moves until then.
    HeldUntil(Instant),
    /// It never leaves or comes.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Send,
    Recv,
}

/// A link with faults.
struct FaultyLink {
    faults: Faults,
    me: Rank,
    peer: Rank,
    ends: Arc<Mutex<Ends>>,
    all_ends: AllEnds,
    bell: Bell,
    sending: UnderWay,
    receiving: UnderWay,
}

impl FaultyLink {
    /// What becomes of the frame to which a call belongs. Its first call is an event.
    fn fate(&mut self, tag: Tag, direction: Direction) -> Fate {
        let under_way = match direction {
            Direction::Send => self.sending,
            Direction::Recv => self.receiving,
        };
        if under_way.tag == Some(tag) {
            return under_way.fate;
        }
        let fate = match self.faults.step(self.me, tag.operation) {
            Some(action) => self.strike(action),
            None => Fate::Normal,
        };
        let under_way = UnderWay { tag: Some(tag), fate };
        match direction {
            Direction::Send => self.sending = under_way,
            Direction::Recv => self.receiving = under_way,
        }
        fate
    }

    fn strike(&self, action: FaultAction) -> Fate {
        match action {
            FaultAction::Drop => return Fate::Lost,
            FaultAction::Delay(time) => {
                // The bell must not ring before the time is over: it rings once, and a driver that still finds the
                // frame held would wait for ever.
                let (until, bell) = (Instant::now() + time, self.bell.clone());
                std::thread::spawn(move || {
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                    bell.ring();
                });
                return Fate::HeldUntil(until);
            }
            FaultAction::Cut => lock(&self.ends).close(),
            FaultAction::Corrupt => {
                if let Some(link) = &mut lock(&self.ends).link {
                    link.damage_next();
                }
            }
            FaultAction::Kill => self.faults.kill(self.me, &self.all_ends),
        }
        Fate::Normal
    }

    /// Runs a call on the link, if it is still there and the frame's fate allows it.
    fn forward(
        &mut self,
        tag: Tag,
        direction: Direction,
        call: impl FnOnce(&mut dyn Link) -> Result<Progress>,
    ) -> Result<Progress> {
        match self.fate(tag, direction) {
            Fate::HeldUntil(time) if Instant::now() < time => return Ok(Progress::Pending),
            Fate::Lost if direction == Direction::Send => return Ok(Progress::Done),
            Fate::Lost => return Ok(Progress::Pending),
            Fate::Normal | Fate::HeldUntil(_) => {}
        }
        match &mut lock(&self.ends).link {
            Some(link) => call(&mut **link),
            None => Err(self.faults.gone(self.me, self.peer)),
        }
    }
}

impl Link for FaultyLink {
    fn send(&mut self, tag: Tag, payload: &[u8], cursor: &mut SendCursor) -> Result<Progress> {
        self.forward(tag, Direction::Send, |link| link.send(tag, payload, cursor))
    }

    fn recv(
        &mut self,
        tag: Tag,
        len: u64,
        cursor: &mut RecvCursor,
        sink: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<Progress> {
        self.forward(tag, Direction::Recv, |link| link.recv(tag, len, cursor, sink))
    }

    fn recv_into(&mut self, tag: Tag, target: &mut [u8], cursor: &mut RecvCursor) -> Result<Progress> {
        self.forward(tag, Direction::Recv, |link| link.recv_into(tag, target, cursor))
    }
}

/// The control line beside a link with faults.
struct FaultyControl {
    faults: Faults,
    me: Rank,
    peer: Rank,
    ends: Arc<Mutex<Ends>>,
}

impl FaultyControl {
    fn forward<T>(&mut self, call: impl FnOnce(&mut dyn Control) -> Result<T>) -> Result<T> {
        match &mut lock(&self.ends).control {
            Some(control) => call(&mut **control),
            None => Err(self.faults.gone(self.me, self.peer)),
        }
    }
}

impl Control for FaultyControl {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.forward(|control| control.send(message))
    }

    fn send_abort(&mut self, blamed: Option<Rank>, class: ErrorClass, cause: &str) -> Result<()> {
        self.forward(|control| control.send_abort(blamed, class, cause))
    }

    fn flush(&mut self) -> Result<Progress> {
        self.forward(|control| control.flush())
    }

    fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        self.forward(|control| control.recv())
    }

    fn has_closed(&mut self) -> bool {
        self.forward(|control| Ok(control.has_closed())).unwrap_or(true)
    }
}
