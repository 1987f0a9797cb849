//! The side of a rendezvous that waits for the ranks.
//!
//! One thread accepts; every connection gets a short-lived thread that shakes hands, takes the rank's message to the *table* and
//! waits there until all seats are filled or the rank's patience is over. The thread that fills the last seat closes the
//! round; everybody takes a copy of all messages home, and the table is laid anew for the next round, since a job may
//! come together more than once.
//!
//! A stranger costs one thread for [`HANDSHAKE_PATIENCE`], of at most [`MOST_CONNECTIONS`], and is never allocated anything.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{Bell, Key, Waiter};

use super::address::{Address, Listener, Stream};
use super::proof::{Side, prove};
use super::{Arrival, MOST_BLOB_BYTES, Reply};
use crate::error::{Error, Result};

/// An honest rank needs one round trip; on a crowded machine it may lose the processor for a second.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);

/// More connections than this at once are closed unheard, beyond the ranks themselves.
const MOST_CONNECTIONS: usize = 256;

/// A thread that waits at the table looks this often whether its rank is still there.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Hosts a rendezvous for as long as it lives.
#[derive(Debug)]
pub struct Server {
    address: Address,
    table: Arc<Table>,
    stop: Bell,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Hosts the rendezvous of `ranks` ranks that hold `key`. TCP is bound to exactly the given address.
    pub fn serve(at: &Address, ranks: usize, key: &Key) -> Result<Server> {
        let listening = || format!("listening at {at}");
        let (listener, address) = at.listen().map_err(|e| Error::local(listening(), e))?;
        listener.set_nonblocking().map_err(|e| Error::local(listening(), e))?;
        let waiter = Waiter::new().map_err(|e| Error::local(listening(), std::io::Error::other(e)))?;
        waiter.watch(&listener).map_err(|e| Error::local(listening(), std::io::Error::other(e)))?;
        let stop = waiter.bell();
        let table = Arc::new(Table::new(ranks));
        let (key, at_table) = (key.clone(), table.clone());
        let thread = std::thread::Builder::new()
            .name("rendezvous".into())
            .spawn(move || accept_all(&listener, &waiter, &at_table, &key))
            .map_err(|e| Error::local("starting a thread", e))?;
        Ok(Server { address, table, stop, thread: Some(thread) })
    }

    /// Where ranks connect.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.table.round().closing = Closing::Yes;
        self.table.news.notify_all();
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Address::UnixPath(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Where messages are gathered.
#[derive(Debug)]
struct Table {
    /// Locked by the threads of connections while they sit down, look or leave, and by the dropping server; never while
    /// anybody talks to a socket.
    round: Mutex<Round>,
    /// Rung when a round is complete and when the server closes.
    news: Condvar,
    /// Connections under way, for [`MOST_CONNECTIONS`]. Only a count; orders nothing.
    connections: AtomicUsize,
}

#[derive(Debug)]
struct Round {
    number: u64,
    seats: Vec<Option<Seat>>,
    /// Messages of the round that was completed last.
    complete: Arc<Vec<Vec<u8>>>,
    closing: Closing,
}

#[derive(Debug)]
struct Seat {
    blob: Vec<u8>,
    /// The connection that the rank sits here with, to see whether it has been closed.
    lifeline: rustix::fd::OwnedFd,
}

#[derive(Debug, PartialEq, Eq)]
enum Closing {
    No,
    Yes,
}

impl Table {
    fn new(ranks: usize) -> Table {
        let seats = std::iter::repeat_with(|| None).take(ranks).collect();
        let round = Round { number: 0, seats, complete: Arc::default(), closing: Closing::No };
        Table { round: Mutex::new(round), news: Condvar::new(), connections: AtomicUsize::new(0) }
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sits down, waits for the others, and says what to answer. `None`: the rank has left, or the server closes.
    fn meet(&self, arrival: Arrival, lifeline: impl AsFd) -> Option<Reply> {
        let Arrival { rank, ranks, patience, blob } = arrival;
        let deadline = Instant::now() + patience;
        let mut round = self.round();
        let number = round.number;
        if let Err(why) = round.sit_down(rank, ranks, blob, &lifeline) {
            return Some(Reply::Refused(why));
        }
        if round.seats.iter().all(Option::is_some) {
            round.close();
            self.news.notify_all();
        }
        loop {
            if round.number > number {
                // The next round cannot be complete without this rank, so `complete` is still ours.
                return Some(Reply::Everybody(round.complete.clone()));
            }
            if round.closing == Closing::Yes || is_closed(&lifeline) {
                round.seats[rank] = None;
                return None;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing = round.missing();
                round.seats[rank] = None;
                return Some(Reply::Missing(missing));
            }
            round = self.news.wait_timeout(round, left.min(LOOK_EVERY)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Round {
    fn sit_down(
        &mut self,
        rank: usize,
        ranks: usize,
        blob: Vec<u8>,
        lifeline: &impl AsFd,
    ) -> std::result::Result<(), String> {
        let seats = self.seats.len();
        if ranks != seats {
            return Err(format!("rank {rank} believes in {ranks} ranks, but the job has {seats}"));
        }
        let Some(seat) = self.seats.get_mut(rank) else {
            return Err(format!("there is no rank {rank} in a job of {seats}"));
        };
        // A rank that lost its connection may come again; a second process with the same rank is a mistake.
        if seat.as_ref().is_some_and(|seat| !is_closed(&seat.lifeline)) {
            return Err(format!("another process is rank {rank} already"));
        }
        let lifeline = lifeline.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        *seat = Some(Seat { blob, lifeline });
        Ok(())
    }

    fn close(&mut self) {
        self.complete = Arc::new(self.seats.iter_mut().filter_map(Option::take).map(|seat| seat.blob).collect());
        self.number += 1;
    }

    fn missing(&self) -> Vec<Rank> {
        let empty = self.seats.iter().enumerate().filter(|(_, seat)| seat.is_none());
        empty.map(|(rank, _)| Rank::from(rank)).collect()
    }
}

/// Whether the other end of a connection has hung up. A rank sends nothing while it waits.
fn is_closed(connection: &impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::new(connection, PollFlags::RDHUP)];
    let now = rustix::time::Timespec::default();
    matches!(poll(&mut fds, Some(&now)), Ok(1..))
}

fn accept_all(listener: &Listener, waiter: &Waiter, table: &Arc<Table>, key: &Key) {
    while table.round().closing == Closing::No {
        match listener.accept() {
            Ok((stream, _)) => {
                let at_once = table.connections.fetch_add(1, Ordering::Relaxed);
                let most = MOST_CONNECTIONS + table.round().seats.len();
                let (at_table, key) = (table.clone(), key.clone());
                let started = (at_once < most).then(|| {
                    let attend = move || {
                        attend(stream, &at_table, &key);
                        at_table.connections.fetch_sub(1, Ordering::Relaxed);
                    };
                    std::thread::Builder::new().name("rendezvous guest".into()).spawn(attend)
                });
                if !matches!(started, Some(Ok(_))) {
                    table.connections.fetch_sub(1, Ordering::Relaxed);
                }
            }
            // Nothing to accept, or no descriptor for it: both are worth another look a little later.
            Err(_) => {
                let _ = waiter.wait(LOOK_EVERY);
            }
        }
    }
}

/// Serves one connection. Whatever goes wrong on it concerns nobody else.
fn attend(stream: Stream, table: &Table, key: &Key) {
    let served = || -> std::io::Result<()> {
        stream.set_patience(HANDSHAKE_PATIENCE)?;
        let mut proved = prove(stream, Side::Server, key)?;
        let body = proved.receive(MOST_BLOB_BYTES + Arrival::HEAD_BYTES)?;
        let reply = match Arrival::decode(&body) {
            Some(arrival) => table.meet(arrival, &proved.stream),
            None => Some(Reply::Refused("the request has another form: install the same farandole everywhere".into())),
        };
        match reply {
            Some(reply) => proved.send(&reply.encode()),
            None => Ok(()),
        }
    };
    let _ = served();
}
