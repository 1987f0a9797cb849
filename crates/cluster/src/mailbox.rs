//! A queue from any thread to a poll loop, with a descriptor that wakes the loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use farandole_transport::Bell;

/// All clones share one queue. Messages come out in the order in which they were posted.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    /// Held to add a message or to take all of them.
    queue: Arc<Mutex<Vec<T>>>,
    bell: Bell,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Mailbox<T> {
        Mailbox { queue: Arc::clone(&self.queue), bell: self.bell.clone() }
    }
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> io::Result<Mailbox<T>> {
        Ok(Mailbox { queue: Arc::default(), bell: Bell::new().map_err(io::Error::other)? })
    }

    /// Adds a message and wakes the loop.
    pub(crate) fn post(&self, message: T) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        self.bell.ring();
    }

    /// All messages so far. The bell is silenced first, so that a message posted meanwhile rings it again.
    pub(crate) fn take(&self) -> Vec<T> {
        self.bell.silence();
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> AsFd for Mailbox<T> {
    /// Readable while there are messages that the loop has not taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
