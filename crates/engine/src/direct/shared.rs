//! Buffers in shared memory that a caller may fill and reduce in place, without any copy.
//!
//! Every buffer has an *identity*: which communicator made it, and as which of its buffers. All ranks make their
//! buffers together and in the same order, so a buffer has the same number on all of them. The number travels in the
//! descriptor of each operation: ranks that reduce different buffers, even of equal size, get an error and not each
//! other's data.

use farandole_plan::algorithm::Algorithm;
use farandole_plan::plane::{Movement, Plane};
use farandole_plan::{Dtype, ReduceOp};
use farandole_tensor::element::{Plain, from_bytes, from_bytes_mut};
use farandole_tensor::{Finish, Fold, OwnedBytes};
use farandole_transport::shm::Mapped;

use super::calls::{reducible_elements, wrong};
use super::descriptor::Detail;
use super::{Call, Communicator, Descriptor, Kind};
use crate::error::Result;
use crate::exec::store_policy::Choice;
use crate::exec::windows::WindowRun;
use crate::exec::{Buffers, Execution};

/// A buffer with a part for each rank. On one host the parts lie in memory that all ranks map; elsewhere each is
/// ordinary memory, so that a program need not care.
#[derive(Debug)]
pub struct SharedBuffer {
    memory: Memory,
    /// The communicator that made it, by its number in this process.
    made_by: u64,
    /// Which of that communicator's buffers it is; the same on all ranks.
    number: u64,
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
        self.buffers_made += 1;
        let (made_by, number) = (self.id, self.buffers_made);
        if !self.is_one_host() {
            return Ok(SharedBuffer { memory: Memory::Own(OwnedBytes::zeroed(bytes)), made_by, number });
        }
        let descriptor = Descriptor::new(Kind::Reserve, Dtype::U8, None, Detail::Nothing, bytes as u64);
        let reserved = match self.mesh.windows.as_mut().expect("one host has windows").reserve(bytes) {
            Ok(reserved) => reserved,
            Err(error) => return Err(self.fail(descriptor, None, error)),
        };
        self.meet(descriptor)?;
        let windows = self.mesh.windows.as_mut().expect("one host has windows");
        match windows.map_reserved(reserved) {
            Ok(mapped) => Ok(SharedBuffer { memory: Memory::Mapped(mapped), made_by, number }),
            Err(error) => Err(self.fail(descriptor, None, error)),
        }
    }

    /// Gives the memory of a shared buffer back. That of another communicator's is only unmapped here.
    pub fn drop_shared_buffer(&mut self, buffer: SharedBuffer) {
        if let (Memory::Mapped(mapped), Some(windows), true) =
            (buffer.memory, &self.mesh.windows, buffer.made_by == self.id)
        {
            windows.unmap(mapped);
        }
    }

    /// Combines the shared buffers of all ranks; each part then holds the result.
    ///
    /// # Errors
    /// If the buffer was made by another communicator, does not hold whole elements, or is not the one that the other
    /// ranks have called this with; and as every collective.
    pub fn allreduce_shared(&mut self, buffer: &mut SharedBuffer, dtype: Dtype, op: ReduceOp) -> Result<()> {
        if buffer.made_by != self.id {
            return Err(wrong("the shared buffer was made by another communicator"));
        }
        let elems = reducible_elements(buffer.bytes().len(), dtype, op)?;
        let detail = Detail::Buffer(buffer.number);
        let descriptor = Descriptor::new(Kind::MappedAllreduce, dtype, Some(op), detail, elems);
        let mapped = match &mut buffer.memory {
            Memory::Own(own) => return self.allreduce_described(descriptor, own, dtype, op, [1.0, 1.0]),
            Memory::Mapped(mapped) => mapped,
        };
        let operation = self.next_operation()?;
        let call = Call { kind: Kind::MappedAllreduce as u8, dtype, root: 0, counts: vec![elems], more_counts: vec![] };
        let movement = Movement::Allreduce { algorithm: Algorithm::Mapped, elems };
        let schedule = self.schedule(call, Plane::Mapped, movement);
        if schedule.steps.is_empty() {
            // Nothing to fold. Windows still count on every operation being begun on them.
            return self.meet_at(operation, descriptor);
        }
        self.windows().begin(operation, descriptor.word(), &[]);
        let mut buffers = Buffers::new(&mut [], dtype);
        buffers.fold = Some(Fold::new(dtype, op));
        buffers.finish = Finish::new(dtype, op, self.size() as u64, 1.0);
        buffers.mapped = Some(mapped);
        let bytes = buffers.len_bytes();
        let mut execution = Execution::Windows(WindowRun::new(schedule, Choice::default()));
        self.drive(descriptor, bytes, &mut execution, &mut buffers)
    }
}
