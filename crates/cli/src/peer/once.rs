//! The shortest useful life of an MPI rank: join the job, add four bytes, leave.
//!
//! `cargo xtask startup` runs it under `mpirun`, beside the same program under `farandole run`.

use anyhow::{Result, ensure};
use farandole_plan::{Dtype, ReduceOp};

use super::mpi::Mpi;
use crate::bench::contestant::{Contestant, Refusal};
use crate::bench::task::{Kind, Memory, Pace, Recording, Task, Through};

/// One float from each rank.
const TASK: Task = Task {
    kind: Kind::Allreduce,
    bytes: 4,
    dtype: Dtype::F32,
    op: ReduceOp::Sum,
    pace: Pace::Aligned,
    memory: Memory::Own,
    through: Through::Direct,
    tensors: 1,
    recording: Recording::On,
};

/// Initialises the library of this name, makes one allreduce, checks it, finalises.
pub(crate) fn reduce_once(library_name: &str) -> Result<()> {
    let mut mpi = Mpi::init(library_name)?;
    match mpi.prepare(&TASK) {
        Ok(()) => {}
        Err(Refusal::Unsupported(why)) => anyhow::bail!("{library_name} has no sum of floats: {why}"),
        Err(Refusal::Failed(error)) => return Err(error),
    }
    mpi.inputs()[0].copy_from_slice(&1f32.to_ne_bytes());
    mpi.run()?;
    let expected = (mpi.ranks() as f32).to_ne_bytes();
    ensure!(*mpi.outputs()[0] == expected, "the sum over {} ranks is wrong", mpi.ranks());
    mpi.finalize()
}
