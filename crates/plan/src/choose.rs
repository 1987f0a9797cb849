//! Which algorithm an allreduce uses.
//!
//! A [`Table`] holds what was measured on the machine: for an algorithm and a size, a time. [`choose`] takes the algorithm with
//! the least time: between measured sizes by a straight line, beyond them by the shape of the cost model, scaled so that it
//! goes through the nearest measured point. Without a table it goes by [`Limits`].
//!
//! The choice must be the same on all ranks. It is a function of its arguments alone, uses only arithmetic that is
//! exact to the bit on every machine (no logarithms), and breaks ties by the order of [`Algorithm::ALL`]. The table itself
//! must therefore be the same everywhere: one rank measures or reads it and tells the others. How it gets into a file is not
//! decided here, only what the text looks like.

use std::fmt;

use crate::algorithm::Algorithm;
use crate::cost::{Rates, predict_us};
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
    /// Whether an algorithm can run with these means on this placement.
    pub fn allow(self, algorithm: Algorithm, topology: &Topology) -> bool {
        let has_memory = match algorithm {
            Algorithm::Mapped => self.mapped,
            algorithm => self.windows || !algorithm.needs_windows(),
        };
        has_memory && algorithm.fits(topology)
    }
}

/// Placements for which one table serves: the same number of ranks and hosts, and hosts of the same sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// Ranks of the group.
    pub ranks: u32,
    /// Hosts they run on.
    pub hosts: u32,
    /// Ranks on the smallest host.
    pub smallest: u32,
    /// Ranks on the largest host.
    pub largest: u32,
}

impl Class {
    /// The class of a placement.
    pub fn of(topology: &Topology) -> Class {
        let locals = || (0..topology.hosts()).map(|host| topology.ranks_on(host).len() as u32);
        Class {
            ranks: topology.size() as u32,
            hosts: topology.hosts() as u32,
            smallest: locals().min().unwrap_or(0),
            largest: locals().max().unwrap_or(0),
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// What was measured.
    pub algorithm: Algorithm,
    /// Size of the tensor.
    pub bytes: u64,
    /// Time of one allreduce, the slowest rank's.
    pub time_us: f64,
}

/// Measurements for one class of placements.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Where it holds.
    pub class: Class,
    /// In the order of algorithm and size, one for each pair.
    points: Vec<Point>,
}

impl Table {
    /// A table without measurements.
    pub fn new(class: Class) -> Table {
        Table { class, points: Vec::new() }
    }

    /// Adds a measurement; a later one of the same algorithm and size replaces an earlier one.
    ///
    /// # Panics
    /// If the time is not a positive number.
    pub fn insert(&mut self, point: Point) {
        assert!(point.time_us.is_finite() && point.time_us > 0.0, "a measured time is a positive number");
        let key = |point: &Point| (point.algorithm, point.bytes);
        match self.points.binary_search_by_key(&key(&point), key) {
            Ok(index) => self.points[index] = point,
            Err(index) => self.points.insert(index, point),
        }
    }

    /// All measurements.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Time to expect of an algorithm at a size; `None` if it was never measured.
    pub fn time_us(&self, algorithm: Algorithm, bytes: u64, topology: &Topology, rates: &Rates) -> Option<f64> {
        let from = self.points.partition_point(|point| point.algorithm < algorithm);
        let to = self.points.partition_point(|point| point.algorithm <= algorithm);
        let measured = &self.points[from..to];
        let above = measured.partition_point(|point| point.bytes < bytes);
        match (above.checked_sub(1).map(|below| measured[below]), measured.get(above)) {
            (None, None) => None,
            (Some(low), Some(high)) => {
                let part = (bytes - low.bytes) as f64 / (high.bytes - low.bytes) as f64;
                Some(low.time_us + part * (high.time_us - low.time_us))
            }
            (Some(nearest), None) => Some(extrapolated(nearest, bytes, topology, rates)),
            (None, Some(nearest)) => Some(extrapolated(*nearest, bytes, topology, rates)),
        }
    }

    /// The table as text, to be read by [`Table::parse_all`].
    pub fn to_text(&self) -> String {
        use fmt::Write;
        let Class { ranks, hosts, smallest, largest } = self.class;
        let mut text = format!("class ranks {ranks} hosts {hosts} local {smallest} {largest}\n");
        for Point { algorithm, bytes, time_us } in &self.points {
            writeln!(text, "point {algorithm} {bytes} {time_us}").expect("writing to a string cannot fail");
        }
        text
    }

    /// Reads tables: for each, a line with its class and a line for each measurement. Empty lines and lines that start with `#` are
    /// skipped.
    pub fn parse_all(text: &str) -> Result<Vec<Table>, TableError> {
        let mut tables: Vec<Table> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let error = |problem: &str| TableError { line: index + 1, problem: problem.to_owned() };
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                ["class", "ranks", ranks, "hosts", hosts, "local", smallest, largest] => {
                    let number =
                        |word: &str| word.parse::<u32>().map_err(|_| error("a class consists of whole numbers"));
                    tables.push(Table::new(Class {
                        ranks: number(ranks)?,
                        hosts: number(hosts)?,
                        smallest: number(smallest)?,
                        largest: number(largest)?,
                    }));
                }
                ["point", algorithm, bytes, time_us] => {
                    let algorithm = algorithm.parse::<Algorithm>().map_err(|unknown| error(&unknown.to_string()))?;
                    let bytes = bytes.parse::<u64>().map_err(|_| error("a size is a whole number of bytes"))?;
                    let time_us = time_us.parse::<f64>().ok().filter(|time| time.is_finite() && *time > 0.0);
                    let time_us = time_us.ok_or_else(|| error("a time is a positive number of microseconds"))?;
                    let table = tables.last_mut().ok_or_else(|| error("a point needs a class before it"))?;
                    table.insert(Point { algorithm, bytes, time_us });
                }
                _ => {
                    return Err(error(
                        "a line is either \"class ranks R hosts H local S L\" or \"point ALGORITHM BYTES US\"",
                    ));
                }
            }
        }
        Ok(tables)
    }
}

/// A measured time, moved to another size along the model.
fn extrapolated(nearest: Point, bytes: u64, topology: &Topology, rates: &Rates) -> f64 {
    let there = predict_us(nearest.algorithm, nearest.bytes, topology, rates);
    let here = predict_us(nearest.algorithm, bytes, topology, rates);
    if there > 0.0 { nearest.time_us * here / there } else { nearest.time_us }
}

/// Why a text is not a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError {
    /// Number of the line, from one.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the table: {}", self.line, self.problem)
    }
}

impl std::error::Error for TableError {}

/// Sizes at which the choice changes where nothing has been measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// On one host, everybody folds everything as long as a rank reads no more than this from all windows together.
    pub whole_read_max_bytes: u64,
    /// Whole vectors are exchanged up to this size.
    pub doubling_max_bytes: u64,
    /// Halves are exchanged up to this size.
    pub halving_max_bytes: u64,
    /// The hierarchical algorithm is used from this size on.
    pub hierarchical_min_bytes: u64,
    /// A ring needs chunks of at least this size to be worth its many steps; below, the tree is used.
    pub ring_chunk_min_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // Two ranks: 16 KiB, where two hand-overs (a microsecond) take as long as folding the second half.
            whole_read_max_bytes: 32 << 10,
            // What a network of 10 Gbit/s carries in the latency of a message.
            doubling_max_bytes: 16 << 10,
            // Beyond, messages are long enough for a ring of neighbours to beat exchanges across all of the network.
            halving_max_bytes: 512 << 10,
            // Below, three phases cost more than they save.
            hierarchical_min_bytes: 64 << 10,
            // The time of these bytes at 10 Gbit/s is about the latency of a message.
            ring_chunk_min_bytes: 16 << 10,
        }
    }
}

/// The algorithm for an allreduce of `bytes` bytes: the fastest by the table if there is one that measured an algorithm which
/// can run, otherwise by the limits.
pub fn choose(
    table: Option<&Table>,
    bytes: u64,
    topology: &Topology,
    means: Means,
    rates: &Rates,
    limits: &Limits,
) -> Algorithm {
    let mut best: Option<(Algorithm, f64)> = None;
    for algorithm in Algorithm::ALL.into_iter().filter(|&algorithm| means.allow(algorithm, topology)) {
        let time_us = table.and_then(|table| table.time_us(algorithm, bytes, topology, rates));
        if let Some(time_us) = time_us.filter(|&time_us| best.is_none_or(|(_, least_us)| time_us < least_us)) {
            best = Some((algorithm, time_us));
        }
    }
    best.map_or_else(|| choose_unmeasured(bytes, topology, means, limits), |(algorithm, _)| algorithm)
}

/// The algorithm where nothing has been measured.
pub fn choose_unmeasured(bytes: u64, topology: &Topology, means: Means, limits: &Limits) -> Algorithm {
    let class = Class::of(topology);
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
    if class.hosts > 1 && class.smallest > 1 && bytes >= limits.hierarchical_min_bytes {
        return if means.windows { Algorithm::HierarchicalWindow } else { Algorithm::Hierarchical };
    }
    if bytes <= limits.doubling_max_bytes {
        Algorithm::Doubling
    } else if bytes <= limits.halving_max_bytes {
        Algorithm::Halving
    } else if bytes / ranks.max(1) < limits.ring_chunk_min_bytes {
        Algorithm::Tree
    } else {
        Algorithm::Ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Means = Means { windows: false, mapped: false };
    const WINDOWS: Means = Means { windows: true, mapped: false };

    fn table(topology: &Topology, points: &[(Algorithm, u64, f64)]) -> Table {
        let mut table = Table::new(Class::of(topology));
        for &(algorithm, bytes, time_us) in points {
            table.insert(Point { algorithm, bytes, time_us });
        }
        table
    }

    #[test]
    fn without_measurements_size_and_placement_decide() {
        let unmeasured =
            |bytes, topology: &Topology, means| choose_unmeasured(bytes, topology, means, &Limits::default());
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
        let chosen = |bytes| choose(Some(&table), bytes, &topology, NOTHING, &Rates::TYPICAL, &Limits::default());
        assert_eq!(chosen(1000), Algorithm::Doubling);
        assert_eq!(chosen(1500), Algorithm::Doubling);
        assert_eq!(chosen(1600), Algorithm::Ring);
        assert_eq!(chosen(2000), Algorithm::Ring);
    }

    #[test]
    fn beyond_the_measured_sizes_the_model_takes_over() {
        let topology = Topology::all_apart(16);
        let table = table(&topology, &[(Algorithm::Ring, 1 << 20, 900.0), (Algorithm::Doubling, 1 << 20, 890.0)]);
        let chosen = |bytes| choose(Some(&table), bytes, &topology, NOTHING, &Rates::TYPICAL, &Limits::default());
        assert_eq!(chosen(1 << 20), Algorithm::Doubling);
        assert_eq!(chosen(1 << 28), Algorithm::Ring);
        assert_eq!(chosen(64), Algorithm::Doubling);
    }

    #[test]
    fn what_cannot_run_is_not_chosen_however_fast_it_was() {
        let topology = Topology::one_host(4);
        let table = table(&topology, &[(Algorithm::WindowTiles, 1000, 1.0), (Algorithm::Ring, 1000, 50.0)]);
        let chosen = |means| choose(Some(&table), 1000, &topology, means, &Rates::TYPICAL, &Limits::default());
        assert_eq!(chosen(WINDOWS), Algorithm::WindowTiles);
        assert_eq!(chosen(NOTHING), Algorithm::Ring);
    }

    #[test]
    fn tables_survive_being_written_and_read() {
        let topology = Topology::from_host_names(&["a", "a", "b"]);
        let first = table(&topology, &[(Algorithm::Ring, 4, 1.0 / 3.0), (Algorithm::HierarchicalWindow, 1 << 40, 1e9)]);
        let second = table(&Topology::one_host(2), &[(Algorithm::WindowWhole, 4, 0.8)]);
        let text = format!("# measured\n\n{}{}", first.to_text(), second.to_text());
        assert_eq!(Table::parse_all(&text), Ok(vec![first, second]));
    }

    #[test]
    fn a_bad_line_is_named() {
        let problem = |text: &str| Table::parse_all(text).unwrap_err().to_string();
        assert_eq!(problem("point ring 4 1.0"), "line 1 of the table: a point needs a class before it");
        let class = "class ranks 2 hosts 1 local 2 2\n";
        assert!(problem(&format!("{class}point rings 4 1.0")).contains("line 2 of the table: there is no algorithm"));
        assert!(problem(&format!("{class}point ring -4 1.0")).contains("whole number of bytes"));
        assert!(problem(&format!("{class}point ring 4 NaN")).contains("positive number"));
        assert!(problem(&format!("{class}\nnonsense")).starts_with("line 3"));
        assert!(problem("class ranks two hosts 1 local 2 2").contains("whole numbers"));
    }
}
