//! What calibration has found, for people: by contest, one line for each range of sizes with the same answer.

use std::fmt::Write;
use std::time::Duration;

use farandole_insight::profile::size_text;
use farandole_plan::table::Table;

use super::verdict::{Decided, Row, Standing};

/// Above this load somebody else is at work, and times are theirs, too.
const BUSY_LOAD: f64 = 0.5;

/// What was measured where.
pub fn heading(machine: &str, table: &Table, load: f64, took: Duration) -> String {
    let mut text = format!("measured: {} on {machine}, in {:.1} s\n", table.class, took.as_secs_f64());
    if load > BUSY_LOAD {
        let _ = writeln!(
            text,
            "          BUSY: load average {load:.1}; others are at work here; measure again when it is quiet"
        );
    }
    text
}

/// One contest.
pub fn contest(decided: &Decided) -> String {
    let mut text = format!("\n{}\n", decided.title);
    let _ = writeln!(text, "  {:<20} {:<22} {:<22} {:>12}", "sizes", "built in", "measured best", "times as fast");
    for range in decided.rows.chunk_by(|a, b| (a.usual, a.chosen) == (b.usual, b.chosen)) {
        let (first, last) = (&range[0], &range[range.len() - 1]);
        let sizes = match range.len() {
            1 => size_text(first.bytes),
            _ => format!("{} to {}", size_text(first.bytes), size_text(last.bytes)),
        };
        let chosen = if first.chosen == first.usual { "the same" } else { first.chosen.word() };
        let _ = writeln!(text, "  {sizes:<20} {:<22} {chosen:<22} {:>12}", first.usual.word(), gain(range));
    }
    for row in &decided.rows {
        if let Some((way, time_us, Standing::Unsure { lost, rounds })) = row.unsure {
            let times = row.usual_us / time_us;
            let _ = writeln!(
                text,
                "  noise at {}: {way} seemed {times:.2} times as fast, but was not in {lost} of {rounds} rounds",
                size_text(row.bytes)
            );
        }
    }
    text
}

/// How many times as fast the table's choice is: from the least of a range to the most.
fn gain(range: &[Row]) -> String {
    if range[0].usual == range[0].chosen {
        return "-".to_owned();
    }
    let gains = || range.iter().map(|row| row.usual_us / row.chosen_us);
    let (least, most) = (gains().fold(f64::INFINITY, f64::min), gains().fold(0.0, f64::max));
    if range.len() == 1 { format!("{least:.2}") } else { format!("{least:.2} to {most:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_plan::Algorithm;
    use farandole_plan::table::Way;

    fn row(bytes: u64, chosen: Algorithm, chosen_us: f64) -> Row {
        let usual = Way::Allreduce(Algorithm::Ring);
        Row { bytes, usual, usual_us: 100.0, chosen: Way::Allreduce(chosen), chosen_us, unsure: None }
    }

    #[test]
    fn sizes_with_the_same_answer_share_a_line_and_noise_is_called_noise() {
        let mut rows =
            vec![row(4, Algorithm::Ring, 100.0), row(1024, Algorithm::Tree, 50.0), row(4096, Algorithm::Tree, 80.0)];
        let unsure = Standing::Unsure { lost: 5, rounds: 14 };
        rows[0].unsure = Some((Way::Allreduce(Algorithm::Halving), 80.0, unsure));
        let text = contest(&Decided { title: "allreduce", rows });
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert!(lines[0].contains("4 B") && lines[0].contains("the same") && lines[0].ends_with('-'), "{text}");
        assert!(lines[1].contains("1 KB to 4 KB") && lines[1].contains("tree"), "{text}");
        assert!(lines[1].ends_with("1.25 to 2.00"), "{text}");
        assert!(lines[2].contains("noise at 4 B: halving seemed 1.25 times as fast, but was not in 5 of 14"), "{text}");
    }
}
