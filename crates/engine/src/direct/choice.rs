//! Which algorithm a direct call takes, and how all ranks come to use one measured table.
//!
//! Rank 0's table is everybody's: [`Communicator::agree_on_table`] passes it on, every rank says whether it understands
//! it, and it is used by all ranks or by none. So there is no moment in which two ranks choose by different tables.
//! Nobody but rank 0 reads a file; what others may have on their disks does not matter.
//!
//! What a table says is in `plan::choose`; where one comes from, in `tables`.

use std::sync::Arc;

use farandole_plan::algorithm::Algorithm;
use farandole_plan::choose::{AlgorithmLimits, Choices, Means};
use farandole_plan::table::Table;
use farandole_plan::{Rank, ReduceOp, Topology};
use farandole_transport::Mesh;

use super::{Communicator, DirectSettings};
use crate::error::Result;
use crate::exec::planes::shares_memory;

/// A longer text is not passed on. A table of all ways at thirty sizes has a fiftieth of it.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 20;

/// How the calls of one communicator choose.
#[derive(Debug)]
pub(super) struct Chooser {
    choices: Choices,
    means: Means,
    /// Tensors of up to this many bytes take the shortest path (`small`) on one host.
    small_bytes: usize,
    /// On one host, collectives in which a rank reads no more than this in all take a single hand-over.
    hand_over_bytes: usize,
}

impl Chooser {
    pub(super) fn new(mesh: &Mesh, settings: &DirectSettings, table: Option<Arc<Table>>) -> Chooser {
        let topology = mesh.topology();
        let limits = AlgorithmLimits::default();
        let small_bytes = settings.small_bytes as u64 * topology.size() as u64;
        let whole_read_max_bytes = limits.whole_read_max_bytes.min(small_bytes);
        let choices = Choices::new(table, topology, AlgorithmLimits { whole_read_max_bytes, ..limits });
        let means = Means { windows: hosts_have_windows(mesh, topology), mapped: false };
        let slot_bytes = mesh.windows.as_ref().map_or(0, |windows| windows.layout().small_bytes);
        let whole_bytes = choices.largest_of(Algorithm::WindowWhole, means);
        let small_bytes = slot_bytes.min(usize::try_from(whole_bytes).unwrap_or(usize::MAX));
        Chooser { choices, means, small_bytes, hand_over_bytes: slot_bytes.min(settings.small_bytes) }
    }

    /// Whether a tensor of this size takes the shortest path on one host, without asking further.
    #[inline]
    pub(super) fn is_small(&self, bytes: usize) -> bool {
        bytes <= self.small_bytes
    }

    /// Whether a collective of this size in all, in which nobody reads more than that, takes a single hand-over.
    #[inline]
    pub(super) fn fits_one_hand_over(&self, bytes: usize) -> bool {
        bytes <= self.hand_over_bytes
    }

    /// What a rank shows for a single hand-over at most, in bytes.
    pub(super) fn hand_over_bytes(&self) -> usize {
        self.hand_over_bytes
    }

    /// The algorithm of an allreduce.
    pub(super) fn allreduce(&self, bytes: usize) -> Algorithm {
        self.choices.allreduce(bytes as u64, self.means)
    }

    /// The choices of the communicator.
    pub(super) fn choices(&self) -> &Choices {
        &self.choices
    }
}

/// Whether the ranks of every host share memory, as far as every rank can tell alike: all ranks share it, or hosts are
/// equally full and this one has windows.
fn hosts_have_windows(mesh: &Mesh, topology: &Topology) -> bool {
    shares_memory(mesh) || topology.hosts() > 1 && topology.is_homogeneous() && mesh.windows.is_some()
}

impl Communicator {
    /// Makes rank 0's table, or its having none, that of all ranks, and gives it back. All ranks call this; what others
    /// than rank 0 bring is not looked at. A table that some rank does not understand, or that is for another
    /// placement, is used by nobody.
    ///
    /// # Errors
    /// As any collective.
    pub fn agree_on_table(&mut self, own: Option<&Table>) -> Result<Option<Arc<Table>>> {
        let mut text = own.filter(|_| self.rank() == Rank(0)).map(Table::to_text).unwrap_or_default().into_bytes();
        if text.len() > MAX_TEXT_BYTES {
            text.clear();
        }
        let mut length = [text.len() as u64];
        self.broadcast(&mut length, Rank(0))?;
        let length = usize::try_from(length[0]).unwrap_or(usize::MAX).min(MAX_TEXT_BYTES);
        text.resize(length, 0);
        if length > 0 {
            self.broadcast(&mut text, Rank(0))?;
        }
        let table = String::from_utf8(text).ok().and_then(|text| Table::parse(&text).ok()).map(Arc::new);
        // The least and, negated, the greatest of all hashes: equal exactly if all ranks hold the same table.
        let hash = table.as_ref().map_or(0, |table| table.hash() >> 1) as i64;
        let mut bounds = [hash, -hash];
        self.allreduce(&mut bounds, ReduceOp::Min)?;
        let table = table.filter(|_| bounds == [hash, -hash]);
        self.chooser = Chooser::new(&self.mesh, &self.settings, table);
        self.schedules.clear();
        Ok(self.table().cloned())
    }

    /// The algorithm that an allreduce of this many bytes takes here, on the caller's own memory.
    pub fn algorithm_for(&self, bytes: usize) -> Algorithm {
        self.chooser.allreduce(bytes)
    }

    /// The measured table by which calls choose; without one they go by built-in limits.
    pub fn table(&self) -> Option<&Arc<Table>> {
        self.chooser.choices.table()
    }
}
