//! Buckets of device memory by NCCL.
//!
//! A group has one communicator, made when its first bucket comes here: the lowest rank asks NCCL for an id and tells
//! the others over links, then all of them join (`run`). What is called for a bucket, and what is packed before and
//! unpacked after it, is a `program`, a function of the bucket and of where its tensors lie.
//!
//! Everything is in the order of the group's stream. Nothing waits: NCCL's communicators are non-blocking, and the
//! driver looks at an event behind the work. So a rank that dies in the middle is found by the engine's control lines,
//! as everywhere else; the run is dropped, and with it the communicator, which is aborted then.
//!
//! [`NcclPlane`] is what a group keeps between buckets. Which ranks have NCCL is settled before (`plan::plane`).

mod program;
mod run;

use farandole_device::nccl::{NcclCommunicator, SharedLibrary};
use farandole_device::{Allocation, Device, Result};

pub(crate) use run::{Begin, NcclRun};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct NcclPlane {
    library: SharedLibrary,
    /// Lent to the run of a bucket. Ends before the memory that is registered with it.
    communicator: Option<NcclCommunicator>,
    /// Where tensors are packed.
    fusion: Option<Allocation>,
}

impl NcclPlane {
    pub(crate) fn new(library: SharedLibrary) -> NcclPlane {
        NcclPlane { library, communicator: None, fusion: None }
    }

    /// The group has failed: ends without the other ranks.
    pub(crate) fn give_up(mut self) {
        if let Some(communicator) = &mut self.communicator {
            communicator.give_up();
        }
    }

    /// Memory of at least this size on the device, which the communicator knows. No earlier bucket uses it any more.
    fn fusion(&mut self, communicator: &mut NcclCommunicator, device: &Device, bytes: usize) -> Result<u64> {
        match self.fusion.take() {
            Some(fusion) if fusion.len_bytes() >= bytes => Ok(self.fusion.insert(fusion).address()),
            smaller => {
                communicator.deregister();
                drop(smaller);
                let larger = device.allocate(bytes.next_power_of_two())?;
                communicator.register(&larger);
                Ok(self.fusion.insert(larger).address())
            }
        }
    }
}
