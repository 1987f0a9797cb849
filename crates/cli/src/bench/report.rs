//! The result of a run as data: what the table shows and what `--json` writes.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::driver::Showing;
use super::limit::Rates;
use super::machine::Machine;
use super::statistics::Spread;
use super::task::{Kind, Task};

/// One contestant of the run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) word: String,
    pub(crate) product: String,
    /// Whether it is the first entry's processes once more.
    pub(crate) twin: bool,
}

/// One size.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) bytes: u64,
    /// In the order of [`Report::entries`].
    pub(crate) showings: Vec<Showing>,
    /// The bound, where it was measured.
    pub(crate) limit: Option<Showing>,
}

/// A whole run. The first entry is the one that the others are compared with.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) ranks: usize,
    /// Number of hosts that are not pretended.
    pub(crate) hosts: usize,
    /// Cores that are kept busy beside the contestants.
    pub(crate) busy_cores: usize,
    /// The plane that was asked for, on GPUs.
    pub(crate) plane: Option<&'static str>,
    /// The task of the first size, for everything that does not change with the size.
    pub(crate) task: Task,
    pub(crate) entries: Vec<Entry>,
    pub(crate) rates: Option<Rates>,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// Bytes moved for one iteration, as the user counts them: size times tensors.
    pub(crate) fn payload_bytes(&self, row: &Row) -> f64 {
        row.bytes as f64 * self.task.tensors as f64
    }

    /// Size divided by time, in bytes per second.
    pub(crate) fn algorithm_bandwidth(&self, row: &Row, median_us: f64) -> f64 {
        self.payload_bytes(row) / (median_us * 1e-6)
    }

    /// Algorithm bandwidth times what the busiest link must carry for each byte.
    pub(crate) fn bus_bandwidth(&self, row: &Row, median_us: f64) -> f64 {
        self.algorithm_bandwidth(row, median_us) * self.task.kind.bus_factor(self.ranks)
    }

    /// How many times as long as the first entry this one takes; above one, the first is faster.
    pub(crate) fn ratio(row: &Row, entry: usize) -> Option<f64> {
        Some(row.showings[entry].median_us()? / row.showings[0].median_us()?)
    }

    /// Entries that are no twins of the first, which is none of them.
    fn others(&self) -> impl Iterator<Item = usize> {
        (1..self.entries.len()).filter(|entry| !self.entries[*entry].twin)
    }

    /// Whether one of the other entries is the best of several.
    pub(crate) fn has_best(&self) -> bool {
        self.others().count() > 1
    }

    /// The ratio of the fastest of the other entries.
    pub(crate) fn best_ratio(&self, row: &Row) -> Option<f64> {
        self.others().filter_map(|entry| Report::ratio(row, entry)).min_by(f64::total_cmp)
    }

    /// The ratios of each round by themselves: what drifts from round to round cancels out in them.
    pub(crate) fn round_ratios(row: &Row, entry: usize) -> Option<Spread> {
        let medians = |entry: usize| match &row.showings[entry] {
            Showing::Measured { summary, .. } => Some(&summary.round_medians_us),
            Showing::Unsupported { .. } => None,
        };
        let pairs = medians(entry)?.iter().zip(medians(0)?);
        Spread::of(pairs.map(|(other, first)| other / first))
    }

    /// Wrong elements of all entries, sizes, rounds and ranks.
    pub(crate) fn wrong(&self) -> u64 {
        let showings = self.rows.iter().flat_map(|row| &row.showings);
        showings.map(|showing| if let Showing::Measured { wrong, .. } = showing { *wrong } else { 0 }).sum()
    }

    /// The run as JSON.
    pub(crate) fn to_json(&self) -> Value {
        let mut report = json!({
            "collective": self.task.kind,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "busy_cores": self.busy_cores,
            "dtype": self.task.dtype.name(),
            "pace": self.task.pace,
            "memory": self.task.memory,
            "through": self.task.through,
            "tensors": self.task.tensors,
            "machine": self.machine,
            "contestants": self.entries,
            "sizes": self.rows.iter().map(|row| self.row_json(row)).collect::<Vec<_>>(),
        });
        if self.task.kind.reduces() {
            report["op"] = json!(self.task.op.name());
        }
        if let Some(plane) = self.plane {
            report["plane"] = json!(plane);
        }
        if let Some(rates) = self.rates {
            report["rates"] = json!(rates);
        }
        report
    }

    fn row_json(&self, row: &Row) -> Value {
        let mut object = Map::new();
        object.insert("bytes".into(), json!(row.bytes));
        for (index, (entry, showing)) in self.entries.iter().zip(&row.showings).enumerate() {
            let mut value = self.showing_json(row, showing);
            if let (true, Some(spread)) = (index > 0, Report::round_ratios(row, index)) {
                value["round_ratios"] = json!(spread);
            }
            object.insert(entry.word.clone(), value);
        }
        if let Some(limit) = &row.limit {
            object.insert("limit".into(), self.showing_json(row, limit));
        }
        Value::Object(object)
    }

    fn showing_json(&self, row: &Row, showing: &Showing) -> Value {
        match showing {
            Showing::Unsupported { why } => json!({ "unsupported": why }),
            Showing::Measured { summary, wrong } => {
                let mut value = json!(summary);
                value["wrong"] = json!(wrong);
                if self.task.kind != Kind::Barrier {
                    value["algbw_bytes_per_s"] = json!(self.algorithm_bandwidth(row, summary.median_us));
                    value["busbw_bytes_per_s"] = json!(self.bus_bandwidth(row, summary.median_us));
                }
                value
            }
        }
    }
}
