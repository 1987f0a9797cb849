//! A TCP connection to an RPC server, with any number of calls under way: [`Connection`].
//!
//! One task writes calls, another reads answers and hands each to the call with its number. When the connection breaks,
//! or the server is silent while somebody waits, every call that waits gets the cause, and the one whose answer was
//! arriving gets its beginning, too: the bytes of a file in it need not be sent again.
//!
//! **Invariant:** a call ends with an answer, or with the failure that ended the connection, at most a quarter later
//! than the server may be silent. No task is left when the connection is dropped.
//!
//! What is deliberately not here: connecting again (`server`).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::patience::chance;
use super::failure::Failure;
use super::rpc::{self, Caller, LAST_FRAGMENT, Program};

/// The longest answer: what is asked for at once (`server`), with room for attributes and names around it.
const MAX_RECORD_BYTES: usize = (1 << 20) + (64 << 10);
/// What is read from a socket at once, at least.
const READ_BYTES: usize = 64 << 10;
/// Ports that Linux's own client takes: those that need a right, but for the ones that other services are used to.
const PRIVILEGED_PORTS: std::ops::Range<u16> = 665..1024;
/// So many of them are tried before any other port will do: who has used up more has other troubles.
const PORTS_TRIED: u16 = 40;

/// See the module's text.
pub(super) struct Connection {
    shared: Arc<Shared>,
    calls: mpsc::UnboundedSender<Vec<u8>>,
    tasks: [JoinHandle<()>; 2],
}

struct Shared {
    silence_timeout: Duration,
    /// Callers add, the reader removes; whichever task fails takes all.
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next_xid: u32,
    calls: HashMap<u32, oneshot::Sender<Result<Bytes, Failure>>>,
    /// Since when somebody waits, or the last bytes came.
    since: Option<Instant>,
    /// Why the connection has ended.
    ended: Option<Failure>,
}

impl Connection {
    /// Begins to use a connection.
    pub(super) fn new(stream: TcpStream, silence_timeout: Duration) -> Connection {
        // Calls are short and wait for their answer; on a socket that refuses, they are merely slower.
        let _ = stream.set_nodelay(true);
        let (reading, writing) = stream.into_split();
        // Answers to calls of a connection before this one must not be taken for answers here, not even by a server
        // that remembers numbers of calls.
        let waiting = Waiting { next_xid: (chance() * f64::from(u32::MAX)) as u32, ..Waiting::default() };
        let shared = Arc::new(Shared { silence_timeout, waiting: Mutex::new(waiting) });
        let (calls, to_write) = mpsc::unbounded_channel();
        let tasks = [
            tokio::spawn(write_calls(Arc::clone(&shared), writing, to_write)),
            tokio::spawn(read_answers(Arc::clone(&shared), reading)),
        ];
        Connection { shared, calls, tasks }
    }

    /// Calls a procedure and waits for the results.
    pub(super) async fn call(
        &self,
        program: Program,
        procedure: u32,
        caller: &Caller,
        arguments: &[u8],
    ) -> Result<Bytes, Failure> {
        let (sender, receiver) = oneshot::channel();
        let record = {
            let mut waiting = self.shared.waiting();
            if let Some(failure) = &waiting.ended {
                return Err(failure.clone());
            }
            let xid = waiting.next_xid;
            waiting.next_xid = xid.wrapping_add(1);
            waiting.calls.retain(|_, caller| !caller.is_closed());
            if waiting.calls.is_empty() {
                waiting.since = Some(Instant::now());
            }
            waiting.calls.insert(xid, sender);
            rpc::call(xid, program, procedure, caller, arguments)
        };
        // If the writer has ended, the call has got its failure.
        let _ = self.calls.send(record);
        let answer = receiver.await.unwrap_or_else(|_| Err(Failure::broken("its task has ended")))?;
        rpc::results(answer).map_err(|refusal| Failure::Refused(program.name, refusal))
    }

    /// Whether calls fail at once.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.waiting().ended.is_some()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection for all that wait, with what of an answer has arrived.
    fn end(&self, failure: &Failure, begun: Vec<u8>) {
        let mut waiting = self.waiting();
        if waiting.ended.is_none() {
            waiting.ended = Some(failure.clone());
        }
        let arriving = rpc::xid_of(&begun).and_then(|xid| waiting.calls.remove(&xid));
        // Whoever does not listen any more has given up.
        if let Some(caller) = arriving {
            let _ = caller.send(Err(Failure::Begun(Box::new(failure.clone()), begun.into())));
        }
        for (_, caller) in waiting.calls.drain() {
            let _ = caller.send(Err(failure.clone()));
        }
    }

    /// Hands an answer to its call. One that nobody waits for is to a call that was given up.
    fn deliver(&self, answer: Vec<u8>) {
        let mut waiting = self.waiting();
        if let Some(caller) = rpc::xid_of(&answer).and_then(|xid| waiting.calls.remove(&xid)) {
            let _ = caller.send(Ok(answer.into()));
        }
    }

    /// Whether the server has been silent for too long. Callers that gave up wait no longer.
    fn is_silent(&self) -> bool {
        let mut waiting = self.waiting();
        waiting.calls.retain(|_, caller| !caller.is_closed());
        let waits = !waiting.calls.is_empty();
        waits && waiting.since.is_some_and(|since| since.elapsed() >= self.silence_timeout)
    }
}

async fn write_calls(shared: Arc<Shared>, mut wire: OwnedWriteHalf, mut calls: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(record) = calls.recv().await {
        if let Err(error) = wire.write_all(&record).await {
            shared.end(&Failure::broken(&error.to_string()), Vec::new());
            return;
        }
    }
}

async fn read_answers(shared: Arc<Shared>, mut wire: OwnedReadHalf) {
    let mut incoming = Vec::new();
    let mut answer = Vec::new();
    let failure = loop {
        match next_fragment(&mut incoming, &mut answer) {
            Ok(Fragments::Complete) => shared.deliver(std::mem::take(&mut answer)),
            Ok(Fragments::Missing) => {
                if let Err(failure) = fill(&shared, &mut wire, &mut incoming).await {
                    break failure;
                }
            }
            Err(failure) => break failure,
        }
    };
    // What of a fragment has arrived belongs to the answer.
    answer.extend_from_slice(incoming.get(4..).unwrap_or_default());
    shared.end(&failure, answer);
}

enum Fragments {
    /// The answer is complete.
    Complete,
    /// More must arrive.
    Missing,
}

/// Moves complete fragments from what has come in to the answer.
fn next_fragment(incoming: &mut Vec<u8>, answer: &mut Vec<u8>) -> Result<Fragments, Failure> {
    while let Some(mark) = incoming.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) {
        let bytes = (mark & !LAST_FRAGMENT) as usize;
        if answer.len() + bytes > MAX_RECORD_BYTES {
            return Err(Failure::broken("an answer is longer than any that was asked for"));
        }
        if incoming.len() < 4 + bytes {
            incoming.reserve(4 + bytes - incoming.len());
            break;
        }
        let behind = incoming.split_off(4 + bytes);
        let fragment = std::mem::replace(incoming, behind);
        answer.extend_from_slice(&fragment[4..]);
        if mark & LAST_FRAGMENT != 0 {
            return Ok(Fragments::Complete);
        }
    }
    Ok(Fragments::Missing)
}

/// Waits for more bytes, as long as the server may be silent.
async fn fill(shared: &Shared, wire: &mut OwnedReadHalf, incoming: &mut Vec<u8>) -> Result<(), Failure> {
    incoming.reserve(READ_BYTES);
    loop {
        // Somebody may begin to wait meanwhile: so it is looked at a few times.
        match timeout(shared.silence_timeout / 4, wire.read_buf(incoming)).await {
            Ok(Ok(0)) => return Err(Failure::broken("the server has closed it")),
            Ok(Ok(_)) => {
                shared.waiting().since = Some(Instant::now());
                return Ok(());
            }
            Ok(Err(error)) => return Err(Failure::broken(&error.to_string())),
            Err(_) if shared.is_silent() => return Err(Failure::Silent(shared.silence_timeout)),
            Err(_) => {}
        }
    }
}

/// Connects to a host, whichever of its addresses answers.
pub(super) async fn dial(host: &str, port: u16, limit: Duration) -> Result<TcpStream, Failure> {
    let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => match timeout(limit, tokio::net::lookup_host((host, port))).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(error)) => return Err(Failure::NoAddress(format!("{host}: {error}"))),
            Err(_) => return Err(Failure::NoAddress(format!("{host} within {limit:?}"))),
        },
    };
    let mut failure = Failure::NoAddress(host.to_owned());
    for address in addresses {
        match timeout(limit, dial_address(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = Failure::Connect(format!("{host}:{port} ({address}): {error}")),
            Err(_) => failure = Failure::Connect(format!("{host}:{port} ({address}) within {limit:?}")),
        }
    }
    Err(failure)
}

/// From a port that only root has, if this process may: many servers want that (`secure` in exports).
async fn dial_address(address: SocketAddr) -> io::Result<TcpStream> {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let count = PRIVILEGED_PORTS.end - PRIVILEGED_PORTS.start;
    let first = (chance() * f64::from(count)) as u16;
    for turn in 0..PORTS_TRIED {
        let port = PRIVILEGED_PORTS.start + (first + turn) % count;
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A port whose last connection was to another server is free.
        socket.set_reuseaddr(true)?;
        match socket.bind(SocketAddr::new(any, port)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
            Err(_) => break,
        }
        match socket.connect(address).await {
            Err(error) if [io::ErrorKind::AddrInUse, io::ErrorKind::AddrNotAvailable].contains(&error.kind()) => {}
            connected => return connected,
        }
    }
    TcpStream::connect(address).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(bytes: u32, last: u32) -> [u8; 4] {
        (bytes | last).to_be_bytes()
    }

    #[test]
    fn fragments_become_an_answer() {
        let mut incoming = [&mark(3, 0)[..], b"abc", &mark(2, LAST_FRAGMENT), b"de", &mark(9, LAST_FRAGMENT)].concat();
        let mut answer = Vec::new();
        assert!(matches!(next_fragment(&mut incoming, &mut answer), Ok(Fragments::Complete)));
        assert_eq!((&answer[..], incoming.len()), (&b"abcde"[..], 4));
        answer.clear();
        assert!(matches!(next_fragment(&mut incoming, &mut answer), Ok(Fragments::Missing)));
        let mut long = mark(LAST_FRAGMENT - 1, LAST_FRAGMENT).to_vec();
        assert!(next_fragment(&mut long, &mut answer).is_err());
    }
}
