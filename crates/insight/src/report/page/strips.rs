//! What every rank did from the beginning to the end, and all ranks together over time.
//!
//! Time is divided into equal cells. In the overview a cell is divided among all causes in it. In a rank's strip a cell
//! has one colour. Every cause accumulates its share of each cell, the largest sum gets the cell, and the cell is
//! subtracted from it (error diffusion). So in a long run, whose iterations are shorter than cells, the strip still
//! shows each colour in proportion to the time lost.

use std::collections::BTreeMap;

use super::markup::{Rect, escaped, picture};
use super::paint;
use crate::history::History;
use crate::loss::{CauseSpan, TimeSplit};
use crate::verdict::time_text;

/// Cells of a strip: more than a telephone has room for, less than makes a page slow.
const STRIP_CELLS: usize = 240;

/// Cells of the overview, which are divided further.
const OVERVIEW_CELLS: usize = 72;

/// Ranks that get a strip. Of more, those at equal distances.
const STRIPS: usize = 48;

/// One strip for each rank.
pub(super) fn ranks(history: &History, split: &TimeSplit) -> String {
    let shown: Vec<usize> = if history.size() <= STRIPS {
        (0..history.size()).collect()
    } else {
        (0..STRIPS).map(|place| place * history.size() / STRIPS).collect()
    };
    let mut rows = String::new();
    for &rank in &shown {
        if history.ranks[rank].missing {
            rows += &format!(
                "<div class=\"row\"><span class=\"name\">rank {rank}</span><span class=\"absent\">no recording</span>\
                 <span class=\"number\">–</span></div>\n"
            );
            continue;
        }
        let strip = &split.strips[rank];
        let useful_ns: u64 =
            strip.iter().filter(|piece| piece.cause.is_none()).map(|piece| piece.to_ns - piece.from_ns).sum();
        let useful = format!("{:.0} %", 100.0 * useful_ns as f64 / history.end_ns.max(1) as f64);
        let host = if history.hosts() > 1 { format!(" · {}", history.ranks[rank].host_name()) } else { String::new() };
        let label = format!("What rank {rank} did over time: {useful} work");
        rows += &format!(
            "<div class=\"row\"><span class=\"name\">rank {rank}{}</span>{}<span class=\"number\">{useful}</span></div>\n",
            escaped(&host),
            picture("bar strip", &label, &strip_rects(strip, history.end_ns))
        );
    }
    let more = if shown.len() < history.size() {
        format!("<p class=\"note\">{} of {} ranks.</p>\n", shown.len(), history.size())
    } else {
        String::new()
    };
    format!("{}<div class=\"bars\">\n{rows}{}</div>\n{more}", paint::legend(&used(split)), axis(history.end_ns))
}

/// All ranks together: the share of every cause over time.
pub(super) fn overview(history: &History, split: &TimeSplit) -> String {
    let mut rects = String::new();
    let all = split.strips.iter().flatten();
    let cells = cells(all, history.end_ns, OVERVIEW_CELLS);
    for (number, cell) in cells.iter().enumerate() {
        let whole: u64 = cell.values().sum();
        let (mut y, width) = (100.0, 100.0 / OVERVIEW_CELLS as f64);
        // Work lies at the bottom, as what everything stands on.
        for paint in used(split) {
            let ns = cell.get(paint).copied().unwrap_or(0);
            if ns == 0 {
                continue;
            }
            let height = 100.0 * ns as f64 / whole as f64;
            y -= height;
            let title =
                format!("{} – {}: {height:.0} % {paint}", at(number, history.end_ns), at(number + 1, history.end_ns));
            rects += &Rect { x: number as f64 * width, y, width, height, paint, title: &title }.svg();
        }
    }
    let label = "Share of work and of every loss over time, all ranks together";
    format!(
        "<div class=\"bars\">\n<div class=\"row\"><span class=\"name\">all ranks</span>{}<span class=\"number\"></span></div>\n{}</div>\n\
         <p class=\"note\">{}</p>\n",
        picture("bar overview", label, &rects),
        axis(history.end_ns),
        escaped(&iterations(history))
    )
}

fn at(cell: usize, end_ns: u64) -> String {
    time_text(end_ns * cell as u64 / OVERVIEW_CELLS as u64)
}

/// How even the iterations are.
fn iterations(history: &History) -> String {
    let mut lengths: Vec<u64> = history
        .ranks
        .iter()
        .flat_map(|rank| &rank.iterations)
        .map(|iteration| iteration.to_ns - iteration.from_ns)
        .collect();
    lengths.sort_unstable();
    match (lengths.first(), lengths.last()) {
        (Some(&least), Some(&most)) => format!(
            "{} iterations: {} in the middle, {} at least, {} at most.",
            history.iterations(),
            time_text(lengths[lengths.len() / 2]),
            time_text(least),
            time_text(most)
        ),
        _ => "No iterations are marked.".to_owned(),
    }
}

/// The paints that a page needs, work first.
fn used(split: &TimeSplit) -> Vec<&'static str> {
    let mut used = vec!["work"];
    for loss in &split.losses {
        if !used.contains(&loss.cause.key()) {
            used.push(loss.cause.key());
        }
    }
    used
}

/// How long each paint takes in each cell.
fn cells<'a>(
    pieces: impl Iterator<Item = &'a CauseSpan>,
    end_ns: u64,
    count: usize,
) -> Vec<BTreeMap<&'static str, u64>> {
    let mut cells: Vec<BTreeMap<&str, u64>> = vec![BTreeMap::new(); count];
    let edge = |cell: usize| u64::try_from(u128::from(end_ns) * cell as u128 / count as u128).unwrap_or(end_ns);
    for piece in pieces {
        let paint = paint::of(piece.cause.as_ref());
        let first = usize::try_from(u128::from(piece.from_ns) * count as u128 / u128::from(end_ns.max(1))).unwrap_or(0);
        for (number, cell) in cells.iter_mut().enumerate().skip(first.saturating_sub(1)) {
            let (from_ns, to_ns) = (edge(number).max(piece.from_ns), edge(number + 1).min(piece.to_ns));
            if edge(number) >= piece.to_ns {
                break;
            }
            if from_ns < to_ns {
                *cell.entry(paint).or_default() += to_ns - from_ns;
            }
        }
    }
    cells
}

/// A strip: neighbouring cells of one paint are one rectangle.
fn strip_rects(strip: &[CauseSpan], end_ns: u64) -> String {
    let mut owed: BTreeMap<&str, f64> = BTreeMap::new();
    let mut paints = Vec::with_capacity(STRIP_CELLS);
    for cell in cells(strip.iter(), end_ns, STRIP_CELLS) {
        let whole: u64 = cell.values().sum();
        for (paint, ns) in cell {
            *owed.entry(paint).or_default() += ns as f64 / whole as f64;
        }
        let most = owed.iter_mut().max_by(|a, b| a.1.total_cmp(b.1));
        paints.push(most.map_or("other", |(paint, debt)| {
            *debt -= 1.0;
            *paint
        }));
    }
    let width = 100.0 / STRIP_CELLS as f64;
    let (mut rects, mut from) = (String::new(), 0);
    for same in paints.chunk_by(|a, b| a == b) {
        let (x, cells) = (from as f64 * width, same.len() as f64);
        rects += &Rect { x, y: 0.0, width: cells * width, height: 100.0, paint: same[0], title: same[0] }.svg();
        from += same.len();
    }
    rects
}

/// Times below the pictures, in the unit that suits the last.
fn axis(end_ns: u64) -> String {
    let (unit_ns, unit) = if end_ns >= 1_000_000_000 { (1e9, "s") } else { (1e6, "ms") };
    let tick = |quarter: u64| match quarter {
        0 => "<span>0</span>".to_owned(),
        _ => format!("<span>{:.2} {unit}</span>", end_ns as f64 * quarter as f64 / 4.0 / unit_ns),
    };
    let ticks: String = (0..=4).map(tick).collect();
    format!(
        "<div class=\"row\"><span class=\"name\"></span><div class=\"axis\">{ticks}</div><span class=\"number\"></span></div>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::LossCause;

    #[test]
    fn the_strip_of_a_long_run_shows_more_than_what_most_of_every_iteration_is() {
        // A thousand iterations: 60 % work, 40 % input wait, and each far shorter than a cell.
        let mut strip = Vec::new();
        for zero_ns in (0..100_000).step_by(100) {
            strip.push(CauseSpan { from_ns: zero_ns, to_ns: zero_ns + 60, cause: None });
            strip.push(CauseSpan { from_ns: zero_ns + 60, to_ns: zero_ns + 100, cause: Some(LossCause::Input) });
        }
        let rects = strip_rects(&strip, 100_000);
        let input: f64 = rects
            .split("<rect ")
            .filter(|rect| rect.contains("c-input"))
            .filter_map(|rect| rect.split("width=\"").nth(1)?.split('%').next()?.parse::<f64>().ok())
            .sum();
        assert!((input - 40.0).abs() < 1.0, "{input} %");
    }
}
