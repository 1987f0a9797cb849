//! Builds the mesh of one rank of a group out of connections.
//!
//! For every pair of ranks the higher one connects to the lower one: first the control line, then the connections of
//! the link. Between ranks of one host everything goes over Unix sockets, or, with [`Local::Shm`], data goes through
//! shared memory, whose descriptors travel over the control line before it becomes one. Between hosts everything goes
//! over TCP; the control line is always sealed there, data if the options say so.
//!
//! This is the one part of the crate that blocks, for at most the given time, in which this process must have been
//! awake (`awake`). A listener answers handshakes whether or not its rank has come here yet, so ranks may arrive in any
//! order.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use farandole_plan::{ErrorClass, Rank, Topology};
use rustix::event::{PollFd, PollFlags, poll};

use crate::awake::Countdown;
use crate::contact::{Contact, have_common_pids};
use crate::descriptors::{make_room, of_mesh};
use crate::error::{Error, Result};
use crate::fds::{recv_fds, send_fds, wait_for};
use crate::frame::Checksum;
use crate::hello::{Established, Handshake, Hello, Purpose, Seal};
use crate::link::{Control, Link};
use crate::listen::{Listener, Place};
use crate::mesh::{Mesh, Peer};
use crate::shm::{Layout, Neighbour, Segment, Windows};
use crate::stream::{FrameOptions, Sealed, Socket, StreamControl, StreamLink};
use crate::wait::{Bell, Waiter};

/// One attempt to connect to one address gets this long before the next is tried.
const ATTEMPT_PATIENCE: Duration = Duration::from_secs(3);

/// Pause after a round of attempts in vain, doubled from the first to the second value: the peer may just be starting.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// How data goes between ranks of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Local {
    /// Through shared memory.
    #[default]
    Shm,
    /// Over a Unix socket.
    Stream,
}

/// How a mesh is built. Must be the same on all ranks; a difference is an error that says so.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Connections for data between two ranks of different hosts; without it, what their [`Contact`]s suggest.
    pub connections: Option<u16>,
    /// How frames are put on them.
    pub shape: FrameOptions,
    /// Whether data between hosts is encrypted.
    pub seal: Seal,
    /// Size of the kernel's buffers of each socket for data; without it the kernel adapts them to the path.
    pub socket_buffer_bytes: Option<usize>,
    /// How data goes between ranks of one host.
    pub local: Local,
    /// Sizes of the shared memory; without it [`Layout::standard`].
    pub layout: Option<Layout>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: None,
            shape: FrameOptions::default(),
            seal: Seal::Off,
            socket_buffer_bytes: None,
            local: Local::default(),
            layout: None,
        }
    }
}

impl Options {
    /// These options with checksums on.
    pub fn with_checksums(mut self) -> Options {
        self.shape.checksum = Checksum::Crc32c;
        self
    }
}

impl Mesh {
    /// Joins this rank to all others of a group. `id` names the mesh: the same on all its ranks, never used twice at
    /// the same time. `contacts[r]` says where rank `r` is. The sockets of the mesh wake `waiter`.
    pub fn connect(
        id: u64,
        me: Rank,
        contacts: &[Contact],
        listener: &Listener,
        options: &Options,
        waiter: &Waiter,
        at_most: Duration,
    ) -> Result<Mesh> {
        let began = Instant::now();
        let deadline = Countdown::new(at_most);
        let mut building = Building { id, me, contacts, listener, options, waiter, began, deadline, pairs: Vec::new() };
        let built = building.make_room().and_then(|()| building.join_all()).and_then(|()| building.finish());
        if let Err(error) = &built {
            building.give_up(error.class(), &error.to_string());
        }
        built
    }
}

/// A mesh in the making.
struct Building<'a> {
    id: u64,
    me: Rank,
    contacts: &'a [Contact],
    listener: &'a Listener,
    options: &'a Options,
    waiter: &'a Waiter,
    began: Instant,
    deadline: Countdown,
    /// The connections to each peer so far, in the order of ranks.
    pairs: Vec<Pair>,
}

/// All connections to one peer.
struct Pair {
    peer: Rank,
    control: Established<Socket>,
    data: Vec<Established<Socket>>,
}

/// How long a builder looks away from the connections that it already has.
const GLANCE: Duration = Duration::from_millis(100);

impl Building<'_> {
    /// Makes sure that the mesh can have its descriptors. Connections that peers have made already count twice.
    fn make_room(&self) -> Result<()> {
        let ranks = self.contacts.len();
        let local = (0..ranks).map(Rank::from).filter(|&rank| rank == self.me || self.is_local(rank)).count();
        let distant = (0..ranks).map(Rank::from).filter(|&rank| rank != self.me && !self.is_local(rank));
        let connections = distant.map(|rank| self.connections(rank)).max().unwrap_or(0);
        make_room(of_mesh(local, ranks - local, connections), || format!("a mesh of {ranks} ranks"))
    }

    fn join_all(&mut self) -> Result<()> {
        for peer in (0..self.contacts.len()).map(Rank::from).filter(|&peer| peer != self.me) {
            let control = self.join(peer, Purpose::Control)?;
            let data = (0..self.connections(peer))
                .map(|connection| self.join(peer, Purpose::Data { connection }))
                .collect::<Result<Vec<_>>>()?;
            self.pairs.push(Pair { peer, control, data });
        }
        Ok(())
    }

    fn is_local(&self, peer: Rank) -> bool {
        self.contacts[self.me.index()].is_local_to(&self.contacts[peer.index()])
    }

    /// Connections for data to a peer.
    fn connections(&self, peer: Rank) -> u16 {
        match (self.is_local(peer), self.options.local) {
            (true, Local::Shm) => 0,
            (true, Local::Stream) => 1,
            (false, _) => {
                let suggested = |rank: Rank| self.contacts[rank.index()].connections;
                self.options.connections.unwrap_or_else(|| suggested(self.me).max(suggested(peer))).max(1)
            }
        }
    }

    /// What this rank thinks of a connection to or from a peer.
    fn hello(&self, peer: Rank, purpose: Purpose) -> Hello {
        let seal = match (self.is_local(peer), purpose) {
            (true, _) => Seal::Off,
            (false, Purpose::Control) => Seal::On,
            (false, Purpose::Data { .. }) => self.options.seal,
        };
        Hello {
            job: self.listener.job(),
            mesh: self.id,
            from: self.me.max(peer),
            to: self.me.min(peer),
            purpose,
            seal,
            connections: self.connections(peer),
            stripe_from_bytes: self.options.shape.stripe_from_bytes,
            nonce: [0; 32],
        }
    }

    fn join(&self, peer: Rank, purpose: Purpose) -> Result<Established<Socket>> {
        if peer < self.me { self.reach(peer, purpose) } else { self.receive(peer, purpose) }
    }

    /// Waits for a connection from a higher rank. It counts even if it has been closed meanwhile: its connector was
    /// welcome and said thanks, so it has not come again, and what it sent before it left says why.
    fn receive(&self, peer: Rank, purpose: Purpose) -> Result<Established<Socket>> {
        let expected = self.hello(peer, purpose);
        let place = Place { mesh: self.id, from: peer, to: self.me, purpose };
        loop {
            if let Some(arrived) = self.listener.take(place, Instant::now() + self.deadline.left().min(GLANCE)) {
                if (Hello { nonce: [0; 32], ..arrived.hello }) == expected {
                    return Ok(arrived);
                }
                let error = differ(peer, &arrived.hello, &expected);
                if purpose == Purpose::Control {
                    let _ = control_over(peer, arrived).send_abort(None, error.class(), &error.to_string());
                }
                return Err(error);
            }
            self.check_alive()?;
            if self.deadline.is_over() {
                return Err(self.never_came(peer));
            }
        }
    }

    /// The error for a peer that has not connected. Whoever was turned away lately may have been it.
    fn never_came(&self, peer: Rank) -> Error {
        let refusals = self.listener.refusals();
        // It may have come before this rank began: by as much as ranks wait for each other.
        let waited = self.began.elapsed();
        let mut lately = refusals.iter().filter(|refusal| refusal.at + waited >= self.began);
        if let Some(theirs) = lately.clone().find_map(|refusal| refusal.version) {
            return Error::Version { peer: None, ours: crate::frame::PROTOCOL_VERSION, theirs };
        }
        let waiting_for = match lately.next_back() {
            None => "it has not connected".to_owned(),
            Some(refusal) => format!("it has not connected; meanwhile a connection was refused: {}", refusal.why),
        };
        Error::Deadline { peer: Some(peer), waiting_for, waited }
    }

    /// Connects to a lower rank, trying all its addresses again and again.
    fn reach(&self, peer: Rank, purpose: Purpose) -> Result<Established<Socket>> {
        let contact = &self.contacts[peer.index()];
        let hello = self.hello(peer, purpose);
        let doors: Vec<Door<'_>> = match (self.is_local(peer), &contact.unix) {
            (true, Some(name)) => vec![Door::Unix(name)],
            _ => contact.addresses.iter().copied().map(Door::Tcp).collect(),
        };
        let mut pause = PAUSES.0;
        let mut last = "there is no address".to_owned();
        loop {
            let mut final_answer = None;
            for door in &doors {
                match self.knock(door, &hello) {
                    Ok(established) => return Ok(established),
                    Err(error @ (Error::Version { .. } | Error::Untrusted { .. } | Error::OtherJob { .. })) => {
                        final_answer = Some(error);
                    }
                    Err(error) => last = error.to_string(),
                }
            }
            match final_answer {
                Some(Error::Version { ours, theirs, .. }) => {
                    return Err(Error::Version { peer: Some(peer), ours, theirs });
                }
                Some(error) => return Err(error),
                None => {}
            }
            self.check_alive()?;
            let left = self.deadline.left();
            if left.is_zero() {
                let doors = doors.iter().map(Door::to_string).collect::<Vec<_>>().join(", ");
                let waiting_for = format!("it cannot be reached at {doors} (last answer: {last})");
                return Err(Error::Deadline { peer: Some(peer), waiting_for, waited: self.began.elapsed() });
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// One attempt at one door.
    fn knock(&self, door: &Door<'_>, hello: &Hello) -> Result<Established<Socket>> {
        let deadline = self.deadline.at_most(ATTEMPT_PATIENCE);
        let socket = door.open(&deadline)?;
        let mut handshake = Handshake::connect(socket, door.to_string(), self.listener.key(), hello)?;
        while !handshake.advance()? {
            wait_for(handshake.stream(), PollFlags::IN, &deadline)?;
        }
        Ok(handshake.finish())
    }

    /// Fails if a peer that had joined has left again, or if somebody knows that there will be no mesh.
    fn check_alive(&self) -> Result<()> {
        self.listener.interruption()?;
        for Pair { peer, control, .. } in &self.pairs {
            if is_closed(&control.stream) {
                let how = "it closed its connection while the mesh was being built".to_owned();
                return Err(Error::PeerGone { peer: *peer, how });
            }
        }
        Ok(())
    }

    /// Tells everybody who has joined why there will be no mesh.
    fn give_up(&mut self, class: ErrorClass, cause: &str) {
        self.listener.forget(self.id, self.me);
        for Pair { peer, control, .. } in self.pairs.drain(..) {
            let _ = control_over(peer, control).send_abort(None, class, cause);
        }
    }

    fn finish(&mut self) -> Result<Mesh> {
        let windows = self.open_windows()?;
        let mut peers = Vec::with_capacity(self.pairs.len());
        for Pair { peer, control, data } in std::mem::take(&mut self.pairs) {
            self.waiter.watch(&control.stream)?;
            if !self.is_local(peer) {
                control.stream.expect_answers()?;
            }
            for connection in &data {
                self.waiter.watch(&connection.stream)?;
                if let Some(bytes) = self.options.socket_buffer_bytes {
                    connection.stream.set_buffer_bytes(bytes)?;
                }
            }
            let local_rank = windows
                .as_ref()
                .and_then(|windows| windows.peers().find(|&local_rank| windows.rank(local_rank) == peer));
            let link: Box<dyn Link> = match (&windows, local_rank) {
                (Some(windows), Some(local_rank)) => Box::new(windows.link(local_rank)),
                _ => link_over(peer, data, self.options.shape),
            };
            let (own, theirs) = (&self.contacts[self.me.index()], &self.contacts[peer.index()]);
            let process = (theirs.host == own.host).then_some(theirs.process);
            peers.push(Peer { rank: peer, control: control_over(peer, control), link, process });
        }
        let hosts: Vec<&str> = self.contacts.iter().map(|contact| contact.host.as_str()).collect();
        let mut mesh = Mesh::new(self.me, Topology::from_host_names(&hosts), peers);
        mesh.windows = windows;
        mesh.has_common_pids = have_common_pids(self.contacts);
        Ok(mesh)
    }

    /// Shows this rank's shared memory to the others of this host and takes theirs.
    fn open_windows(&self) -> Result<Option<Windows>> {
        let local: Vec<&Pair> = self.pairs.iter().filter(|pair| self.is_local(pair.peer)).collect();
        if local.is_empty() || self.options.local != Local::Shm {
            return Ok(None);
        }
        let ranks = local.len() + 1;
        let layout = Layout { ranks, ..self.options.layout.unwrap_or_else(|| Layout::standard(ranks)) };
        let note = layout_note(&layout);
        let segment = layout.create_segment()?;
        let bell = self.waiter.bell();
        for pair in &local {
            send_fds(&pair.control.stream, &note, &[segment.fd(), bell.as_fd()], &self.deadline)
                .map_err(|error| gone_while_building(pair.peer, error))?;
        }
        let mut neighbours = vec![Neighbour { rank: self.me, segment, bell }];
        for pair in &local {
            let peer = pair.peer;
            let mut theirs = [0; NOTE_BYTES];
            let check = || self.listener.interruption();
            let fds = recv_fds(&pair.control.stream, &mut theirs, &self.deadline, check)
                .map_err(|error| gone_while_building(peer, error))?;
            let Ok([segment, bell]) = <[_; 2]>::try_from(fds) else {
                return Err(Error::Garbled { peer, what: "no shared memory: it gave up".to_owned() });
            };
            if theirs != note {
                return Err(Error::Garbled { peer, what: "shared memory of another layout".to_owned() });
            }
            neighbours.push(Neighbour { rank: peer, segment: Segment::from_fd(segment), bell: Bell::from_fd(bell) });
        }
        neighbours.sort_by_key(|neighbour| neighbour.rank);
        let local_rank =
            neighbours.iter().position(|neighbour| neighbour.rank == self.me).expect("this rank is in the list");
        Windows::open(local_rank, layout, neighbours).map(Some)
    }
}

/// A connection that ends while the mesh is being built is a peer that is gone.
fn gone_while_building(peer: Rank, error: Error) -> Error {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error {
        Error::Local { source, .. } if matches!(source.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) => {
            let how = "it closed its connection while the mesh was being built".to_owned();
            Error::PeerGone { peer, how }
        }
        other => other,
    }
}

/// A way to a rank's listener.
enum Door<'a> {
    Unix(&'a str),
    Tcp(SocketAddr),
}

impl std::fmt::Display for Door<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Door::Unix(name) => write!(f, "unix socket @{name}"),
            Door::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl Door<'_> {
    fn open(&self, deadline: &Countdown) -> Result<Socket> {
        let refused = |e: std::io::Error| Error::local(format!("connecting to {self}"), e);
        match self {
            Door::Unix(name) => Socket::to_abstract(name).map_err(refused),
            Door::Tcp(address) => Socket::to_tcp(*address, deadline),
        }
    }
}

/// Whether the other side of a connection has closed it, or it is broken.
fn is_closed(socket: &Socket) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&none)), Ok(count) if count > 0)
}

fn control_over(peer: Rank, control: Established<Socket>) -> Box<dyn Control> {
    match control.hello.seal {
        Seal::Off => Box::new(StreamControl::new(peer, control.stream)),
        Seal::On => Box::new(StreamControl::new(peer, Sealed::new(control.stream, &control.keys))),
    }
}

fn link_over(peer: Rank, data: Vec<Established<Socket>>, shape: FrameOptions) -> Box<dyn Link> {
    if data.iter().any(|connection| connection.hello.seal == Seal::On) {
        let sealed = data.into_iter().map(|connection| Sealed::new(connection.stream, &connection.keys)).collect();
        return Box::new(StreamLink::new(peer, sealed, shape));
    }
    Box::new(StreamLink::new(peer, data.into_iter().map(|connection| connection.stream).collect(), shape))
}

fn differ(peer: Rank, theirs: &Hello, ours: &Hello) -> Error {
    let say = |hello: &Hello| {
        format!(
            "{} connections, stripes from {} bytes, seal {:?}",
            hello.connections, hello.stripe_from_bytes, hello.seal
        )
    };
    let what = format!("its options differ: {} there, {} here", say(theirs), say(ours));
    Error::Garbled { peer, what }
}

const NOTE_BYTES: usize = 40;

/// What ranks of a host tell each other about the layout of their shared memory.
fn layout_note(layout: &Layout) -> [u8; NOTE_BYTES] {
    let numbers = [layout.ranks, layout.small_bytes, layout.tile_bytes, layout.slots, layout.ring_bytes];
    let mut note = [0; NOTE_BYTES];
    for (place, number) in note.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&(number as u64).to_le_bytes());
    }
    note
}
