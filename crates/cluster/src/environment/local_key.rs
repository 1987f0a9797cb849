//! How ranks of one host get a key that nobody has given them.
//!
//! Rank 0 makes the key and serves it at the *key socket*, an abstract Unix socket whose name all ranks of the job
//! compute alike. Any process of the machine may know that name, so both sides first ask the kernel for the other's
//! user ([`Credentials`]). Rank 0 closes the connection of another user without a word. A rank that finds a process of
//! another user at the socket reads nothing from it and reports who it is. Between processes of one user the key is
//! sent in the clear: they could read it out of each other's memory anyway.
//!
//! ```text
//! from rank 0: the key, 64 hexadecimal digits
//! ```
//!
//! The key socket closes when every other rank has fetched the key. So a rank that initialises again cannot get the
//! last key from a rank 0 that has not got so far yet: it waits until the socket opens again. A rank binds its own
//! socket to a name that contains its number, and the name comes with the connection: nothing has to be read. The
//! process id would not do: rank 0 sees no id of ranks in other containers.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use farandole_transport::{Bell, Countdown, Credentials, Key, Waiter};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};
use rustix::process::geteuid;

use super::ancestor;
use super::launcher::{Launch, Launcher};
use crate::error::{Error, Result};

/// Length of a key as text.
const KEY_DIGITS: usize = 64;

/// Pauses between attempts grow from the first to the second: rank 0 may just be starting.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// The listener is polled this often even without an event: there is none when the system is short of descriptors.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The name of the key socket of this launch.
pub(super) fn socket_name(launch: &Launch) -> String {
    let variable = match launch.launcher {
        Launcher::Horovod => "HOROVOD_RANK",
        Launcher::Torchrun => "RANK",
        Launcher::OpenMpi => "OMPI_COMM_WORLD_RANK",
        Launcher::Mpich => "PMI_RANK",
        Launcher::Slurm => "SLURM_PROCID",
        Launcher::Farandole | Launcher::Nobody | Launcher::Store => super::RANK,
    };
    let job = launch.job.clone().unwrap_or_else(|| ancestor::without(variable));
    let attempt = launch.attempt.as_deref().unwrap_or_default();
    let hash = blake3::hash(format!("{} {} {job} {attempt}", launch.launcher, launch.size).as_bytes());
    format!("farandole-{}-{}", geteuid().as_raw(), &hash.to_hex()[..16])
}

/// Serves the key in rank 0, until every rank has fetched it or this is dropped.
#[derive(Debug)]
pub(super) struct KeyServer {
    stop: Bell,
    /// Set by the dropping owner before it rings; read by the server's thread each time it wakes.
    closing: Arc<AtomicBool>,
    /// The process that has the thread: a fork of it has a copy of this handle alone.
    pid: u32,
    thread: Option<JoinHandle<()>>,
}

/// Who has come, so that one who comes twice is counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Visitor {
    /// It has said so.
    Rank(u32),
    /// It could not say so: another socket has the name.
    Process(u32),
    /// And nothing else tells it from others either: the how manieth of that kind.
    Unknown(usize),
}

impl KeyServer {
    /// Opens the socket and sends `key` to `visitors` processes of this user.
    pub(super) fn start(key_socket: &str, key: &Key, visitors: usize) -> Result<KeyServer> {
        let opening = || format!("opening the key socket unix:@{key_socket}");
        let address = SocketAddr::from_abstract_name(key_socket).map_err(|e| Error::local(opening(), e))?;
        let listener = UnixListener::bind_addr(&address).map_err(|error| taken(key_socket, &address, error))?;
        listener.set_nonblocking(true).map_err(|e| Error::local(opening(), e))?;
        let waiter = Waiter::new().map_err(|e| Error::local(opening(), io::Error::other(e)))?;
        waiter.watch(&listener).map_err(|e| Error::local(opening(), io::Error::other(e)))?;
        let (stop, closing) = (waiter.bell(), Arc::new(AtomicBool::new(false)));
        let (key, is_closing, own_name) = (key.to_hex(), Arc::clone(&closing), key_socket.to_owned());
        let thread = std::thread::Builder::new()
            .name("key_server".into())
            .spawn(move || serve(&own_name, &listener, &waiter, &is_closing, &key, visitors))
            .map_err(|e| Error::local("starting a thread", e))?;
        Ok(KeyServer { stop, closing, pid: std::process::id(), thread: Some(thread) })
    }
}

impl Drop for KeyServer {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // The thread did not come along into this process.
            std::mem::forget(self.thread.take());
            return;
        }
        self.closing.store(true, Ordering::Release);
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread of the key server.
fn serve(key_socket: &str, listener: &UnixListener, waiter: &Waiter, closing: &AtomicBool, key: &str, visitors: usize) {
    let mut served = HashSet::new();
    while served.len() < visitors && !closing.load(Ordering::Acquire) {
        match listener.accept() {
            // Nothing is read, and so few bytes find room in any socket: no visitor can hold up the others.
            Ok((mut stream, from)) => {
                let Ok(visitor) = Credentials::of_peer(&stream) else { continue };
                if visitor.uid == geteuid().as_raw() && stream.write_all(key.as_bytes()).is_ok() {
                    served.insert(identify(key_socket, from.as_abstract_name(), visitor.pid, served.len()));
                }
            }
            Err(_) => {
                let _ = waiter.wait(LOOK_EVERY);
            }
        }
    }
}

/// The name of a visitor's own socket.
fn visitor_name(key_socket: &str, rank: u32) -> String {
    format!("{key_socket}-rank-{rank}")
}

/// Who a visitor is by the name of its socket, or else by its process.
fn identify(key_socket: &str, name: Option<&[u8]>, pid: Option<u32>, served: usize) -> Visitor {
    let said = name.and_then(|name| std::str::from_utf8(name).ok()?.strip_prefix(key_socket)?.strip_prefix("-rank-"));
    match (said.and_then(|rank| rank.parse().ok()), pid) {
        (Some(rank), _) => Visitor::Rank(rank),
        (None, Some(pid)) => Visitor::Process(pid),
        (None, None) => Visitor::Unknown(served),
    }
}

/// Fetches the key from rank 0, which may not have opened its socket yet.
pub(super) fn fetch(key_socket: &str, rank: Rank, deadline: Instant) -> Result<Key> {
    let deadline = Countdown::until(deadline);
    let began = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let error = match fetch_once(key_socket, rank, &deadline) {
            Ok(Ok(key)) => return Ok(key),
            Ok(Err(stranger)) => return Err(strange(key_socket, &stranger)),
            Err(error) => error,
        };
        if deadline.left() <= pause {
            let address = format!("unix:@{key_socket}, which rank 0 opens");
            return Err(Error::Unreachable { address, waited: began.elapsed(), source: error });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// One attempt: the key, or the process of another user that holds the socket.
fn fetch_once(key_socket: &str, rank: Rank, deadline: &Countdown) -> io::Result<std::result::Result<Key, Credentials>> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Whoever else has the name, an earlier attempt or somebody who wants to disturb, the visit can do without it.
    let _ = bind(&socket, &SocketAddrUnix::new_abstract_name(visitor_name(key_socket, rank.0).as_bytes())?);
    connect(&socket, &SocketAddrUnix::new_abstract_name(key_socket.as_bytes())?)?;
    let mut stream = UnixStream::from(socket);
    let server = Credentials::of_peer(&stream)?;
    if server.uid != geteuid().as_raw() {
        return Ok(Err(server));
    }
    // A timeout of zero would mean none.
    let left = deadline.left().max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    let mut digits = [0; KEY_DIGITS];
    stream.read_exact(&mut digits)?;
    let key = String::from_utf8_lossy(&digits).parse();
    key.map(Ok).map_err(|not_a_key| io::Error::new(io::ErrorKind::InvalidData, not_a_key))
}

/// Why rank 0 cannot open the socket; names the process that holds it.
fn taken(key_socket: &str, address: &SocketAddr, error: io::Error) -> Error {
    let holder = UnixStream::connect_addr(address).and_then(|stream| Credentials::of_peer(&stream));
    match holder {
        Ok(holder) if holder.uid != geteuid().as_raw() => strange(key_socket, &holder),
        Ok(holder) => Error::Refused {
            why: format!("{} is rank 0 of this job already (it holds unix:@{key_socket})", holder.process()),
        },
        Err(_) => Error::local(format!("opening the key socket unix:@{key_socket}"), error),
    }
}

fn strange(key_socket: &str, holder: &Credentials) -> Error {
    let container = match holder.pid {
        Some(_) => "",
        None => " (in containers with users of their own, your own ranks look like this)",
    };
    Error::Refused {
        why: format!(
            "unix:@{key_socket}, where the ranks of this job meet, is held by {} of user {}, who is not you{container}; ask \
             them to end it, or meet elsewhere (FARANDOLE_RENDEZVOUS=tcp:127.0.0.1:PORT and FARANDOLE_KEY)",
            holder.process(),
            holder.uid
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn unused_socket(test: &str) -> String {
        format!("farandole-key-socket-{}-{test}", std::process::id())
    }

    #[test]
    fn a_rank_that_comes_early_waits_for_the_socket_and_gets_the_key() {
        let key_socket = unused_socket("early");
        let key = Key::random().unwrap();
        let early = farandole_testing::Sleeper::spawn({
            let key_socket = key_socket.clone();
            move || fetch(&key_socket, Rank(1), soon()).unwrap()
        });
        let _server = KeyServer::start(&key_socket, &key, 1).unwrap();
        assert_eq!(early.join().unwrap(), key);
    }

    #[test]
    fn the_socket_closes_once_every_rank_has_the_key() {
        let key_socket = unused_socket("once");
        let first = KeyServer::start(&key_socket, &Key::random().unwrap(), 1).unwrap();
        fetch(&key_socket, Rank(1), soon()).unwrap();
        // The visitor may be back before the server has left its thread.
        farandole_testing::wait_until("the end of the key socket", farandole_testing::NEVER, || {
            UnixStream::connect_addr(&SocketAddr::from_abstract_name(&key_socket).unwrap()).is_err()
        });
        let key = Key::random().unwrap();
        let _second = KeyServer::start(&key_socket, &key, 1).unwrap();
        assert_eq!(
            fetch(&key_socket, Rank(1), soon()).unwrap(),
            key,
            "the key of this time, while the first server still lives"
        );
        drop(first);
    }

    #[test]
    fn a_socket_that_nobody_opens_is_given_up_at_the_deadline() {
        let error = fetch(&unused_socket("none"), Rank(1), Instant::now() + Duration::from_millis(200)).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("which rank 0 opens"), "{error}");
    }

    #[test]
    fn a_second_rank_zero_is_told_who_was_first() {
        let key_socket = unused_socket("second");
        let _first = KeyServer::start(&key_socket, &Key::random().unwrap(), 2).unwrap();
        let error = KeyServer::start(&key_socket, &Key::random().unwrap(), 2).unwrap_err().to_string();
        assert!(error.contains(&format!("process {} is rank 0 of this job already", std::process::id())), "{error}");
    }

    #[test]
    fn a_server_that_says_nothing_is_left_at_the_deadline() {
        let key_socket = unused_socket("mute");
        let _mute = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&key_socket).unwrap()).unwrap();
        // Without a deadline it would hang.
        fetch(&key_socket, Rank(1), Instant::now() + Duration::from_millis(200)).unwrap_err();
    }

    #[test]
    fn a_visitor_is_counted_once_however_it_is_known() {
        let name = visitor_name("farandole-7", 3);
        assert_eq!(name, "farandole-7-rank-3", "tests/root.rs takes such a name");
        let by_name = |name: &str, pid| identify("farandole-7", Some(name.as_bytes()), pid, 5);
        assert_eq!(by_name(&name, Some(77)), Visitor::Rank(3));
        assert_eq!(by_name(&name, None), Visitor::Rank(3), "ranks of other PID namespaces have no number");
        assert_eq!(by_name("farandole-8-rank-3", Some(77)), Visitor::Process(77), "another socket's visitor");
        assert_eq!(identify("farandole-7", None, Some(77), 5), Visitor::Process(77));
        assert_eq!(identify("farandole-7", None, None, 5), Visitor::Unknown(5));
    }
}
