//! Buffers in shared memory that a caller may fill and reduce in place, without any copy.

use farandole_plan::algorithm::{self, Algorithm};
use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::element::{Plain, from_bytes, from_bytes_mut};
use farandole_tensor::{Finish, Fold, OwnedBytes, Stores};
use farandole_transport::shm::{Mapped, Reserved};

use super::operation::Operation;
use super::{Call, Communicator, Descriptor, Kind};
use crate::error::Result;
use crate::window::{Shared, WindowRun};

/// A buffer with a part for each rank. On one host the parts lie in memory that all ranks map; elsewhere each is ordinary
/// memory, so that a program need not care.
#[derive(Debug)]
pub struct SharedBuffer {
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Mapped(Mapped),
    Own(OwnedBytes),
}

impl SharedBuffer {
    /// This rank's part.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Mapped(mapped) => mapped.own(),
            Memory::Own(own) => own,
        }
    }

    /// This rank's part, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Mapped(mapped) => mapped.own_mut(),
            Memory::Own(own) => own,
        }
    }

    /// This rank's part as elements.
    ///
    /// # Panics
    /// If the length in bytes is not a multiple of the element's.
    pub fn elements<T: Plain>(&self) -> &[T] {
        from_bytes(self.bytes()).expect("a shared buffer is aligned and holds whole elements")
    }

    /// This rank's part as elements, to be filled.
    ///
    /// # Panics
    /// As [`SharedBuffer::elements`].
    pub fn elements_mut<T: Plain>(&mut self) -> &mut [T] {
        from_bytes_mut(self.bytes_mut()).expect("a shared buffer is aligned and holds whole elements")
    }
}

impl Communicator {
    /// Makes a shared buffer of this many bytes. All ranks call this together.
    pub fn shared_buffer(&mut self, bytes: usize) -> Result<SharedBuffer> {
        if !self.is_one_host() {
            return Ok(SharedBuffer { memory: Memory::Own(OwnedBytes::zeroed(bytes)) });
        }
        let descriptor = Descriptor::new(Kind::Reserve, Dtype::U8, None, 0, bytes as u64);
        let reserved: Option<Reserved> = {
            let windows = self.mesh.windows.as_mut().expect("one host has windows");
            match windows.reserve(bytes) {
                Ok(reserved) => Some(reserved),
                Err(error) => return Err(self.fail(descriptor, None, error)),
            }
        };
        self.meet(descriptor)?;
        let windows = self.mesh.windows.as_mut().expect("one host has windows");
        match windows.map_reserved(reserved.expect("reserved above")) {
            Ok(mapped) => Ok(SharedBuffer { memory: Memory::Mapped(mapped) }),
            Err(error) => Err(self.fail(descriptor, None, error)),
        }
    }

    /// Gives the memory of a shared buffer back.
    pub fn drop_shared_buffer(&mut self, buffer: SharedBuffer) {
        if let (Memory::Mapped(mapped), Some(windows)) = (buffer.memory, &self.mesh.windows) {
            windows.unmap(mapped);
        }
    }

    /// Combines the shared buffers of all ranks; each part then holds the result.
    pub fn allreduce_shared(&mut self, buffer: &mut SharedBuffer, dtype: Dtype, op: ReduceOp) -> Result<()> {
        let mapped = match &mut buffer.memory {
            Memory::Own(own) => return self.allreduce_bytes(own, dtype, op, 1.0, 1.0),
            Memory::Mapped(mapped) => mapped,
        };
        let elems = (mapped.len() / dtype.size_bytes()) as u64;
        let descriptor = Descriptor::new(Kind::MappedAllreduce, dtype, Some(op), 0, elems);
        let operation = self.next_operation()?;
        let call = Call { kind: Kind::MappedAllreduce as u8, dtype, root: 0, counts: vec![elems], more_counts: vec![] };
        let schedule = self.schedule(call, |this| {
            algorithm::allreduce(Algorithm::Mapped, elems, this.topology(), this.rank(), &this.tuning(dtype))
        });
        let windows = self.mesh.windows.as_mut().expect("a mapped buffer has windows");
        let run = WindowRun::begin(schedule, windows, operation, descriptor.word());
        let (fold, finish) = (Fold::new(dtype, op), Finish::new(dtype, op, self.size() as u64, 1.0));
        let memory = Shared {
            work: &mut [],
            source: &[],
            mapped: Some(mapped),
            elem_bytes: dtype.size_bytes(),
            fold: Some(fold),
            finish,
            stores: Stores::Streaming,
        };
        self.drive(descriptor, Operation::Windows { run, memory })
    }
}
