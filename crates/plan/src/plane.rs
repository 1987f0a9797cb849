//! Which plane a bucket takes, in which element type it is reduced there, and the schedule of each rank on it.
//!
//! A *plane* is where the bytes of a bucket are reduced. Five are built in: host memory over *links*, host memory
//! through shared *windows*, the *mapped* fusion buffer that all ranks of a host share, the memory of *devices*, which
//! they map, and that memory by *NCCL*. A program may *add* planes ([`Offer`]). The choice is a pure function of what
//! all ranks know: the bucket's plan, what every rank has ([`Reach`]), the offers and the table in use. So all ranks
//! choose alike without a message. Whether a group has a plane for device memory ([`DeviceReach`]) is asked before a
//! request is submitted.
//!
//! Half precision is accumulated and scaled in single precision and rounded once, on every plane but NCCL's, which adds
//! halves as halves. Where that happens depends on how many contributions a fold combines ([`Folding`]): where one rank
//! folds all at once, no partial result lies in memory; over links and on added planes partial results are singles. So
//! the element type of the work buffer, the [`carrier`], depends on the plane.
//!
//! Not here: how a plane moves bytes (the engine's `exec`), and which algorithm an allreduce takes (`choose`).

use crate::algorithm::{self, Algorithm, Tuning};
use crate::choose::{Choices, Formed, Means};
use crate::fuse::BucketPlan;
use crate::item::Placement;
use crate::table::DeviceWay;
use crate::{Collective, Dtype, Rank, ReduceOp, Schedule, Span, Topology};

/// Where a bucket's bytes are reduced. See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plane {
    /// Messages over links.
    Links,
    /// Shared-memory windows, from and to any memory.
    Windows,
    /// In the mapped fusion buffer itself.
    Mapped,
    /// In the memory of devices, which all ranks of a host map.
    Device,
    /// In the memory of devices, by NCCL.
    Nccl,
    /// The plane that was added with this number.
    Added(u8),
}

/// What all ranks of a group have for device memory. The same on all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceReach {
    /// They map each other's.
    pub own: bool,
    /// Those of each host do, and all hosts have as many: an allreduce crosses hosts in shards.
    pub across: bool,
    /// They have NCCL.
    pub nccl: bool,
    /// NCCL takes what both planes carry.
    pub prefers_nccl: bool,
}

impl DeviceReach {
    /// The plane that carries out a collective on tensors of this type in device memory, if there is one and nothing
    /// was measured: the own one where it reaches all ranks, then NCCL, then the own one in shards.
    pub fn plane(self, collective: &Collective, dtype: Dtype) -> Option<Plane> {
        let own = self.own && works_on_devices(collective);
        let nccl = self.nccl && nccl_carries(collective, dtype);
        match (own, nccl) {
            (true, true) if self.prefers_nccl => Some(Plane::Nccl),
            (true, _) => Some(Plane::Device),
            (false, true) => Some(Plane::Nccl),
            (false, false) => self.crosses_hosts(collective).then_some(Plane::Device),
        }
    }

    /// The same for an allreduce where a table says which way is faster at its size. Whoever prefers NCCL gets it.
    fn measured_plane(self, collective: &Collective, dtype: Dtype, faster: Option<DeviceWay>) -> Option<Plane> {
        let carries_own = self.own && works_on_devices(collective) || self.crosses_hosts(collective);
        let carries_nccl = self.nccl && nccl_carries(collective, dtype);
        let is_measured = matches!(collective, Collective::Allreduce { .. }) && !self.prefers_nccl;
        match faster.filter(|_| is_measured && carries_own && carries_nccl) {
            Some(DeviceWay::Own) => Some(Plane::Device),
            Some(DeviceWay::Nccl) => Some(Plane::Nccl),
            None => self.plane(collective, dtype),
        }
    }

    /// Whether the own plane carries this between hosts.
    fn crosses_hosts(self, collective: &Collective) -> bool {
        self.across && matches!(collective, Collective::Allreduce { op, .. } if *op != ReduceOp::Adasum)
    }
}

/// Whether ranks that see each other's device memory carry out a collective there. What has no tensors lies nowhere.
pub fn works_on_devices(collective: &Collective) -> bool {
    !matches!(collective, Collective::Barrier | Collective::Join)
}

/// Whether NCCL carries out a collective on tensors of this type. It has no Adasum, and reduces no integers of 16 bits;
/// moving them is moving bytes.
fn nccl_carries(collective: &Collective, dtype: Dtype) -> bool {
    let can_reduce = match collective.reduction() {
        Some((op, ..)) => op != ReduceOp::Adasum && !matches!(dtype, Dtype::U16 | Dtype::I16),
        None => true,
    };
    works_on_devices(collective) && can_reduce
}

/// What an added plane carries. Must be the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name, for messages and records.
    pub name: &'static str,
    /// Allreduces from this many bytes on.
    pub min_bytes: u64,
    /// Allreduces up to this many bytes.
    pub max_bytes: u64,
    /// The element types that it can fold.
    pub dtypes: Vec<Dtype>,
}

impl Offer {
    /// Whether this plane carries a bucket. Added planes carry allreduces other than Adasum.
    fn carries(&self, plan: &BucketPlan) -> bool {
        let reduces = matches!(plan.collective, Collective::Allreduce { op, .. } if op != ReduceOp::Adasum);
        let bytes = Plane::Added(0).bytes(plan);
        reduces
            && plan.device == Placement::Cpu
            && plan.elems > 0
            && (self.min_bytes..=self.max_bytes).contains(&bytes)
            && self.dtypes.contains(&Plane::Added(0).carrier(plan))
    }
}

/// What every rank of a group has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reach {
    /// All ranks see each other's windows.
    pub windows: bool,
    /// Bytes of the mapped fusion buffer; zero: there is none.
    pub mapped_bytes: u64,
    /// What they have for device memory.
    pub devices: DeviceReach,
}

/// The plane of a bucket.
///
/// # Panics
/// If its tensors lie in device memory and the group has no plane for that.
pub fn choose(plan: &BucketPlan, reach: Reach, offers: &[Offer], choices: &Choices) -> Plane {
    if plan.device == Placement::Gpu {
        let faster = choices.on_devices(Plane::Device.bytes(plan));
        let plane = reach.devices.measured_plane(&plan.collective, plan.dtype, faster);
        return plane.expect("invariant: whoever submits device memory has asked for its plane");
    }
    if let Some(added) = offers.iter().position(|offer| offer.carries(plan)) {
        return Plane::Added(added as u8);
    }
    if !reach.windows {
        return Plane::Links;
    }
    match plan.collective {
        Collective::Allreduce { op: ReduceOp::Adasum, .. } => Plane::Links,
        _ if plan.collective.exchanges() => Plane::Links,
        Collective::Allreduce { .. } => {
            let bytes = Plane::Windows.bytes(plan);
            let mapped = plan.staged && bytes <= reach.mapped_bytes;
            match choices.allreduce(bytes, Means { windows: true, mapped }) {
                Algorithm::Mapped => Plane::Mapped,
                algorithm if algorithm.fits_windows() => Plane::Windows,
                _ => Plane::Links,
            }
        }
        _ => Plane::Windows,
    }
}

/// Stands for what planes were added; zero without any. Ranks whose offers differ have different ones.
pub fn hash(offers: &[Offer]) -> u64 {
    offers.iter().fold(0, |hash, offer| {
        let dtypes = offer.dtypes.iter().map(|dtype| *dtype as u64);
        let numbers = [offer.min_bytes, offer.max_bytes].into_iter().chain(dtypes);
        let words = offer.name.bytes().map(u64::from).chain(numbers);
        // FNV-1a, word by word.
        words.fold(hash ^ 0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
    })
}

/// How many contributions a fold combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folding {
    /// Those of all ranks, in one go.
    AllAtOnce,
    /// A partial result and one more.
    OneByOne,
}

/// The element type in which the partial results of a reduction are kept.
///
/// Minimum and maximum are exact in every type, so they need no wider carrier. A prescale is part of the arithmetic, so
/// contributions that have one are widened on every plane: scaled halves could overflow or be rounded before they are
/// added. Every other element type carries itself.
pub fn carrier(dtype: Dtype, op: ReduceOp, prescale: f64, folding: Folding) -> Dtype {
    let is_half = matches!(dtype, Dtype::F16 | Dtype::BF16);
    let rounds = folding == Folding::OneByOne && !matches!(op, ReduceOp::Min | ReduceOp::Max);
    if is_half && (rounds || prescale != 1.0) { Dtype::F32 } else { dtype }
}

impl Plane {
    /// The element type in which a bucket is reduced here.
    pub fn carrier(self, plan: &BucketPlan) -> Dtype {
        let folding = match self {
            Plane::Links | Plane::Added(_) => Folding::OneByOne,
            Plane::Windows | Plane::Mapped => Folding::AllAtOnce,
            // Kernels scale, widen and round as they fold. NCCL adds halves as halves.
            Plane::Device | Plane::Nccl => return plan.dtype,
        };
        match plan.collective.reduction() {
            Some((op, prescale, _)) => carrier(plan.dtype, op, prescale, folding),
            None => plan.dtype,
        }
    }

    /// Whether the ranks work on tensors in device memory here, which the host does not touch.
    pub fn is_on_devices(self) -> bool {
        matches!(self, Plane::Device | Plane::Nccl)
    }

    /// Whether partial results of a bucket are singles here, and results travel as halves.
    pub fn rounds_results(self, plan: &BucketPlan) -> bool {
        let folds = matches!(plan.collective, Collective::Allreduce { op, .. } if op != ReduceOp::Adasum);
        self == Plane::Links && folds && self.carrier(plan) != plan.dtype
    }

    /// The bytes of a bucket here.
    pub fn bytes(self, plan: &BucketPlan) -> u64 {
        plan.elems * self.carrier(plan).size_bytes() as u64
    }
}

/// The data movement of a collective, without what is computed on the way.
#[derive(Clone, Copy, Debug)]
pub enum Movement<'a> {
    /// All ranks get the combination of all buffers.
    Allreduce {
        /// How.
        algorithm: Algorithm,
        /// Elements of the buffer.
        elems: u64,
    },
    /// All ranks get the root's buffer.
    Broadcast {
        /// The rank whose buffer is sent.
        root: Rank,
        /// Elements of the buffer.
        elems: u64,
    },
    /// The root gets the combination of all buffers.
    Reduce {
        /// The rank that gets it.
        root: Rank,
        /// Elements of the buffer.
        elems: u64,
    },
    /// All ranks get every rank's block.
    Allgather {
        /// The block of each rank.
        blocks: &'a [Span],
    },
    /// Each rank gets its block of the combination, in its place in the work buffer.
    ReduceScatter {
        /// The block of each rank.
        blocks: &'a [Span],
    },
    /// The same, from the source to a work buffer that holds this rank's block alone.
    ReduceScatterApart {
        /// The block of each rank.
        blocks: &'a [Span],
    },
    /// Each rank sends a span to every rank.
    Alltoall {
        /// What goes to each rank, in the source.
        send: &'a [Span],
        /// What comes from each rank, in the work buffer.
        recv: &'a [Span],
    },
    /// Nobody leaves before all have come.
    Barrier,
}

/// One rank of a group, and by which table the group chooses.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Where the ranks are.
    pub topology: &'a Topology,
    /// This rank.
    pub me: Rank,
    /// The choices of the group.
    pub choices: &'a Choices,
}

impl Site<'_> {
    /// The steps of this rank on a built-in plane. `tuning` is for elements of `dtype`.
    ///
    /// # Panics
    /// If the plane does not carry the movement: alltoall and barrier do not go through windows here.
    pub fn schedule(&self, plane: Plane, movement: Movement<'_>, dtype: Dtype, tuning: Tuning) -> Schedule {
        let Site { topology, me, choices } = *self;
        let total = |blocks: &[Span]| blocks.last().map_or(0, |block| block.end());
        let tuned = |formed, elems| choices.tuned(formed, elems * dtype.size_bytes() as u64, tuning);
        let links = plane == Plane::Links;
        match movement {
            Movement::Allreduce { algorithm, elems } => algorithm::allreduce(algorithm, elems, topology, me, &tuning),
            Movement::Broadcast { root, elems } if links => {
                algorithm::broadcast(elems, root, topology, me, &tuned(Formed::Broadcast, elems))
            }
            Movement::Broadcast { root, elems } => {
                algorithm::broadcast_window(elems, root, topology.size(), me, &tuning)
            }
            Movement::Reduce { root, elems } if links => algorithm::reduce(elems, root, topology, me, &tuning),
            Movement::Reduce { root, elems } => algorithm::reduce_window(elems, root, topology.size(), me, &tuning),
            Movement::Allgather { blocks } if links => {
                algorithm::allgather(blocks, topology, me, &tuned(Formed::Allgather, total(blocks)))
            }
            Movement::Allgather { blocks } => algorithm::allgather_window(blocks, me, &tuning),
            Movement::ReduceScatter { blocks } | Movement::ReduceScatterApart { blocks } if links => {
                algorithm::reduce_scatter(blocks, topology, me, &tuning)
            }
            Movement::ReduceScatter { blocks } => algorithm::reduce_scatter_window(blocks, me, &tuning),
            Movement::ReduceScatterApart { blocks } => algorithm::reduce_scatter_window_apart(blocks, me, &tuning),
            Movement::Alltoall { send, recv } if links => algorithm::alltoall(send, recv, me, &tuning),
            Movement::Barrier if links => algorithm::barrier(topology.size(), me),
            Movement::Alltoall { .. } | Movement::Barrier => unreachable!("{movement:?} does not go through windows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_half_precision_is_ever_widened() {
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                for (prescale, folding) in [(1.0, Folding::AllAtOnce), (2.0, Folding::OneByOne)] {
                    let carrier = carrier(dtype, op, prescale, folding);
                    let is_half = dtype.is_float() && dtype.size_bytes() == 2;
                    assert_eq!(carrier != dtype, is_half && folding == Folding::OneByOne, "{op} of {dtype}");
                }
            }
        }
    }

    #[test]
    fn device_memory_takes_the_plane_that_carries_it() {
        let sum = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
        let adasum = Collective::Allreduce { op: ReduceOp::Adasum, prescale: 1.0, postscale: 1.0 };
        let (own, nccl) = (Some(Plane::Device), Some(Plane::Nccl));
        for (has, of_sum, of_shorts, of_moved_shorts) in [
            ((false, false, false), None, None, None),
            ((true, false, false), own, own, own),
            ((true, true, false), own, own, own),
            ((false, true, false), nccl, None, nccl),
            ((true, true, true), nccl, own, nccl),
            ((true, false, true), own, own, own),
        ] {
            let reach = DeviceReach { own: has.0, across: false, nccl: has.1, prefers_nccl: has.2 };
            assert_eq!(reach.plane(&sum, Dtype::F32), of_sum, "{reach:?}");
            assert_eq!(reach.plane(&sum, Dtype::I16), of_shorts, "{reach:?}");
            assert_eq!(reach.plane(&Collective::Allgather, Dtype::I16), of_moved_shorts, "{reach:?}");
            assert_eq!(reach.plane(&adasum, Dtype::F32), own.filter(|_| has.0), "{reach:?}");
        }
    }

    #[test]
    fn a_measured_table_chooses_between_the_planes_that_carry_an_allreduce() {
        let sum = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
        let one_host = DeviceReach { own: true, across: true, nccl: true, prefers_nccl: false };
        let hosts = DeviceReach { own: false, ..one_host };
        let (own, nccl) = (Some(Plane::Device), Some(Plane::Nccl));
        for (reach, unmeasured) in [(one_host, own), (hosts, nccl)] {
            let plane = |faster| reach.measured_plane(&sum, Dtype::F32, faster);
            assert_eq!([None, Some(DeviceWay::Own), Some(DeviceWay::Nccl)].map(plane), [unmeasured, own, nccl]);
            assert_eq!(reach.measured_plane(&Collective::Allgather, Dtype::F32, Some(DeviceWay::Nccl)), unmeasured);
            let wants_nccl = DeviceReach { prefers_nccl: true, ..reach };
            assert_eq!(wants_nccl.measured_plane(&sum, Dtype::F32, Some(DeviceWay::Own)), nccl);
            let has_none = DeviceReach { nccl: false, ..reach };
            assert_eq!(has_none.measured_plane(&sum, Dtype::F32, Some(DeviceWay::Nccl)), own);
        }
        assert_eq!(one_host.measured_plane(&sum, Dtype::I16, Some(DeviceWay::Nccl)), own, "NCCL adds no shorts");
    }

    #[test]
    fn minimum_and_maximum_are_exact_in_half_precision() {
        assert_eq!(carrier(Dtype::F16, ReduceOp::Max, 1.0, Folding::OneByOne), Dtype::F16);
        assert_eq!(carrier(Dtype::F16, ReduceOp::Max, 0.5, Folding::AllAtOnce), Dtype::F32);
        assert_eq!(carrier(Dtype::BF16, ReduceOp::Product, 1.0, Folding::OneByOne), Dtype::F32);
    }
}
