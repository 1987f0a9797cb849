//! The one place where a driver blocks, and the one way to wake it.
//!
//! A driver owns a [`Waiter`]: an epoll set with the sockets of all its links and one eventfd. The other end of the
//! eventfd is a [`Bell`], which anybody may ring: a thread of this process that submits a request, or, because file
//! descriptors can be passed on, a process on this host that has written to shared memory. So sockets, shared memory
//! and submissions wake a driver alike, and there is no second mechanism.
//!
//! Ringing costs a system call, so ringers first look whether the driver is asleep. How that question is asked without
//! losing a wake-up depends on where the flag lives, and is written down there (`shm::flags`, and
//! `command_queue` of the engine).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Key of the bell in the epoll set; sockets get keys from their owners, of which nobody here makes use.
const BELL_KEY: u64 = u64::MAX;

/// Wakes the driver that waits at the other end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A bell for a loop that polls its descriptor.
    pub fn new() -> Result<Bell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Bell(Arc::new(fd.map_err(|e| Error::local("creating an eventfd", e))?)))
    }

    /// A bell on a descriptor that another process has passed to us.
    pub fn from_fd(fd: OwnedFd) -> Bell {
        Bell(Arc::new(fd))
    }

    /// Wakes the driver, now or, if it is not waiting, the next time it wants to wait.
    pub fn ring(&self) {
        // The counter of an eventfd saturates only after 2^64 - 2 rings; a full counter (EAGAIN) means that the
        // driver will wake anyway.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Forgets all rings so far. A loop that polls the descriptor does so before it looks for what they were about.
    pub fn silence(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits for sockets and for the bell.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
    bell: Bell,
}

impl Waiter {
    /// An empty set with a bell of its own.
    pub fn new() -> Result<Waiter> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::local("creating an epoll set", e))?;
        let waiter = Waiter { epoll, bell: Bell::new()? };
        waiter.add(&waiter.bell, epoll::EventFlags::IN | epoll::EventFlags::ET, BELL_KEY)?;
        Ok(waiter)
    }

    /// The bell that wakes this waiter.
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Wakes also when this socket becomes readable or writable. Edge-triggered: a driver must have tried its links
    /// until they said [`crate::Progress::Pending`] before it waits. Closing the socket removes it.
    pub fn watch(&self, socket: impl AsFd) -> Result<()> {
        use epoll::EventFlags as On;
        self.add(socket, On::IN | On::OUT | On::RDHUP | On::ET, 0)
    }

    /// Wakes no longer for this socket, which somebody else will watch.
    pub fn unwatch(&self, socket: impl AsFd) -> Result<()> {
        epoll::delete(&self.epoll, socket).map_err(|e| Error::local("removing from an epoll set", e))
    }

    /// Blocks until something has happened or the time is up. Says which: `true` if something happened.
    pub fn wait(&self, at_most: Duration) -> Result<bool> {
        let timeout = rustix::time::Timespec {
            tv_sec: at_most.as_secs().min(3600) as i64,
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        let mut events = Vec::with_capacity(16);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(Error::local("waiting for events", error)),
        }
    }

    fn add(&self, fd: impl AsFd, flags: epoll::EventFlags, key: u64) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), flags)
            .map_err(|e| Error::local("adding to an epoll set", e))
    }
}

#[cfg(test)]
mod tests {
    use farandole_testing::{NEVER, Sleeper};

    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_lost() {
        let waiter = Waiter::new().unwrap();
        waiter.bell().ring();
        assert!(waiter.wait(NEVER).unwrap());
    }

    #[test]
    fn a_ring_from_another_thread_wakes() {
        let waiter = Waiter::new().unwrap();
        let bell = waiter.bell();
        let this = Sleeper::this_thread();
        let ringer = std::thread::spawn(move || {
            this.wait_until_asleep();
            bell.ring();
        });
        assert!(waiter.wait(NEVER).unwrap());
        ringer.join().unwrap();
    }

    #[test]
    fn without_events_the_time_runs_out() {
        let waiter = Waiter::new().unwrap();
        assert!(!waiter.wait(Duration::from_millis(5)).unwrap());
    }

    #[test]
    fn a_socket_wakes_as_long_as_it_is_watched() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let waiter = Waiter::new().unwrap();
        waiter.watch(&other).unwrap();
        while waiter.wait(Duration::ZERO).unwrap() {}
        rustix::io::write(&one, b"x").unwrap();
        assert!(waiter.wait(NEVER).unwrap());
        waiter.unwatch(&other).unwrap();
        rustix::io::write(&one, b"x").unwrap();
        assert!(!waiter.wait(Duration::from_millis(5)).unwrap());
    }

    #[test]
    fn every_ring_wakes_anew() {
        let waiter = Waiter::new().unwrap();
        for _ in 0..3 {
            waiter.bell().ring();
            assert!(waiter.wait(NEVER).unwrap());
            assert!(!waiter.wait(Duration::ZERO).unwrap());
        }
    }
}
