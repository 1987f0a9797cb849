//! The study of planes: one script over every way that tensors on GPUs can be reduced, with and without MPS.
//!
//! A plane is a word: `staged`, `own`, `nccl`, or the same with `+mps`. What a machine cannot do is refused before it
//! is tried ([`PlaneSupport`]), and named in the findings: nothing is left out in silence. Beside the throughput stands
//! a profile of messages: for each class of sizes the number of operations, their time and its share, plane by plane
//! (`messages`).

use farandole_insight::history::History;
use farandole_insight::profile::{DEFAULT_BOUNDS_BYTES, Filter, Profile, ProfileRow, ProfileView};
use serde::{Deserialize, Serialize};

use super::error::{Result, refuse};
use super::point::StudyPoint;

/// All ways, in the order in which they are shown. What goes through host memory is what the others are compared with.
pub const PLANES: [&str; 6] = ["staged", "own", "nccl", "staged+mps", "own+mps", "nccl+mps"];

/// The program that starts MPS. It comes with the driver.
pub const MPS: &str = "nvidia-cuda-mps-control";

/// The plane without what says that MPS is used, and whether it is.
pub fn parts(plane: &str) -> (&str, bool) {
    plane.strip_suffix("+mps").map_or((plane, false), |word| (word, true))
}

/// Refuses words that are no plane.
pub fn check(planes: &[String]) -> Result<()> {
    for plane in planes {
        if !PLANES.contains(&plane.as_str()) {
            return refuse(format!("--planes {plane}: there are {}", PLANES.join(", ")));
        }
    }
    Ok(())
}

/// What a machine has for planes.
#[derive(Clone, Debug)]
pub struct PlaneSupport {
    /// GPUs, or why there are none.
    pub gpus: std::result::Result<usize, String>,
    /// Whether MPS can be started.
    pub has_mps: bool,
}

impl PlaneSupport {
    /// Why a point cannot be measured here, if it cannot. Without GPUs the script works in host memory, which is what
    /// `staged` comes to.
    pub fn refuses(&self, point: &StudyPoint) -> Option<String> {
        let (plane, with_mps) = parts(&point.plane);
        match &self.gpus {
            _ if point.plane.is_empty() => None,
            Err(why) if plane != "staged" || with_mps => Some(format!("it needs a GPU: {why}")),
            Err(_) => None,
            Ok(_) if !with_mps => None,
            Ok(gpus) if point.ranks <= *gpus => {
                Some(format!("MPS is for ranks that share a GPU, and each of the {} has one of its own", point.ranks))
            }
            Ok(_) => (!self.has_mps).then(|| format!("MPS needs {MPS}, which is not on the path")),
        }
    }

    /// Whether ranks of a point share GPUs by NCCL, which needs to be told that they are of different hosts.
    pub fn shares_gpus_by_nccl(&self, point: &StudyPoint) -> bool {
        let shares = self.gpus.as_ref().is_ok_and(|gpus| point.ranks > *gpus);
        parts(&point.plane).0 == "nccl" && shares
    }
}

/// Operations of one class of sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Messages {
    /// The class: its bounds.
    pub size: String,
    /// How many.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their time.
    pub ns: u64,
}

/// The operations of a run by size, without classes that have none.
pub(crate) fn by_size(history: &History) -> Vec<Messages> {
    let profile = Profile::of(history, ProfileView::Fused, Filter::default(), &DEFAULT_BOUNDS_BYTES);
    let row = |size: String, row: &ProfileRow| Messages { size, calls: row.calls, bytes: row.bytes, ns: row.ns };
    let bins = profile.bins.iter().enumerate().map(|(bin, of)| row(profile.label(bin), of));
    bins.filter(|row| row.calls > 0).collect()
}

/// One plane of the table: its name, what it reached, and its operations.
pub(crate) struct Column<'a> {
    pub(crate) name: &'a str,
    pub(crate) per_s: f64,
    pub(crate) messages: &'a [Messages],
}

/// Operations by size, plane beside plane: number, time, share of the plane's time. Below, by how much less time the
/// operations take than those of the first plane, and the throughput.
pub(crate) fn messages(columns: &[Column<'_>], unit: &str) -> String {
    let mut sizes: Vec<&str> = Vec::new();
    for row in columns.iter().flat_map(|column| column.messages) {
        if !sizes.contains(&row.size.as_str()) {
            sizes.push(&row.size);
        }
    }
    // Of several planes, one may have sizes that the others have not: classes keep their order.
    let place = |size: &&str| Profile::labels(&DEFAULT_BOUNDS_BYTES).iter().position(|label| label == size);
    sizes.sort_by_key(place);
    let total_ns = |column: &Column<'_>| column.messages.iter().map(|row| row.ns).sum::<u64>();
    let first_ns = columns.first().map_or(0, total_ns);
    let empty = || [String::new(), "–".to_owned(), String::new()];
    let mut rows: Vec<Vec<String>> = vec![
        heads("", columns.iter().map(|column| [String::new(), column.name.to_owned(), String::new()])),
        heads("size", columns.iter().map(|_| ["calls", "time (ms)", "share"].map(str::to_owned))),
    ];
    for size in sizes {
        rows.push(heads(
            size,
            columns.iter().map(|column| {
                let of = column.messages.iter().find(|row| row.size == size);
                of.map_or_else(empty, |row| cells(row.calls, row.ns, total_ns(column)))
            }),
        ));
    }
    rows.push(heads(
        "total",
        columns.iter().map(|column| {
            let calls = column.messages.iter().map(|row| row.calls).sum();
            cells(calls, total_ns(column), total_ns(column))
        }),
    ));
    rows.push(heads(
        "less time",
        columns.iter().enumerate().map(|(number, column)| {
            let (own, first) = (total_ns(column) as f64, first_ns as f64);
            let less = (number > 0 && first > 0.0).then(|| format!("{:.1} %", 100.0 * (first - own) / first));
            [String::new(), less.unwrap_or_else(|| "–".to_owned()), String::new()]
        }),
    ));
    rows.push(heads(
        &format!("{unit}/s"),
        columns.iter().map(|column| [String::new(), format!("{:.1}", column.per_s), String::new()]),
    ));
    aligned(&rows)
}

fn heads(first: &str, groups: impl Iterator<Item = [String; 3]>) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(groups.flatten()).collect()
}

fn cells(calls: u64, ns: u64, whole_ns: u64) -> [String; 3] {
    let share = 100.0 * ns as f64 / whole_ns.max(1) as f64;
    [calls.to_string(), format!("{:.2}", ns as f64 / 1e6), format!("{share:.1} %")]
}

/// The first column to the left, all others to the right; more room between planes.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (column, cell) in row.iter().enumerate().skip(1) {
            let gap = if column % 3 == 1 { "    " } else { "  " };
            line += &format!("{gap}{cell:>width$}", width = widths[column]);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(plane: &str, ranks: usize) -> StudyPoint {
        let (model, precision, plane) = ("command".to_owned(), "f32".to_owned(), plane.to_owned());
        StudyPoint { model, ranks, threads: 1, batch: 32, precision, plane, input: None }
    }

    #[test]
    fn what_a_machine_cannot_do_has_its_reason() {
        let without = PlaneSupport { gpus: Err("no driver library".to_owned()), has_mps: false };
        assert_eq!(without.refuses(&point("staged", 2)), None);
        assert_eq!(without.refuses(&point("nccl", 2)).unwrap(), "it needs a GPU: no driver library");
        assert!(without.refuses(&point("staged+mps", 2)).unwrap().contains("GPU"));
        let one = PlaneSupport { gpus: Ok(1), has_mps: false };
        assert_eq!(one.refuses(&point("own", 2)), None);
        assert!(one.refuses(&point("own+mps", 2)).unwrap().contains("nvidia-cuda-mps-control"));
        let two = PlaneSupport { gpus: Ok(2), has_mps: true };
        assert!(two.refuses(&point("own+mps", 2)).unwrap().contains("one of its own"));
        assert_eq!(two.refuses(&point("own+mps", 4)), None);
        assert!(two.shares_gpus_by_nccl(&point("nccl+mps", 4)));
        assert!(!two.shares_gpus_by_nccl(&point("nccl", 2)) && !two.shares_gpus_by_nccl(&point("own", 4)));
    }

    #[test]
    fn planes_have_words_and_others_are_refused() {
        assert_eq!(parts("own+mps"), ("own", true));
        assert_eq!(parts("nccl"), ("nccl", false));
        check(&PLANES.map(str::to_owned)).unwrap();
        assert!(check(&["mpi".to_owned()]).unwrap_err().to_string().contains("staged, own, nccl"));
    }

    #[test]
    fn operations_stand_side_by_side() {
        let row = |size: &str, calls, ns| Messages { size: size.to_owned(), calls, bytes: 1, ns };
        let labels = Profile::labels(&DEFAULT_BOUNDS_BYTES);
        let staged = [row(&labels[0], 320, 30_000_000), row(&labels[2], 10, 90_000_000)];
        let own = [row(&labels[1], 10, 6_000_000), row(&labels[0], 320, 6_000_000)];
        let columns = [
            Column { name: "staged", per_s: 700.0, messages: &staged },
            Column { name: "own+mps", per_s: 1944.25, messages: &own },
        ];
        let table = messages(&columns, "images");
        let heads: Vec<&str> = table.lines().take(2).collect();
        assert_eq!(heads[0].split_whitespace().collect::<Vec<_>>(), ["staged", "own+mps"]);
        assert_eq!(heads[1].matches("calls  time (ms)").count(), 2, "{table}");
        let line = |first: &str| {
            let found = table.lines().find(|line| line.starts_with(first)).unwrap_or_else(|| panic!("{table}"));
            found[first.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(line(&labels[0]), ["320", "30.00", "25.0", "%", "320", "6.00", "50.0", "%"]);
        assert_eq!(line(&labels[1]), ["–", "10", "6.00", "50.0", "%"]);
        assert_eq!(line(&labels[2]), ["10", "90.00", "75.0", "%", "–"]);
        assert_eq!(line("total"), ["330", "120.00", "100.0", "%", "330", "12.00", "100.0", "%"]);
        assert_eq!(line("less time"), ["–", "90.0", "%"]);
        assert_eq!(line("images/s"), ["700.0", "1944.2"]);
        let order: Vec<usize> = labels[..3].iter().map(|label| table.find(label.as_str()).unwrap()).collect();
        assert!(order.is_sorted(), "{table}");
    }
}
