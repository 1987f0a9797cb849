//! Direct collectives of farandole, on the caller's own memory or on mapped buffers.

use anyhow::Result;
use farandole_engine::{Communicator, SharedBuffer};
use farandole_plan::table::Table;
use farandole_plan::{Dtype, Rank, ReduceOp};
use farandole_tensor::OwnedBytes;
use farandole_tensor::element::{Plain, from_bytes, from_bytes_mut};
use half::{bf16, f16};

use super::contestant::{Refusal, buffer_bytes};
use super::task::{Kind, Memory, Task};

/// A rank that calls collectives directly.
pub(crate) struct Direct {
    communicator: Communicator,
    prepared: Option<Prepared>,
}

struct Prepared {
    task: Task,
    memory: Buffers,
    /// Bytes of each rank's part, where there are parts; the same for all.
    part_bytes: Vec<usize>,
}

enum Buffers {
    /// The caller's own; no output where the operation works in place.
    Own {
        input: OwnedBytes,
        output: Option<OwnedBytes>,
    },
    Mapped(SharedBuffer),
}

impl Direct {
    pub(crate) fn new(communicator: Communicator) -> Direct {
        Direct { communicator, prepared: None }
    }

    pub(crate) fn rank(&self) -> usize {
        self.communicator.rank().index()
    }

    pub(crate) fn ranks(&self) -> usize {
        self.communicator.size()
    }

    pub(crate) fn communicator(&mut self) -> &mut Communicator {
        &mut self.communicator
    }

    pub(crate) fn table(&self) -> Option<&Table> {
        self.communicator.table().map(AsRef::as_ref)
    }

    pub(crate) fn barrier(&mut self) -> Result<()> {
        Ok(self.communicator.barrier()?)
    }

    pub(crate) fn prepare(&mut self, task: &Task) -> Result<(), Refusal> {
        if self.prepared.as_ref().is_some_and(|prepared| prepared.task == *task) {
            return Ok(());
        }
        if task.kind == Kind::Reducescatter && task.dtype == Dtype::Bool {
            return Err(Refusal::Unsupported("direct reducescatter of bool".into()));
        }
        // The old buffers go before the new ones come, so that the largest size needs its memory only once.
        if let Some(Prepared { memory: Buffers::Mapped(buffer), .. }) = self.prepared.take() {
            self.communicator.drop_shared_buffer(buffer);
        }
        let (input, output) = buffer_bytes(task, self.ranks());
        let memory = match task.memory {
            Memory::Cuda => return Err(Refusal::Unsupported("direct calls work in host memory".to_owned())),
            Memory::Mapped => Buffers::Mapped(self.communicator.shared_buffer(input).map_err(anyhow::Error::from)?),
            Memory::Own => Buffers::Own { input: OwnedBytes::zeroed(input), output: output.map(OwnedBytes::zeroed) },
        };
        let part_bytes = vec![task.bytes as usize / self.ranks(); self.ranks()];
        self.prepared = Some(Prepared { task: task.clone(), memory, part_bytes });
        Ok(())
    }

    pub(crate) fn inputs(&mut self) -> Vec<&mut [u8]> {
        match &mut self.prepared.as_mut().expect("prepare comes before inputs").memory {
            Buffers::Own { input, .. } => vec![input],
            Buffers::Mapped(buffer) => vec![buffer.bytes_mut()],
        }
    }

    pub(crate) fn outputs(&mut self) -> Vec<&[u8]> {
        match &self.prepared.as_ref().expect("prepare comes before outputs").memory {
            Buffers::Own { input, output } => vec![output.as_ref().unwrap_or(input)],
            Buffers::Mapped(buffer) => vec![buffer.bytes()],
        }
    }

    pub(crate) fn run(&mut self) -> Result<()> {
        let Prepared { task, memory, part_bytes } = self.prepared.as_mut().expect("prepare comes before run");
        let communicator = &mut self.communicator;
        let (input, output) = match memory {
            Buffers::Mapped(buffer) => return Ok(communicator.allreduce_shared(buffer, task.dtype, task.op)?),
            Buffers::Own { input, output } => (input, output),
        };
        let output = output.as_deref_mut().unwrap_or_default();
        match task.kind {
            Kind::Allreduce => communicator.allreduce_bytes(input, task.dtype, task.op, 1.0, 1.0)?,
            // Where nothing is combined, elements are as good as their bytes.
            Kind::Broadcast => communicator.broadcast::<u8>(input, Rank(0))?,
            Kind::Allgather => communicator.allgather::<u8>(input, part_bytes, output)?,
            Kind::Alltoall => communicator.alltoall::<u8>(input, part_bytes, output, part_bytes)?,
            Kind::Reducescatter => reduce_scatter(communicator, task.dtype, input, output, task.op)?,
            Kind::Barrier => communicator.barrier()?,
        }
        Ok(())
    }
}

#[deny(clippy::wildcard_enum_match_arm, reason = "a new variant must get an arm")]
fn reduce_scatter(
    communicator: &mut Communicator,
    dtype: Dtype,
    input: &[u8],
    output: &mut [u8],
    op: ReduceOp,
) -> Result<()> {
    match dtype {
        Dtype::Bool => unreachable!("refused in prepare"),
        Dtype::U8 => reduce_scatter_of::<u8>(communicator, input, output, op),
        Dtype::I8 => reduce_scatter_of::<i8>(communicator, input, output, op),
        Dtype::U16 => reduce_scatter_of::<u16>(communicator, input, output, op),
        Dtype::I16 => reduce_scatter_of::<i16>(communicator, input, output, op),
        Dtype::U32 => reduce_scatter_of::<u32>(communicator, input, output, op),
        Dtype::I32 => reduce_scatter_of::<i32>(communicator, input, output, op),
        Dtype::U64 => reduce_scatter_of::<u64>(communicator, input, output, op),
        Dtype::I64 => reduce_scatter_of::<i64>(communicator, input, output, op),
        Dtype::F16 => reduce_scatter_of::<f16>(communicator, input, output, op),
        Dtype::BF16 => reduce_scatter_of::<bf16>(communicator, input, output, op),
        Dtype::F32 => reduce_scatter_of::<f32>(communicator, input, output, op),
        Dtype::F64 => reduce_scatter_of::<f64>(communicator, input, output, op),
        _ => unreachable!("invariant: every element type has an arm"),
    }
}

fn reduce_scatter_of<T: Plain>(
    communicator: &mut Communicator,
    input: &[u8],
    output: &mut [u8],
    op: ReduceOp,
) -> Result<()> {
    let data = from_bytes::<T>(input).expect("invariant: buffers start on a cache line and hold whole elements");
    let own = from_bytes_mut::<T>(output).expect("invariant: buffers start on a cache line and hold whole elements");
    let counts = vec![own.len(); communicator.size()];
    Ok(communicator.reduce_scatter(data, &counts, own, op)?)
}
