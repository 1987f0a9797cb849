//! Message profiles as tables: one run, or two side by side.

use crate::profile::{Profile, ProfileRow, improvement_percent, size_text};
use crate::verdict::percent_text;

/// One run: calls, bytes, time and bus bandwidth of every bin.
pub fn one(profile: &Profile) -> String {
    let mut rows = vec![["size", "calls", "bytes", "time (ms)", "busbw (GB/s)"].map(str::to_owned).to_vec()];
    for (label, row) in labelled(profile) {
        rows.push(vec![label, row.calls.to_string(), size_text(row.bytes), millis(&row), bandwidth(&row)]);
    }
    aligned(&rows)
}

/// Two runs with the same bins: the time of both, and by how much the second takes less.
pub fn two(before: &Profile, after: &Profile) -> String {
    let head = ["size", "calls A", "calls B", "time A (ms)", "time B (ms)", "busbw A", "busbw B", "improvement"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut after_rows = labelled_all(after);
    for (label, old) in labelled_all(before) {
        let Some((_, new)) = after_rows.next() else { break };
        if old.calls + new.calls == 0 && label != TOTAL {
            continue;
        }
        let improvement = improvement_percent(&old, &new).map_or_else(|| "–".to_owned(), percent_text);
        let calls = [old.calls.to_string(), new.calls.to_string()];
        let cells = [calls, [millis(&old), millis(&new)], [bandwidth(&old), bandwidth(&new)]];
        rows.push(std::iter::once(label).chain(cells.into_iter().flatten()).chain([improvement]).collect());
    }
    aligned(&rows)
}

/// What the last row is called.
const TOTAL: &str = "total";

/// The rows that have something in them, and the total.
fn labelled(profile: &Profile) -> impl Iterator<Item = (String, ProfileRow)> {
    labelled_all(profile).filter(|(label, row)| row.calls > 0 || label == TOTAL)
}

/// All rows with their names: no bytes, the bins, the total.
fn labelled_all(profile: &Profile) -> impl Iterator<Item = (String, ProfileRow)> {
    std::iter::once(("no bytes".to_owned(), profile.empty))
        .chain(profile.bins.iter().enumerate().map(|(bin, row)| (profile.label(bin), *row)))
        .chain(std::iter::once((TOTAL.to_owned(), profile.total())))
}

fn millis(row: &ProfileRow) -> String {
    format!("{:.2}", row.ns as f64 / 1e6)
}

fn bandwidth(row: &ProfileRow) -> String {
    row.busbw_gb_per_s().filter(|_| row.bytes > 0).map_or_else(|| "–".to_owned(), |speed| format!("{speed:.3}"))
}

/// The first column to the left, all others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            text.push_str(&if column == 0 { format!("{cell}{pad}") } else { format!("   {pad}{cell}") });
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}
