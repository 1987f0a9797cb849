//! How long each leg of a run took, in minutes on the wall and of processor time, as rows of a table in Markdown.
//!
//! Processor time says what a leg costs on a machine that does something else as well, and beside the minutes on the
//! wall it shows how many cores were busy. It counts processes that were started and have ended, those that they had
//! started included.

use std::fmt;
use std::time::{Duration, Instant};

/// Ticks of the kernel in a second, in which `/proc` counts: the same on every Linux that Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// A stopwatch for legs that follow each other, and for some that run beside others.
pub(crate) struct Times {
    began: Instant,
    legs: Vec<Leg>,
    leg_began: Instant,
    processor_before: Duration,
}

/// What one leg took.
struct Leg {
    name: &'static str,
    wall: Duration,
    processor: Duration,
}

impl Times {
    /// The first leg begins now.
    pub(crate) fn start() -> Times {
        let now = Instant::now();
        Times { began: now, legs: Vec::new(), leg_began: now, processor_before: processor_time() }
    }

    /// A leg has ended, and the next one begins.
    pub(crate) fn end_of(&mut self, name: &'static str) {
        let (now, processor) = (Instant::now(), processor_time());
        let (wall, used) = (now - self.leg_began, processor.saturating_sub(self.processor_before));
        self.legs.push(Leg { name, wall, processor: used });
        (self.leg_began, self.processor_before) = (now, processor);
    }

    /// A leg has ended that ran beside others, for so long. The processor counts since the last of those has ended.
    pub(crate) fn end_beside(&mut self, name: &'static str, wall: Duration) {
        self.end_of(name);
        let leg = self.legs.last_mut().expect("invariant: the line above has added it");
        leg.wall = wall;
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, wall: Duration, processor: Duration| {
            let minutes = |time: Duration| time.as_secs_f64() / 60.0;
            writeln!(f, "| {name} | {:.1} | {:.1} |", minutes(wall), minutes(processor))
        };
        writeln!(f, "| leg | minutes | of processor time |\n|---|---|---|")?;
        self.legs.iter().try_for_each(|leg| row(f, leg.name, leg.wall, leg.processor))?;
        row(f, "all", self.leg_began - self.began, self.legs.iter().map(|leg| leg.processor).sum())
    }
}

/// The processor time of all processes that we started and that have ended.
fn processor_time() -> Duration {
    // Where there is no /proc the column says 0.0.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Duration::from_secs_f64(ticks_of_children(&stat).unwrap_or(0.0) / TICKS_PER_SECOND)
}

/// `cutime` and `cstime` of a process. The name before them is in parentheses and may hold anything.
fn ticks_of_children(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = |field: usize| fields.split_whitespace().nth(field)?.parse::<f64>().ok();
    // Counted as in proc(5) these are fields 16 and 17; the first behind the name is field 3.
    Some(ticks(16 - 3)? + ticks(17 - 3)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_children_is_found_behind_any_name() {
        let stat = "42 (a ) 1 b) S 1 42 42 0 -1 4194304 1 2 3 4 50 60 700 800 20 0 1 0 9 1 1";
        assert_eq!(ticks_of_children(stat), Some(1500.0));
        assert_eq!(ticks_of_children(""), None);
    }

    #[test]
    fn a_leg_has_the_processor_time_of_its_processes_and_the_sum_stands_last() {
        let mut times = Times::start();
        times.end_of("nothing");
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", busy]).status().unwrap().success());
        times.end_of("busy");
        times.end_beside("beside", Duration::from_secs(60));
        assert!(times.legs[1].processor >= Duration::from_millis(10), "{:?}", times.legs[1].processor);
        let table = times.to_string();
        assert!(
            table.starts_with("| leg | minutes | of processor time |\n|---|---|---|\n| nothing | 0.0 | 0.0 |\n"),
            "{table}"
        );
        assert!(table.contains("\n| beside | 1.0 | 0.0 |\n"), "{table}");
        assert!(table.lines().last().unwrap().starts_with("| all | "), "{table}");
    }
}
