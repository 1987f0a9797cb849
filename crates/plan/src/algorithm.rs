//! The entry points: one collective, one rank, one [`Schedule`].
//!
//! Each function here is pure and gives the steps of one rank; calling it with the same arguments for every rank gives
//! a set of schedules that fit together, which `tests/schedules` proves. All of them work for every group size from one
//! up and for every number of elements, also none. A group of one needs no steps (but for the copy in [`alltoall`]).
//!
//! Zero-length messages occur in [`barrier`] alone; elsewhere both sides leave them out.
//!
//! Which algorithm is best is not decided here but in `choose`.

use std::fmt;
use std::str::FromStr;

use crate::request::{Dtype, Rank};
use crate::schedule::{Schedule, Span};
use crate::slices::Sliced;
use crate::team::Team;
use crate::topology::Topology;
use crate::{doubling, halving, hierarchical, ring, tree, window};

pub use crate::alltoall::{alltoall, alltoall_window};
pub use crate::barrier::barrier;
pub use crate::broadcast::{broadcast, broadcast_window};
pub use crate::gather::{allgather, allgather_window};
pub use crate::reduce::{reduce, reduce_window};
pub use crate::scatter::{reduce_scatter, reduce_scatter_window, reduce_scatter_window_apart};

/// A way to carry out an allreduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Chunks travel around a circle twice. Least bytes, most steps.
    Ring,
    /// Recursive doubling: whole vectors are exchanged at doubling distances. Fewest steps, most bytes.
    Doubling,
    /// Recursive halving, then recursive doubling of the pieces. Least bytes in few steps.
    Halving,
    /// Two binary trees, each for half of the elements, pipelined. Nearly least bytes, few steps in large worlds.
    Tree,
    /// Reduce-scatter inside each host, allreduce of each shard across hosts, allgather inside each host; by messages.
    Hierarchical,
    /// As [`Algorithm::Hierarchical`], but inside the hosts through shared-memory windows.
    HierarchicalWindow,
    /// On one host, through windows, tile by tile; each rank folds its chunk of each tile.
    WindowTiles,
    /// On one host, through windows; each rank folds everything. One hand-over, for small tensors.
    WindowWhole,
    /// On one host, where the buffers themselves lie in shared memory; each rank folds its chunk across all buffers.
    Mapped,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Ring,
        Algorithm::Doubling,
        Algorithm::Halving,
        Algorithm::Tree,
        Algorithm::Hierarchical,
        Algorithm::HierarchicalWindow,
        Algorithm::WindowTiles,
        Algorithm::WindowWhole,
        Algorithm::Mapped,
    ];

    /// The word used in tables and settings.
    pub const fn word(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::Doubling => "doubling",
            Algorithm::Halving => "halving",
            Algorithm::Tree => "tree",
            Algorithm::Hierarchical => "hierarchical",
            Algorithm::HierarchicalWindow => "hierarchical-window",
            Algorithm::WindowTiles => "window-tiles",
            Algorithm::WindowWhole => "window-whole",
            Algorithm::Mapped => "mapped",
        }
    }

    /// Whether it can run on this placement of ranks: windows and mapped buffers do not reach across hosts.
    pub fn fits(self, topology: &Topology) -> bool {
        match self {
            Algorithm::WindowTiles | Algorithm::WindowWhole | Algorithm::Mapped => topology.hosts() <= 1,
            _ => true,
        }
    }

    /// Whether it works on one host through windows alone, without a message.
    pub const fn fits_windows(self) -> bool {
        matches!(self, Algorithm::WindowTiles | Algorithm::WindowWhole | Algorithm::Mapped)
    }

    /// Whether it works host by host, so that it needs several, with several ranks on each, to be of any use.
    pub const fn is_hierarchical(self) -> bool {
        matches!(self, Algorithm::Hierarchical | Algorithm::HierarchicalWindow)
    }

    /// Whether it needs shared-memory windows between the ranks of a host.
    pub const fn needs_windows(self) -> bool {
        matches!(self, Algorithm::WindowTiles | Algorithm::WindowWhole | Algorithm::HierarchicalWindow)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A word that names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAlgorithm(pub String);

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.word()).collect();
        write!(f, "there is no algorithm called {:?}; there are {}", self.0, known.join(", "))
    }
}

impl std::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(word: &str) -> Result<Algorithm, UnknownAlgorithm> {
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.word() == word)
            .ok_or_else(|| UnknownAlgorithm(word.to_owned()))
    }
}

/// Sizes into which schedules cut their work. Must be equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Longest message; longer spans travel as several *segments*, so that a rank can pass on the first while the next
    /// arrives. At least 1.
    pub segment_elems: u64,
    /// Longest tile of a window. At least 1.
    pub tile_elems: u64,
    /// Slots of a window, each for one tile. At least 1; from 3 on, copying, folding and fetching overlap.
    pub slots: u32,
    /// Up to this size the number of steps matters more than the number of bytes; used where an algorithm has a phase
    /// that can be carried out in either way.
    pub small_elems: u64,
}

/// Large enough that what each message costs (system calls, wake-ups: some tens of microseconds) is small beside the
/// time its bytes take on a fast network (80 µs at 100 Gbit/s); small enough that a tensor of a few mebibytes still
/// overlaps. Between two namespaces of one machine, 4 MB took 0.66 ms with segments of this size, 0.73 with half of it
/// and 0.86 with a quarter.
const SEGMENT_BYTES: u64 = 1 << 20;
/// A few tiles of all ranks of a host together should fit into a core's second-level cache. The engine sets longer
/// tiles of its own, which it has measured; this is for schedules that are made without it.
const TILE_BYTES: u64 = 64 << 10;
/// One slot being filled, one or two being folded, one being fetched.
const SLOTS: u32 = 4;
/// About the bytes a network carries in the time of one hand-over (10 µs at 10 Gbit/s).
const SMALL_BYTES: u64 = 16 << 10;

impl Tuning {
    /// Sensible sizes for elements of this type.
    pub fn for_dtype(dtype: Dtype) -> Tuning {
        let elem_bytes = dtype.size_bytes() as u64;
        Tuning {
            segment_elems: SEGMENT_BYTES / elem_bytes,
            tile_elems: TILE_BYTES / elem_bytes,
            slots: SLOTS,
            small_elems: SMALL_BYTES / elem_bytes,
        }
    }

    /// The same with windows of so many slots, and tiles of at most so many bytes.
    pub fn with_windows(self, dtype: Dtype, tile_bytes: usize, slots: usize) -> Tuning {
        Tuning { tile_elems: (tile_bytes / dtype.size_bytes()) as u64, slots: slots as u32, ..self }
    }
}

/// Steps of rank `me` in the phase of a hierarchical allreduce that crosses hosts: its shard, of `elems` elements, lies
/// at the front of [`crate::Buffer::Work`], and the holders of the same shard on all hosts combine theirs, in slices of
/// about `slice_elems` elements; zero: in one.
pub fn allreduce_across(elems: u64, slice_elems: u64, topology: &Topology, me: Rank, tuning: &Tuning) -> Sliced {
    hierarchical::allreduce_across(elems, slice_elems, topology, me, tuning)
}

/// Steps of rank `me` in an allreduce of `elems` elements, in place in [`crate::Buffer::Work`].
///
/// # Panics
/// If the algorithm does not fit the topology (see [`Algorithm::fits`]).
pub fn allreduce(algorithm: Algorithm, elems: u64, topology: &Topology, me: Rank, tuning: &Tuning) -> Schedule {
    assert!(algorithm.fits(topology), "{algorithm} needs all ranks on one host");
    assert!(me.index() < topology.size(), "rank {me} is not in a group of {}", topology.size());
    if topology.size() == 1 || elems == 0 {
        return Schedule::default();
    }
    let span = Span::between(0, elems);
    let by_host = || Team::by_host(topology, me);
    match algorithm {
        Algorithm::Ring => Schedule::new(ring::allreduce(&by_host(), span, tuning)),
        Algorithm::Doubling => Schedule::new(doubling::allreduce(&by_host(), span, tuning)),
        Algorithm::Halving => Schedule::new(halving::allreduce(&by_host(), span, tuning)),
        Algorithm::Tree => Schedule::new(tree::allreduce(&by_host(), span, tuning)),
        Algorithm::Hierarchical => hierarchical::allreduce(span, topology, me, tuning),
        Algorithm::HierarchicalWindow => hierarchical::allreduce_window(span, topology, me, tuning),
        Algorithm::WindowTiles => window::allreduce_tiles(elems, topology.size(), me, tuning),
        Algorithm::WindowWhole => window::allreduce_whole(elems, tuning),
        Algorithm::Mapped => window::allreduce_mapped(elems, topology.size(), me),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_found_by_its_word() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.word().parse(), Ok(algorithm));
        }
        assert!("rings".parse::<Algorithm>().unwrap_err().to_string().contains("ring, doubling"));
    }

    #[test]
    #[should_panic(expected = "needs all ranks on one host")]
    fn windows_across_hosts_are_refused() {
        allreduce(Algorithm::WindowTiles, 8, &Topology::all_apart(2), Rank(0), &Tuning::for_dtype(Dtype::F32));
    }
}
