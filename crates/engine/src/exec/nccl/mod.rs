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
//! Where the program lets its streams wait for results, the host does not wait for buckets that are `familiar`: they
//! trail (`device::trailing`). The group still looks at its communicator ([`NcclPlane::watch`]), and aborts it when it
//! fails, which lets streams go.
//!
//! [`NcclPlane`] is what a group keeps between buckets. Which ranks have NCCL is settled before (`plan::plane`).

mod familiar;
mod program;
mod run;
mod suspicion;

use std::sync::Arc;

use farandole_device::nccl::{NcclCommunicator, SharedLibrary};
use farandole_device::{Allocation, Result};

use familiar::{Familiar, Kind};
pub(crate) use run::{Begin, NcclRun};
use suspicion::Suspicion;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct NcclPlane {
    library: SharedLibrary,
    /// Lent to the run of a bucket. Ends before the memory that is registered with it.
    communicator: Option<NcclCommunicator>,
    /// Where tensors are packed. Buckets that trail keep it, too.
    fusion: Option<Arc<Allocation>>,
    /// Where they are packed if that does not follow from the plan of the bucket alone: on a rank that has joined, or
    /// whose tensors are of another type than travels. Never registered.
    spare: Option<Arc<Allocation>>,
    familiar: Familiar,
    suspicion: Suspicion,
}

impl NcclPlane {
    pub(crate) fn new(library: SharedLibrary) -> NcclPlane {
        let (familiar, suspicion) = (Familiar::default(), Suspicion::default());
        NcclPlane { library, communicator: None, fusion: None, spare: None, familiar, suspicion }
    }

    /// Looks whether anything has gone wrong with what was queued, while no run has the communicator.
    ///
    /// # Errors
    /// If something has, here or on another rank.
    pub(crate) fn watch(&mut self) -> farandole_transport::Result<()> {
        let Some(communicator) = &mut self.communicator else { return Ok(()) };
        self.suspicion.is_ready(communicator, "working by NCCL").map(drop)
    }

    /// Whether it wants to be watched though nothing is queued.
    pub(crate) fn is_suspicious(&self) -> bool {
        self.suspicion.is_raised()
    }

    /// Everything that was queued has run.
    pub(crate) fn note_idle(&mut self) {
        if let Some(communicator) = &mut self.communicator {
            communicator.note_idle();
        }
    }

    /// The group has failed: ends without the other ranks.
    pub(crate) fn give_up(mut self) {
        if let Some(communicator) = &mut self.communicator {
            communicator.give_up();
        }
    }

    /// Whether there is memory for what a rank packs; how much the plan has ranks pack says where.
    fn has_room(&self, packed_bytes: u64, packs_bytes: u64) -> bool {
        let memory = if packed_bytes == packs_bytes { &self.fusion } else { &self.spare };
        memory.as_ref().map_or(0, |memory| memory.len_bytes() as u64) >= packed_bytes
    }

    /// Such memory, on the device of the communicator. If it is larger than before, no bucket uses it any more.
    fn memory(
        &mut self,
        communicator: &mut NcclCommunicator,
        packed_bytes: u64,
        packs_bytes: u64,
        kind: Kind,
    ) -> Result<Arc<Allocation>> {
        let has_room = self.has_room(packed_bytes, packs_bytes);
        let is_fusion = packed_bytes == packs_bytes;
        let memory = if is_fusion { &mut self.fusion } else { &mut self.spare };
        if let Some(memory) = memory.as_ref().filter(|_| has_room) {
            return Ok(Arc::clone(memory));
        }
        if is_fusion {
            communicator.deregister();
        }
        *memory = None;
        let larger = Arc::new(communicator.device().allocate((packed_bytes as usize).next_power_of_two())?);
        if is_fusion && kind == Kind::Larger {
            communicator.register(&larger);
        }
        Ok(Arc::clone(memory.insert(larger)))
    }
}
