//! What the runs of a study of the input pipeline mean: which storage limits, which format is fastest, where workers
//! saturate, what a cache gains.
//!
//! Pure: rows go in, sentences come out. Rows are compared only with rows that differ in nothing else.

use super::findings::{Findings, Row, label};
use super::input::{Cache, InputPoint, short};
use super::sweep::StudyKind;

/// Below this, two rates are called the same: runs of one point differ by some percent.
const SAME: f64 = 1.05;

/// A rate from which on more workers gain little, relative to the best.
const SATURATED: f64 = 0.95;

/// A stage that takes more of a sample's time than this is what limits.
const MOST: f64 = 0.5;

/// Points that a sentence names rather than all others.
const FEW: usize = 2;

/// Share of an iteration spent waiting from which on the input limits a training, in percent.
const WAITS_PERCENT: f64 = 5.0;

/// A row with a figure, and its point.
type Known<'a> = (&'a Row, &'a InputPoint, f64);

fn known(findings: &Findings) -> Vec<Known<'_>> {
    let of = |row| {
        let row: &Row = row;
        Some((row, row.point.input.as_ref()?, row.median?))
    };
    findings.rows.iter().filter_map(of).collect()
}

fn best<'a>(rows: &[Known<'a>]) -> Option<Known<'a>> {
    rows.iter().max_by(|one, other| one.2.total_cmp(&other.2)).copied()
}

/// Whether two rates differ by no more than runs of one of them do.
fn same(one: &Known<'_>, other: &Known<'_>) -> bool {
    let (high, low) = (one.2.max(other.2), one.2.min(other.2));
    high / low <= SAME.max(1.0 + one.0.spread.max(other.0.spread))
}

/// The caches that were measured, in their order.
fn caches(rows: &[Known<'_>]) -> Vec<Cache> {
    let mut caches = Vec::new();
    for (_, input, _) in rows {
        if !caches.contains(&input.cache) {
            caches.push(input.cache);
        }
    }
    caches
}

fn workers(count: usize) -> String {
    format!("{count} worker{}", if count == 1 { "" } else { "s" })
}

/// The whole in one sentence.
pub(super) fn headline(findings: &Findings) -> String {
    let rows = known(findings);
    let Some((_, fastest, per_s)) = best(&rows) else { return "Nothing was measured".to_owned() };
    let unit = &findings.unit;
    if findings.kind == StudyKind::Loader {
        return match saturation(&rows) {
            Some((enough, rate)) if enough.workers < fastest.workers => format!(
                "{} are enough: {rate:.0} of {per_s:.0} {unit}/s, which is the most, with {}",
                workers(enough.workers),
                workers(fastest.workers)
            ),
            _ => format!(
                "{} with {} ahead make the most: {per_s:.0} {unit}/s",
                workers(fastest.workers),
                fastest.prefetch
            ),
        };
    }
    let each = caches(&rows).into_iter().filter_map(|cache| {
        let alike: Vec<Known<'_>> = rows.iter().filter(|(_, input, _)| input.cache == cache).copied().collect();
        let fastest = best(&alike)?;
        let (_, first, most) = fastest;
        let slowest = alike
            .iter()
            .filter(|(_, input, _)| input.name != first.name)
            .min_by(|one, other| one.2.total_cmp(&other.2));
        let name = short(&first.name);
        Some(match slowest {
            Some(slowest @ (_, other, least)) if !same(&fastest, slowest) => {
                let times = most / least;
                format!("{}: {name} is fastest, {most:.0} {unit}/s, {times:.2}× {}", cache.word(), short(&other.name))
            }
            Some(_) => format!("{}: no difference beyond what runs differ by, {most:.0} {unit}/s", cache.word()),
            None => format!("{}: {name} makes {most:.0} {unit}/s", cache.word()),
        })
    });
    each.collect::<Vec<_>>().join("; ")
}

/// What else is to be said.
pub(super) fn sentences(findings: &Findings) -> Vec<String> {
    let rows = known(findings);
    let mut said = Vec::new();
    if !rows.is_empty() && rows.iter().all(|(row, _, _)| row.runs.len() == 1) {
        said.push("Each point was run once: by how much runs differ is not known (--repeats).".to_owned());
    }
    if findings.kind == StudyKind::Loader {
        said.extend(saturation_sentence(&rows, &findings.unit));
        said.extend(prefetch_sentence(&rows));
    }
    said.extend(cache_sentences(&rows));
    said.extend(stage_sentences(findings.kind, &rows));
    said.extend(rows.iter().filter_map(|(row, _, _)| wait_sentence(findings.kind, row)));
    for (row, _, _) in &rows {
        let broken: u64 = row.input.iter().map(|run| run.broken).sum();
        if broken > 0 {
            let name = label(findings.kind, &row.point);
            said.push(format!("{name}: {broken} samples could not be read, and others were taken in their stead."));
        }
    }
    said
}

/// The fewest workers that make nearly as much as any, everything else being as it is for the fastest.
fn saturation<'a>(rows: &[Known<'a>]) -> Option<(&'a InputPoint, f64)> {
    let (_, fastest, most) = best(rows)?;
    let alike = rows.iter().filter(|(_, input, _)| {
        (&input.name, input.prefetch, input.cache) == (&fastest.name, fastest.prefetch, fastest.cache)
    });
    let enough = alike.filter(|(_, _, per_s)| *per_s >= SATURATED * most).min_by_key(|(_, input, _)| input.workers);
    enough.map(|(_, input, per_s)| (*input, *per_s))
}

fn saturation_sentence(rows: &[Known<'_>], unit: &str) -> Option<String> {
    let (_, fastest, most) = best(rows)?;
    let (enough, rate) = saturation(rows)?;
    let one = rows
        .iter()
        .find(|(_, input, _)| input.workers == 1 && (input.prefetch, input.cache) == (fastest.prefetch, fastest.cache));
    let largest = rows.iter().map(|(_, input, _)| input.workers).max()?;
    let mut said = match enough.workers < largest {
        true => format!("The pipeline saturates with {}: {rate:.0} of {most:.0} {unit}/s.", workers(enough.workers)),
        false => format!("It does not saturate up to {}: more may make more.", workers(largest)),
    };
    if let Some((_, _, alone)) = one.filter(|_| enough.workers > 1) {
        said += &format!(" One worker makes {alone:.0}, so {} do the work of {:.1}.", enough.workers, rate / alone);
    }
    Some(said)
}

fn prefetch_sentence(rows: &[Known<'_>]) -> Option<String> {
    let (_, fastest, most) = best(rows)?;
    let alike: Vec<&Known<'_>> =
        rows.iter().filter(|(_, input, _)| (input.workers, input.cache) == (fastest.workers, fastest.cache)).collect();
    if alike.len() < 2 {
        return None;
    }
    let fewest = alike.iter().filter(|(_, _, per_s)| *per_s >= SATURATED * most).map(|(_, input, _)| input.prefetch);
    let fewest = fewest.min()?;
    let batches = if fewest == 1 { "batch" } else { "batches" };
    Some(
        format!("{fewest} {batches} ahead are enough with {}.", workers(fastest.workers))
            .replace("1 batch ahead are", "1 batch ahead is"),
    )
}

/// What a cache gains, for each source and number of workers, with as many batches ahead as the fastest has.
fn cache_sentences(rows: &[Known<'_>]) -> Vec<String> {
    let Some((_, fastest, _)) = best(rows) else { return Vec::new() };
    let mut said = Vec::new();
    let cold = |input: &InputPoint| input.cache == Cache::Cold && input.prefetch == fastest.prefetch;
    for slow @ (_, cold, slow_per_s) in rows.iter().filter(|(_, input, _)| cold(input)) {
        let alike = |input: &InputPoint| {
            let of = |input: &InputPoint| (input.workers, input.prefetch);
            input.name == cold.name && of(input) == of(cold) && input.cache != Cache::Cold
        };
        for fast @ (_, kept, fast_per_s) in rows.iter().filter(|(_, input, _)| alike(input)) {
            let (name, word, ratio) = (short(&cold.name), kept.cache.word(), fast_per_s / slow_per_s);
            let place = format!("{name} with {}", workers(cold.workers));
            let reads = share_of(slow.0, "read") > MOST;
            said.push(match (same(fast, slow), reads) {
                (false, _) if ratio > 1.0 => format!("{place}: {word} is {ratio:.2}× cold, which is what a cache gains."),
                (_, false) => format!("{place}: {word} is no faster than cold: reading is not what limits."),
                (true, true) if slow.0.runs.len() == 1 => format!("{place}: {word} and cold make about the same."),
                (true, true) => format!("{place}: {word} and cold differ by no more than their runs do."),
                (false, true) => format!(
                    "{place}: {word} is {ratio:.2}× cold, which no cache explains: something else was busy; measure again."
                ),
            });
        }
    }
    said
}

/// The share of a stage, or a phase, of all of a row's time.
fn share_of(row: &Row, stage: &str) -> f64 {
    let all: f64 = row.phases.iter().map(|(_, seconds)| seconds).sum();
    let of_stage = row.phases.iter().find(|(name, _)| name == stage);
    of_stage.map_or(0.0, |(_, seconds)| seconds / all.max(f64::MIN_POSITIVE))
}

/// What limits points of the pipeline alone, those with the same limit together.
fn stage_sentences(kind: StudyKind, rows: &[Known<'_>]) -> Vec<String> {
    let limits = [
        ("read", "reading: the storage limits"),
        (
            "decode",
            "decoding: cores limit, and images that are reduced once (`farandole data convert … --resize`) need fewer",
        ),
        ("change", "changing pixels: cores limit"),
    ];
    let mut said = Vec::new();
    for (stage, meaning) in limits {
        let limited: Vec<&Row> = rows.iter().map(|known| known.0).filter(|row| share_of(row, stage) > MOST).collect();
        let shares = limited.iter().map(|row| 100.0 * share_of(row, stage));
        let (least, most) = shares.fold((f64::MAX, 0.0f64), |(least, most), share| (least.min(share), most.max(share)));
        let points = match limited.as_slice() {
            [] => continue,
            [one] => label(kind, &one.point),
            all if all.len() == rows.len() => "All points".to_owned(),
            some if some.len() + FEW >= rows.len() && some.len() > FEW => {
                let others = rows.iter().map(|known| known.0).filter(|row| share_of(row, stage) <= MOST);
                format!("All points but {}", others.map(|row| label(kind, &row.point)).collect::<Vec<_>>().join("; "))
            }
            some => some.iter().map(|row| label(kind, &row.point)).collect::<Vec<_>>().join("; "),
        };
        let percent = if most - least < 1.0 { format!("{most:.0}") } else { format!("{least:.0} to {most:.0}") };
        said.push(format!("{points}: {percent} % of a worker's time is {meaning}."));
    }
    said
}

/// Whether a training waits for its input.
fn wait_sentence(kind: StudyKind, row: &Row) -> Option<String> {
    let all: f64 = row.phases.iter().map(|(_, seconds)| seconds).sum();
    let (_, wait) = row.phases.iter().find(|(name, _)| name == "input wait").filter(|_| all > 0.0)?;
    let (name, waits) = (label(kind, &row.point), 100.0 * wait / all);
    Some(match waits > WAITS_PERCENT {
        true => format!("{name}: the training waits for input in {waits:.0} % of its time."),
        false => format!("{name}: the training hardly waits for input ({waits:.1} % of its time)."),
    })
}

#[cfg(test)]
#[path = "input_findings_tests.rs"]
mod tests;
