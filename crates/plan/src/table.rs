//! What was measured on a machine: for a way to carry out a collective and a size, a time.
//!
//! A [`Table`] belongs to one [`Class`] of placements and holds points; between measured sizes it answers along a
//! straight line, beyond them along the shape of the cost model, scaled so that it goes through the nearest measured
//! point. [`TableFile`] is the table as it is kept: with a version, the machine it was taken on and a checksum, so that
//! a file which is damaged, from another version or from another machine is recognised and never believed.
//!
//! Only the text is decided here. Where files lie, who reads them and how all ranks come to hold the same table is
//! not; neither is what follows from a table (`choose`).

use std::fmt;
use std::str::FromStr;

use crate::algorithm::{Algorithm, UnknownAlgorithm};
use crate::cost::{Rates, predict_us};
use crate::fuse::hash_bytes;
use crate::topology::Topology;

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

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Class { ranks, hosts, smallest, largest } = *self;
        let plural = |count: u32| if count == 1 { "" } else { "s" };
        write!(f, "{ranks} rank{} on {hosts} host{}", plural(ranks), plural(hosts))?;
        match hosts {
            0 | 1 => Ok(()),
            _ if smallest == largest => write!(f, ", {smallest} on each"),
            _ => write!(f, ", {smallest} to {largest} on each"),
        }
    }
}

/// The two forms that an allgather and a broadcast have by messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// As few messages one after the other as possible.
    FewSteps,
    /// As few bytes for the busiest rank as possible.
    FewBytes,
}

/// The two ways to carry out an allreduce of tensors in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceWay {
    /// By our own kernels, on memory that the ranks map; between hosts in shards.
    Own,
    /// By NCCL.
    Nccl,
}

/// A way to carry out a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// An allreduce by this algorithm.
    Allreduce(Algorithm),
    /// An allgather by messages in this form.
    Allgather(Form),
    /// A broadcast by messages in this form.
    Broadcast(Form),
    /// An allreduce in device memory.
    OnDevices(DeviceWay),
}

impl Way {
    /// The word used in tables.
    pub const fn word(self) -> &'static str {
        match self {
            Way::Allreduce(algorithm) => algorithm.word(),
            Way::Allgather(Form::FewSteps) => "allgather-few-steps",
            Way::Allgather(Form::FewBytes) => "allgather-few-bytes",
            Way::Broadcast(Form::FewSteps) => "broadcast-few-steps",
            Way::Broadcast(Form::FewBytes) => "broadcast-few-bytes",
            Way::OnDevices(DeviceWay::Own) => "devices-own",
            Way::OnDevices(DeviceWay::Nccl) => "devices-nccl",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Way {
    type Err = UnknownAlgorithm;

    fn from_str(word: &str) -> Result<Way, UnknownAlgorithm> {
        let formed =
            [Form::FewSteps, Form::FewBytes].into_iter().flat_map(|form| [Way::Allgather(form), Way::Broadcast(form)]);
        let on_devices = [DeviceWay::Own, DeviceWay::Nccl].map(Way::OnDevices);
        match formed.into_iter().chain(on_devices).find(|way| way.word() == word) {
            Some(way) => Ok(way),
            None => word.parse().map(Way::Allreduce),
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// What was measured.
    pub way: Way,
    /// Size of the tensor; of an allgather, of all parts together.
    pub bytes: u64,
    /// Time of one operation, the slowest rank's.
    pub time_us: f64,
}

/// Measurements for one class of placements.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Where it holds.
    pub class: Class,
    /// In the order of way and size, one for each pair.
    points: Vec<Measurement>,
}

impl Table {
    /// A table without measurements.
    pub fn new(class: Class) -> Table {
        Table { class, points: Vec::new() }
    }

    /// Adds a measurement; a later one of the same way and size replaces an earlier one.
    ///
    /// # Panics
    /// If the time is not a positive number.
    pub fn insert(&mut self, point: Measurement) {
        assert!(point.time_us.is_finite() && point.time_us > 0.0, "a measured time is a positive number");
        let key = |point: &Measurement| (point.way, point.bytes);
        match self.points.binary_search_by_key(&key(&point), key) {
            Ok(index) => self.points[index] = point,
            Err(index) => self.points.insert(index, point),
        }
    }

    /// Adds what another table of the same class says of ways that this one says nothing of.
    ///
    /// # Panics
    /// If it is of another class.
    pub fn complete_with(&mut self, other: &Table) {
        assert_eq!(self.class, other.class, "tables of one class");
        let is_known = |way: Way| self.points.iter().any(|point| point.way == way);
        let added: Vec<Measurement> = other.points.iter().filter(|point| !is_known(point.way)).copied().collect();
        added.into_iter().for_each(|point| self.insert(point));
    }

    /// All measurements.
    pub fn points(&self) -> &[Measurement] {
        &self.points
    }

    /// Stands for all that the table says; equal on every machine.
    pub fn hash(&self) -> u64 {
        hash_bytes(self.to_text().as_bytes())
    }

    /// Time to expect of a way at a size; `None` if it was never measured.
    pub fn time_us(&self, way: Way, bytes: u64, topology: &Topology, rates: &Rates) -> Option<f64> {
        let from = self.points.partition_point(|point| point.way < way);
        let to = self.points.partition_point(|point| point.way <= way);
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

    /// The table as text, to be read by [`Table::parse`].
    pub fn to_text(&self) -> String {
        use fmt::Write;
        let Class { ranks, hosts, smallest, largest } = self.class;
        let mut text = format!("class ranks {ranks} hosts {hosts} local {smallest} {largest}\n");
        for Measurement { way, bytes, time_us } in &self.points {
            writeln!(text, "point {way} {bytes} {time_us}").expect("writing to a string cannot fail");
        }
        text
    }

    /// Reads a table: a line with its class, then a line for each measurement. Empty lines and lines that start with
    /// `#` are skipped.
    pub fn parse(text: &str) -> Result<Table, TableError> {
        let mut table: Option<Table> = None;
        for (index, line) in text.lines().enumerate() {
            let error = |problem: &str| TableError { line: index + 1, problem: problem.to_owned() };
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                ["class", "ranks", ranks, "hosts", hosts, "local", smallest, largest] if table.is_none() => {
                    let number =
                        |word: &str| word.parse::<u32>().map_err(|_| error("a class consists of whole numbers"));
                    table = Some(Table::new(Class {
                        ranks: number(ranks)?,
                        hosts: number(hosts)?,
                        smallest: number(smallest)?,
                        largest: number(largest)?,
                    }));
                }
                ["point", way, bytes, time_us] => {
                    let way = way.parse::<Way>().map_err(|unknown| error(&unknown.to_string()))?;
                    let bytes = bytes.parse::<u64>().map_err(|_| error("a size is a whole number of bytes"))?;
                    let time_us = time_us.parse::<f64>().ok().filter(|time| time.is_finite() && *time > 0.0);
                    let time_us = time_us.ok_or_else(|| error("a time is a positive number of microseconds"))?;
                    let table = table.as_mut().ok_or_else(|| error("a point needs a class before it"))?;
                    table.insert(Measurement { way, bytes, time_us });
                }
                _ => {
                    return Err(error(
                        "a line is either \"class ranks R hosts H local S L\", once, or \"point WAY BYTES US\"",
                    ));
                }
            }
        }
        table.ok_or(TableError { line: 1, problem: "there is no class".to_owned() })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {:08x} (measured with {}, {} points)", self.hash() >> 32, self.class, self.points.len())
    }
}

/// A measured time, moved to another size along the model. The model knows allreduce alone; for the others latency
/// rules below what was measured, bytes above.
fn extrapolated(nearest: Measurement, bytes: u64, topology: &Topology, rates: &Rates) -> f64 {
    let Way::Allreduce(algorithm) = nearest.way else {
        return nearest.time_us * (bytes as f64 / nearest.bytes.max(1) as f64).max(1.0);
    };
    let there = predict_us(algorithm, nearest.bytes, topology, rates);
    let here = predict_us(algorithm, bytes, topology, rates);
    if there > 0.0 { nearest.time_us * here / there } else { nearest.time_us }
}

/// A table as it is kept in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct TableFile {
    /// The machine on which it was taken, in words without a line break.
    pub machine: String,
    /// What was measured.
    pub table: Table,
}

/// First words of a file; the number after them is the version of the format.
const MAGIC: &str = "farandole table";
/// What this program writes, and the only version that it reads.
const VERSION: &str = "1";

impl TableFile {
    /// The file's text: the version, the machine, the table, and a hash of everything before it.
    pub fn to_text(&self) -> String {
        let machine: Vec<&str> = self.machine.split_whitespace().collect();
        let body = format!("{MAGIC} {VERSION}\nmachine {}\n{}", machine.join(" "), self.table.to_text());
        format!("{body}end {:016x}\n", hash_bytes(body.as_bytes()))
    }

    /// Reads a file's text. Anything that was not written by [`TableFile::to_text`] of this version is refused, and the
    /// reason is for a person to read.
    pub fn parse(text: &str) -> Result<TableFile, String> {
        let first = text.lines().next().unwrap_or_default();
        match first.strip_prefix(MAGIC).map(str::trim) {
            None => return Err("it is not a table of farandole".to_owned()),
            Some(VERSION) => {}
            Some(other) => return Err(format!("its format is {other}, and this farandole reads format {VERSION}")),
        }
        let damaged = || "it is damaged or cut off: its checksum is not that of its content".to_owned();
        let (body, end) = text.trim_end().rsplit_once('\n').ok_or_else(damaged)?;
        let body = &text[..body.len() + 1];
        let sum = end.strip_prefix("end ").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if sum != Some(hash_bytes(body.as_bytes())) {
            return Err(damaged());
        }
        let mut lines = body.splitn(3, '\n').skip(1);
        let machine = lines.next().and_then(|line| line.strip_prefix("machine ")).ok_or("it names no machine")?;
        let table = Table::parse(lines.next().unwrap_or_default()).map_err(|problem| problem.to_string())?;
        Ok(TableFile { machine: machine.to_owned(), table })
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table() -> Table {
        let mut table = Table::new(Class::of(&Topology::from_host_names(&["a", "a", "b"])));
        let ways = [Way::Allreduce(Algorithm::Ring), Way::Broadcast(Form::FewBytes), Way::Allgather(Form::FewSteps)];
        for (index, way) in ways.into_iter().enumerate() {
            table.insert(Measurement { way, bytes: 4 << (10 * index), time_us: (index + 1) as f64 / 3.0 });
        }
        table
    }

    fn record() -> TableFile {
        TableFile { machine: "Some CPU @ 2.80GHz, 2 cores".to_owned(), table: table() }
    }

    #[test]
    fn tables_survive_being_written_and_read() {
        assert_eq!(Table::parse(&format!("# measured\n\n{}", table().to_text())), Ok(table()));
        assert_eq!(TableFile::parse(&record().to_text()), Ok(record()));
    }

    #[test]
    fn a_machine_with_line_breaks_in_its_name_cannot_forge_lines() {
        let odd = TableFile { machine: "odd\nclass ranks 9 hosts 9 local 1 1\t name".to_owned(), ..record() };
        let read = TableFile::parse(&odd.to_text()).unwrap();
        assert_eq!((read.machine.as_str(), read.table), ("odd class ranks 9 hosts 9 local 1 1 name", table()));
    }

    #[test]
    fn another_version_or_another_file_is_named() {
        let problem = |text: &str| TableFile::parse(text).unwrap_err();
        assert!(problem("").contains("not a table"));
        assert!(problem("class ranks 2 hosts 1 local 2 2\n").contains("not a table"));
        assert!(problem(&record().to_text().replacen(" 1\n", " 2\n", 1)).contains("format is 2"));
    }

    #[test]
    fn a_bad_line_is_named() {
        let problem = |text: &str| Table::parse(text).unwrap_err().to_string();
        assert_eq!(problem("point ring 4 1.0"), "line 1 of the table: a point needs a class before it");
        let class = "class ranks 2 hosts 1 local 2 2\n";
        assert!(problem(&format!("{class}point rings 4 1.0")).contains("line 2 of the table: there is no algorithm"));
        assert!(problem(&format!("{class}point ring -4 1.0")).contains("whole number of bytes"));
        assert!(problem(&format!("{class}point ring 4 NaN")).contains("positive number"));
        assert!(problem(&format!("{class}\nnonsense")).starts_with("line 3"));
        assert!(problem(&format!("{class}{class}")).contains("once"));
        assert!(problem("class ranks two hosts 1 local 2 2").contains("whole numbers"));
        assert!(problem("\n").contains("no class"));
    }

    #[test]
    fn the_same_table_has_the_same_hash_everywhere() {
        assert_eq!(table().hash(), table().hash());
        let mut other = table();
        other.insert(Measurement { way: Way::Allreduce(Algorithm::Ring), bytes: 4, time_us: 0.25 });
        assert_ne!(table().hash(), other.hash());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_single_change_of_a_byte_is_noticed(at in any::<prop::sample::Index>(), flip in 1_u8..=255) {
            let mut bytes = record().to_text().into_bytes();
            let at = at.index(bytes.len() - 1);
            bytes[at] ^= flip;
            if let Ok(text) = String::from_utf8(bytes) {
                // Upper case digits of the checksum are the same checksum.
                let same = TableFile::parse(&text).is_ok_and(|read| read == record());
                prop_assert!(TableFile::parse(&text).is_err() || same, "{text}");
            }
        }

        #[test]
        fn a_file_that_was_cut_off_is_noticed(length in any::<prop::sample::Index>()) {
            let text = record().to_text();
            let cut = &text[..length.index(text.len() - 1)];
            prop_assert!(TableFile::parse(cut).is_err());
        }

        #[test]
        fn garbage_never_panics(text in "\\PC{0,80}") {
            let _ = TableFile::parse(&text);
            let _ = TableFile::parse(&format!("{MAGIC} {VERSION}\n{text}"));
            let _ = Table::parse(&text);
        }
    }
}
