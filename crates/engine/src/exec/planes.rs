//! The planes of one group: which one a bucket takes, and the execution that carries it out there.
//!
//! The choice is `plan::plane`'s, from what all ranks know. It is made once for each plan of a bucket, with the
//! schedule and the layout of the memory ([`Prepared`]), and kept for as long as buckets repeat. Adasum is the
//! exception: it does not fold element by element, so it is not a schedule but a series of exchanges of whole vectors
//! with arithmetic in between (`adasum`).

use std::sync::Arc;

use farandole_plan::agree::Bucket;
use farandole_plan::algorithm::{self, Algorithm, Tuning};
use farandole_plan::choose::{Choices, Means};
use farandole_plan::device;
use farandole_plan::fuse::BucketPlan;
use farandole_plan::plane::{self, DeviceReach, Movement, Offer, Plane, Reach, Site};
use farandole_plan::slices::{Slice, Sliced};
use farandole_plan::{Collective, ReduceOp, Schedule};
use farandole_transport::Mesh;

use super::Execution;
use super::adasum::Adasum;
use super::device::shards;
use super::links::LinkRun;
use super::plan_cache::PlanCache;
use super::store_policy::{Choice, StorePolicies};
use super::windows::WindowRun;
use crate::bucket::{GroupRank, Layout};
use crate::plane::PlaneGroup;

/// Longest tile of window schedules, as that of direct calls; `plan::window` makes them shorter where many ranks are on
/// a host.
const TILE_BYTES: usize = 512 << 10;

/// What follows from the plan of a bucket, and is the same each time that the bucket runs.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plane: Plane,
    pub(crate) layout: Layout,
    /// The steps on a built-in plane.
    pub(crate) schedule: Arc<Schedule>,
    /// How they are sliced, in device memory between hosts.
    pub(crate) slices: Arc<[Slice]>,
    /// What is moved in device memory.
    pub(crate) movement: Option<Arc<device::Movement>>,
    /// The mapped buffer that the bucket would like; zero: none.
    pub(crate) wants_mapped_bytes: usize,
    /// The mapped buffer that there was.
    mapped_bytes: usize,
}

/// See the module's text.
pub(crate) struct Planes {
    here: GroupRank,
    choices: Choices,
    /// Larger buffers than this are not kept.
    fusion_limit_bytes: usize,
    /// What travels together in device memory between hosts; zero: all of a shard.
    slice_bytes: u64,
    /// What the group has for device memory.
    devices: DeviceReach,
    prepared: PlanCache<u64, Prepared>,
    barrier: Arc<Schedule>,
    store_policies: StorePolicies,
    offers: Vec<Offer>,
    /// Stands for the table in use, the offers and the length of slices.
    hash: u64,
    added: Vec<Box<dyn PlaneGroup>>,
}

impl Planes {
    /// The built-in planes, and those that were added.
    pub(crate) fn new(
        here: GroupRank,
        choices: Choices,
        fusion_limit_bytes: usize,
        slice_bytes: u64,
        devices: DeviceReach,
        added: Vec<(Offer, Box<dyn PlaneGroup>)>,
    ) -> Planes {
        let (offers, added): (Vec<Offer>, _) = added.into_iter().unzip();
        // Any two numbers differ in it.
        let hash = choices.hash() ^ plane::hash(&offers) ^ slice_bytes.rotate_left(32);
        let (prepared, barrier) = (PlanCache::new(), Arc::new(algorithm::barrier(here.size, here.me)));
        let store_policies = StorePolicies::default();
        Planes {
            here,
            choices,
            fusion_limit_bytes,
            slice_bytes,
            devices,
            prepared,
            barrier,
            store_policies,
            offers,
            hash,
            added,
        }
    }

    /// Chooses the plane of a bucket, its schedule and its memory; or finds what was chosen the last time.
    pub(crate) fn prepare(&mut self, plan: &BucketPlan, mesh: &Mesh, mapped_bytes: usize) -> Arc<Prepared> {
        match self.prepared.get(&plan.hash) {
            Some(prepared) if prepared.mapped_bytes == mapped_bytes => prepared,
            _ => {
                let prepared = self.prepare_anew(plan, mesh, mapped_bytes);
                self.prepared.put(plan.hash, prepared)
            }
        }
    }

    fn prepare_anew(&self, plan: &BucketPlan, mesh: &Mesh, mapped_bytes: usize) -> Prepared {
        let (windows, mapped_bytes_there) = (shares_memory(mesh), mapped_bytes as u64);
        let reach = Reach { windows, mapped_bytes: mapped_bytes_there, devices: self.devices };
        let plane = plane::choose(plan, reach, &self.offers, &self.choices);
        let layout = Layout::new(plan, plane, self.here, self.fusion_limit_bytes);
        let Sliced { schedule, slices } = match plane {
            Plane::Device if !shares_memory(mesh) => {
                shards::sliced(plan, mesh.topology(), self.here.me, self.slice_bytes)
            }
            Plane::Added(_) | Plane::Device | Plane::Nccl => Sliced::default(),
            _ => Sliced { schedule: self.make_schedule(plan, plane, mesh), slices: Vec::new() },
        };
        let (schedule, slices) = (Arc::new(schedule), Arc::from(slices));
        let wants_mapped =
            plan.staged && !plane.is_on_devices() && matches!(plan.collective, Collective::Allreduce { .. });
        let wants_mapped_bytes = if wants_mapped { Plane::Mapped.bytes(plan) as usize } else { 0 };
        let movement = plane.is_on_devices().then(|| Arc::new(device::Movement::new(plan, self.here.size)));
        Prepared { plane, layout, schedule, slices, movement, wants_mapped_bytes, mapped_bytes }
    }

    /// What a rank takes a bucket to be, for its peers to compare: the bucket itself, and what its plane is chosen by.
    pub(crate) fn descriptor(&self, plan: &BucketPlan) -> u64 {
        plan.hash ^ self.hash
    }

    /// The barrier that a bucket with an entry barrier begins with, where ranks do not share memory.
    pub(crate) fn entry(&self, bucket: &Bucket) -> Execution {
        let descriptor = self.descriptor(&bucket.plan);
        Execution::Links(LinkRun::new(Arc::clone(&self.barrier), self.here.size, bucket.operation.0, descriptor))
    }

    /// The execution of a bucket, after its entry barrier if it had one.
    pub(crate) fn execution(&mut self, bucket: &Bucket, prepared: &Prepared, entry: Execution) -> Execution {
        let plan = &*bucket.plan;
        let Prepared { plane, layout, schedule, .. } = prepared;
        let schedule = Arc::clone(schedule);
        match *plane {
            Plane::Added(number) => {
                let added = &mut self.added[usize::from(number)];
                Execution::Added(added.begin(bucket.operation.0, plan.elems, layout.carrier()))
            }
            // What has elements has begun with its bucket, before others were met.
            Plane::Device | Plane::Nccl => Execution::Nothing,
            Plane::Mapped => Execution::Windows(WindowRun::new(schedule, Choice::default())),
            // That all have come is all there is; they have shown it in their windows.
            Plane::Windows if matches!(plan.collective, Collective::Barrier) => Execution::Nothing,
            Plane::Windows => {
                let stores = self.store_policies.begin(kind_of(&plan.collective), plan.bytes() as usize);
                Execution::Windows(WindowRun::new(schedule, stores))
            }
            Plane::Links => self.over_links(bucket, layout, schedule, entry),
        }
    }

    fn over_links(&self, bucket: &Bucket, layout: &Layout, schedule: Arc<Schedule>, entry: Execution) -> Execution {
        let plan = &*bucket.plan;
        let mut run = match entry {
            Execution::Links(mut run) => {
                run.then(schedule);
                run
            }
            _ => LinkRun::new(schedule, self.here.size, bucket.operation.0, self.descriptor(plan)),
        };
        if layout.rounds_results() {
            run.round_results(plan.elems);
        }
        match plan.collective {
            Collective::Allreduce { op: ReduceOp::Adasum, .. } => {
                Execution::Adasum(Adasum::new(run, Arc::clone(&bucket.plan), self.here))
            }
            _ => Execution::Links(run),
        }
    }

    /// Where the messages of a bucket go on after its entry.
    pub(crate) fn links_after(&self, bucket: &Bucket, entry: Execution) -> LinkRun {
        match entry {
            Execution::Links(run) => run,
            _ => {
                let descriptor = self.descriptor(&bucket.plan);
                LinkRun::new(Arc::new(Schedule::default()), self.here.size, bucket.operation.0, descriptor)
            }
        }
    }

    /// Learns from an execution that is over.
    pub(crate) fn learn(&mut self, execution: &Execution) {
        if let Execution::Windows(run) = execution {
            self.store_policies.end(run.stores());
        }
    }

    fn site<'a>(&'a self, mesh: &'a Mesh) -> Site<'a> {
        Site { topology: mesh.topology(), me: self.here.me, choices: &self.choices }
    }

    fn make_schedule(&self, plan: &BucketPlan, plane: Plane, mesh: &Mesh) -> Schedule {
        let dtype = plane.carrier(plan);
        let mut tuning = Tuning::for_dtype(dtype);
        if let Some(layout) = mesh.windows.as_ref().filter(|_| plane != Plane::Links).map(|windows| windows.layout()) {
            tuning = tuning.with_windows(dtype, TILE_BYTES.min(layout.tile_bytes), layout.slots);
        }
        let exchange;
        let movement = match &plan.collective {
            Collective::Allreduce { op: ReduceOp::Adasum, .. } => return Schedule::default(),
            Collective::Allreduce { .. } => {
                Movement::Allreduce { algorithm: self.algorithm(plan, plane), elems: plan.elems }
            }
            Collective::Broadcast { root } => Movement::Broadcast { root: *root, elems: plan.elems },
            Collective::Reduce { root, .. } => Movement::Reduce { root: *root, elems: plan.elems },
            Collective::Allgather => Movement::Allgather { blocks: &plan.blocks },
            Collective::ReduceScatter { .. } => Movement::ReduceScatter { blocks: &plan.blocks },
            Collective::Alltoall { .. } | Collective::Gather { .. } | Collective::Scatter { .. } => {
                exchange = plan.parts[0].item.exchange(self.here.me, self.here.size);
                Movement::Alltoall { send: &exchange.send, recv: &exchange.recv }
            }
            Collective::Barrier | Collective::Join if plane == Plane::Windows => return Schedule::default(),
            Collective::Barrier | Collective::Join => Movement::Barrier,
        };
        self.site(mesh).schedule(plane, movement, dtype, tuning)
    }

    /// The algorithm of an allreduce on this plane.
    fn algorithm(&self, plan: &BucketPlan, plane: Plane) -> Algorithm {
        let windows = plane != Plane::Links;
        let chosen = self.choices.allreduce(plane.bytes(plan), Means { windows, mapped: plane == Plane::Mapped });
        if windows && !chosen.fits_windows() { Algorithm::WindowTiles } else { chosen }
    }
}

/// Whether the group is on several hosts with as many ranks each, which see each other's windows there.
pub(crate) fn maps_on_hosts(mesh: &Mesh) -> bool {
    let (topology, local_size) = (mesh.topology(), mesh.topology().local_size(mesh.me()));
    let meet = local_size == 1 || mesh.windows.as_ref().is_some_and(|windows| windows.size() == local_size);
    topology.hosts() > 1 && topology.is_homogeneous() && meet && local_size <= farandole_device::MAX_RANKS
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
        Collective::Reduce { .. } => 4,
        Collective::Alltoall { .. }
        | Collective::Gather { .. }
        | Collective::Scatter { .. }
        | Collective::Barrier
        | Collective::Join => 5,
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
            format!(
                "| named requests | {} KiB | `TILE_BYTES` in `crates/engine/src/exec/planes.rs` |",
                kib(TILE_BYTES)
            ),
            format!("| direct collectives | {} KiB |", kib(DirectSettings::default().tile_bytes)),
            format!("(proofs and tests) | {} KiB |", kib(tuning.tile_elems as usize)),
            format!("which no tile exceeds | {} KiB |", kib(layout.tile_bytes)),
        ] {
            assert!(document.contains(&said), "docs/algorithms.md should say: {said}");
        }
    }
}
