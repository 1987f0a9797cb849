//! Serves live views: one thread that accepts connections, and one for each connection.
//!
//! **Scenario.** *Clients that reach the metrics open connections and stay silent:* each is served for seconds, and the
//! oldest is replaced when there are many ([`Strangers`]). The Unix socket has its own limit, so they do not affect it.
//!
//! The socket's name is `farandole-live-UID-PID-N`: abstract, so it is gone with its process whatever ends that, and
//! there is nothing to clean up. Names can be taken by anybody; so both sides ask the kernel whose process the other
//! one is (`SO_PEERCRED`). Processes of another user, but for root, are sent away without a word.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::geteuid;

use super::http::{self, PATIENCE, write_within};
use super::job_state::JobState;
use super::metrics;
use crate::error::{Error, Result};
use crate::strangers::{Strangers, is_trusted};

/// What every name begins with.
pub(super) const PREFIX: &str = "farandole-live-";

/// A process may host several jobs, one after the other or, in tests, at once.
const MOST_NAMES: u32 = 64;

/// Connections that are served at once at the Unix socket. Some terminals need less.
const MOST_AT_ONCE: usize = 16;

/// When no descriptor is left for a visitor, the next look waits this long.
const PAUSE: Duration = Duration::from_millis(200);

/// See the module's text. Dropping it closes it.
#[derive(Debug)]
pub struct LiveEndpoint {
    name: Option<String>,
    metrics: Option<SocketAddr>,
    /// The thread has the other end; closing this one sends it home.
    stop: Option<UnixStream>,
    /// The process that has the thread: a fork of it has a copy of this handle and serves nobody.
    pid: u32,
    thread: Option<JoinHandle<()>>,
}

impl LiveEndpoint {
    /// Serves the state to processes of this user and, where an address is given, its metrics to whoever reaches that.
    ///
    /// # Errors
    /// If the address cannot be listened at, or a thread cannot be started. A socket that cannot be opened is done
    /// without.
    pub fn open(state: Arc<JobState>, metrics: Option<SocketAddr>) -> Result<LiveEndpoint> {
        let page = match metrics {
            Some(address) => Some(listen(address)?),
            None => None,
        };
        let address = page.as_ref().and_then(|page| page.local_addr().ok());
        let (name, socket) = name_and_socket().map_or((None, None), |(name, socket)| (Some(name), Some(socket)));
        let opening = |error| Error::local("opening a socket for live views", error);
        let (stop, stopped) = UnixStream::pair().map_err(opening)?;
        let (served, scrapers) = (Arc::new(()), Strangers::default());
        let rounds = Rounds { state, socket, page, stopped, served, scrapers };
        let thread = std::thread::Builder::new().name("farandole-live".into());
        let thread = thread.spawn(move || rounds.run()).map_err(opening)?;
        Ok(LiveEndpoint { name, metrics: address, stop: Some(stop), pid: std::process::id(), thread: Some(thread) })
    }

    /// The name of the socket, without what makes it abstract; `None` if there is no socket.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Where the metrics are; port 0 has become a real one.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }
}

impl Drop for LiveEndpoint {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // The thread did not come along into this process.
            std::mem::forget(self.thread.take());
            return;
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listening = |error: io::Error| {
        let cure = match error.kind() {
            io::ErrorKind::AddrInUse => "; something else listens there: choose another port",
            io::ErrorKind::AddrNotAvailable => "; this host has no such address",
            io::ErrorKind::PermissionDenied => "; ports below 1024 are for root",
            _ => "",
        };
        Error::local(format!("showing metrics at {address}{cure}"), error)
    };
    let listener = TcpListener::bind(address).map_err(listening)?;
    listener.set_nonblocking(true).map_err(listening)?;
    Ok(listener)
}

fn name_and_socket() -> io::Result<(String, UnixListener)> {
    let (uid, pid) = (geteuid().as_raw(), std::process::id());
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for number in 0..MOST_NAMES {
        let name = format!("{PREFIX}{uid}-{pid}-{number}");
        match UnixListener::bind_addr(&UnixAddress::from_abstract_name(&name)?) {
            Ok(socket) => {
                socket.set_nonblocking(true)?;
                return Ok((name, socket));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The thread's state.
struct Rounds {
    state: Arc<JobState>,
    socket: Option<UnixListener>,
    page: Option<TcpListener>,
    stopped: UnixStream,
    /// Each thread of the Unix socket holds a copy, so the count is that of the connections.
    served: Arc<()>,
    /// Connections for metrics, which need no key.
    scrapers: Strangers,
}

impl Rounds {
    fn run(self) {
        loop {
            let mut fds = vec![PollFd::new(&self.stopped, PollFlags::IN)];
            fds.extend(self.socket.iter().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)));
            fds.extend(self.page.iter().map(|page| PollFd::from_borrowed_fd(page.as_fd(), PollFlags::IN)));
            if poll(&mut fds, None).is_err() {
                std::thread::sleep(PAUSE);
                continue;
            }
            if !fds[0].revents().is_empty() {
                return;
            }
            if let Some(Err(error)) = self.socket.as_ref().map(|socket| self.accept_here(socket))
                && error.kind() != io::ErrorKind::WouldBlock
            {
                std::thread::sleep(PAUSE);
            }
            if let Some(Err(error)) = self.page.as_ref().map(|page| self.accept_there(page))
                && error.kind() != io::ErrorKind::WouldBlock
            {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn accept_here(&self, socket: &UnixListener) -> io::Result<()> {
        let (mut stream, _) = socket.accept()?;
        if !is_trusted(&stream) {
            return Ok(());
        }
        let served = Arc::clone(&self.served);
        if Arc::strong_count(&served) > MOST_AT_ONCE + 1 {
            return Ok(());
        }
        let state = Arc::clone(&self.state);
        start(move || {
            let mut json = state.snapshot(Instant::now()).to_json();
            json.push('\n');
            let _ = write_within(&mut stream, json.as_bytes(), PATIENCE, UnixStream::set_write_timeout);
            drop(served);
        })
    }

    fn accept_there(&self, page: &TcpListener) -> io::Result<()> {
        let (stream, _) = page.accept()?;
        let stranger = self.scrapers.enter(&stream)?;
        let state = Arc::clone(&self.state);
        start(move || {
            http::answer(stream, || metrics::page(&state.snapshot(Instant::now())));
            drop(stranger);
        })
    }
}

/// Serves a connection on its own thread. Without a thread the client finds its connection closed.
fn start(serve: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("farandole-live".into()).spawn(serve).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::super::snapshot::{JobView, Snapshot};
    use super::*;
    use crate::strangers::MOST_STRANGERS;

    fn state(size: usize) -> Arc<JobState> {
        Arc::new(JobState::new(JobView { size, pid: 7, ..JobView::default() }, &[]))
    }

    fn open(size: usize) -> LiveEndpoint {
        LiveEndpoint::open(state(size), Some("127.0.0.1:0".parse().unwrap())).unwrap()
    }

    fn look(endpoint: &LiveEndpoint) -> UnixStream {
        let address = UnixAddress::from_abstract_name(endpoint.name().unwrap()).unwrap();
        let stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn ask(endpoint: &LiveEndpoint, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(endpoint.metrics().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn onlookers_of_this_user_see_the_job_whatever_they_say() {
        let endpoint = open(3);
        for words in [&b""[..], b"garbage\0\xff", &[7; 5000]] {
            let mut stream = look(&endpoint);
            let _ = stream.write_all(words);
            let mut json = Vec::new();
            // Words that nobody has read make the end a reset, behind everything that was sent.
            let _ = stream.read_to_end(&mut json);
            assert_eq!(Snapshot::from_json(&json).unwrap().ranks.len(), 3);
        }
    }

    #[test]
    fn metrics_are_served_and_garbage_is_answered() {
        let endpoint = open(2);
        let page = ask(&endpoint, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("farandole_ranks 2\n"), "{page}");
        assert!(ask(&endpoint, b"\x16\x03\x01\x02\n\n").starts_with("HTTP/1.1 400 "));
        let endless = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &[b'x'; 20_000]].concat();
        let answer = ask(&endpoint, &endless);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[test]
    fn slow_visitors_are_sent_away_and_hold_up_nobody() {
        let endpoint = open(1);
        let mut slow: Vec<TcpStream> =
            (0..4).map(|_| TcpStream::connect(endpoint.metrics().unwrap()).unwrap()).collect();
        slow[0].write_all(b"GET /me").unwrap();
        assert!(ask(&endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        slow[0].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = String::new();
        slow[0].read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }

    #[test]
    fn silent_visitors_keep_out_neither_a_scraper_nor_the_owner() {
        let endpoint = open(1);
        let mut crowd: Vec<TcpStream> =
            (0..MOST_STRANGERS + 4).map(|_| TcpStream::connect(endpoint.metrics().unwrap()).unwrap()).collect();
        // The crowd is accepted before this one, which comes last.
        assert!(ask(&endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        let mut json = Vec::new();
        let _ = look(&endpoint).read_to_end(&mut json);
        assert_eq!(Snapshot::from_json(&json).unwrap().ranks.len(), 1);
        let oldest = &mut crowd[0];
        oldest.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(oldest.read(&mut [0; 10]).unwrap_or(0), 0, "it was closed without a word");
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let endpoint = open(1);
        let taken = endpoint.metrics().unwrap();
        let words = LiveEndpoint::open(state(1), Some(taken)).unwrap_err().to_string();
        assert!(words.contains(&taken.to_string()) && words.contains("choose another port"), "{words}");
    }

    #[test]
    fn a_closed_stand_leaves_nothing_open() {
        let endpoint = open(1);
        let (name, address) = (endpoint.name().unwrap().to_owned(), endpoint.metrics().unwrap());
        drop(endpoint);
        assert!(UnixStream::connect_addr(&UnixAddress::from_abstract_name(&name).unwrap()).is_err());
        assert!(TcpStream::connect(address).is_err());
    }
}
