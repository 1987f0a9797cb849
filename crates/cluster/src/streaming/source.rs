//! The source's side of streams: the training hands over, threads send.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farandole_transport::Countdown;

use super::wire::{Ask, Content, PIECE_BYTES, Word};
use super::{HANDSHAKE_PATIENCE, StreamPeer};
use crate::channel::{Channel, ChannelPurpose};
use crate::error::{Error, Result};
use crate::launch::Socket;
use crate::peer_listener::PeerListener;
use crate::strangers::{Stranger, Strangers};

/// The most followers at a time; others join without a stream.
const MOST_STREAMS: usize = 8;

/// How often a stream begins anew before the follower is told to join as it is.
const MOST_SNAPSHOTS: u32 = 3;

/// A follower that has nothing to be sent hears so as often.
const WAIT_WORD_EVERY: Duration = Duration::from_millis(250);

/// A recovery takes less; members that are longer at the boundary may be waiting for the follower.
const BOUNDARY_PATIENCE: Duration = Duration::from_secs(1);

/// A follower that takes over a large state may take nothing from its connection meanwhile.
const SEND_PATIENCE: Duration = Duration::from_secs(60);

/// When no descriptor is left for a new connection, the next attempt waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The threads read, seal and send; the largest thing on their stacks is a read buffer of 8 KB.
const STACK_BYTES: usize = 256 << 10;

/// When a stream is worth while, and what it may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// States of fewer bytes are not streamed: it takes no time to send them when the process is let in.
    pub least_bytes: usize,
    /// The most bytes of updates that wait for a follower, as a multiple of the state's.
    pub most_log: usize,
    /// How much is sent in a second to each follower, at most.
    pub bytes_per_second: Option<u64>,
}

/// The side of streams that has the state. Clones are the same source.
#[derive(Clone, Debug)]
pub struct StateSource(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: StreamLimits,
    /// Locked by the training for moments, and by the threads when they look for something to send.
    desk: Mutex<Desk>,
    changed: Condvar,
    /// Followers that want a snapshot, and those that want updates: for the training to look at. Changed under the
    /// desk's lock.
    waiting: AtomicUsize,
    followed: AtomicUsize,
}

#[derive(Debug, Default)]
struct Desk {
    /// Where it listens, if it does.
    contact: Option<Vec<u8>>,
    streams: BTreeMap<u64, Stream>,
    next_id: u64,
    /// Since when the training is at the boundary.
    boundary: Option<Instant>,
}

/// One follower.
#[derive(Debug)]
struct Stream {
    stage: Stage,
    items: VecDeque<Item>,
    /// Bytes of updates among them.
    log_bytes: usize,
    most_log_bytes: usize,
    snapshots: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// It wants a snapshot.
    Waiting,
    /// It gets every update.
    Following,
    Over {
        why: String,
    },
}

#[derive(Clone, Debug)]
enum Item {
    Again,
    Bytes { content: Content, note: Arc<[u8]>, bytes: Arc<Vec<u8>> },
}

/// What a thread is to send next.
enum Next {
    Item { item: Item, left_bytes: u64 },
    Wait,
    JoinNow(String),
}

impl StateSource {
    /// A source that nobody reaches yet.
    pub fn new(limits: StreamLimits) -> StateSource {
        StateSource(Arc::new(Shared {
            limits,
            desk: Mutex::default(),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            followed: AtomicUsize::new(0),
        }))
    }

    /// Listens for followers on this host and at these addresses, unless it does already. Says where.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn listen(&self, own: &StreamPeer, at: &[SocketAddr]) -> Result<Vec<u8>> {
        let mut desk = self.0.desk();
        if let Some(contact) = &desk.contact {
            return Ok(contact.clone());
        }
        let starting = |error| Error::local("listening for processes that want a state", error);
        let (listeners, contact) = PeerListener::reserve_all("state", &own.host, at).map_err(starting)?;
        for listener in listeners {
            listener.listen().map_err(starting)?;
            let (source, own) = (self.clone(), own.clone());
            spawn(move || source.accept(&listener, &own)).map_err(starting)?;
        }
        desk.contact = Some(contact.clone());
        Ok(contact)
    }

    /// Whether followers want a copy of the state. Costs next to nothing.
    pub fn wants_snapshot(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether followers want every update. Costs next to nothing.
    pub fn is_followed(&self) -> bool {
        self.0.followed.load(Ordering::Relaxed) > 0
    }

    /// A copy of the state for those who want one. From now on they get updates. `note` says which state it is.
    pub fn give_snapshot(&self, note: &[u8], state: Vec<u8>) {
        let limits = self.0.limits;
        if state.len() < limits.least_bytes {
            return self.refuse(&format!("the state has only {} bytes", state.len()));
        }
        let (note, bytes): (Arc<[u8]>, _) = (note.into(), Arc::new(state));
        self.change(|stream| {
            if stream.stage != Stage::Waiting {
                return;
            }
            stream.snapshots += 1;
            if stream.snapshots > MOST_SNAPSHOTS {
                return stream.end("the state has often changed in other ways than by updates");
            }
            stream.stage = Stage::Following;
            stream.most_log_bytes = bytes.len().saturating_mul(limits.most_log);
            let (note, bytes) = (Arc::clone(&note), Arc::clone(&bytes));
            stream.items.push_back(Item::Bytes { content: Content::Snapshot, note, bytes });
        });
    }

    /// The update that has led to the state with this note, for all who follow.
    pub fn give_update(&self, note: &[u8], update: Vec<u8>) {
        let (note, bytes): (Arc<[u8]>, _) = (note.into(), Arc::new(update));
        self.change(|stream| {
            if stream.stage != Stage::Following {
                return;
            }
            stream.log_bytes += bytes.len();
            if stream.log_bytes > stream.most_log_bytes {
                return stream.end("steps are made faster than they can be sent");
            }
            let (note, bytes) = (Arc::clone(&note), Arc::clone(&bytes));
            stream.items.push_back(Item::Bytes { content: Content::Update, note, bytes });
        });
    }

    /// The state has changed without an update: followers need another copy.
    pub fn begin_anew(&self) {
        if !self.is_followed() {
            return;
        }
        self.change(|stream| {
            if stream.stage == Stage::Following {
                stream.forget();
                stream.items.push_back(Item::Again);
                stream.stage = Stage::Waiting;
            }
        });
    }

    /// Those who want a copy of the state are to join without one, for this reason.
    pub fn refuse(&self, why: &str) {
        self.change(|stream| {
            if stream.stage == Stage::Waiting {
                stream.end(why);
            }
        });
    }

    /// The training comes to the boundary, where no steps are made.
    pub fn note_boundary(&self) {
        self.0.desk().boundary.get_or_insert_with(Instant::now);
    }

    /// The training goes on.
    pub fn note_training(&self) {
        self.0.desk().boundary = None;
    }

    /// Changes all streams, and wakes the threads.
    fn change(&self, change: impl FnMut(&mut Stream)) {
        let mut desk = self.0.desk();
        desk.streams.values_mut().for_each(change);
        self.0.count(&desk);
        self.0.changed.notify_all();
    }

    fn accept(&self, listener: &PeerListener, own: &StreamPeer) {
        let strangers = Strangers::default();
        loop {
            let accepted = listener.accept().and_then(|socket| Ok((strangers.enter(&socket)?, socket)));
            let (stranger, socket) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
                Err(_) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                }
            };
            let (source, own) = (self.clone(), own.clone());
            let serve = move || {
                if let Err(error) = source.serve(socket, stranger, &own) {
                    log::debug!("a process that got the state is gone: {error}");
                }
            };
            if let Err(error) = spawn(serve) {
                log::warn!("the state is not streamed to a process that wants to join: {error}");
            }
        }
    }

    /// Sends one follower what it wants, until it is gone or told to join.
    fn serve(&self, socket: Socket, stranger: Stranger, own: &StreamPeer) -> io::Result<()> {
        let deadline = Countdown::new(HANDSHAKE_PATIENCE);
        let channel = Channel::accept(socket, &own.key, ChannelPurpose::State, &deadline)?;
        drop(stranger);
        let mut channel = channel.with_most_bytes(PIECE_BYTES + 1);
        let asked = channel.receive(&deadline)?.and_then(|message| Ask::decode(&message));
        let Some(ask) = asked.filter(|ask| ask.job == own.job) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not of this job"));
        };
        let Some(id) = self.0.enter() else { return say_join_now(&mut channel, "many others are being sent it") };
        log::info!("member {} gets the state before it joins", ask.member);
        let sent = self.send_all(id, &mut channel);
        self.0.leave(id);
        sent
    }

    fn send_all(&self, id: u64, channel: &mut Channel<Socket>) -> io::Result<()> {
        loop {
            match self.0.next(id) {
                Next::Wait => channel.send(&Word::Wait.encode(), &Countdown::new(SEND_PATIENCE))?,
                Next::JoinNow(why) => return say_join_now(channel, &why),
                Next::Item { item: Item::Again, .. } => {
                    channel.send(&Word::Again.encode(), &Countdown::new(SEND_PATIENCE))?;
                }
                Next::Item { item: Item::Bytes { content, note, bytes }, left_bytes } => {
                    let (note, length) = (note.to_vec(), bytes.len() as u64);
                    let announce = Word::Announce { content, note, bytes: length, left_bytes };
                    channel.send(&announce.encode(), &Countdown::new(SEND_PATIENCE))?;
                    self.send_pieces(id, channel, content, &bytes)?;
                }
            }
        }
    }

    /// Sends pieces until all are sent, or nobody wants them any more.
    fn send_pieces(&self, id: u64, channel: &mut Channel<Socket>, content: Content, bytes: &[u8]) -> io::Result<()> {
        let pace = self.0.limits.bytes_per_second.map(|rate| rate.max(1));
        // Several times in a second, also at a slow pace: whoever hears nothing believes that the source is lost.
        let piece_bytes = pace.map_or(PIECE_BYTES, |rate| (rate / 8).clamp(1, PIECE_BYTES as u64) as usize);
        for piece in bytes.chunks(piece_bytes) {
            if self.0.is_stale(id, content) {
                return Ok(());
            }
            channel.send(&Word::piece(piece), &Countdown::new(SEND_PATIENCE))?;
            if let Some(rate) = pace {
                std::thread::sleep(Duration::from_secs_f64(piece.len() as f64 / rate as f64));
            }
        }
        Ok(())
    }
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, desk: &Desk) {
        let count = |stage: &Stage| desk.streams.values().filter(|stream| stream.stage == *stage).count();
        self.waiting.store(count(&Stage::Waiting), Ordering::Relaxed);
        self.followed.store(count(&Stage::Following), Ordering::Relaxed);
    }

    /// Another follower; `None` if there are enough.
    fn enter(&self) -> Option<u64> {
        let mut desk = self.desk();
        if desk.streams.len() >= MOST_STREAMS {
            return None;
        }
        let id = desk.next_id;
        desk.next_id += 1;
        let (items, stage) = (VecDeque::new(), Stage::Waiting);
        desk.streams.insert(id, Stream { stage, items, log_bytes: 0, most_log_bytes: 0, snapshots: 0 });
        self.count(&desk);
        Some(id)
    }

    fn leave(&self, id: u64) {
        let mut desk = self.desk();
        desk.streams.remove(&id);
        self.count(&desk);
    }

    /// Waits a moment for something to send.
    fn next(&self, id: u64) -> Next {
        let until = Instant::now() + WAIT_WORD_EVERY;
        let mut desk = self.desk();
        loop {
            let is_stuck = desk.is_stuck();
            let Some(stream) = desk.streams.get_mut(&id) else { return Next::JoinNow("the training is over".into()) };
            if let Stage::Over { why } = &stream.stage {
                return Next::JoinNow(why.clone());
            }
            if let Some(item) = stream.items.pop_front() {
                if let Item::Bytes { content: Content::Update, bytes, .. } = &item {
                    stream.log_bytes -= bytes.len();
                }
                return Next::Item { item, left_bytes: stream.log_bytes as u64 };
            }
            if is_stuck {
                return Next::JoinNow("the members make no steps".into());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Wait;
            }
            desk = self.changed.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether what is being sent is of no use any more.
    fn is_stale(&self, id: u64, content: Content) -> bool {
        let desk = self.desk();
        // The last updates are all that a follower needs when it is let in; a snapshot would keep the members waiting.
        let is_in_vain = content == Content::Snapshot && desk.is_stuck();
        is_in_vain || desk.streams.get(&id).is_none_or(|stream| stream.stage != Stage::Following)
    }
}

impl Desk {
    fn is_stuck(&self) -> bool {
        self.boundary.is_some_and(|since| since.elapsed() > BOUNDARY_PATIENCE)
    }
}

impl Stream {
    fn end(&mut self, why: &str) {
        self.forget();
        self.stage = Stage::Over { why: why.to_owned() };
    }

    fn forget(&mut self) {
        self.items.clear();
        self.log_bytes = 0;
    }
}

fn say_join_now(channel: &mut Channel<Socket>, why: &str) -> io::Result<()> {
    channel.send(&Word::JoinNow { why: why.to_owned() }.encode(), &Countdown::new(SEND_PATIENCE))
}

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("state-source".into()).stack_size(STACK_BYTES).spawn(run).map(drop)
}
