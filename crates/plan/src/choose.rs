//! Which algorithm a collective uses.
//!
//! [`choose`] takes the algorithm with the least time in a [`Table`] that was measured on the machine, unless what the
//! built-in [`AlgorithmLimits`] would take is as good within [`MARGIN`]; without a table it goes by the limits.
//! [`Choices`] is the same for all sizes at once, worked out when a group is made, so that asking costs no more than a
//! look into a list.
//!
//! The choice must be the same on all ranks. It is a function of its arguments alone, uses only arithmetic that is
//! exact to the bit on every machine (no logarithms), and breaks ties by the order of [`Algorithm::ALL`]. The table
//! itself must therefore be the same everywhere: one rank reads it and tells the others. How it gets to them is not
//! decided here.

use std::sync::Arc;

use crate::algorithm::{Algorithm, Tuning};
use crate::cost::Rates;
use crate::table::{Class, DeviceWay, Form, Table, Way};
use crate::topology::Topology;

/// What the ranks have besides messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Means {
    /// The ranks of each host share windows.
    pub windows: bool,
    /// The buffer of this operation lies in memory that all ranks have mapped.
    pub mapped: bool,
}

impl Means {
    /// Whether an algorithm can run with these means on this placement, and to some purpose.
    pub fn allow(self, algorithm: Algorithm, topology: &Topology) -> bool {
        let has_memory = match algorithm {
            Algorithm::Mapped => self.mapped,
            algorithm => self.windows || !algorithm.needs_windows(),
        };
        has_memory && algorithm.fits(topology) && (topology.hosts() > 1 || !algorithm.is_hierarchical())
    }
}

/// Sizes at which the choice changes where nothing has been measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmLimits {
    /// On one host, everybody folds everything as long as a rank reads no more than this from all windows together.
    pub whole_read_max_bytes: u64,
    /// Whole vectors are exchanged up to this size.
    pub doubling_max_bytes: u64,
    /// The same for two ranks, where nothing moves fewer bytes.
    pub pair_max_bytes: u64,
    /// Halves are exchanged up to this size.
    pub halving_max_bytes: u64,
    /// The hierarchical algorithm is used from this size on.
    pub hierarchical_min_bytes: u64,
    /// A ring needs chunks of at least this size to be worth its many steps; below, the tree is used.
    pub ring_chunk_min_bytes: u64,
    /// Whether the user has taken the choice of the hierarchical algorithm away.
    pub hierarchical: Hierarchical,
}

/// When an allreduce between several hosts is hierarchical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hierarchical {
    /// Where it is the fastest.
    #[default]
    Chosen,
    /// At every size, wherever every host has several ranks.
    Always,
    /// Never.
    Never,
}

impl Default for AlgorithmLimits {
    fn default() -> AlgorithmLimits {
        AlgorithmLimits {
            // Where a second hand-over (0.3 to 1 us) takes as long as folding what the others would have folded:
            // measured between 4 and 8 KiB with 2 and 4 ranks, between 1 and 2 KiB with 8 and 16.
            whole_read_max_bytes: 16 << 10,
            // What a network of 10 Gbit/s carries in the latency of a message.
            doubling_max_bytes: 16 << 10,
            // One exchange instead of two, for folding all instead of half; beyond, the folding leaves the caches.
            pair_max_bytes: 1 << 20,
            // Beyond, messages are long enough for a ring of neighbours to beat exchanges across all of the network.
            halving_max_bytes: 512 << 10,
            // Below, three phases cost more than they save.
            hierarchical_min_bytes: 64 << 10,
            // The time of these bytes at 10 Gbit/s is about the latency of a message.
            ring_chunk_min_bytes: 16 << 10,
            hierarchical: Hierarchical::Chosen,
        }
    }
}

/// What a measured time must be below that of the built-in choice to be preferred to it: a table is taken once,
/// machines drift by more than this from day to day, and the built-in choice is the one that most others run.
pub const MARGIN: f64 = 0.05;

/// The algorithm for an allreduce of `bytes` bytes: the fastest by the table if there is one that measured an algorithm
/// which can run, otherwise by the limits.
pub fn choose(
    table: Option<&Table>,
    bytes: u64,
    topology: &Topology,
    means: Means,
    rates: &Rates,
    limits: &AlgorithmLimits,
) -> Algorithm {
    let usual = choose_unmeasured(bytes, Class::of(topology), means, limits);
    let Some(table) = table else { return usual };
    if limits.hierarchical == Hierarchical::Always && usual.is_hierarchical() {
        return usual;
    }
    if means.mapped && !table.points().iter().any(|point| point.way == Way::Allreduce(Algorithm::Mapped)) {
        // Times on memory that must be copied say nothing about memory that need not be.
        return usual;
    }
    let time_us = |algorithm| table.time_us(Way::Allreduce(algorithm), bytes, topology, rates);
    let mut best = (usual, time_us(usual).map(|time_us| time_us * (1.0 - MARGIN)));
    let allowed = |&algorithm: &Algorithm| {
        let forbidden = limits.hierarchical == Hierarchical::Never && algorithm.is_hierarchical();
        means.allow(algorithm, topology) && !forbidden
    };
    for algorithm in Algorithm::ALL.into_iter().filter(allowed) {
        if let Some(time_us) = time_us(algorithm).filter(|&time_us| best.1.is_none_or(|least_us| time_us < least_us)) {
            best = (algorithm, Some(time_us));
        }
    }
    best.0
}

/// The algorithm where nothing has been measured.
pub fn choose_unmeasured(bytes: u64, class: Class, means: Means, limits: &AlgorithmLimits) -> Algorithm {
    let ranks = u64::from(class.ranks);
    if class.hosts == 1 {
        if means.windows && bytes.saturating_mul(ranks) <= limits.whole_read_max_bytes {
            return Algorithm::WindowWhole;
        }
        if means.mapped {
            return Algorithm::Mapped;
        }
        if means.windows {
            return Algorithm::WindowTiles;
        }
    }
    let hierarchical = match limits.hierarchical {
        Hierarchical::Chosen => bytes >= limits.hierarchical_min_bytes,
        Hierarchical::Always => true,
        Hierarchical::Never => false,
    };
    if class.hosts > 1 && class.smallest > 1 && hierarchical {
        return if means.windows { Algorithm::HierarchicalWindow } else { Algorithm::Hierarchical };
    }
    let whole_max_bytes = if ranks == 2 { limits.pair_max_bytes } else { limits.doubling_max_bytes };
    if bytes <= whole_max_bytes {
        Algorithm::Doubling
    } else if bytes <= limits.halving_max_bytes {
        Algorithm::Halving
    } else if bytes / ranks.max(1) < limits.ring_chunk_min_bytes {
        Algorithm::Tree
    } else {
        Algorithm::Ring
    }
}

/// Collectives that have two [`Form`]s by messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formed {
    /// Allgather(v).
    Allgather,
    /// Broadcast.
    Broadcast,
}

impl Formed {
    /// This collective in this form.
    pub const fn way(self, form: Form) -> Way {
        match self {
            Formed::Allgather => Way::Allgather(form),
            Formed::Broadcast => Way::Broadcast(form),
        }
    }
}

/// Every choice of one group, from a table or, without one for its class, from the limits.
///
/// With a table the sizes are cut into *rungs*, four for each doubling, and the choice of a rung is that of its least
/// size: finer than any table is measured, and a look-up takes nanoseconds, of which the smallest operations have few.
#[derive(Clone, Debug)]
pub struct Choices {
    class: Class,
    limits: AlgorithmLimits,
    measured: Option<Measured>,
}

#[derive(Clone, Debug)]
struct Measured {
    table: Arc<Table>,
    hash: u64,
    /// By [`means_index`] and rung.
    algorithms: [Vec<Algorithm>; 3],
    /// By [`Formed`] and rung; `None` where the table does not say.
    forms: [Vec<Option<Form>>; 2],
    /// By rung; `None` where the table does not say.
    on_devices: Vec<Option<DeviceWay>>,
}

impl Choices {
    /// The choices of a group on this placement. A table for another class is not used.
    pub fn new(table: Option<Arc<Table>>, topology: &Topology, limits: AlgorithmLimits) -> Choices {
        let class = Class::of(topology);
        let measured = table.filter(|table| table.class == class).map(|table| Measured::new(table, topology, &limits));
        Choices { class, limits, measured }
    }

    /// The table in use.
    pub fn table(&self) -> Option<&Arc<Table>> {
        self.measured.as_ref().map(|measured| &measured.table)
    }

    /// Stands for the table in use; zero without one. Ranks whose choices differ have different ones.
    pub fn hash(&self) -> u64 {
        self.measured.as_ref().map_or(0, |measured| measured.hash)
    }

    /// The algorithm for an allreduce.
    #[inline]
    pub fn allreduce(&self, bytes: u64, means: Means) -> Algorithm {
        match &self.measured {
            Some(measured) => measured.algorithms[means_index(means)][rung_of(bytes)],
            None => choose_unmeasured(bytes, self.class, means, &self.limits),
        }
    }

    /// Up to this many bytes every allreduce takes this algorithm.
    pub fn largest_of(&self, algorithm: Algorithm, means: Means) -> u64 {
        let differs = |&bytes: &u64| self.allreduce(bytes, means) != algorithm;
        let Some(mut exceeds) = (0..RUNGS).map(least_bytes).find(differs) else { return u64::MAX };
        let Some(rung) = rung_of(exceeds).checked_sub(1) else { return 0 };
        // AlgorithmLimits are exact, and may lie within a rung.
        let mut fits = least_bytes(rung);
        while exceeds - fits > 1 {
            let middle = fits + (exceeds - fits) / 2;
            if self.allreduce(middle, means) == algorithm { fits = middle } else { exceeds = middle }
        }
        fits
    }

    /// The way of an allreduce in device memory that was measured to be faster, if one was.
    pub fn on_devices(&self, bytes: u64) -> Option<DeviceWay> {
        self.measured.as_ref().and_then(|measured| measured.on_devices[rung_of(bytes)])
    }

    /// Sizes for a schedule of this collective by messages: as they are, or changed so that the schedule takes the form
    /// that was faster.
    pub fn tuned(&self, formed: Formed, bytes: u64, tuning: Tuning) -> Tuning {
        let form = self.measured.as_ref().and_then(|measured| measured.forms[formed as usize][rung_of(bytes)]);
        let small_elems = match form {
            None => tuning.small_elems,
            Some(Form::FewSteps) => u64::MAX,
            Some(Form::FewBytes) => 0,
        };
        Tuning { small_elems, ..tuning }
    }
}

impl Measured {
    fn new(table: Arc<Table>, topology: &Topology, limits: &AlgorithmLimits) -> Measured {
        let sizes = || (0..RUNGS).map(least_bytes);
        let algorithms = ALL_MEANS.map(|means| {
            sizes().map(|bytes| choose(Some(&table), bytes, topology, means, &Rates::TYPICAL, limits)).collect()
        });
        let forms = [Formed::Allgather, Formed::Broadcast]
            .map(|formed| sizes().map(|bytes| form(&table, formed, bytes, topology)).collect());
        let on_devices = sizes().map(|bytes| on_devices(&table, bytes, topology)).collect();
        Measured { hash: table.hash(), table, algorithms, forms, on_devices }
    }
}

/// The form that the table prefers, if it has measured both and prefers one by more than the margin.
fn form(table: &Table, formed: Formed, bytes: u64, topology: &Topology) -> Option<Form> {
    faster([Form::FewSteps, Form::FewBytes], |form| table.time_us(formed.way(form), bytes, topology, &Rates::TYPICAL))
}

/// The way in device memory that the table prefers, as [`form`].
fn on_devices(table: &Table, bytes: u64, topology: &Topology) -> Option<DeviceWay> {
    faster([DeviceWay::Own, DeviceWay::Nccl], |way| {
        table.time_us(Way::OnDevices(way), bytes, topology, &Rates::TYPICAL)
    })
}

/// Which of two has the lesser time, by more than the margin.
fn faster<T: Copy>([one, other]: [T; 2], time_us: impl Fn(T) -> Option<f64>) -> Option<T> {
    let (one_us, other_us) = (time_us(one)?, time_us(other)?);
    if one_us < other_us * (1.0 - MARGIN) {
        Some(one)
    } else if other_us < one_us * (1.0 - MARGIN) {
        Some(other)
    } else {
        None
    }
}

/// Mapped buffers come with windows.
const ALL_MEANS: [Means; 3] = [
    Means { windows: false, mapped: false },
    Means { windows: true, mapped: false },
    Means { windows: true, mapped: true },
];

const fn means_index(means: Means) -> usize {
    match means {
        Means { mapped: true, .. } => 2,
        Means { windows: true, .. } => 1,
        Means { .. } => 0,
    }
}

/// One for each size below four, then four for each doubling up to 2^64.
const RUNGS: usize = 4 * 63;

/// The rung on which a size stands.
const fn rung_of(bytes: u64) -> usize {
    if bytes < 4 {
        return bytes as usize;
    }
    let octave = bytes.ilog2();
    4 * octave as usize + (bytes >> (octave - 2)) as usize - 8
}

/// The least size of a rung.
const fn least_bytes(rung: usize) -> u64 {
    if rung < 4 {
        return rung as u64;
    }
    (4 + rung as u64 % 4) << (rung / 4 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Measurement;

    const NOTHING: Means = Means { windows: false, mapped: false };
    const WINDOWS: Means = Means { windows: true, mapped: false };

    fn table(topology: &Topology, points: &[(Algorithm, u64, f64)]) -> Table {
        let mut table = Table::new(Class::of(topology));
        for &(algorithm, bytes, time_us) in points {
            table.insert(Measurement { way: Way::Allreduce(algorithm), bytes, time_us });
        }
        table
    }

    #[test]
    fn without_measurements_size_and_placement_decide() {
        let unmeasured = |bytes, topology: &Topology, means| {
            choose_unmeasured(bytes, Class::of(topology), means, &AlgorithmLimits::default())
        };
        let one_host = Topology::one_host(4);
        assert_eq!(unmeasured(4, &one_host, WINDOWS), Algorithm::WindowWhole);
        assert_eq!(unmeasured(1 << 20, &one_host, WINDOWS), Algorithm::WindowTiles);
        assert_eq!(unmeasured(1 << 20, &one_host, Means { mapped: true, ..WINDOWS }), Algorithm::Mapped);
        assert_eq!(unmeasured(4, &one_host, NOTHING), Algorithm::Doubling);
        let pairs = Topology::from_host_names(&["a", "a", "b", "b"]);
        assert_eq!(unmeasured(4, &pairs, WINDOWS), Algorithm::Doubling);
        assert_eq!(unmeasured(1 << 24, &pairs, WINDOWS), Algorithm::HierarchicalWindow);
        assert_eq!(unmeasured(1 << 24, &pairs, NOTHING), Algorithm::Hierarchical);
        assert_eq!(unmeasured(100 << 10, &Topology::all_apart(4), NOTHING), Algorithm::Halving);
        assert_eq!(unmeasured(1 << 20, &Topology::all_apart(2), NOTHING), Algorithm::Doubling);
        assert_eq!(unmeasured(1 << 21, &Topology::all_apart(2), NOTHING), Algorithm::Ring);
        assert_eq!(unmeasured(1 << 24, &Topology::all_apart(4), NOTHING), Algorithm::Ring);
        assert_eq!(unmeasured(1 << 20, &Topology::all_apart(1000), NOTHING), Algorithm::Tree);
    }

    #[test]
    fn the_fastest_measured_algorithm_wins_and_lines_cross_between_points() {
        let topology = Topology::all_apart(4);
        let points = [
            (Algorithm::Ring, 1000, 100.0),
            (Algorithm::Ring, 2000, 110.0),
            (Algorithm::Doubling, 1000, 50.0),
            (Algorithm::Doubling, 2000, 150.0),
        ];
        let table = table(&topology, &points);
        let chosen =
            |bytes| choose(Some(&table), bytes, &topology, NOTHING, &Rates::TYPICAL, &AlgorithmLimits::default());
        assert_eq!(chosen(1000), Algorithm::Doubling);
        assert_eq!(chosen(1500), Algorithm::Doubling);
        assert_eq!(chosen(1700), Algorithm::Ring);
        assert_eq!(chosen(2000), Algorithm::Ring);
    }

    #[test]
    fn beyond_the_measured_sizes_the_model_takes_over() {
        let topology = Topology::all_apart(16);
        let table = table(&topology, &[(Algorithm::Ring, 1 << 20, 900.0), (Algorithm::Doubling, 1 << 20, 790.0)]);
        let chosen =
            |bytes| choose(Some(&table), bytes, &topology, NOTHING, &Rates::TYPICAL, &AlgorithmLimits::default());
        assert_eq!(chosen(1 << 20), Algorithm::Doubling);
        assert_eq!(chosen(1 << 28), Algorithm::Ring);
        assert_eq!(chosen(64), Algorithm::Doubling);
    }

    #[test]
    fn what_cannot_run_is_not_chosen_however_fast_it_was() {
        let topology = Topology::one_host(4);
        let table = table(&topology, &[(Algorithm::WindowTiles, 1000, 1.0), (Algorithm::Ring, 1000, 50.0)]);
        let chosen = |means| choose(Some(&table), 1000, &topology, means, &Rates::TYPICAL, &AlgorithmLimits::default());
        assert_eq!(chosen(WINDOWS), Algorithm::WindowTiles);
        assert_eq!(chosen(NOTHING), Algorithm::Ring);
    }

    #[test]
    fn in_device_memory_the_way_that_was_clearly_faster_is_taken() {
        let topology = Topology::one_host(2);
        let mut table = Table::new(Class::of(&topology));
        let (own, nccl) = (Way::OnDevices(DeviceWay::Own), Way::OnDevices(DeviceWay::Nccl));
        for (way, bytes, time_us) in
            [(own, 1 << 10, 20.0), (nccl, 1 << 10, 30.0), (own, 1 << 20, 100.0), (nccl, 1 << 20, 99.0)]
        {
            table.insert(Measurement { way, bytes, time_us });
        }
        let chosen = |table: &Table, bytes| {
            Choices::new(Some(table.clone().into()), &topology, AlgorithmLimits::default()).on_devices(bytes)
        };
        assert_eq!((chosen(&table, 1 << 10), chosen(&table, 1 << 20)), (Some(DeviceWay::Own), None));
        table.insert(Measurement { way: nccl, bytes: 1 << 20, time_us: 80.0 });
        assert_eq!(chosen(&table, 1 << 28), Some(DeviceWay::Nccl));
        let mut other = Table::new(Class::of(&topology));
        other.insert(Measurement { way: own, bytes: 1 << 10, time_us: 1.0 });
        assert_eq!(chosen(&other, 1 << 10), None, "one way alone is no choice");
        other.complete_with(&table);
        assert_eq!(other.points().len(), 3, "what it says itself stays");
    }

    #[test]
    fn a_table_without_the_mapped_algorithm_says_nothing_about_mapped_buffers() {
        let topology = Topology::one_host(2);
        let table = table(&topology, &[(Algorithm::WindowTiles, 1 << 20, 1.0)]);
        let mapped = Means { mapped: true, ..WINDOWS };
        let chosen = choose(Some(&table), 1 << 20, &topology, mapped, &Rates::TYPICAL, &AlgorithmLimits::default());
        assert_eq!(chosen, Algorithm::Mapped);
    }

    #[test]
    fn the_built_in_choice_stays_unless_another_is_clearly_faster() {
        let topology = Topology::all_apart(4);
        let chosen = |ring_us| {
            let table = table(&topology, &[(Algorithm::Doubling, 64, 100.0), (Algorithm::Ring, 64, ring_us)]);
            choose(Some(&table), 64, &topology, NOTHING, &Rates::TYPICAL, &AlgorithmLimits::default())
        };
        assert_eq!(chosen(100.0 * (1.0 - MARGIN) + 0.1), Algorithm::Doubling);
        assert_eq!(chosen(100.0 * (1.0 - MARGIN) - 0.1), Algorithm::Ring);
    }

    #[test]
    fn hierarchy_can_be_forced_and_forbidden_with_and_without_a_table() {
        let topology = Topology::from_host_names(&["a", "a", "b", "b"]);
        let measured = table(&topology, &[(Algorithm::Hierarchical, 64, 1.0), (Algorithm::Ring, 64, 9.0)]);
        let ring = table(&topology, &[(Algorithm::Hierarchical, 64, 9.0), (Algorithm::Ring, 64, 1.0)]);
        let chosen = |table, bytes, hierarchical| {
            let limits = AlgorithmLimits { hierarchical, ..AlgorithmLimits::default() };
            choose(table, bytes, &topology, NOTHING, &Rates::TYPICAL, &limits).is_hierarchical()
        };
        for table in [None, Some(&measured), Some(&ring)] {
            for bytes in [4, 64, 1 << 20] {
                assert!(chosen(table, bytes, Hierarchical::Always));
                assert!(!chosen(table, bytes, Hierarchical::Never));
            }
        }
        assert!(!chosen(None, 4, Hierarchical::Chosen) && chosen(None, 1 << 20, Hierarchical::Chosen));
        assert!(chosen(Some(&measured), 64, Hierarchical::Chosen) && !chosen(Some(&ring), 64, Hierarchical::Chosen));
        // Nothing to be hierarchical about.
        let limits = AlgorithmLimits { hierarchical: Hierarchical::Always, ..AlgorithmLimits::default() };
        assert!(!choose_unmeasured(64, Class::of(&Topology::all_apart(4)), NOTHING, &limits).is_hierarchical());
    }

    #[test]
    fn rungs_follow_each_other_without_gaps() {
        assert_eq!(rung_of(u64::MAX), RUNGS - 1);
        for rung in 1..RUNGS {
            assert_eq!(rung_of(least_bytes(rung)), rung);
            assert_eq!(rung_of(least_bytes(rung) - 1), rung - 1);
        }
    }

    #[test]
    fn choices_are_those_of_the_table_at_every_rung_and_of_the_limits_without_one() {
        let topology = Topology::one_host(2);
        let points = [
            (Algorithm::WindowWhole, 4, 1.0),
            (Algorithm::WindowWhole, 1 << 20, 500.0),
            (Algorithm::WindowTiles, 4, 2.0),
            (Algorithm::WindowTiles, 1 << 20, 100.0),
        ];
        let table = Arc::new(table(&topology, &points));
        let limits = AlgorithmLimits::default();
        let choices = Choices::new(Some(Arc::clone(&table)), &topology, limits);
        for bytes in (0..RUNGS).map(least_bytes) {
            for means in ALL_MEANS {
                let chosen = choose(Some(&table), bytes, &topology, means, &Rates::TYPICAL, &limits);
                assert_eq!(choices.allreduce(bytes, means), chosen);
            }
        }
        let unmeasured = Choices::new(None, &topology, limits);
        for bytes in [0, 4, 16 << 10, (16 << 10) + 1, 1 << 20] {
            let chosen = choose_unmeasured(bytes, Class::of(&topology), WINDOWS, &limits);
            assert_eq!(unmeasured.allreduce(bytes, WINDOWS), chosen);
        }
        assert_eq!((choices.hash(), unmeasured.hash()), (table.hash(), 0));
    }

    #[test]
    fn a_table_for_another_placement_is_not_used() {
        let table = Arc::new(table(&Topology::one_host(2), &[(Algorithm::Ring, 4, 1.0)]));
        let topology = Topology::all_apart(2);
        assert!(Choices::new(Some(table), &topology, AlgorithmLimits::default()).table().is_none());
    }

    #[test]
    fn the_largest_size_of_an_algorithm_is_exact() {
        let topology = Topology::one_host(2);
        let limits = AlgorithmLimits { whole_read_max_bytes: 2 * 10_007, ..AlgorithmLimits::default() };
        let choices = Choices::new(None, &topology, limits);
        assert_eq!(choices.largest_of(Algorithm::WindowWhole, WINDOWS), 10_007);
        assert_eq!(choices.largest_of(Algorithm::WindowTiles, WINDOWS), 0);
        let always = table(&topology, &[(Algorithm::WindowWhole, 4, 1.0)]);
        let choices = Choices::new(Some(Arc::new(always)), &topology, limits);
        assert_eq!(choices.largest_of(Algorithm::WindowWhole, WINDOWS), u64::MAX);
    }

    #[test]
    fn the_faster_form_is_taken_where_both_were_measured() {
        let topology = Topology::all_apart(4);
        let mut table = Table::new(Class::of(&topology));
        for (form, bytes, time_us) in [
            (Form::FewSteps, 1024, 10.0),
            (Form::FewBytes, 1024, 20.0),
            (Form::FewSteps, 1 << 20, 900.0),
            (Form::FewBytes, 1 << 20, 500.0),
        ] {
            table.insert(Measurement { way: Way::Allgather(form), bytes, time_us });
        }
        let choices = Choices::new(Some(Arc::new(table)), &topology, AlgorithmLimits::default());
        let tuning = Tuning { segment_elems: 1, tile_elems: 1, slots: 1, small_elems: 7 };
        let small_elems = |formed, bytes| choices.tuned(formed, bytes, tuning).small_elems;
        assert_eq!(small_elems(Formed::Allgather, 4), u64::MAX);
        assert_eq!(small_elems(Formed::Allgather, 1 << 24), 0);
        assert_eq!(small_elems(Formed::Broadcast, 4), 7, "nothing was measured");
    }
}
