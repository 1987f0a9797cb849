//! Point-to-point messages: [`Engine::send`] and [`Engine::recv`].
//!
//! They go past the agreement: the two ranks alone decide, in the order of their calls (`plan::p2p`). A ticket is done
//! when the memory is free again: of a receive, when it holds the message; of a send, when the message has left, which
//! for a small one is at once.

use std::sync::Arc;

use farandole_plan::{GroupId, Rank};
use farandole_tensor::Region;
use farandole_trace::event::ThreadId;

use crate::completion::Slot;
use crate::driver::Command;
use crate::driver_lock::Push;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pending::{Pending, Promise, Recipient};
use crate::record::group::Mark;
use crate::ticket::Ticket;

/// One side of a message, without its memory. Ranks are those of the group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    Send { to: Rank, tag: u32 },
    Recv { from: Option<Rank>, tag: u32 },
}

impl Engine {
    /// Sends memory to a rank of a group, which may be this one. It must receive as many elements of the same type with
    /// the same tag.
    ///
    /// # Errors
    /// Wrong use: an unknown or foreign group, a rank that it does not have, an engine that is shut down.
    pub fn send(&self, group: GroupId, to: Rank, tag: u32, memory: Region) -> Result<Ticket> {
        self.begin_transfer(group, Transfer::Send { to, tag }, memory)
    }

    /// Receives into memory what a rank of a group sends to this one with this tag; what any of them does, if none is
    /// named. The outcome says which it was.
    ///
    /// # Errors
    /// As [`Engine::send`].
    pub fn recv(&self, group: GroupId, from: Option<Rank>, tag: u32, memory: Region) -> Result<Ticket> {
        self.begin_transfer(group, Transfer::Recv { from, tag }, memory)
    }

    fn begin_transfer(&self, group: GroupId, transfer: Transfer, memory: Region) -> Result<Ticket> {
        self.shared.check_fork()?;
        let (members, _) = self.shared.tensor_table.members(group)?;
        let (name, peer): (Arc<str>, _) = match transfer {
            Transfer::Send { to, tag } => (format!("send to {to}, tag {tag}").into(), Some(to)),
            Transfer::Recv { from: Some(from), tag } => (format!("recv from {from}, tag {tag}").into(), Some(from)),
            Transfer::Recv { from: None, tag } => (format!("recv from anybody, tag {tag}").into(), None),
        };
        if let Some(peer) = peer.filter(|peer| peer.index() >= members.len()) {
            let what = format!("there is no rank {peer} in a group of {}", members.len());
            return Err(Error::WrongMemory { name, what: what.into() });
        }
        let name_id = self.shared.tensor_table.enter_transfer(group, &name, &self.recorder)?;
        let mark = Mark { name: name_id, thread: ThreadId::current(), time_ns: None };
        let slot = Arc::new(Slot::new());
        let promise = Promise::new(Recipient::Ticket(Arc::clone(&slot)));
        let (input, output, ready) = (Some(memory), None, None);
        let pending = Pending { name: Arc::clone(&name), mark, promise, input, output, ready, runs_ahead: false };
        let command = Command::Transfer { group, transfer, pending };
        let _ = self.shared.driver_lock.push(command, Push::Ringing);
        Ok(Ticket { group, name, name_id, slot, shared: Arc::clone(&self.shared) })
    }
}
