//! How far a study is and how long it will take: one bar on a terminal, one line for each run elsewhere.
//!
//! The time left is computed from what runs of the same point took before, or, for points that have not run yet, from
//! the mean of all: a run of many ranks takes longer than one of few.

use std::time::Duration;

use farandole_study::point::StudyPoint;
use indicatif::{ProgressBar, ProgressStyle};

/// What is left to do, and what was done.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    terminal: bool,
    total: usize,
    done: usize,
    /// What runs have taken, in seconds.
    taken: Vec<(StudyPoint, f64)>,
}

impl Progress {
    /// For so many runs, some of them done in an earlier session.
    pub(crate) fn new(total: usize, done: usize, taken: Vec<(StudyPoint, f64)>) -> Progress {
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let bar = if terminal { ProgressBar::new(total as u64) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:16} {pos}/{len} runs  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(done as u64);
        Progress { bar, terminal, total, done, taken }
    }

    /// A run begins; `left` are the points that still have to run, it among them.
    pub(crate) fn begin(&mut self, label: &str, left: &[&StudyPoint]) {
        let left = remaining(&self.taken, left).map_or_else(String::new, |left| format!(", {} left", short(left)));
        self.bar.set_message(format!("{label}{left}"));
        self.bar.tick();
    }

    /// A run has ended.
    pub(crate) fn end(&mut self, point: &StudyPoint, seconds: f64, said: &str) {
        self.done += 1;
        self.taken.push((point.clone(), seconds));
        let line = format!("[{}/{}] {said} ({seconds:.1} s)", self.done, self.total);
        if self.terminal {
            self.bar.println(line);
            self.bar.inc(1);
        } else {
            eprintln!("{line}");
        }
    }

    /// All has been run.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Seconds that the runs left will take, if anything is known about it.
fn remaining(taken: &[(StudyPoint, f64)], left: &[&StudyPoint]) -> Option<Duration> {
    if taken.is_empty() {
        return None;
    }
    let mean = |of: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = of.fold((0.0, 0usize), |(sum, count), seconds| (sum + seconds, count + 1));
        (count > 0).then(|| sum / count as f64)
    };
    let all = mean(&mut taken.iter().map(|(_, seconds)| *seconds))?;
    let own = |point: &StudyPoint| {
        mean(&mut taken.iter().filter(|(known, _)| known == point).map(|(_, seconds)| *seconds)).unwrap_or(all)
    };
    Some(Duration::from_secs_f64(left.iter().map(|point| own(point)).sum()))
}

/// A time as people say it.
pub(crate) fn short(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(ranks: usize) -> StudyPoint {
        StudyPoint {
            model: "m".into(),
            ranks,
            threads: 1,
            batch: 8,
            precision: "f32".into(),
            plane: String::new(),
            input: None,
        }
    }

    #[test]
    fn the_time_left_is_what_like_points_took() {
        let taken = [(point(1), 2.0), (point(1), 4.0), (point(2), 9.0)];
        assert_eq!(
            remaining(&taken, &[&point(1), &point(2), &point(4)]),
            Some(Duration::from_secs_f64(3.0 + 9.0 + 5.0))
        );
        assert_eq!(remaining(&[], &[&point(1)]), None);
    }

    #[test]
    fn times_are_short() {
        let texts = [5, 119, 121, 7300].map(|seconds| short(Duration::from_secs(seconds)));
        assert_eq!(texts, ["5 s", "119 s", "3 min", "2.0 h"]);
    }
}
