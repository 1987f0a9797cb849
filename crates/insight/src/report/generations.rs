//! The generations of an elastic job as tables, for terminals and pages alike: what is in their cells, and sentences
//! around them.

use crate::generations::{Departure, Generation, Generations, PHASES, Recovery};
use crate::verdict::{percent_text, time_text};

/// A table: titles of columns, and rows with as many cells.
pub(super) struct Table {
    pub(super) head: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

/// What there was, and what it cost, in a sentence.
pub(super) fn sentence(generations: &Generations) -> String {
    let sizes = generations.list.iter().map(|generation| generation.size);
    let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
    let ranks = if least == most { ranks(most) } else { format!("{least} to {}", ranks(most)) };
    let count = match generations.list.len() {
        1 => "one generation".to_owned(),
        count => format!("{count} generations"),
    };
    let lost = match generations.recoveries() {
        0 => "nothing was lost to recoveries".to_owned(),
        1 => format!("{} of the time of all members was lost to one recovery", percent(generations)),
        count => format!("{} of the time of all members was lost to {count} recoveries", percent(generations)),
    };
    format!("An elastic job of {count} with {ranks}: {lost}.")
}

/// What the rest of the report is about.
pub(super) fn scope(generations: &Generations) -> String {
    format!(
        "What follows is about generation {}, between recoveries; with --generation N it is about another.",
        generations.shown
    )
}

/// A line for each generation.
pub(super) fn generations(of: &Generations) -> Table {
    let row = |generation: &Generation| {
        let efficiency = generation.efficiency.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"));
        vec![
            generation.number.to_string(),
            generation.size.to_string(),
            time_text(generation.from_ns),
            time_text(generation.to_ns - generation.from_ns),
            efficiency,
            because(generation),
        ]
    };
    let head = vec!["generation", "ranks", "began after", "lasted", "efficiency", "because"];
    Table { head, rows: of.list.iter().map(row).collect() }
}

/// A line for each recovery; nothing where there was none.
pub(super) fn recoveries(of: &Generations) -> Option<Table> {
    let row = |generation: &Generation, recovery: &Recovery| {
        let mut cells = vec![generation.number.to_string(), format!("{} → {}", recovery.from_size, generation.size)];
        cells.extend(recovery.phases_ns.map(time_text));
        cells.push(time_text(recovery.ns()));
        cells.push(recovery.first_step_ns.map_or_else(|| "–".to_owned(), time_text));
        cells.push(recovery.step.map_or_else(|| "–".to_owned(), |fate| fate.to_string()));
        cells
    };
    let rows: Vec<Vec<String>> = of.list.iter().filter_map(|one| Some(row(one, one.recovery.as_ref()?))).collect();
    let head = ["into", "ranks"].into_iter().chain(PHASES).chain(["in all", "first step", "step"]).collect();
    (!rows.is_empty()).then_some(Table { head, rows })
}

/// What the columns mean.
pub(super) const RECOVERY_NOTE: &str = "interrupted: from the beginning of the step under way until all knew of the loss; leaving: until they asked for \
     the next generation; then until they had agreed, were connected, and had the same state. The first step comes \
     after that, and is no loss.";

/// Why a generation came about.
fn because(generation: &Generation) -> String {
    let mut reasons: Vec<String> = generation.left.iter().map(departure).collect();
    match &generation.joined[..] {
        [] => {}
        [one] => reasons.push(format!("member {one} joined")),
        several => {
            let numbers: Vec<String> = several.iter().map(u64::to_string).collect();
            reasons.push(format!("members {} joined", numbers.join(", ")));
        }
    }
    match (reasons.is_empty(), &generation.recovery) {
        (false, _) => reasons.join("; "),
        (true, None) => "the job began".to_owned(),
        (true, Some(_)) => "the ranks met again".to_owned(),
    }
}

fn departure(Departure { member, cause }: &Departure) -> String {
    match cause {
        Some(cause) => format!("member {member} is gone: {cause}"),
        None => format!("member {member} is gone"),
    }
}

/// Little is told with two decimals: recoveries should be little.
fn percent(generations: &Generations) -> String {
    match generations.lost_percent() {
        little if little < 0.095 => format!("{little:.2} %"),
        much => percent_text(much),
    }
}

fn ranks(count: usize) -> String {
    if count == 1 { "1 rank".to_owned() } else { format!("{count} ranks") }
}

/// The table for a terminal: columns as wide as needed, the last one left as it is.
pub(super) fn lines(table: &Table) -> Vec<String> {
    let columns = table.head.len();
    let head: Vec<String> = table.head.iter().map(|title| (*title).to_owned()).collect();
    let all = || std::iter::once(&head).chain(&table.rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            last if last + 1 == columns => cell.clone(),
            _ => format!("{}{cell}", " ".repeat(width - cell.chars().count())),
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  "))
    };
    all().map(line).collect()
}

#[cfg(test)]
mod tests {
    use farandole_trace::event::StepFate;

    use super::*;

    fn job() -> Generations {
        let first =
            Generation { number: 1, size: 4, to_ns: 5_000_000_000, efficiency: Some(0.93), ..Generation::default() };
        let recovery = Recovery {
            from_size: 4,
            phases_ns: [12_000_000, 1_000_000, 3_000_000, 10_000_000, 2_000_000],
            first_step_ns: Some(15_000_000),
            lost_ns: 84_000_000,
            step: Some(StepFate::Repeated),
        };
        let left = vec![Departure { member: 2, cause: Some("its process was killed".to_owned()) }];
        let (from_ns, to_ns) = (5_028_000_000, 7_000_000_000);
        let second =
            Generation { number: 3, size: 3, from_ns, to_ns, left, recovery: Some(recovery), ..Generation::default() };
        Generations { list: vec![first, second], total_ns: 26_000_000_000, shown: 1 }
    }

    #[test]
    fn costs_are_said_in_a_sentence() {
        assert_eq!(
            sentence(&job()),
            "An elastic job of 2 generations with 3 to 4 ranks: 0.3 % of the time of all members was lost to one recovery."
        );
        let calm = Generations { list: job().list[..1].to_vec(), ..job() };
        assert_eq!(sentence(&calm), "An elastic job of one generation with 4 ranks: nothing was lost to recoveries.");
        assert!(recoveries(&calm).is_none());
    }

    #[test]
    fn tables_are_aligned_and_have_the_cause_and_every_phase() {
        let lines_of = |table: Table| lines(&table);
        let generations = lines_of(generations(&job()));
        assert_eq!(
            generations,
            [
                "  generation  ranks  began after  lasted  efficiency  because",
                "           1      4       0.0 µs  5.00 s       0.930  the job began",
                "           3      3       5.03 s  1.97 s           –  member 2 is gone: its process was killed",
            ]
        );
        let recoveries = lines_of(recoveries(&job()).unwrap());
        assert_eq!(
            recoveries[1].split_whitespace().collect::<Vec<_>>().join(" "),
            "3 4 → 3 12.0 ms 1.00 ms 3.00 ms 10.0 ms 2.00 ms 28.0 ms 15.0 ms repeated"
        );
    }
}
