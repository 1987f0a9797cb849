//! Where other threads leave news for a poll loop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// The loop's end. News come out in the order in which they were posted.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    news: Receiver<T>,
    sender: Sender<T>,
    /// Counts posts; readable while there is any that the loop has not seen.
    bell: Arc<OwnedFd>,
}

/// A thread's end.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    sender: Sender<T>,
    bell: Arc<OwnedFd>,
}

impl<T> Mailbox<T> {
    /// An empty one.
    pub(crate) fn new() -> Result<Mailbox<T>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::local("making an event descriptor", error))?;
        let (sender, news) = channel();
        Ok(Mailbox { news, sender, bell: Arc::new(bell) })
    }

    /// Something to post with.
    pub(crate) fn slot(&self) -> Slot<T> {
        Slot { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }

    /// What to poll for reading.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// All news so far.
    pub(crate) fn take(&mut self) -> Vec<T> {
        // First the bell, then the news: what is posted in between rings again.
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        self.news.try_iter().collect()
    }
}

impl<T> Slot<T> {
    /// Leaves news and wakes the loop. News for a loop that has ended are lost.
    pub(crate) fn post(&self, news: T) {
        if self.sender.send(news).is_ok() {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}
