//! How ranks of one host come by a key that nobody has given them.
//!
//! Rank 0 makes the key and stands at the *door*, an abstract Unix socket whose name all ranks of the job compute alike. Anybody on
//! the machine may know that name; so both sides ask the kernel first whose process the other one is (`SO_PEERCRED`). A
//! visitor of another user is sent away without a word. A visitor who finds somebody else's process at the door reads nothing
//! from it and says who it is. Between processes of one user the key is handed over in the clear: they could read it
//! out of each other's memory anyway.
//!
//! ```text
//! from rank 0: the key, 64 hexadecimal digits
//! ```
//!
//! The door closes when every other rank has come. So a rank that initialises again cannot be given the key of
//! last time by a rank 0 that has not got so far yet: it waits until the door opens anew.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farandole_transport::{Bell, Key, Waiter};
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::ancestor;
use super::launcher::{Launch, Launcher};
use crate::error::{Error, Result};

/// Length of a key as text.
const KEY_DIGITS: usize = 64;

/// Pauses between knocks grow from the first to the second: rank 0 may just be starting.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// The door is looked at this often even if nobody rings: when the system was short of descriptors, nobody does.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The name of the door of this launch.
pub(super) fn name(launch: &Launch) -> String {
    let variable = match launch.launcher {
        Launcher::Horovod => "HOROVOD_RANK",
        Launcher::Torchrun => "RANK",
        Launcher::OpenMpi => "OMPI_COMM_WORLD_RANK",
        Launcher::Mpich => "PMI_RANK",
        Launcher::Slurm => "SLURM_PROCID",
        Launcher::Farandole | Launcher::Nobody => super::RANK,
    };
    let job = launch.job.clone().unwrap_or_else(|| ancestor::without(variable));
    let attempt = launch.attempt.as_deref().unwrap_or_default();
    let hash = blake3::hash(format!("{} {} {job} {attempt}", launch.launcher, launch.size).as_bytes());
    format!("farandole-{}-{}", geteuid().as_raw(), &hash.to_hex()[..16])
}

/// Rank 0 at its door, until everybody has come or it is dropped.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    stop: Bell,
    /// Set by the dropping owner before it rings; read by the keeper's thread each time it wakes.
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Doorkeeper {
    /// Opens the door and hands `key` to `visitors` processes of this user.
    pub(super) fn stand(door: &str, key: &Key, visitors: usize) -> Result<Doorkeeper> {
        let opening = || format!("opening the door unix:@{door}");
        let address = SocketAddr::from_abstract_name(door).map_err(|e| Error::local(opening(), e))?;
        let listener = UnixListener::bind_addr(&address).map_err(|error| taken(door, &address, error))?;
        listener.set_nonblocking(true).map_err(|e| Error::local(opening(), e))?;
        let waiter = Waiter::new().map_err(|e| Error::local(opening(), io::Error::other(e)))?;
        waiter.watch(&listener).map_err(|e| Error::local(opening(), io::Error::other(e)))?;
        let (stop, closing) = (waiter.bell(), Arc::new(AtomicBool::new(false)));
        let (key, is_closing) = (key.to_hex(), Arc::clone(&closing));
        let thread = std::thread::Builder::new()
            .name("doorkeeper".into())
            .spawn(move || receive(&listener, &waiter, &is_closing, &key, visitors))
            .map_err(|e| Error::local("starting a thread", e))?;
        Ok(Doorkeeper { stop, closing, thread: Some(thread) })
    }
}

impl Drop for Doorkeeper {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The life of the doorkeeper's thread.
fn receive(listener: &UnixListener, waiter: &Waiter, closing: &AtomicBool, key: &str, visitors: usize) {
    let mut served = HashSet::new();
    while served.len() < visitors && !closing.load(Ordering::Acquire) {
        match listener.accept() {
            // Nothing is read, and so few bytes find room in any socket: no visitor can hold up the others.
            Ok((mut stream, _)) => {
                let Ok(visitor) = socket_peercred(&stream) else { continue };
                if visitor.uid == geteuid() && stream.write_all(key.as_bytes()).is_ok() {
                    served.insert(visitor.pid);
                }
            }
            Err(_) => {
                let _ = waiter.wait(LOOK_EVERY);
            }
        }
    }
}

/// Gets the key from rank 0, which may still have to open its door.
pub(super) fn knock(door: &str, deadline: Instant) -> Result<Key> {
    let address = SocketAddr::from_abstract_name(door).map_err(|e| Error::local(format!("looking for {door}"), e))?;
    let began = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let error = match enter(&address, deadline) {
            Ok(Ok(key)) => return Ok(key),
            Ok(Err(stranger)) => return Err(strange(door, &stranger)),
            Err(error) => error,
        };
        if Instant::now() + pause >= deadline {
            let address = format!("unix:@{door}, which rank 0 opens");
            return Err(Error::Unreachable { address, waited: began.elapsed(), source: error });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// One attempt: the key, or whoever is at the door without being this user's.
fn enter(address: &SocketAddr, deadline: Instant) -> io::Result<std::result::Result<Key, UCred>> {
    let mut stream = UnixStream::connect_addr(address)?;
    let keeper = socket_peercred(&stream)?;
    if keeper.uid != geteuid() {
        return Ok(Err(keeper));
    }
    // A timeout of zero would mean none.
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    let mut digits = [0; KEY_DIGITS];
    stream.read_exact(&mut digits)?;
    let key = String::from_utf8_lossy(&digits).parse();
    key.map(Ok).map_err(|not_a_key| io::Error::new(io::ErrorKind::InvalidData, not_a_key))
}

/// Why rank 0 cannot open its door: whoever stands there is named.
fn taken(door: &str, address: &SocketAddr, error: io::Error) -> Error {
    let holder = UnixStream::connect_addr(address).and_then(|stream| Ok(socket_peercred(&stream)?));
    match holder {
        Ok(holder) if holder.uid != geteuid() => strange(door, &holder),
        Ok(holder) => Error::Refused {
            why: format!(
                "process {} is rank 0 of this job already (it holds unix:@{door})",
                holder.pid.as_raw_nonzero()
            ),
        },
        Err(_) => Error::local(format!("opening the door unix:@{door}"), error),
    }
}

fn strange(door: &str, holder: &UCred) -> Error {
    Error::Refused {
        why: format!(
            "unix:@{door}, where the ranks of this job meet, is held by process {} of user {}, who is not you; ask them to \
             end it, or meet elsewhere (FARANDOLE_RENDEZVOUS=tcp:127.0.0.1:PORT and FARANDOLE_KEY)",
            holder.pid.as_raw_nonzero(),
            holder.uid.as_raw()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn own_door(test: &str) -> String {
        format!("farandole-door-{}-{test}", std::process::id())
    }

    #[test]
    fn a_rank_that_comes_early_waits_for_the_door_and_gets_the_key() {
        let door = own_door("early");
        let key = Key::random().unwrap();
        let early = std::thread::spawn({
            let door = door.clone();
            move || knock(&door, soon()).unwrap()
        });
        std::thread::sleep(Duration::from_millis(30));
        let _keeper = Doorkeeper::stand(&door, &key, 1).unwrap();
        assert_eq!(early.join().unwrap(), key);
    }

    #[test]
    fn the_door_is_closed_once_everybody_has_come() {
        let door = own_door("once");
        let first = Doorkeeper::stand(&door, &Key::random().unwrap(), 1).unwrap();
        knock(&door, soon()).unwrap();
        // The visitor may be back before the keeper has left its thread.
        let closed = soon();
        while UnixStream::connect_addr(&SocketAddr::from_abstract_name(&door).unwrap()).is_ok() {
            assert!(Instant::now() < closed, "the door stays open");
            std::thread::sleep(Duration::from_millis(1));
        }
        let key = Key::random().unwrap();
        let _second = Doorkeeper::stand(&door, &key, 1).unwrap();
        assert_eq!(knock(&door, soon()).unwrap(), key, "the key of this time, while the first keeper still lives");
        drop(first);
    }

    #[test]
    fn a_door_that_nobody_opens_is_given_up_at_the_deadline() {
        let began = Instant::now();
        let error = knock(&own_door("none"), began + Duration::from_millis(200)).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("which rank 0 opens"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_second_rank_zero_is_told_who_was_first() {
        let door = own_door("second");
        let _first = Doorkeeper::stand(&door, &Key::random().unwrap(), 2).unwrap();
        let error = Doorkeeper::stand(&door, &Key::random().unwrap(), 2).unwrap_err().to_string();
        assert!(error.contains(&format!("process {} is rank 0 of this job already", std::process::id())), "{error}");
    }

    /// Runs something as another user of this machine, on a thread of its own, which the kernel lets change its user alone.
    fn as_somebody_else<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
        let nobody = rustix::process::Uid::from_raw(65_534);
        let thread = std::thread::spawn(move || {
            rustix::thread::set_thread_uid(nobody).expect("this test needs root, to become somebody else");
            what()
        });
        thread.join().unwrap()
    }

    #[test]
    fn a_squatter_of_another_user_is_named_and_believed_nothing() {
        let door = own_door("squatter");
        let address = SocketAddr::from_abstract_name(&door).unwrap();
        let squatter = as_somebody_else({
            let address = address.clone();
            move || UnixListener::bind_addr(&address).unwrap()
        });
        // It would even have a key to give.
        std::thread::spawn(move || {
            for stream in squatter.incoming() {
                let _ = stream.unwrap().write_all("0".repeat(KEY_DIGITS).as_bytes());
            }
        });
        let refused = knock(&door, soon()).unwrap_err().to_string();
        let not_opened = Doorkeeper::stand(&door, &Key::random().unwrap(), 1).unwrap_err().to_string();
        for error in [refused, not_opened] {
            assert!(error.contains("of user 65534, who is not you"), "{error}");
        }
    }

    #[test]
    fn a_visitor_of_another_user_gets_nothing_and_is_not_counted() {
        let door = own_door("visitor");
        let key = Key::random().unwrap();
        let _keeper = Doorkeeper::stand(&door, &key, 1).unwrap();
        let address = SocketAddr::from_abstract_name(&door).unwrap();
        let got = as_somebody_else(move || {
            let mut bytes = Vec::new();
            UnixStream::connect_addr(&address).unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        });
        assert!(got.is_empty(), "{got:?}");
        assert_eq!(knock(&door, soon()).unwrap(), key, "the door is still open for its own");
    }

    #[test]
    fn a_keeper_who_says_nothing_is_left_at_the_deadline() {
        let door = own_door("mute");
        let _mute = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&door).unwrap()).unwrap();
        let began = Instant::now();
        knock(&door, began + Duration::from_millis(200)).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
