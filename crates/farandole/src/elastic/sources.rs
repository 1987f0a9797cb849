//! Where a process that is about to join gets a state: [`Sources`], and a stream from one of them, [`StateStream`].
//!
//! Not here: what is done with what comes (`follower`, or a front end with a training of its own).

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use farandole_cluster::streaming::{StateReceiver, StreamPeer, Streamed};

use crate::introduction::Introduction;

/// What waits between the thread that receives and the one that takes over: the next one is there when one is done.
const MOST_WAITING: usize = 2;

/// Who sends states to this process, which is about to join.
#[derive(Clone, Debug)]
pub struct Sources {
    pub(crate) own: StreamPeer,
    /// Where members send their states, those of this host first.
    pub(crate) contacts: Vec<Vec<u8>>,
}

impl Sources {
    /// The members whose introductions say where they send their states. Processes that join at the same time begin
    /// with different ones.
    pub(crate) fn among<'a>(own: StreamPeer, introductions: impl Iterator<Item = &'a [u8]>) -> Sources {
        let mut found: Vec<(bool, Vec<u8>)> = introductions
            .filter_map(Introduction::decode)
            .filter(|introduction| !introduction.stream.is_empty())
            .map(|introduction| (introduction.contact.host != own.host, introduction.stream))
            .collect();
        let count = found.len().max(1) as u64;
        found.rotate_left((own.member % count) as usize);
        found.sort_by_key(|(is_remote, _)| *is_remote);
        Sources { own, contacts: found.into_iter().map(|(_, contact)| contact).collect() }
    }

    /// How many members can be asked. They are numbered in the order in which to ask them.
    pub fn count(&self) -> usize {
        self.contacts.len()
    }

    /// Asks a member for its state.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub fn connect(&self, number: usize) -> io::Result<StateStream> {
        let contact = self.contacts.get(number).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("there are {} members to ask", self.count()))
        })?;
        let mut receiver = StateReceiver::connect(contact, &self.own)?;
        let (teller, words) = mpsc::sync_channel(MOST_WAITING);
        let receive = move || {
            loop {
                let word = receiver.receive();
                let is_last = !matches!(word, Ok(ref word) if !matches!(word, Streamed::JoinNow(_)));
                if teller.send(word).is_err() || is_last {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("state-receiver".into()).spawn(receive)?;
        Ok(StateStream { words })
    }
}

/// A state that comes from a member. A thread receives it.
#[derive(Debug)]
pub struct StateStream {
    words: Receiver<io::Result<Streamed>>,
}

impl StateStream {
    /// What has come, or comes within this time. An error means that the member is lost.
    pub fn receive(&self, time: Duration) -> Option<io::Result<Streamed>> {
        match self.words.recv_timeout(time) {
            Ok(word) => Some(word),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Ok(Streamed::JoinNow("nothing more comes".to_owned()))),
        }
    }
}

/// What a process does between the rendezvous and its joining, where members stream their states: it gets one. The
/// process becomes a candidate when this returns. See [`Setup::before_joining`](crate::Setup::before_joining).
#[derive(Clone)]
pub struct BeforeJoining(Arc<dyn Fn(Sources) + Send + Sync>);

impl BeforeJoining {
    /// Has this called, on the thread that makes the process a rank.
    pub fn new(get_state: impl Fn(Sources) + Send + Sync + 'static) -> BeforeJoining {
        BeforeJoining(Arc::new(get_state))
    }

    pub(crate) fn call(&self, sources: Sources) {
        (self.0)(sources);
    }
}

impl fmt::Debug for BeforeJoining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeforeJoining").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use farandole_engine::Config;
    use farandole_transport::{Contact, ProcessId};
    use farandole_transport::{JobId, Key};

    use super::*;

    fn peer(member: u64) -> StreamPeer {
        let (key, job) = (Key::from_bytes([9; 32]), JobId::named("sources"));
        StreamPeer { key, job, host: "here".to_owned(), member }
    }

    #[test]
    fn members_of_the_own_host_come_first_and_processes_begin_with_different_ones() {
        let introduction = |host: &str, stream: &[u8]| {
            let process = ProcessId { pid: 1, namespace: 1, start_time: 1 };
            let contact = Contact { host: host.to_owned(), unix: None, addresses: Vec::new(), connections: 1, process };
            let mut own = Introduction::new(contact, &Config::default(), false, Err(String::new()));
            own.stream = stream.to_vec();
            own.encode()
        };
        let all = [
            introduction("there", b"a"),
            introduction("here", b"b"),
            introduction("here", b""),
            introduction("here", b"c"),
        ];
        let asked = |member| Sources::among(peer(member), all.iter().map(|one| &one[..])).contacts;
        assert_eq!(asked(0), [b"b", b"c", b"a"]);
        assert_eq!(asked(2), [b"c", b"b", b"a"]);
    }

    #[test]
    fn a_member_that_is_not_there_is_an_error() {
        let nobody = Sources { own: peer(1), contacts: vec![b"nonsense".to_vec()] };
        assert_eq!(nobody.connect(0).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(nobody.connect(1).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
