//! One rank's part of a communicator, with its end: [`NcclCommunicator`].

use std::sync::mpsc;
use std::time::Duration;

use super::{Call, Handle, SharedLibrary, UniqueId};
use crate::{Allocation, Device, Result, Stream};

/// How long dropping waits for the end. Memory that kernels of NCCL's may use goes back to its owner then; but NCCL's
/// ends have been seen to hang when peers are gone, and survivors have their own users to tell.
const END_LIMIT: Duration = Duration::from_millis(1000);

/// How long an orderly end may take on its own thread before it becomes an abort.
const ORDERLY_LIMIT: Duration = Duration::from_millis(800);

/// See the module's text. Dropping it ends it: in order if nothing is under way and nothing has failed, otherwise by an
/// abort.
#[derive(Debug)]
pub struct NcclCommunicator {
    handle: Option<Box<dyn Handle>>,
    device: Device,
    state: State,
    /// The memory that was registered.
    registration: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Joining, or calls that are not queued yet.
    UnderWay,
    /// Calls are in a stream and may not have run.
    Queued,
    /// Nothing is in a stream.
    Idle,
    Failed,
}

impl NcclCommunicator {
    /// Begins to join the others that have this id. Does not wait for them.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn join(
        library: &SharedLibrary,
        device: &Device,
        id: &UniqueId,
        size: usize,
        rank: usize,
    ) -> Result<NcclCommunicator> {
        let handle = library.join(device, id, size, rank)?;
        Ok(NcclCommunicator {
            handle: Some(handle),
            device: device.clone(),
            state: State::UnderWay,
            registration: None,
        })
    }

    /// The device that it is for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether joining is over, or calls are in the stream: only now is an event behind them.
    ///
    /// # Errors
    /// If something has gone wrong, here or on another rank.
    pub fn is_ready(&mut self) -> Result<bool> {
        let ready = self.handle().is_ready();
        match ready {
            Ok(true) if self.state == State::UnderWay => self.state = State::Queued,
            Ok(_) => {}
            Err(_) => self.state = State::Failed,
        }
        ready
    }

    /// Begins to queue calls as one group.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn call(&mut self, stream: &Stream, calls: &[Call]) -> Result<()> {
        self.state = State::UnderWay;
        let called = self.handle().call(stream.handle(), calls);
        if called.is_err() {
            self.state = State::Failed;
        }
        called
    }

    /// Everything that was queued has run.
    pub fn note_idle(&mut self) {
        if self.state == State::Queued {
            self.state = State::Idle;
        }
    }

    /// Ranks are gone: it will not be ended in order, which takes all of them.
    pub fn give_up(&mut self) {
        self.state = State::Failed;
    }

    /// Tells the library of memory that will be used often, in place of what it was told of before.
    pub fn register(&mut self, memory: &Allocation) {
        self.deregister();
        self.registration = self.handle().register(memory.address(), memory.len_bytes());
    }

    /// Takes that back, before the memory is freed.
    pub fn deregister(&mut self) {
        if let Some(registration) = self.registration.take() {
            self.handle().deregister(registration);
        }
    }

    fn handle(&self) -> &dyn Handle {
        self.handle.as_deref().expect("invariant: only dropping takes the handle")
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        if self.state == State::Idle {
            self.deregister();
        }
        let Some(handle) = self.handle.take() else { return };
        let in_order = self.state == State::Idle;
        let (is_over, over) = mpsc::sync_channel(1);
        let ends = move || {
            if in_order {
                handle.end(ORDERLY_LIMIT);
            } else {
                handle.abort();
            }
            // Whoever dropped it may have gone on.
            let _ = is_over.send(());
        };
        let thread = std::thread::Builder::new().name("farandole-nccl-end".to_owned()).spawn(ends);
        // Without a thread the handle is lost with the process.
        if thread.is_ok() && over.recv_timeout(END_LIMIT).is_err() {
            log::warn!("a communicator of NCCL's is still being ended; its rank goes on without it");
        }
    }
}
