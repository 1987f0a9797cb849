//! The thread behind an [`super::Endpoint`]: it turns the state (`endpoint_core`) whenever a socket, a command or the
//! clock asks for it.
//!
//! **Invariant:** only the poll blocks, and time in which this process was stopped does not count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farandole_transport::AwakeClock;
use rustix::event::{PollFd, PollFlags, poll};

use super::connection::Sockets;
use super::endpoint::{Command, Shared};
use super::endpoint_core::{After, ConnectionId, EndpointCore, PeerProcess};
use crate::mailbox::Mailbox;

/// How long somebody who leaves waits until its last words are on their way.
pub(super) const GOODBYE_PATIENCE: Duration = Duration::from_millis(500);

/// Between two looks at the last words.
const GOODBYE_STEP: Duration = Duration::from_millis(20);

/// Says that the thread has ended, also when it panics: nobody waits for it any more.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.change(|state| state.over = true);
    }
}

/// Turns the loop until this process leaves. `began` is when the core's time begins.
pub(super) fn run(
    mut core: EndpointCore<Sockets>,
    commands: &Mailbox<Command>,
    shared: Arc<Shared>,
    began: Instant,
    silence: Duration,
) {
    let _over = Over(shared);
    let mut clock = AwakeClock::new(began).judging_by(silence);
    loop {
        let at_most = core.longest_wait(clock.last());
        let ready = wait(&core, commands, at_most);
        let now = clock.look(Instant::now(), at_most);
        if core.turn(now, commands.take(), &ready) == After::Nothing {
            break;
        }
    }
    let until = Instant::now() + GOODBYE_PATIENCE;
    while !core.say_goodbye() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        wait(&core, commands, left.min(GOODBYE_STEP));
    }
}

/// Waits until something happens or is due; returns the connections that are ready, and whether the process at the
/// other end has ended.
fn wait(
    core: &EndpointCore<Sockets>,
    commands: &Mailbox<Command>,
    at_most: Duration,
) -> Vec<(ConnectionId, PeerProcess)> {
    let mut fds = vec![PollFd::new(commands, PollFlags::IN)];
    let flags = if core.is_listening() { PollFlags::IN } else { PollFlags::empty() };
    fds.extend(core.network.listeners.iter().map(|listener| PollFd::new(listener, flags)));
    let first = fds.len();
    let sockets = || core.connections().map(|(_, socket)| socket);
    fds.extend(sockets().map(|socket| {
        let writing = if socket.channel.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::from_borrowed_fd(socket.channel.fd(), PollFlags::IN | writing)
    }));
    let processes = sockets().filter_map(|socket| socket.process.as_ref());
    fds.extend(processes.chain(core.ending()).map(|process| PollFd::new(process, PollFlags::IN)));
    // A millisecond more, lest the loop turns several times just before something is due.
    let timeout = (at_most + Duration::from_millis(1)).try_into().ok();
    if poll(&mut fds, timeout.as_ref()).is_err() {
        return Vec::new();
    }
    let mut processes = fds[first + sockets().count()..].iter();
    let mut ready = Vec::new();
    for ((id, socket), fd) in core.connections().zip(&fds[first..]) {
        let process = socket.process.as_ref().and_then(|_| processes.next());
        let has_ended = process.is_some_and(|process| !process.revents().is_empty());
        if has_ended || !fd.revents().is_empty() {
            ready.push((id, if has_ended { PeerProcess::HasEnded } else { PeerProcess::Runs }));
        }
    }
    ready
}
