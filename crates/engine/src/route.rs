//! The one place where it is decided how a bucket's bytes travel, and the state of their travel.
//!
//! A bucket whose ranks share memory goes through windows; any other goes over links by a schedule of messages. Schedules are
//! pure functions of the bucket's plan and the group, so they are kept for as long as buckets repeat.
//!
//! Adasum is the exception: it does not fold element by element, so it is not a schedule but a series of exchanges of
//! whole vectors with arithmetic in between (`adasum`).

use std::collections::HashMap;
use std::sync::Arc;

use farandole_plan::agree::Bucket;
use farandole_plan::algorithm::{self, Algorithm, Tuning};
use farandole_plan::fuse::BucketPlan;
use farandole_plan::{Collective, Rank, ReduceOp, Schedule, Topology};
use farandole_tensor::Fold;
use farandole_transport::{Link, Mesh, Progress, Result};

use crate::adasum::Adasum;
use crate::bucket::{Exchange, Place};
use crate::run::{Links, Memory, Run};

/// Schedules kept at most. A training loop has some dozens of buckets; a program that never repeats itself must not
/// fill the memory.
const KEPT_SCHEDULES: usize = 1024;

impl Links for Mesh {
    fn link(&mut self, peer: Rank) -> &mut dyn Link {
        &mut *self.peer_mut(peer).link
    }
}

/// The travel of one bucket.
#[derive(Debug)]
pub(crate) enum Travel {
    /// By messages.
    Messages(Run),
    /// Adasum.
    Adasum(Adasum),
}

impl Travel {
    /// Does what can be done now.
    pub(crate) fn advance(
        &mut self,
        mesh: &mut Mesh,
        plan: &BucketPlan,
        work: &mut [u8],
        source: &[u8],
    ) -> Result<Progress> {
        let elem_bytes = plan.dtype.size_bytes();
        match self {
            Travel::Messages(run) => {
                let mut memory = Memory { work, source, elem_bytes, fold: fold_of(plan) };
                run.advance(mesh, &mut memory)
            }
            Travel::Adasum(adasum) => adasum.advance(mesh, plan, work),
        }
    }

    /// The peer that is being waited for, if one can be named.
    pub(crate) fn waiting_for(&self) -> Option<Rank> {
        match self {
            Travel::Messages(run) => run.waiting_for(),
            Travel::Adasum(adasum) => adasum.waiting_for(),
        }
    }
}

/// Chooses how buckets travel in one group.
#[derive(Debug)]
pub(crate) struct Router {
    topology: Topology,
    place: Place,
    kept: HashMap<u64, Arc<Schedule>>,
    barrier: Arc<Schedule>,
}

impl Router {
    pub(crate) fn new(topology: Topology, me: Rank) -> Router {
        let place = Place { me, size: topology.size() };
        let barrier = Arc::new(algorithm::barrier(place.size, me));
        Router { topology, place, kept: HashMap::new(), barrier }
    }

    /// The barrier that a bucket with an entry barrier begins with.
    pub(crate) fn entry(&self, bucket: &Bucket) -> Run {
        Run::new(Arc::clone(&self.barrier), self.place.size, bucket.operation.0, bucket.plan.hash)
    }

    /// The travel of a bucket, after its entry barrier if it had one.
    pub(crate) fn travel(&mut self, bucket: &Bucket, entry: Option<Run>) -> Travel {
        let plan = &*bucket.plan;
        let begin = |schedule| match entry {
            Some(mut run) => {
                run.then(schedule);
                run
            }
            None => Run::new(schedule, self.place.size, bucket.operation.0, plan.hash),
        };
        if let Collective::Allreduce { op: ReduceOp::Adasum, .. } = plan.collective {
            return Travel::Adasum(Adasum::new(begin(Arc::default()), plan, self.place));
        }
        let schedule = match self.kept.get(&plan.hash) {
            Some(schedule) => Arc::clone(schedule),
            None => {
                if self.kept.len() >= KEPT_SCHEDULES {
                    self.kept.clear();
                }
                let schedule = Arc::new(self.schedule(plan));
                self.kept.insert(plan.hash, Arc::clone(&schedule));
                schedule
            }
        };
        Travel::Messages(begin(schedule))
    }

    fn schedule(&self, plan: &BucketPlan) -> Schedule {
        let (topology, me) = (&self.topology, self.place.me);
        let tuning = Tuning::for_dtype(plan.dtype);
        match &plan.collective {
            Collective::Allreduce { .. } => {
                algorithm::allreduce(self.algorithm(plan.elems, &tuning), plan.elems, topology, me, &tuning)
            }
            Collective::Broadcast { root } => algorithm::broadcast(plan.elems, *root, topology, me, &tuning),
            Collective::Allgather => algorithm::allgather(&plan.blocks, topology, me, &tuning),
            Collective::ReduceScatter { .. } => algorithm::reduce_scatter(&plan.blocks, topology, me, &tuning),
            Collective::Alltoall { .. } => {
                let exchange = Exchange::of(&plan.parts[0].item, self.place);
                algorithm::alltoall(&exchange.send, &exchange.recv, me, &tuning)
            }
            Collective::Barrier | Collective::Join => (*self.barrier).clone(),
        }
    }

    fn algorithm(&self, elems: u64, tuning: &Tuning) -> Algorithm {
        if elems <= tuning.small_elems {
            Algorithm::Doubling
        } else if self.topology.hosts() > 1 && self.topology.hosts() < self.topology.size() {
            Algorithm::Hierarchical
        } else {
            Algorithm::Ring
        }
    }
}

fn fold_of(plan: &BucketPlan) -> Option<Fold> {
    match plan.collective {
        Collective::Allreduce { op, .. } | Collective::ReduceScatter { op, .. } => Some(Fold::new(plan.dtype, op)),
        _ => None,
    }
}
