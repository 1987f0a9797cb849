//! Messages by size: how many, how large, how long they took, at which bandwidth.
//!
//! The *time* of an operation is counted from when the last rank had begun until the last rank was done: packing,
//! transfer and unpacking, without the wait for ranks that came late. Its *bus bandwidth* is the traffic that an ideal
//! algorithm puts on every link, divided by the time; for `n` ranks that is `2(n-1)/n` of an allreduce's bytes,
//! `(n-1)/n` of an allgather's, reducescatter's or alltoall's, and all of a broadcast's.
//!
//! The *fused* view has one message for each operation. The *unfused* view has one for each tensor; an operation's time
//! is divided among its tensors by their bytes, and the parts sum to the whole.

use std::collections::{BTreeMap, BTreeSet};

use farandole_trace::event::Collective;

use crate::history::{History, OperationHistory};

/// Upper bounds of the default bins, in bytes and included: those of the profiler whose tables people compare with.
pub const DEFAULT_BOUNDS_BYTES: [u64; 4] = [128 << 10, 16 << 20, 32 << 20, 64 << 20];

/// What counts as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileView {
    /// An operation, as it travels.
    Fused,
    /// A tensor, as it was submitted.
    Unfused,
}

/// Which messages are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this collective.
    pub collective: Option<Collective>,
    /// Only this group.
    pub group: Option<u32>,
}

/// Messages of one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProfileRow {
    /// How many.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their time.
    pub ns: u64,
    /// Bytes that an ideal algorithm would have moved over each link.
    pub bus_bytes: f64,
}

impl ProfileRow {
    /// Bus bandwidth in GB/s (10⁹ bytes); `None` where no time passed.
    pub fn busbw_gb_per_s(&self) -> Option<f64> {
        (self.ns > 0).then(|| self.bus_bytes / self.ns as f64)
    }

    fn add(&mut self, other: &ProfileRow) {
        self.calls += other.calls;
        self.bytes += other.bytes;
        self.ns += other.ns;
        self.bus_bytes += other.bus_bytes;
    }
}

/// Messages by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Upper bounds of all bins but the last, which has none. Bounds are included.
    pub bounds_bytes: Vec<u64>,
    /// One row for each bin.
    pub bins: Vec<ProfileRow>,
    /// Messages without bytes: barriers.
    pub empty: ProfileRow,
}

impl Profile {
    /// Sorts the messages of a history into bins.
    pub fn of(history: &History, view: ProfileView, filter: Filter, bounds_bytes: &[u64]) -> Profile {
        let mut profile = Profile {
            bounds_bytes: bounds_bytes.to_vec(),
            bins: vec![ProfileRow::default(); bounds_bytes.len() + 1],
            empty: ProfileRow::default(),
        };
        for operation in &history.operations {
            let wanted = filter.collective.is_none_or(|collective| collective == operation.collective)
                && filter.group.is_none_or(|group| group == operation.group);
            if !wanted {
                continue;
            }
            match view {
                ProfileView::Fused => profile.count(operation, operation.bytes(), time_ns(operation)),
                ProfileView::Unfused => {
                    for (bytes, ns) in shares(operation) {
                        profile.count(operation, bytes, ns);
                    }
                }
            }
        }
        profile
    }

    /// All rows together.
    pub fn total(&self) -> ProfileRow {
        let mut total = self.empty;
        self.bins.iter().for_each(|row| total.add(row));
        total
    }

    /// What a bin is called: its bounds.
    pub fn label(&self, bin: usize) -> String {
        label(&self.bounds_bytes, bin)
    }

    /// What the bins with these bounds are called, in order.
    pub fn labels(bounds_bytes: &[u64]) -> Vec<String> {
        (0..=bounds_bytes.len()).map(|bin| label(bounds_bytes, bin)).collect()
    }

    fn count(&mut self, operation: &OperationHistory, bytes: u64, ns: u64) {
        let row = ProfileRow { calls: 1, bytes, ns, bus_bytes: bus_factor(operation) * bytes as f64 };
        if bytes == 0 {
            self.empty.add(&row);
        } else {
            let bin = self.bounds_bytes.partition_point(|&bound| bound < bytes);
            self.bins[bin].add(&row);
        }
    }
}

fn label(bounds_bytes: &[u64], bin: usize) -> String {
    let from = if bin == 0 { "1".to_owned() } else { size_text(bounds_bytes[bin - 1]) };
    match bounds_bytes.get(bin) {
        Some(&bound) => format!("{from} – {}", size_text(bound)),
        None => format!("> {from}"),
    }
}

/// The collectives that a history has.
pub fn collectives(history: &History) -> BTreeSet<Collective> {
    history.operations.iter().map(|operation| operation.collective).collect()
}

/// The groups that have operations, with their number of ranks.
pub fn groups(history: &History) -> BTreeMap<u32, usize> {
    history.operations.iter().map(|operation| (operation.group, operation.passages.len())).collect()
}

/// By how many percent less time `after` takes than `before`; negative where it takes more, `None` where there is
/// nothing to compare.
pub fn improvement_percent(before: &ProfileRow, after: &ProfileRow) -> Option<f64> {
    (before.ns > 0 && after.calls > 0).then(|| 100.0 * (before.ns as f64 - after.ns as f64) / before.ns as f64)
}

/// Bytes as people write them; bounds are mostly powers of two.
pub fn size_text(bytes: u64) -> String {
    let units = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
    for (unit, name) in units {
        if bytes >= unit {
            let count = bytes as f64 / unit as f64;
            return if bytes.is_multiple_of(unit) {
                format!("{count:.0} {name}")
            } else {
                format!("{count:.1} {name}")
            };
        }
    }
    format!("{bytes} B")
}

fn time_ns(operation: &OperationHistory) -> u64 {
    operation.done_ns() - operation.begun_ns().min(operation.done_ns())
}

/// The tensors of an operation with their part of its time.
fn shares(operation: &OperationHistory) -> Vec<(u64, u64)> {
    let (all_bytes, all_ns) = (u128::from(operation.bytes()), u128::from(time_ns(operation)));
    let (mut bytes_before, mut ns_before) = (0u128, 0u128);
    let count = operation.tensor_bytes.len() as u128;
    let share = |(number, &bytes): (usize, &u64)| {
        bytes_before += u128::from(bytes);
        // Where nothing has bytes, tensors count alike. The last one always ends at the whole.
        let ns_until = (all_ns * bytes_before).checked_div(all_bytes).unwrap_or(all_ns * (number as u128 + 1) / count);
        let ns = ns_until - ns_before;
        ns_before = ns_until;
        (bytes, u64::try_from(ns).unwrap_or(u64::MAX))
    };
    operation.tensor_bytes.iter().enumerate().map(share).collect()
}

fn bus_factor(operation: &OperationHistory) -> f64 {
    let n = operation.passages.len() as f64;
    match operation.collective {
        Collective::Allreduce | Collective::Adasum => 2.0 * (n - 1.0) / n,
        Collective::Allgather | Collective::ReduceScatter | Collective::Alltoall => (n - 1.0) / n,
        Collective::Gather | Collective::Scatter => (n - 1.0) / n,
        Collective::Broadcast | Collective::Reduce | Collective::Join | Collective::Internal => 1.0,
        Collective::Barrier => 0.0,
    }
}
