//! The one place where it is decided how a bucket's bytes travel, and the state of their travel.
//!
//! There are three *roads*. Ranks that share memory take the *mapped* road if the bucket fits the mapped fusion buffer,
//! otherwise the road through *windows*; all others, and collectives in which every pair has its own business, send
//! *messages*. The choice is a pure function of the bucket's plan, the group, the measured table in use and the size of
//! the mapped buffer, which are the same on all ranks. So are the schedules, which are kept for as long as buckets
//! repeat.
//!
//! Adasum is the exception: it does not fold element by element, so it is not a schedule but a series of exchanges of
//! whole vectors with arithmetic in between (`adasum`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use farandole_plan::agree::Bucket;
use farandole_plan::algorithm::{self, Algorithm, Tuning};
use farandole_plan::choose::{Choices, Formed, Means};
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Collective, Dtype, Rank, ReduceOp, Schedule};
use farandole_tensor::{Finish, Fold, Stores};
use farandole_transport::shm::{Mapped, Windows};
use farandole_transport::{Link, Mesh, Progress, Result};

use crate::adasum::Adasum;
use crate::bucket::{Exchange, Place};
use crate::carrier::{Folding, carrier};
use crate::footprints::Footprints;
use crate::outlet::Outlets;
use crate::run::{Halves, Links, Memory, Run};
use crate::window::{Shared, WindowRun};

/// Schedules kept at most. A training loop has some dozens of buckets; a program that never repeats itself must not
/// fill the memory.
const KEPT_SCHEDULES: usize = 1024;

/// Longest tile of window schedules, as that of direct calls; `plan::window` makes them shorter where many ranks are on
/// a host.
const TILE_BYTES: usize = 512 << 10;

impl Links for Mesh {
    fn link(&mut self, peer: Rank) -> &mut dyn Link {
        &mut *self.peer_mut(peer).link
    }

    fn windows(&mut self) -> Option<&mut Windows> {
        self.windows.as_mut()
    }
}

/// A way for a bucket's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Road {
    /// Over links.
    Messages,
    /// Through shared-memory windows, from and to any memory.
    Windows,
    /// In the mapped fusion buffer itself.
    Mapped,
}

impl Road {
    /// The element type in which a bucket travels this road.
    pub(crate) fn carrier(self, plan: &BucketPlan) -> Dtype {
        let folding = if self == Road::Messages { Folding::OneByOne } else { Folding::AllAtOnce };
        match plan.collective {
            Collective::Allreduce { op, prescale, .. } | Collective::ReduceScatter { op, prescale, .. } => {
                carrier(plan.dtype, op, prescale, folding)
            }
            _ => plan.dtype,
        }
    }

    /// Whether partial results of a bucket are singles on this road, and results travel as halves.
    pub(crate) fn rounds_results(self, plan: &BucketPlan) -> bool {
        let folds = matches!(plan.collective, Collective::Allreduce { op, .. } if op != ReduceOp::Adasum);
        self == Road::Messages && folds && self.carrier(plan) != plan.dtype
    }

    /// The bytes of a bucket on this road.
    pub(crate) fn bytes(self, plan: &BucketPlan) -> u64 {
        plan.elems * self.carrier(plan).size_bytes() as u64
    }
}

/// The travel of one bucket.
#[derive(Debug)]
pub(crate) enum Travel {
    /// Nothing moves: that all ranks have come is all there is.
    Nothing,
    /// By messages.
    Messages(Run),
    /// Through windows or in the mapped buffer.
    Shared {
        /// The walk.
        run: WindowRun,
        /// How contributions leave.
        stores: Stores,
        /// What can be learned from how long it takes: the kind of collective, its bytes, and when it began.
        trial: Option<(u8, usize, Instant)>,
    },
    /// Adasum.
    Adasum(Adasum),
}

/// What a travel works on, lent to each call.
pub(crate) struct Baggage<'a> {
    /// The buffer; empty on the mapped road.
    pub(crate) work: &'a mut [u8],
    /// This rank's contribution, where windows read it in the caller's input and put results elsewhere.
    pub(crate) contribution: Option<&'a [u8]>,
    /// What sends of an alltoall read.
    pub(crate) source: &'a [u8],
    /// The mapped buffer, on the mapped road.
    pub(crate) mapped: Option<&'a mut Mapped>,
    /// The element type of all of them.
    pub(crate) dtype: Dtype,
    /// Applied to results where windows store them.
    pub(crate) finish: Finish,
    /// Where results of half precision go, if the buffer holds singles and messages carry the two apart.
    pub(crate) halves: Option<Halves<'a>>,
}

impl Travel {
    /// Does what can be done now.
    pub(crate) fn advance(&mut self, mesh: &mut Mesh, plan: &BucketPlan, baggage: Baggage<'_>) -> Result<Progress> {
        let Baggage { work, contribution, source, mapped, dtype, finish, halves } = baggage;
        let (elem_bytes, fold) = (dtype.size_bytes(), fold_of(plan, dtype));
        match self {
            Travel::Nothing => Ok(Progress::Done),
            Travel::Messages(run) => run.advance(mesh, &mut Memory { work, source, elem_bytes, fold, halves }),
            Travel::Shared { run, stores, .. } => {
                let stores = *stores;
                let windows = mesh.windows.as_mut().expect("invariant: this road is for ranks with windows");
                let memory = &mut Shared { work, contribution, source, mapped, elem_bytes, fold, finish, stores };
                run.advance(windows, memory)
            }
            Travel::Adasum(adasum) => adasum.advance(mesh, plan, dtype, work),
        }
    }

    /// Leaves footprints from now on. Adasum leaves none.
    pub(crate) fn watch(&mut self) {
        match self {
            Travel::Messages(run) => run.watch(),
            Travel::Shared { run, .. } => run.watch(),
            Travel::Nothing | Travel::Adasum(_) => {}
        }
    }

    /// The footprints, if it leaves any.
    pub(crate) fn footprints(&mut self) -> Option<&mut Footprints> {
        match self {
            Travel::Messages(run) => run.footprints(),
            Travel::Shared { run, .. } => run.footprints(),
            Travel::Nothing | Travel::Adasum(_) => None,
        }
    }

    /// Which way it takes, and how far it has come.
    pub(crate) fn place(&self) -> String {
        let steps = |way: &str, (step, steps): (usize, usize)| match step <= steps {
            true => format!("step {step} of {steps} {way}"),
            false => format!("its last bytes {way}"),
        };
        match self {
            Travel::Nothing => "nothing to move".to_owned(),
            Travel::Messages(run) => steps("by messages", run.place()),
            Travel::Shared { run, .. } => steps("through shared memory", run.place()),
            Travel::Adasum(_) => "by pairs".to_owned(),
        }
    }

    /// The peer that is being waited for, if one can be named.
    pub(crate) fn waiting_for(&self, mesh: &Mesh) -> Option<Rank> {
        match self {
            Travel::Nothing => None,
            Travel::Messages(run) => run.waiting_for(),
            Travel::Shared { run, .. } => mesh.windows.as_ref().and_then(|windows| run.waiting_for(windows)),
            Travel::Adasum(adasum) => adasum.waiting_for(),
        }
    }
}

/// Chooses how buckets travel in one group.
#[derive(Debug)]
pub(crate) struct Router {
    place: Place,
    choices: Choices,
    kept: HashMap<(u64, Road), Arc<Schedule>>,
    barrier: Arc<Schedule>,
    outlets: Outlets,
}

impl Router {
    pub(crate) fn new(place: Place, choices: Choices) -> Router {
        let barrier = Arc::new(algorithm::barrier(place.size, place.me));
        Router { place, choices, kept: HashMap::new(), barrier, outlets: Outlets::default() }
    }

    /// Which way a bucket goes.
    pub(crate) fn road(&self, plan: &BucketPlan, mesh: &Mesh, mapped_bytes: usize) -> Road {
        if !shares_memory(mesh) {
            return Road::Messages;
        }
        match plan.collective {
            Collective::Allreduce { op: ReduceOp::Adasum, .. } | Collective::Alltoall { .. } => Road::Messages,
            Collective::Allreduce { .. } => {
                let bytes = Road::Windows.bytes(plan);
                let means = Means { windows: true, mapped: plan.staged && bytes <= mapped_bytes as u64 };
                match self.choices.allreduce(bytes, means) {
                    Algorithm::Mapped => Road::Mapped,
                    algorithm if algorithm.fits_windows() => Road::Windows,
                    _ => Road::Messages,
                }
            }
            _ => Road::Windows,
        }
    }

    /// What a rank takes a bucket to be, for its peers to compare: the bucket itself and the table by which its way is
    /// chosen.
    pub(crate) fn descriptor(&self, plan: &BucketPlan) -> u64 {
        plan.hash ^ self.choices.hash()
    }

    /// The barrier that a bucket with an entry barrier begins with, where ranks do not share memory.
    pub(crate) fn entry(&self, bucket: &Bucket) -> Run {
        Run::new(Arc::clone(&self.barrier), self.place.size, bucket.operation.0, self.descriptor(&bucket.plan))
    }

    /// The travel of a bucket, after its entry barrier if it had one.
    pub(crate) fn travel(&mut self, bucket: &Bucket, road: Road, mesh: &Mesh, entry: Option<Run>) -> Travel {
        let plan = &*bucket.plan;
        if matches!(plan.collective, Collective::Barrier) && shares_memory(mesh) {
            return Travel::Nothing;
        }
        let schedule = self.schedule(plan, road, mesh);
        if road != Road::Messages {
            let run = WindowRun::begun(schedule);
            let (kind, bytes) = (kind_of(&plan.collective), plan.elems as usize * plan.dtype.size_bytes());
            let outlet = self.outlets.of(kind, bytes).filter(|_| road == Road::Windows);
            let (stores, trial) = match outlet {
                Some(outlet) => (outlet.choose(), Some((kind, bytes, Instant::now()))),
                None => (Stores::Cached, None),
            };
            return Travel::Shared { run, stores, trial };
        }
        let mut run = match entry {
            Some(mut run) => {
                run.then(schedule);
                run
            }
            None => Run::new(schedule, self.place.size, bucket.operation.0, self.descriptor(plan)),
        };
        if road.rounds_results(plan) {
            run.round_results(plan.elems);
        }
        match plan.collective {
            Collective::Allreduce { op: ReduceOp::Adasum, .. } => Travel::Adasum(Adasum::new(run, plan, self.place)),
            _ => Travel::Messages(run),
        }
    }

    /// Learns from a travel that is over.
    pub(crate) fn learn(&mut self, travel: &Travel) {
        if let Travel::Shared { trial: Some((kind, bytes, began)), .. } = travel
            && let Some(outlet) = self.outlets.of(*kind, *bytes)
        {
            outlet.learn(*bytes, began.elapsed());
        }
    }

    fn schedule(&mut self, plan: &BucketPlan, road: Road, mesh: &Mesh) -> Arc<Schedule> {
        if let Some(schedule) = self.kept.get(&(plan.hash, road)) {
            return Arc::clone(schedule);
        }
        if self.kept.len() >= KEPT_SCHEDULES {
            self.kept.clear();
        }
        let schedule = Arc::new(match road {
            Road::Messages => self.message_schedule(plan, mesh),
            Road::Windows | Road::Mapped => self.shared_schedule(plan, road, mesh),
        });
        self.kept.insert((plan.hash, road), Arc::clone(&schedule));
        schedule
    }

    fn message_schedule(&self, plan: &BucketPlan, mesh: &Mesh) -> Schedule {
        let (topology, me) = (mesh.topology(), self.place.me);
        let tuning = Tuning::for_dtype(Road::Messages.carrier(plan));
        let bytes = Road::Messages.bytes(plan);
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

    fn shared_schedule(&self, plan: &BucketPlan, road: Road, mesh: &Mesh) -> Schedule {
        let Place { me, size } = self.place;
        let layout = mesh.windows.as_ref().expect("invariant: this road is for ranks with windows").layout();
        let carrier = road.carrier(plan);
        let mut tuning = Tuning::for_dtype(carrier);
        tuning.tile_elems = (TILE_BYTES.min(layout.tile_bytes) / carrier.size_bytes()) as u64;
        tuning.slots = layout.slots as u32;
        match &plan.collective {
            Collective::Allreduce { .. } => {
                let means = Means { windows: true, mapped: road == Road::Mapped };
                let chosen = self.choices.allreduce(road.bytes(plan), means);
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
fn fold_of(plan: &BucketPlan, dtype: Dtype) -> Option<Fold> {
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
        let document = include_str!("../../../docs/algorithms.md");
        let (tuning, layout) = (Tuning::for_dtype(Dtype::U8), Layout::standard(2));
        let kib = |bytes: usize| bytes >> 10;
        for said in [
            format!("*segments* of at most {} MiB", tuning.segment_elems >> 20),
            format!("*tiles* in {} *slots*", layout.slots),
            format!("| named requests | {} KiB | `TILE_BYTES` in `crates/engine/src/route.rs` |", kib(TILE_BYTES)),
            format!("| direct collectives | {} KiB |", kib(DirectSettings::default().tile_bytes)),
            format!("(proofs and tests) | {} KiB |", kib(tuning.tile_elems as usize)),
            format!("which no tile exceeds | {} KiB |", kib(layout.tile_bytes)),
        ] {
            assert!(document.contains(&said), "docs/algorithms.md should say: {said}");
        }
    }
}
