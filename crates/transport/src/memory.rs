//! Ranks that are threads of one process, joined by byte pipes.
//!
//! A pipe end is a [`crate::stream::Connection`] like any socket, so everything above it (frames, stripes, control
//! messages, skipped and void frames) is the very code that runs over TCP, without the kernel. Pipes have a bounded
//! capacity: with a small one, every way of being unable to go on is walked. Dropping an end is the death of its rank
//! as its peer sees it.
//!
//! Made for tests; a process has no reason to talk to itself otherwise.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard};

use farandole_plan::{Rank, Topology};

use crate::error::Result;
use crate::mesh::{Mesh, Peer};
use crate::shm::{Layout, Windows};
use crate::stream::{FrameOptions, StreamControl, StreamLink};
use crate::wait::Bell;

/// Capacity of a control line. Small enough that a test with a few hundred requests fills it.
const CONTROL_BYTES: usize = 4 << 10;

/// How the ranks are joined.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Bytes that a pipe holds.
    pub capacity_bytes: usize,
    /// Pipes for data between two ranks.
    pub connections: usize,
    /// How frames are put on the pipes.
    pub shape: FrameOptions,
    /// Whether each rank is on a host of its own, as far as the topology says.
    pub is_apart: bool,
}

impl Default for MemoryOptions {
    fn default() -> MemoryOptions {
        MemoryOptions { capacity_bytes: 64 << 10, connections: 1, shape: FrameOptions::default(), is_apart: false }
    }
}

/// The meshes of a group whose ranks are threads, one for each bell.
pub fn meshes(bells: &[Bell], settings: &MemoryOptions) -> Vec<Mesh> {
    let mut peers: Vec<Vec<Peer>> = bells.iter().map(|_| Vec::new()).collect();
    for low in 0..bells.len() {
        for high in low + 1..bells.len() {
            let pair = || pipe(&bells[low], &bells[high], settings.capacity_bytes);
            let (ends_low, ends_high): (Vec<End>, Vec<End>) = (0..settings.connections).map(|_| pair()).unzip();
            let (control_low, control_high) = pipe(&bells[low], &bells[high], CONTROL_BYTES);
            peers[low].push(peer(high, control_low, ends_low, settings.shape));
            peers[high].push(peer(low, control_high, ends_high, settings.shape));
        }
    }
    let topology = if settings.is_apart { Topology::all_apart(bells.len()) } else { Topology::one_host(bells.len()) };
    let mesh = |(me, peers)| Mesh::new(Rank::from(me), topology.clone(), peers);
    peers.into_iter().enumerate().map(mesh).collect()
}

/// Like [`meshes`], but data goes through shared memory: the ranks also have windows.
pub fn meshes_with_windows(bells: &[Bell], layout: Layout) -> Result<Vec<Mesh>> {
    let mut meshes = meshes(bells, &MemoryOptions::default());
    for (mesh, windows) in meshes.iter_mut().zip(Windows::for_threads(layout, bells)?) {
        mesh.open_windows(windows);
    }
    Ok(meshes)
}

fn peer(rank: usize, control: End, ends: Vec<End>, shape: FrameOptions) -> Peer {
    let rank = Rank::from(rank);
    let control = Box::new(StreamControl::new(rank, control));
    Peer { rank, control, link: Box::new(StreamLink::new(rank, ends, shape)), process: None }
}

/// Both ends of a pair of pipes, one for each direction. Each end rings the other's bell.
pub fn pipe(one: &Bell, other: &Bell, capacity_bytes: usize) -> (End, End) {
    assert!(capacity_bytes > 0, "a pipe without capacity moves nothing");
    let half = || Arc::new(Mutex::new(Pipe { bytes: VecDeque::new(), capacity_bytes, closed: Closed::No }));
    let (forth, back) = (half(), half());
    (
        End { out: forth.clone(), into: back.clone(), other: other.clone() },
        End { out: back, into: forth, other: one.clone() },
    )
}

/// One direction. The mutex is held by either end for the length of a copy, never while waiting.
#[derive(Debug)]
struct Pipe {
    bytes: VecDeque<u8>,
    capacity_bytes: usize,
    closed: Closed,
}

#[derive(Debug, PartialEq, Eq)]
enum Closed {
    No,
    Yes,
}

/// One end of a pair of pipes.
#[derive(Debug)]
pub struct End {
    out: Arc<Mutex<Pipe>>,
    into: Arc<Mutex<Pipe>>,
    other: Bell,
}

fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    // A rank that panicked while it held the lock is a dead rank, not a reason for its peer to panic.
    pipe.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Read for End {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut pipe = lock(&self.into);
        if pipe.bytes.is_empty() && !target.is_empty() {
            return if pipe.closed == Closed::Yes { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let was_full = pipe.bytes.len() == pipe.capacity_bytes;
        let count = pipe.bytes.read(target)?;
        drop(pipe);
        if was_full && count > 0 {
            self.other.ring();
        }
        Ok(count)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut pipe = lock(&self.out);
        if pipe.closed == Closed::Yes {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let before = pipe.bytes.len();
        if before == pipe.capacity_bytes {
            return Err(ErrorKind::WouldBlock.into());
        }
        for slice in slices {
            let room = pipe.capacity_bytes - pipe.bytes.len();
            pipe.bytes.extend(&slice[..slice.len().min(room)]);
        }
        let count = pipe.bytes.len() - before;
        drop(pipe);
        if before == 0 && count > 0 {
            self.other.ring();
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.out).closed = Closed::Yes;
        lock(&self.into).closed = Closed::Yes;
        self.other.ring();
    }
}
