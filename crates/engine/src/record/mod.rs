//! What the engine records: the one place that says the engine's words in those of `trace`.
//!
//! - [`group`]: requests and buckets of a group, written by its driver.
//! - [`rare`]: the same outside the steady state.
//! - [`device`]: what devices did for them.
//! - [`call`]: direct calls, written by the caller's thread.
//! - [`turn_length`]: an estimate that saves looks at the clock.

pub(crate) mod call;
mod device;
pub(crate) mod group;
mod rare;
mod turn_length;

use farandole_plan::{Collective, Dtype, RankProgress, ReduceOp};
use farandole_trace::{Recorder, event};

/// How far a rank is, by what it has recorded.
pub(crate) fn progress(recorder: &Recorder) -> RankProgress {
    let (steps, step) = recorder.iterations();
    RankProgress { steps, step, collectives: recorder.collectives() }
}

/// A collective in the words of `trace`.
pub(crate) fn collective(collective: &Collective) -> event::Collective {
    match collective {
        Collective::Allreduce { op: ReduceOp::Adasum, .. } => event::Collective::Adasum,
        Collective::Allreduce { .. } => event::Collective::Allreduce,
        Collective::Allgather => event::Collective::Allgather,
        Collective::Broadcast { .. } => event::Collective::Broadcast,
        Collective::Alltoall { .. } => event::Collective::Alltoall,
        Collective::ReduceScatter { .. } => event::Collective::ReduceScatter,
        Collective::Reduce { .. } => event::Collective::Reduce,
        Collective::Gather { .. } => event::Collective::Gather,
        Collective::Scatter { .. } => event::Collective::Scatter,
        Collective::Barrier => event::Collective::Barrier,
        Collective::Join => event::Collective::Join,
    }
}

/// An element type in the words of `trace`, which has the same numbers.
pub(crate) fn dtype(dtype: Dtype) -> event::Dtype {
    event::Dtype::from_code(dtype as u8).expect("invariant: trace knows every element type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_has_the_same_element_types() {
        for plan in Dtype::ALL {
            assert_eq!(dtype(plan).word(), plan.name());
        }
        assert_eq!(event::Dtype::ALL.len(), Dtype::ALL.len());
    }
}
