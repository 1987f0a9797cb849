//! Where connections of peers arrive.
//!
//! A [`Listener`] has a TCP socket for each address it is given, bound to exactly that, and one abstract Unix socket,
//! and a thread of its own that accepts connections and shakes hands on all of them at once. A stranger who says
//! nothing, says it slowly, or says something else costs one entry in a table for a few seconds, and never holds up a
//! peer. Connections that have proved themselves wait in the *lobby* until somebody builds the mesh they belong to, so
//! meshes can be built in any order and from several threads.
//!
//! A forked child has a copy of the listener but not its thread. There, dropping it closes the child's descriptors and
//! touches nothing else.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farandole_plan::{ErrorClass, Rank};

use crate::awake::AwakeClock;
use crate::contact::{Contact, suggested_connections};
use crate::error::{Error, Result};
use crate::hello::{Established, Handshake, Purpose};
use crate::key::{JobId, Key, random_bytes};
use crate::stream::Socket;
use crate::stream::congestion::suit_bursts;
use crate::wait::{Bell, Waiter};

/// A handshake that takes longer is dropped. An honest peer needs a few round trips; on a crowded machine it may lose
/// the processor for a second. A peer that was dropped tries again.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);

/// While there are handshakes the thread looks around at least this often, to notice that it was itself stopped.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// More unproved connections than this at once, and the oldest goes. A mesh of this many peers can still be built at
/// once; each entry costs a few hundred bytes and a descriptor.
const MOST_HANDSHAKES: usize = 512;

/// When the system has no descriptor for a new connection, accepting is tried again after this time.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// So many refusals are remembered for error messages.
const MOST_REFUSALS: usize = 16;

/// Accepts connections for the meshes of one process.
#[derive(Debug)]
pub struct Listener {
    lobby: Arc<Lobby>,
    key: Key,
    job: JobId,
    addresses: Vec<SocketAddr>,
    unix: String,
    stop: Bell,
    /// The process that has the thread: a fork of it has a copy of this handle alone.
    pid: u32,
    thread: Option<JoinHandle<()>>,
    /// The listening thread holds them only while it accepts, so that a forked child, which has no such thread, closes
    /// them with this.
    _sockets: Arc<Sockets>,
}

/// Where connections arrive.
#[derive(Debug)]
struct Sockets {
    tcp: Vec<TcpListener>,
    unix: UnixListener,
}

/// Where the listening thread leaves connections and builders of meshes pick them up.
#[derive(Debug, Default)]
struct Lobby {
    /// Locked by the listening thread when a handshake ends, and by builders while they look; never while waiting.
    inside: Mutex<Inside>,
    /// Rung by the listening thread when something was added to `inside`, and by whoever interrupts.
    news: Condvar,
}

#[derive(Debug, Default)]
struct Inside {
    arrived: HashMap<Place, Established<Socket>>,
    refusals: VecDeque<ConnectionRefusal>,
    /// Why no mesh can be built any more: the rank that is to blame, the class and the cause. Set once, by whoever
    /// interrupts.
    interruption: Option<(Option<Rank>, ErrorClass, String)>,
    /// Set when the listener is dropped, for its thread to see.
    closing: Closing,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Closing {
    #[default]
    No,
    Yes,
}

/// Which connection of which mesh. Of two for the same place the later counts: its connector has tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) mesh: u64,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) purpose: Purpose,
}

/// A connection that was turned away.
#[derive(Clone, Debug)]
pub struct ConnectionRefusal {
    /// When.
    pub at: Instant,
    /// Why, naming where it came from.
    pub why: String,
    /// The version it spoke, if that was the reason.
    pub version: Option<u16>,
}

impl Lobby {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// Listens on a fresh abstract Unix socket and on exactly the given addresses, if any (port 0: any free one).
    /// Peers must hold `key`, which was made for their job alone.
    pub fn bind(addresses: impl IntoIterator<Item = SocketAddr>, key: &Key) -> Result<Listener> {
        Listener::bind_for(JobId::of_key(key), addresses, key)
    }

    /// The same for a rank of `job`; other jobs may have the same key, and their ranks are refused.
    pub fn bind_for(job: JobId, addresses: impl IntoIterator<Item = SocketAddr>, key: &Key) -> Result<Listener> {
        let suffix: [u8; 8] = random_bytes()?;
        let unix = format!("farandole-{:016x}", u64::from_le_bytes(suffix));
        let name = std::os::unix::net::SocketAddr::from_abstract_name(&unix)
            .map_err(|e| Error::local("naming a Unix socket", e))?;
        let unix_listener =
            UnixListener::bind_addr(&name).map_err(|e| Error::local("listening on a Unix socket", e))?;
        unix_listener.set_nonblocking(true).map_err(|e| Error::local("listening on a Unix socket", e))?;
        deepen(&unix_listener)?;
        let tcp_listeners = addresses.into_iter().map(bind_tcp).collect::<Result<Vec<_>>>()?;
        let bound = tcp_listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>();
        let addresses = bound.map_err(|e| Error::local("asking for the address of a socket", e))?;
        let waiter = Waiter::new()?;
        waiter.watch(&unix_listener)?;
        for listener in &tcp_listeners {
            waiter.watch(listener)?;
        }
        let lobby = Arc::new(Lobby::default());
        let stop = waiter.bell();
        let sockets = Arc::new(Sockets { tcp: tcp_listeners, unix: unix_listener });
        let doorman = Doorman {
            sockets: Arc::downgrade(&sockets),
            key: key.clone(),
            job,
            waiter,
            lobby: lobby.clone(),
            handshakes: VecDeque::new(),
            clock: AwakeClock::new(Instant::now()),
        };
        let thread = std::thread::Builder::new()
            .name("farandole-listen".to_owned())
            .spawn(move || doorman.run())
            .map_err(|e| Error::local("starting the listening thread", e))?;
        let (key, pid, thread) = (key.clone(), std::process::id(), Some(thread));
        Ok(Listener { lobby, key, job, addresses, unix, stop, pid, thread, _sockets: sockets })
    }

    /// The TCP addresses, with the ports that were chosen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What to tell peers: the given identity of this host, and where this listener can be reached.
    pub fn contact(&self, host: impl Into<String>) -> Contact {
        Contact {
            host: host.into(),
            unix: Some(self.unix.clone()),
            addresses: self.addresses.clone(),
            connections: suggested_connections(),
            process: crate::ProcessId::own(),
        }
    }

    /// The key that peers must hold.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The job whose ranks connect here.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// Connections that were turned away lately.
    pub fn refusals(&self) -> Vec<ConnectionRefusal> {
        self.lobby.inside().refusals.iter().cloned().collect()
    }

    /// Drops connections that have arrived for a mesh which will not be built.
    pub fn forget(&self, mesh: u64, to: Rank) {
        self.lobby.inside().arrived.retain(|place, _| (place.mesh, place.to) != (mesh, to));
    }

    /// Ends the building of meshes for good, from any thread: whoever builds one fails with this cause, and blames this
    /// rank if one is named. The first interruption counts.
    pub fn interrupt(&self, peer: Option<Rank>, class: ErrorClass, cause: impl Into<String>) {
        self.lobby.inside().interruption.get_or_insert_with(|| (peer, class, cause.into()));
        self.lobby.news.notify_all();
    }

    /// The error for builders, if they were interrupted.
    pub(crate) fn interruption(&self) -> Result<()> {
        match &self.lobby.inside().interruption {
            None => Ok(()),
            Some((peer, class, cause)) => Err(Error::Interrupted { peer: *peer, class: *class, cause: cause.clone() }),
        }
    }

    /// Waits for a connection to arrive. Nothing if it does not come in time, or if there is no use in waiting.
    pub(crate) fn take(&self, place: Place, deadline: Instant) -> Option<Established<Socket>> {
        let mut inside = self.lobby.inside();
        loop {
            if let Some(arrived) = inside.arrived.remove(&place) {
                return Some(arrived);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || inside.interruption.is_some() {
                return None;
            }
            inside = self.lobby.news.wait_timeout(inside, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn bind_tcp(address: SocketAddr) -> Result<TcpListener> {
    let doing = || format!("listening on {address}");
    let listener = TcpListener::bind(address).map_err(|e| Error::local(doing(), e))?;
    listener.set_nonblocking(true).map_err(|e| Error::local(doing(), e))?;
    suit_bursts(&listener);
    deepen(&listener)?;
    Ok(listener)
}

/// Lets as many connections wait for their acceptance as the system allows: the ranks of a large job come all at once,
/// and one that finds no place comes again only after a second.
fn deepen(listener: impl AsFd) -> Result<()> {
    rustix::net::listen(listener, i32::MAX).map_err(|e| Error::local("listening", e))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // The thread did not come along into this process, and may have held the lock when it was left behind.
            std::mem::forget(self.thread.take());
            return;
        }
        self.lobby.inside().closing = Closing::Yes;
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the listening thread has been printed; there is nobody to pass it to here.
            let _ = thread.join();
        }
    }
}

/// The listening thread.
struct Doorman {
    sockets: Weak<Sockets>,
    key: Key,
    job: JobId,
    waiter: Waiter,
    lobby: Arc<Lobby>,
    /// In the order of their arrival.
    handshakes: VecDeque<Visitor>,
    /// A visitor that could not greet because this process was stopped, and most likely its own as well, is not dropped
    /// for that: it may be about to take its greeting for accepted.
    clock: AwakeClock,
}

struct Visitor {
    handshake: Handshake<Socket>,
    /// In awake time.
    came: Instant,
    name: String,
}

impl Doorman {
    fn run(mut self) {
        while self.lobby.inside().closing == Closing::No {
            let accepted_all = self.accept();
            self.advance();
            let mut at_most = Duration::from_secs(3600);
            if let Some(oldest) = self.handshakes.front() {
                let waited = self.clock.last().saturating_duration_since(oldest.came);
                at_most = (HANDSHAKE_PATIENCE.saturating_sub(waited) + Duration::from_millis(1)).min(LONGEST_WAIT);
            }
            if !accepted_all {
                at_most = at_most.min(ACCEPT_AGAIN);
            }
            if self.waiter.wait(at_most).is_err() {
                return;
            }
            self.clock.look(Instant::now(), at_most);
        }
    }

    /// Takes all connections that are there. Says whether the system let us.
    fn accept(&mut self) -> bool {
        use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        // The listener lets go of them only when this thread has ended.
        let Some(sockets) = self.sockets.upgrade() else { return true };
        for tcp in &sockets.tcp {
            loop {
                match tcp.accept() {
                    Ok((stream, from)) => self.welcome(Socket::from_tcp(stream), from.to_string()),
                    Err(error) if error.kind() == WouldBlock => break,
                    Err(error) if matches!(error.kind(), ConnectionAborted | Interrupted) => {}
                    Err(_) => return false,
                }
            }
        }
        loop {
            match sockets.unix.accept() {
                Ok((stream, _)) => self.welcome(Socket::from_unix(stream), "this host".to_owned()),
                Err(error) if error.kind() == WouldBlock => return true,
                Err(error) if matches!(error.kind(), ConnectionAborted | Interrupted) => {}
                Err(_) => return false,
            }
        }
    }

    fn welcome(&mut self, socket: Result<Socket>, name: String) {
        // A connection that cannot even be set up was closed already.
        let Ok(socket) = socket else { return };
        if self.waiter.watch(&socket).is_err() {
            return;
        }
        if self.handshakes.len() == MOST_HANDSHAKES
            && let Some(oldest) = self.handshakes.pop_front()
        {
            self.refuse(format!("{}: too many unproved connections", oldest.name), None);
        }
        let handshake = Handshake::accept(socket, name.clone(), &self.key, self.job);
        self.handshakes.push_back(Visitor { handshake, came: self.clock.last(), name });
    }

    /// Moves every handshake on; ends those that are over.
    fn advance(&mut self) {
        let now = self.clock.last();
        for mut visitor in std::mem::take(&mut self.handshakes) {
            match visitor.handshake.advance() {
                Ok(true) => self.admit(visitor.handshake.finish()),
                Ok(false) if now.saturating_duration_since(visitor.came) < HANDSHAKE_PATIENCE => {
                    self.handshakes.push_back(visitor)
                }
                Ok(false) => self.refuse(format!("{} did not finish its greeting in time", visitor.name), None),
                Err(Error::Version { theirs, ours, .. }) => {
                    let why = format!("{} speaks protocol version {theirs}, this rank speaks {ours}", visitor.name);
                    self.refuse(why, Some(theirs));
                }
                Err(error) => self.refuse(error.to_string(), None),
            }
        }
    }

    fn admit(&self, arrived: Established<Socket>) {
        // From here on the mesh's driver watches it; this thread would only be woken in vain by its data.
        if self.waiter.unwatch(&arrived.stream).is_err() {
            return;
        }
        let hello = &arrived.hello;
        let place = Place { mesh: hello.mesh, from: hello.from, to: hello.to, purpose: hello.purpose };
        self.lobby.inside().arrived.insert(place, arrived);
        self.lobby.news.notify_all();
    }

    fn refuse(&self, why: String, version: Option<u16>) {
        let mut inside = self.lobby.inside();
        if inside.refusals.len() == MOST_REFUSALS {
            inside.refusals.pop_front();
        }
        inside.refusals.push_back(ConnectionRefusal { at: Instant::now(), why, version });
    }
}
