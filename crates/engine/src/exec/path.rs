//! The one place where it is decided how a bucket's bytes travel.
//!
//! There are three *paths*. Ranks that share memory take the *mapped* path if the bucket fits the mapped fusion buffer,
//! otherwise the path through *windows*; all others, and collectives in which every pair has its own business, send
//! *messages*. The choice is a pure function of the bucket's plan, the group, the measured table in use and the size of
//! the mapped buffer, which are the same on all ranks. So are the schedules, which are kept for as long as buckets
//! repeat.
//!
//! Adasum is the exception: it does not fold element by element, so it is not a schedule but a series of exchanges of
//! whole vectors with arithmetic in between (`adasum`).

use std::collections::HashMap;
use std::sync::Arc;

use farandole_plan::agree::Bucket;
use farandole_plan::algorithm::{self, Algorithm, Tuning};
use farandole_plan::choose::{Choices, Formed, Means};
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Collective, Dtype, ReduceOp, Schedule};
use farandole_tensor::Fold;
use farandole_transport::Mesh;

use super::Execution;
use super::adasum::Adasum;
use super::carrier::{Folding, carrier};
use super::links::LinkRun;
use super::store_policy::{Choice, StorePolicies};
use super::windows::WindowRun;
use crate::bucket::{Exchange, Place};

/// Schedules kept at most. A training loop has some dozens of buckets; a program that never repeats itself must not
/// fill the memory.
const KEPT_SCHEDULES: usize = 1024;

/// Longest tile of window schedules, as that of direct calls; `plan::window` makes them shorter where many ranks are on
/// a host.
const TILE_BYTES: usize = 512 << 10;

/// A way for a bucket's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Path {
    /// Over links.
    Messages,
    /// Through shared-memory windows, from and to any memory.
    Windows,
    /// In the mapped fusion buffer itself.
    Mapped,
}

impl Path {
    /// The element type in which a bucket travels this path.
    pub(crate) fn carrier(self, plan: &BucketPlan) -> Dtype {
        let folding = if self == Path::Messages { Folding::OneByOne } else { Folding::AllAtOnce };
        match plan.collective {
            Collective::Allreduce { op, prescale, .. } | Collective::ReduceScatter { op, prescale, .. } => {
                carrier(plan.dtype, op, prescale, folding)
            }
            _ => plan.dtype,
        }
    }

    /// Whether partial results of a bucket are singles on this path, and results travel as halves.
    pub(crate) fn rounds_results(self, plan: &BucketPlan) -> bool {
        let folds = matches!(plan.collective, Collective::Allreduce { op, .. } if op != ReduceOp::Adasum);
        self == Path::Messages && folds && self.carrier(plan) != plan.dtype
    }

    /// The bytes of a bucket on this path.
    pub(crate) fn bytes(self, plan: &BucketPlan) -> u64 {
        plan.elems * self.carrier(plan).size_bytes() as u64
    }
}

/// Chooses how buckets travel in one group.
#[derive(Debug)]
pub(crate) struct Paths {
    place: Place,
    choices: Choices,
    kept: HashMap<(u64, Path), Arc<Schedule>>,
    barrier: Arc<Schedule>,
    store_policies: StorePolicies,
}

impl Paths {
    pub(crate) fn new(place: Place, choices: Choices) -> Paths {
        let barrier = Arc::new(algorithm::barrier(place.size, place.me));
        Paths { place, choices, kept: HashMap::new(), barrier, store_policies: StorePolicies::default() }
    }

    /// Which way a bucket goes.
    pub(crate) fn path(&self, plan: &BucketPlan, mesh: &Mesh, mapped_bytes: usize) -> Path {
        if !shares_memory(mesh) {
            return Path::Messages;
        }
        match plan.collective {
            Collective::Allreduce { op: ReduceOp::Adasum, .. } | Collective::Alltoall { .. } => Path::Messages,
            Collective::Allreduce { .. } => {
                let bytes = Path::Windows.bytes(plan);
                let means = Means { windows: true, mapped: plan.staged && bytes <= mapped_bytes as u64 };
                match self.choices.allreduce(bytes, means) {
                    Algorithm::Mapped => Path::Mapped,
                    algorithm if algorithm.fits_windows() => Path::Windows,
                    _ => Path::Messages,
                }
            }
            _ => Path::Windows,
        }
    }

    /// What a rank takes a bucket to be, for its peers to compare: the bucket itself and the table by which its way is
    /// chosen.
    pub(crate) fn descriptor(&self, plan: &BucketPlan) -> u64 {
        plan.hash ^ self.choices.hash()
    }

    /// The barrier that a bucket with an entry barrier begins with, where ranks do not share memory.
    pub(crate) fn entry(&self, bucket: &Bucket) -> Execution {
        let descriptor = self.descriptor(&bucket.plan);
        Execution::Links(LinkRun::new(Arc::clone(&self.barrier), self.place.size, bucket.operation.0, descriptor))
    }

    /// The execution of a bucket, after its entry barrier if it had one.
    pub(crate) fn execution(&mut self, bucket: &Bucket, path: Path, mesh: &Mesh, entry: Execution) -> Execution {
        let plan = &*bucket.plan;
        if matches!(plan.collective, Collective::Barrier) && shares_memory(mesh) {
            return Execution::Nothing;
        }
        let schedule = self.schedule(plan, path, mesh);
        if path != Path::Messages {
            let (kind, bytes) = (kind_of(&plan.collective), plan.elems as usize * plan.dtype.size_bytes());
            let stores = if path == Path::Windows { self.store_policies.begin(kind, bytes) } else { Choice::default() };
            return Execution::Windows(WindowRun::new(schedule, stores));
        }
        let mut run = match entry {
            Execution::Links(mut run) => {
                run.then(schedule);
                run
            }
            _ => LinkRun::new(schedule, self.place.size, bucket.operation.0, self.descriptor(plan)),
        };
        if path.rounds_results(plan) {
            run.round_results(plan.elems);
        }
        match plan.collective {
            Collective::Allreduce { op: ReduceOp::Adasum, .. } => {
                Execution::Adasum(Adasum::new(run, Arc::clone(&bucket.plan), self.place))
            }
            _ => Execution::Links(run),
        }
    }

    /// Learns from an execution that is over.
    pub(crate) fn learn(&mut self, execution: &Execution) {
        if let Execution::Windows(run) = execution {
            self.store_policies.end(run.stores());
        }
    }

    fn schedule(&mut self, plan: &BucketPlan, path: Path, mesh: &Mesh) -> Arc<Schedule> {
        if let Some(schedule) = self.kept.get(&(plan.hash, path)) {
            return Arc::clone(schedule);
        }
        if self.kept.len() >= KEPT_SCHEDULES {
            self.kept.clear();
        }
        let schedule = Arc::new(match path {
            Path::Messages => self.message_schedule(plan, mesh),
            Path::Windows | Path::Mapped => self.shared_schedule(plan, path, mesh),
        });
        self.kept.insert((plan.hash, path), Arc::clone(&schedule));
        schedule
    }

    fn message_schedule(&self, plan: &BucketPlan, mesh: &Mesh) -> Schedule {
        let (topology, me) = (mesh.topology(), self.place.me);
        let tuning = Tuning::for_dtype(Path::Messages.carrier(plan));
        let bytes = Path::Messages.bytes(plan);
        match &plan.collective {
            Collective::Allreduce { op: ReduceOp::Adasum, .. } => Schedule::default(),
            Collective::Allreduce { .. } => {
                let algorithm = self.choices.allreduce(bytes, Means::default());
                algorithm::allreduce(algorithm, plan.elems, topology, me, &tuning)
            }
            Collective::Broadcast { root } => {
                let tuning = self.choices.tuned(Formed::Broadcast, bytes, tuning);
                algorithm::broadcast(plan.elems, *root, topology, me, &tuning)
            }
            Collective::Allgather => {
                let tuning = self.choices.tuned(Formed::Allgather, bytes, tuning);
                algorithm::allgather(&plan.blocks, topology, me, &tuning)
            }
            Collective::ReduceScatter { .. } => algorithm::reduce_scatter(&plan.blocks, topology, me, &tuning),
            Collective::Alltoall { .. } => {
                let exchange = Exchange::of(&plan.parts[0].item, self.place);
                algorithm::alltoall(&exchange.send, &exchange.recv, me, &tuning)
            }
            Collective::Barrier | Collective::Join => (*self.barrier).clone(),
        }
    }

    fn shared_schedule(&self, plan: &BucketPlan, path: Path, mesh: &Mesh) -> Schedule {
        let Place { me, size } = self.place;
        let layout = mesh.windows.as_ref().expect("invariant: this path is for ranks with windows").layout();
        let carrier = path.carrier(plan);
        let mut tuning = Tuning::for_dtype(carrier);
        tuning.tile_elems = (TILE_BYTES.min(layout.tile_bytes) / carrier.size_bytes()) as u64;
        tuning.slots = layout.slots as u32;
        match &plan.collective {
            Collective::Allreduce { .. } => {
                let means = Means { windows: true, mapped: path == Path::Mapped };
                let chosen = self.choices.allreduce(path.bytes(plan), means);
                let algorithm = if chosen.fits_windows() { chosen } else { Algorithm::WindowTiles };
                algorithm::allreduce(algorithm, plan.elems, mesh.topology(), me, &tuning)
            }
            Collective::Broadcast { root } => algorithm::broadcast_window(plan.elems, *root, size, me, &tuning),
            Collective::Allgather => algorithm::allgather_window(&plan.blocks, me, &tuning),
            Collective::ReduceScatter { .. } => algorithm::reduce_scatter_window(&plan.blocks, me, &tuning),
            other => unreachable!("{} does not go through windows", other.word()),
        }
    }
}

/// Whether all ranks of the group see each other's windows.
pub(crate) fn shares_memory(mesh: &Mesh) -> bool {
    mesh.size() > 1 && mesh.windows.as_ref().is_some_and(|windows| windows.size() == mesh.size())
}

/// A number for each collective that goes through windows.
fn kind_of(collective: &Collective) -> u8 {
    match collective {
        Collective::Allreduce { .. } => 0,
        Collective::Allgather => 1,
        Collective::Broadcast { .. } => 2,
        Collective::ReduceScatter { .. } => 3,
        Collective::Alltoall { .. } | Collective::Barrier | Collective::Join => 4,
    }
}

/// How a bucket is folded, with elements of this type. Adasum is no fold.
pub(crate) fn fold_of(plan: &BucketPlan, dtype: Dtype) -> Option<Fold> {
    match plan.collective {
        Collective::Allreduce { op: ReduceOp::Adasum, .. } => None,
        Collective::Allreduce { op, .. } | Collective::ReduceScatter { op, .. } => Some(Fold::new(dtype, op)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use farandole_plan::Dtype;
    use farandole_transport::shm::Layout;

    use super::*;
    use crate::direct::DirectSettings;

    /// The document quotes constants of three crates, all of which are in reach here.
    #[test]
    fn the_document_on_algorithms_has_the_sizes_that_are_used() {
        let document = include_str!("../../../../docs/algorithms.md");
        let (tuning, layout) = (Tuning::for_dtype(Dtype::U8), Layout::standard(2));
        let kib = |bytes: usize| bytes >> 10;
        for said in [
            format!("*segments* of at most {} MiB", tuning.segment_elems >> 20),
            format!("*tiles* in {} *slots*", layout.slots),
            format!("| named requests | {} KiB | `TILE_BYTES` in `crates/engine/src/exec/path.rs` |", kib(TILE_BYTES)),
            format!("| direct collectives | {} KiB |", kib(DirectSettings::default().tile_bytes)),
            format!("(proofs and tests) | {} KiB |", kib(tuning.tile_elems as usize)),
            format!("which no tile exceeds | {} KiB |", kib(layout.tile_bytes)),
        ] {
            assert!(document.contains(&said), "docs/algorithms.md should say: {said}");
        }
    }
}
