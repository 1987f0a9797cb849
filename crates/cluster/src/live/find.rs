//! Finds the running jobs of this user on this machine.
//!
//! Their sockets have names that begin alike, and the kernel lists all names (`/proc/net/unix`). Who is behind one is
//! asked of the kernel as well: a process of the user that the name says, or it is passed over.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use farandole_transport::{Countdown, Credentials};
use rustix::net::SocketAddrUnix;
use rustix::process::{Uid, geteuid};

use super::endpoint::PREFIX;
use super::snapshot::Snapshot;
use crate::strangers;

/// A job that does not answer in this time is stopped, or its machine is very busy.
const PATIENCE: Duration = Duration::from_secs(2);

/// A snapshot of a hundred thousand ranks has room in this; more is nonsense.
const MOST_BYTES: u64 = 256 << 20;

/// A job's socket, with what it told.
#[derive(Clone, Debug)]
pub struct FoundJob {
    /// The name of the socket.
    pub name: String,
    /// The process that opened it.
    pub pid: u32,
    /// The job, or why it cannot be shown.
    pub snapshot: Result<Snapshot, String>,
}

impl FoundJob {
    /// How long the job has been running. One that does not answer has done so for longest.
    fn age(&self) -> f64 {
        self.snapshot.as_ref().map_or(f64::INFINITY, |snapshot| snapshot.job.running_seconds)
    }
}

/// All jobs of this user, or, for root, of everybody. The youngest comes last.
///
/// # Errors
/// If the kernel does not list sockets.
pub fn find() -> io::Result<Vec<FoundJob>> {
    let list = std::fs::read_to_string("/proc/net/unix")?;
    let mut names: Vec<(u32, Uid, &str)> = names_in(&list).collect();
    names.sort_unstable_by_key(|(pid, _, name)| (*pid, *name));
    names.dedup_by_key(|(_, _, name)| *name);
    let own = geteuid();
    let visible = names.into_iter().filter(|(_, uid, _)| *uid == own || own.is_root());
    let mut found: Vec<FoundJob> = visible.filter_map(|(pid, uid, name)| visit(pid, uid, name)).collect();
    found.sort_by(|one, other| other.age().total_cmp(&one.age()));
    Ok(found)
}

/// Names of endpoints in the kernel's list, with the process and the user that they say.
fn names_in(list: &str) -> impl Iterator<Item = (u32, Uid, &str)> {
    list.lines().filter_map(|line| {
        let name = line.rsplit(' ').next()?.strip_prefix('@')?;
        let mut numbers = name.strip_prefix(PREFIX)?.splitn(3, '-');
        let (uid, pid) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        Some((pid, Uid::from_raw(uid), name))
    })
}

/// Reads one endpoint. `None`: it has closed, accepts no connections, or belongs to another user than its name says.
fn visit(pid: u32, uid: Uid, name: &str) -> Option<FoundJob> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    let mut stream = UnixStream::from(strangers::connect(&address, &Countdown::new(PATIENCE)).ok()?);
    if !Credentials::of_peer(&stream).is_ok_and(|host| host.uid == uid.as_raw()) {
        return None;
    }
    let snapshot = match read_all(&mut stream) {
        // It has ended between two calls.
        Ok(bytes) if bytes.is_empty() => return None,
        Ok(bytes) => {
            Snapshot::from_json(&bytes).map_err(|why| format!("what process {pid} says is not understood: {why}"))
        }
        Err(_) => Err(format!("process {pid} does not answer: it is stopped, or its machine is very busy")),
    };
    Some(FoundJob { name: name.to_owned(), pid, snapshot })
}

fn read_all(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || bytes.len() as u64 > MOST_BYTES {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::sync::Arc;

    use super::super::endpoint::LiveEndpoint;
    use super::super::job_state::JobState;
    use super::super::snapshot::JobView;
    use super::*;

    #[test]
    fn names_are_found_in_the_list_of_the_kernel() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 16 @farandole-live-1000-77-0\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 16 @farandole-live-0-78-1\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 17 @farandole-live-x-78-0\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 18 /run/farandole-live-1-2-3\n\
                    0000000000000000: 00000003 00000000 00000000 0001 03 19\n";
        let found: Vec<(u32, u32)> = names_in(list).map(|(pid, uid, _)| (pid, uid.as_raw())).collect();
        assert_eq!(found, [(77, 1000), (78, 0)]);
    }

    /// Any user can take a name and fill the backlog of its socket.
    #[test]
    fn a_socket_that_accepts_no_connections_does_not_hang_the_search() {
        let (uid, pid) = (geteuid(), std::process::id());
        let name = format!("{PREFIX}{}-{pid}-9003", uid.as_raw());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting = UnixStream::connect_addr(&address).unwrap();
        assert!(visit(pid, uid, &name).is_none());
    }

    #[test]
    fn a_stand_is_found_and_gone_when_it_closes() {
        let state = Arc::new(JobState::new(JobView { size: 5, ..JobView::default() }, &[]));
        let endpoint = LiveEndpoint::open(state, None).unwrap();
        let name = endpoint.name().unwrap().to_owned();
        let here = || find().unwrap().into_iter().find(|found| found.name == name);
        let found = here().unwrap();
        assert_eq!((found.pid, found.snapshot.unwrap().ranks.len()), (std::process::id(), 5));
        drop(endpoint);
        assert!(here().is_none());
    }

    #[test]
    fn whoever_says_nonsense_or_nothing_is_named() {
        let (uid, pid) = (geteuid().as_raw(), std::process::id());
        let listen = |number: u32| {
            let name = format!("{PREFIX}{uid}-{pid}-{number}");
            let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
            (name, socket)
        };
        let (name, socket) = listen(9001);
        let nonsense = std::thread::spawn(move || {
            use std::io::Write;
            socket.accept().unwrap().0.write_all(b"\xff{]").unwrap();
        });
        let words = visit(pid, geteuid(), &name).unwrap().snapshot.unwrap_err();
        assert!(words.contains("is not understood"), "{words}");
        nonsense.join().unwrap();
        let (name, _socket) = listen(9002);
        let words = visit(pid, geteuid(), &name).unwrap().snapshot.unwrap_err();
        assert!(words.contains("does not answer"), "{words}");
    }
}
