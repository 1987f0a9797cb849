//! The kernels of all hosts and the network between them: sockets as byte streams with finite buffers.
//!
//! Bytes of one direction arrive in order and late. Directions and connections are independent of each other, so
//! connections overtake each other. A write of at most one page is taken whole or not at all; longer ones are taken in
//! part. A process that ends has its sockets closed: the other side reads what was sent, and then the end of the
//! stream, or a reset if the process left bytes unread. A reset loses what is in flight. A cut holds packets back until
//! it is healed.
//!
//! Not here: processes and their clocks (`world`).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::rc::Rc;

use farandole_cluster::membership::MemberId;
use farandole_cluster::membership::simulated::{MemberCall, MemberMedium, MemberNetwork, PeerWatch, Rule};
use farandole_plan::membership::VoteRecord;

use super::channel::{SimulatedChannel, SimulatedKind};
use super::random::Random;

pub(crate) const MILLISECOND: u64 = 1000;

/// Linux takes a write of up to a page as one buffer.
const PAGE: usize = 4096;

/// Connections that wait to be accepted by one process.
const BACKLOG: usize = 128;

/// One side of a connection.
pub(crate) type Side = usize;

/// What travels from one side of a connection to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Open,
    Opened,
    Bytes(Vec<u8>),
    End,
    Reset,
    Refused,
    /// The kernel's word on the process at the other end (pidfd).
    ProcessEnded,
}

/// A packet that is due at its receiver.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    connection: usize,
    to: Side,
    epoch: u32,
    packet: Packet,
}

/// One end of a connection.
struct End {
    node: usize,
    is_open: bool,
    is_connected: bool,
    readable: VecDeque<u8>,
    ended: bool,
    fault: Option<io::ErrorKind>,
    process_ended: bool,
    /// Bytes of this end that the other end has not read.
    unread_bytes: usize,
    last_arrival: u64,
    /// Packets towards this end while a cut holds them.
    held: Vec<Delivery>,
    /// Packets towards this end vanish.
    is_cut_off: bool,
}

struct Connection {
    ends: [End; 2],
    medium: MemberMedium,
    /// Packets of earlier epochs are lost.
    epoch: u32,
}

/// What the kernel knows of a process.
struct Process {
    host: usize,
    is_alive: bool,
    backlog: VecDeque<usize>,
    /// Set for a process that is killed within a turn: writes that still leave it.
    writes_left: Option<u32>,
    refuses: bool,
    /// Its children have its connections and keep them open.
    has_heirs: bool,
    /// What its agent reads when it has ended.
    votes: Option<VoteRecord>,
}

/// All kernels and the network.
pub(crate) struct Kernel {
    pub(crate) now: u64,
    pub(crate) random: Random,
    connections: Vec<Connection>,
    processes: Vec<Process>,
    /// Cuts over each direction between hosts.
    cuts: BTreeMap<(usize, usize), u32>,
    /// Packets that were sent, with their arrivals. The world takes them.
    pub(crate) sent: Vec<(u64, Delivery)>,
    /// Processes that have something to do. The world takes them.
    pub(crate) woken: Vec<usize>,
    pub(crate) weather: Weather,
}

/// Properties of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// The longest that a packet is late, in microseconds.
    pub(crate) slowest: u64,
    /// Bytes that a connection holds in one direction.
    pub(crate) buffer_bytes: usize,
    /// Of 256 ends of processes, as many are not seen by pidfd.
    pub(crate) lost_process_ends: u64,
    /// Of 256 killed processes, as many have children that keep their connections open.
    pub(crate) heirs: u64,
    pub(crate) channels: SimulatedKind,
    /// The rule that all endpoints break.
    pub(crate) broken: Option<Rule>,
}

/// All processes share the kernels.
pub(crate) type Shared = Rc<RefCell<Kernel>>;

impl Kernel {
    pub(crate) fn new(weather: Weather, random: Random) -> Kernel {
        let (connections, processes, cuts) = Default::default();
        let (sent, woken) = Default::default();
        Kernel { now: 0, random, connections, processes, cuts, sent, woken, weather }
    }

    pub(crate) fn spawn(&mut self, host: usize) -> usize {
        let backlog = VecDeque::new();
        self.processes.push(Process {
            host,
            is_alive: true,
            backlog,
            writes_left: None,
            refuses: false,
            has_heirs: false,
            votes: None,
        });
        self.processes.len() - 1
    }

    pub(crate) fn host(&self, node: usize) -> usize {
        self.processes[node].host
    }

    /// From now on the process has this number of writes left, and then nothing leaves it.
    pub(crate) fn limit_writes(&mut self, node: usize, writes: u32) {
        self.processes[node].writes_left = Some(writes);
    }

    pub(crate) fn has_died_within_a_turn(&self, node: usize) -> bool {
        self.processes[node].writes_left == Some(0)
    }

    pub(crate) fn set_refuses(&mut self, node: usize, refuses: bool) {
        self.processes[node].refuses = refuses;
    }

    /// What the agent of a process that has ended knows of its votes.
    pub(crate) fn votes(&self, node: usize) -> Option<VoteRecord> {
        self.processes[node].votes.clone()
    }

    /// The process is about to be killed. Its children may keep its connections open.
    pub(crate) fn leave_to_heirs(&mut self, node: usize) {
        self.processes[node].has_heirs = self.random.below(256) < self.weather.heirs;
    }

    /// The process has ended. Its sockets are closed by their owner.
    pub(crate) fn end(&mut self, node: usize) {
        self.processes[node].is_alive = false;
        for connection in std::mem::take(&mut self.processes[node].backlog) {
            self.close(connection, 1);
        }
        for at in 0..self.connections.len() {
            let connection = &self.connections[at];
            let Some(side) = connection.ends.iter().position(|end| end.node == node) else { continue };
            let is_watched = connection.medium == MemberMedium::Unix;
            if is_watched && self.random.below(256) >= self.weather.lost_process_ends {
                let soon = self.now + self.random.below(5 * MILLISECOND);
                let delivery = Delivery { connection: at, to: 1 - side, epoch: u32::MAX, packet: Packet::ProcessEnded };
                self.sent.push((soon, delivery));
            }
        }
    }

    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        *self.cuts.entry((from, to)).or_default() += 1;
    }

    pub(crate) fn heal(&mut self, from: usize, to: usize) {
        let cuts = self.cuts.entry((from, to)).or_default();
        *cuts = cuts.saturating_sub(1);
        self.release();
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|cuts| *cuts > 0)
    }

    /// Ends all cuts.
    pub(crate) fn calm_down(&mut self) {
        self.cuts.clear();
        self.processes.iter_mut().for_each(|process| process.refuses = false);
        self.release();
    }

    fn release(&mut self) {
        let mut free = Vec::new();
        for at in 0..self.connections.len() {
            for to in [0, 1] {
                let [from_host, to_host] = [1 - to, to].map(|side| self.host(self.connections[at].ends[side].node));
                if !self.is_cut(from_host, to_host) {
                    free.append(&mut self.connections[at].ends[to].held);
                }
            }
        }
        free.into_iter().for_each(|delivery| self.deliver(delivery));
    }

    /// Connections between two processes that both sides hold open.
    pub(crate) fn between(&self, one: usize, other: usize) -> Vec<usize> {
        let mut nodes = [one, other];
        nodes.sort_unstable();
        let joins = |connection: &Connection| {
            let mut ends = [connection.ends[0].node, connection.ends[1].node];
            ends.sort_unstable();
            ends == nodes && connection.ends.iter().all(|end| end.is_open && end.fault.is_none())
        };
        (0..self.connections.len()).filter(|at| joins(&self.connections[*at])).collect()
    }

    pub(crate) fn medium(&self, connection: usize) -> MemberMedium {
        self.connections[connection].medium
    }

    /// A middlebox resets a connection: both sides notice, and what is in flight is lost.
    pub(crate) fn reset(&mut self, connection: usize, sides: &[Side]) {
        self.connections[connection].epoch += 1;
        for side in [0, 1] {
            self.connections[connection].ends[side].held.clear();
            if sides.contains(&side) {
                let soon = self.now + self.random.below(2 * MILLISECOND);
                self.send_at(soon, connection, side, Packet::Reset);
            } else {
                // This side believes that the connection is open, and nothing reaches the other one.
                self.connections[connection].ends[side].is_cut_off = true;
            }
        }
        if sides.len() < 2 {
            self.connections[connection].ends.iter_mut().for_each(|end| end.is_cut_off = true);
        }
    }

    /// A middlebox closes a connection in both directions: both sides read the end of the stream.
    pub(crate) fn finish(&mut self, connection: usize) {
        self.connections[connection].epoch += 1;
        for side in [0, 1] {
            self.connections[connection].ends[side].held.clear();
            // Nothing follows the end that the middlebox made up.
            self.connections[connection].ends[side].is_cut_off = true;
            let soon = self.now + self.random.below(2 * MILLISECOND);
            self.send_at(soon, connection, side, Packet::End);
        }
    }

    /// A connection breaks at both ends, with all that was not read.
    pub(crate) fn damage(&mut self, connection: usize) {
        self.connections[connection].epoch += 1;
        for side in [0, 1] {
            let end = &mut self.connections[connection].ends[side];
            end.held.clear();
            end.readable.clear();
            end.fault = Some(io::ErrorKind::TimedOut);
            let node = end.node;
            self.woken.push(node);
        }
    }

    fn arrival(&mut self, connection: usize, to: Side) -> u64 {
        let delay = match (self.connections[connection].medium, self.random.below(32)) {
            (MemberMedium::Unix, _) => self.random.below(50),
            (MemberMedium::Tcp, 0) => self.random.below(self.weather.slowest),
            (MemberMedium::Tcp, 1..=3) => self.random.below(20 * MILLISECOND),
            (MemberMedium::Tcp, _) => 50 + self.random.below(500),
        };
        let end = &mut self.connections[connection].ends[to];
        end.last_arrival = end.last_arrival.max(self.now + delay);
        end.last_arrival
    }

    fn send(&mut self, connection: usize, to: Side, packet: Packet) {
        let arrival = self.arrival(connection, to);
        self.send_at(arrival, connection, to, packet);
    }

    fn send_at(&mut self, when: u64, connection: usize, to: Side, packet: Packet) {
        let epoch = self.connections[connection].epoch;
        self.sent.push((when, Delivery { connection, to, epoch, packet }));
    }

    /// A packet arrives.
    pub(crate) fn deliver(&mut self, delivery: Delivery) {
        let (at, to) = (delivery.connection, delivery.to);
        let connection = &mut self.connections[at];
        let (node, from) = (connection.ends[to].node, connection.ends[1 - to].node);
        if delivery.packet == Packet::ProcessEnded {
            connection.ends[to].process_ended = true;
            return self.woken.push(node);
        }
        let is_forged = matches!(delivery.packet, Packet::Reset | Packet::Refused | Packet::End);
        if connection.epoch != delivery.epoch || connection.ends[to].is_cut_off && !is_forged {
            return;
        }
        if self.is_cut(self.host(from), self.host(node)) {
            return self.connections[at].ends[to].held.push(delivery);
        }
        let end = &mut self.connections[at].ends[to];
        match delivery.packet {
            Packet::Open => {
                let process = &mut self.processes[node];
                if process.is_alive && !process.refuses && process.backlog.len() < BACKLOG {
                    process.backlog.push_back(at);
                    (end.is_open, end.is_connected) = (true, true);
                    self.send(at, 1 - to, Packet::Opened);
                } else {
                    self.send(at, 1 - to, Packet::Refused);
                }
            }
            Packet::Opened => end.is_connected = true,
            Packet::Bytes(_) if !end.is_open => self.send(at, 1 - to, Packet::Reset),
            Packet::Bytes(bytes) => end.readable.extend(bytes),
            Packet::End => end.ended = true,
            Packet::Reset => end.fault = end.fault.or(Some(io::ErrorKind::ConnectionReset)),
            Packet::Refused => end.fault = end.fault.or(Some(io::ErrorKind::ConnectionRefused)),
            Packet::ProcessEnded => unreachable!("dealt with above"),
        }
        self.woken.push(node);
    }

    fn dial(&mut self, from: usize, to: usize) -> io::Result<usize> {
        let medium = if self.host(from) == self.host(to) { MemberMedium::Unix } else { MemberMedium::Tcp };
        let target = &self.processes[to];
        let here = medium == MemberMedium::Unix;
        if here && (!target.is_alive || target.refuses) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        if here && target.backlog.len() >= BACKLOG {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let end = |node, is_open| End {
            node,
            is_open,
            is_connected: here,
            readable: VecDeque::new(),
            ended: false,
            fault: None,
            process_ended: false,
            unread_bytes: 0,
            last_arrival: 0,
            held: Vec::new(),
            is_cut_off: false,
        };
        self.connections.push(Connection { ends: [end(from, true), end(to, here)], medium, epoch: 0 });
        let connection = self.connections.len() - 1;
        if here {
            self.processes[to].backlog.push_back(connection);
            self.woken.push(to);
        } else {
            self.send(connection, 1, Packet::Open);
        }
        Ok(connection)
    }

    fn read(&mut self, connection: usize, side: Side, target: &mut [u8]) -> io::Result<usize> {
        let [this, other] = self.ends(connection, side);
        if this.readable.is_empty() {
            return match (this.fault, this.ended) {
                (Some(fault), _) => Err(fault.into()),
                (None, true) => Ok(0),
                (None, false) => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let count = target.len().min(this.readable.len());
        for (place, byte) in target.iter_mut().zip(this.readable.drain(..count)) {
            *place = byte;
        }
        other.unread_bytes = other.unread_bytes.saturating_sub(count);
        let writer = other.node;
        self.woken.push(writer);
        Ok(count)
    }

    fn write(&mut self, connection: usize, side: Side, bytes: &[u8]) -> io::Result<usize> {
        let buffer_bytes = self.weather.buffer_bytes;
        let [this, other] = self.ends(connection, side);
        let node = this.node;
        let _ = other;
        if this.fault.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = buffer_bytes.saturating_sub(this.unread_bytes);
        if !this.is_connected || room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = if bytes.len() <= PAGE { bytes.len() } else { bytes.len().min(room.max(PAGE)) };
        match &mut self.processes[node].writes_left {
            Some(0) => return Ok(count),
            Some(left) => *left -= 1,
            None => {}
        }
        self.connections[connection].ends[side].unread_bytes += count;
        self.send(connection, 1 - side, Packet::Bytes(bytes[..count].to_vec()));
        Ok(count)
    }

    fn close(&mut self, connection: usize, side: Side) {
        let [this, _] = self.ends(connection, side);
        let has_unread = !this.readable.is_empty();
        (this.is_open, this.readable) = (false, VecDeque::new());
        if this.fault.is_some() {
            return;
        }
        let node = this.node;
        if self.processes[node].has_heirs {
            return;
        }
        self.ends(connection, side)[1].unread_bytes = 0;
        self.send(connection, 1 - side, if has_unread { Packet::Reset } else { Packet::End });
    }

    fn ends(&mut self, connection: usize, side: Side) -> [&mut End; 2] {
        let [one, other] = &mut self.connections[connection].ends;
        if side == 0 { [one, other] } else { [other, one] }
    }
}

/// One end of a connection, as its process has it. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Stream {
    kernel: Shared,
    connection: usize,
    side: Side,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Stream {
    pub(crate) fn medium(&self) -> MemberMedium {
        self.kernel.borrow().connections[self.connection].medium
    }

    /// What poll(2) would say.
    pub(crate) fn is_ready(&self, wants_write: bool) -> bool {
        let kernel = self.kernel.borrow();
        let end = &kernel.connections[self.connection].ends[self.side];
        let is_writable = end.is_connected && end.unread_bytes < kernel.weather.buffer_bytes;
        !end.readable.is_empty() || end.ended || end.fault.is_some() || wants_write && is_writable
    }

    pub(crate) fn watch(&self) -> Option<Watch> {
        let (kernel, connection, side) = (Rc::clone(&self.kernel), self.connection, self.side);
        (self.medium() == MemberMedium::Unix).then_some(Watch { kernel, connection, side })
    }

    pub(crate) fn has_process_ended(&self) -> bool {
        self.kernel.borrow().connections[self.connection].ends[self.side].process_ended
    }
}

/// A process that is watched after its connection was closed.
#[derive(Debug)]
pub(crate) struct Watch {
    kernel: Shared,
    connection: usize,
    side: Side,
}

impl PeerWatch for Watch {
    fn has_ended(&self) -> bool {
        self.kernel.borrow().connections[self.connection].ends[self.side].process_ended
    }
}

impl Read for Stream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.kernel.borrow_mut().read(self.connection, self.side, target)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.kernel.borrow_mut().write(self.connection, self.side, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.kernel.borrow_mut().close(self.connection, self.side);
    }
}

/// The network as one process has it.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) kernel: Shared,
    pub(crate) node: usize,
}

impl MemberNetwork for Nic {
    type Channel = SimulatedChannel;

    fn dial(&mut self, call: &MemberCall<'_>) -> io::Result<SimulatedChannel> {
        let to = call.place.unix_name.parse().expect("the name of a simulated process is its number");
        let connection = self.kernel.borrow_mut().dial(self.node, to)?;
        let kind = self.kernel.borrow().weather.channels;
        let stream = Stream { kernel: Rc::clone(&self.kernel), connection, side: 0 };
        Ok(SimulatedChannel::dial(stream, kind, call.me))
    }

    fn accept(&mut self) -> io::Result<SimulatedChannel> {
        let mut kernel = self.kernel.borrow_mut();
        let connection = kernel.processes[self.node].backlog.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        let kind = kernel.weather.channels;
        let stream = Stream { kernel: Rc::clone(&self.kernel), connection, side: 1 };
        Ok(SimulatedChannel::accept(stream, kind))
    }

    fn open_votes(&mut self, _me: MemberId) {
        self.kernel.borrow_mut().processes[self.node].votes = Some(VoteRecord::default());
    }

    fn record_votes(&mut self, record: &VoteRecord) {
        let process = &mut self.kernel.borrow_mut().processes[self.node];
        if process.writes_left != Some(0) {
            process.votes = Some(record.clone());
        }
    }

    fn broken_rule(&self) -> Option<Rule> {
        self.kernel.borrow().weather.broken
    }
}
