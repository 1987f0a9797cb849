//! Parts of a history: some iterations, epochs, phases, or a time.
//!
//! A window is first turned into times on the common clock, the same for all ranks, and the history is then cut to
//! them. What lay between is taken out and the rest moves together; a moment that was outside becomes the nearest one
//! that is inside. So a cut history is a history like any other, and everything that can be asked of the whole can be
//! asked of it.
//!
//! Iterations of different ranks do not begin at the same moment: a window of iterations goes from the first rank's
//! beginning to the last rank's end.

use super::{History, OperationHistory, Phase, Stretch};

/// Which part of a history.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TimeWindow {
    /// All of it.
    #[default]
    Whole,
    /// Iterations with these numbers, both included.
    Iterations(u64, u64),
    /// Epochs with these numbers, both included.
    Epochs(u64, u64),
    /// Every time in which some rank was in a phase of this name.
    Phase(String),
    /// Seconds from the history's beginning.
    Seconds(f64, f64),
}

/// Why there is no such window.
#[derive(Clone, Debug, PartialEq)]
pub enum WindowError {
    /// The text is no window.
    Unreadable(String),
    /// The history has nothing there.
    Empty(TimeWindow),
}

impl std::error::Error for WindowError {}

impl std::fmt::Display for WindowError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WindowError::Unreadable(text) => write!(
                f,
                "`{text}` is no window: write iterations=10..20, epochs=2, phase=evaluation or seconds=1.5..4"
            ),
            WindowError::Empty(window) => write!(f, "nothing was recorded in the window {window}"),
        }
    }
}

impl std::fmt::Display for TimeWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TimeWindow::Whole => write!(f, "whole run"),
            TimeWindow::Iterations(from, to) => write!(f, "iterations={from}..{to}"),
            TimeWindow::Epochs(from, to) => write!(f, "epochs={from}..{to}"),
            TimeWindow::Phase(name) => write!(f, "phase={name}"),
            TimeWindow::Seconds(from, to) => write!(f, "seconds={from}..{to}"),
        }
    }
}

impl std::str::FromStr for TimeWindow {
    type Err = WindowError;

    /// `KIND=FROM..TO` with both ends included, `KIND=N` for one, `phase=NAME`.
    fn from_str(text: &str) -> Result<TimeWindow, WindowError> {
        let unreadable = || WindowError::Unreadable(text.to_owned());
        let (kind, range) = text.split_once('=').ok_or_else(unreadable)?;
        let (from, to) = range.split_once("..").unwrap_or((range, range));
        let whole = |text: &str| text.trim().parse::<u64>().map_err(|_| unreadable());
        let seconds = |text: &str| {
            text.trim().parse::<f64>().ok().filter(|at| at.is_finite() && *at >= 0.0).ok_or_else(unreadable)
        };
        let window = match kind.trim() {
            "iterations" | "iteration" => TimeWindow::Iterations(whole(from)?, whole(to)?),
            "epochs" | "epoch" => TimeWindow::Epochs(whole(from)?, whole(to)?),
            "phase" if !range.is_empty() => TimeWindow::Phase(range.to_owned()),
            "seconds" => TimeWindow::Seconds(seconds(from)?, seconds(to)?),
            _ => return Err(unreadable()),
        };
        match window {
            TimeWindow::Iterations(from, to) | TimeWindow::Epochs(from, to) if from > to => Err(unreadable()),
            TimeWindow::Seconds(from, to) if from >= to => Err(unreadable()),
            window => Ok(window),
        }
    }
}

impl History {
    /// The part of this history that lies in a window.
    pub fn cut(&self, window: &TimeWindow) -> Result<History, WindowError> {
        if *window == TimeWindow::Whole {
            return Ok(self.clone());
        }
        let kept = merged(self.times(window));
        if kept.is_empty() {
            return Err(WindowError::Empty(window.clone()));
        }
        Ok(self.keep(&kept))
    }

    /// The times of a window, in any order, perhaps overlapping.
    fn times(&self, window: &TimeWindow) -> Vec<(u64, u64)> {
        let hull = |wanted: &dyn Fn(&super::Iteration) -> bool| {
            let chosen = || self.ranks.iter().flat_map(|rank| &rank.iterations).filter(|iteration| wanted(iteration));
            let from_ns = chosen().map(|iteration| iteration.from_ns).min();
            let to_ns = chosen().map(|iteration| iteration.to_ns).max();
            from_ns.zip(to_ns).into_iter().collect()
        };
        match window {
            TimeWindow::Whole => vec![(0, self.end_ns)],
            TimeWindow::Iterations(from, to) => hull(&|iteration| (*from..=*to).contains(&iteration.number)),
            TimeWindow::Epochs(from, to) => hull(&|iteration| (*from..=*to).contains(&iteration.epoch)),
            TimeWindow::Phase(name) => {
                let phases = self.ranks.iter().flat_map(|rank| &rank.phases).filter(|phase| phase.name == *name);
                phases.map(|phase| (phase.from_ns, phase.to_ns)).collect()
            }
            TimeWindow::Seconds(from, to) => {
                let ns = |seconds: f64| ((seconds * 1e9) as u64).min(self.end_ns);
                vec![(ns(*from), ns(*to))]
            }
        }
    }

    /// This history with everything taken out but these times, which are in order and apart.
    pub(super) fn keep(&self, kept: &[(u64, u64)]) -> History {
        let moved = |at_ns: u64| {
            let inside = |&(from_ns, to_ns): &(u64, u64)| at_ns.min(to_ns).saturating_sub(from_ns);
            kept.iter().map(inside).sum::<u64>()
        };
        let touches = |from_ns: u64, to_ns: u64| {
            kept.iter().any(|&(kept_from, kept_to)| from_ns < kept_to && to_ns > kept_from)
                || (from_ns == to_ns && kept.iter().any(|&(from, to)| (from..to).contains(&from_ns)))
        };
        let mut ranks = self.ranks.clone();
        for rank in &mut ranks {
            rank.lane.retain(|stretch| touches(stretch.from_ns, stretch.to_ns));
            for Stretch { from_ns, to_ns, .. } in &mut rank.lane {
                (*from_ns, *to_ns) = (moved(*from_ns), moved(*to_ns));
            }
            rank.phases.retain(|phase| touches(phase.from_ns, phase.to_ns));
            for Phase { from_ns, to_ns, .. } in &mut rank.phases {
                (*from_ns, *to_ns) = (moved(*from_ns), moved(*to_ns));
            }
            rank.iterations.retain(|iteration| touches(iteration.from_ns, iteration.to_ns));
            for iteration in &mut rank.iterations {
                (iteration.from_ns, iteration.to_ns) = (moved(iteration.from_ns), moved(iteration.to_ns));
            }
            rank.samples.retain(|sample| touches(sample.at_ns, sample.at_ns));
            for sample in &mut rank.samples {
                sample.at_ns = moved(sample.at_ns);
            }
            rank.device.keep(|at_ns| touches(at_ns, at_ns), moved);
            rank.input.keep(|at_ns| touches(at_ns, at_ns), moved);
        }
        let (settings, gaps) = (self.settings.clone(), self.gaps.clone());
        let end_ns = moved(self.end_ns);
        let mut history = History { ranks, operations: Vec::new(), end_ns, settings, gaps, ..*self };
        history.keep_operations(&self.operations, touches, moved);
        history
    }

    /// Takes over the operations that reach into the window, and has the lanes point to where they are now.
    fn keep_operations(
        &mut self,
        all: &[OperationHistory],
        touches: impl Fn(u64, u64) -> bool,
        moved: impl Fn(u64) -> u64,
    ) {
        let mut place = vec![None; all.len()];
        for (number, operation) in all.iter().enumerate() {
            let first_ns = operation.passages.iter().map(|passage| passage.first_submitted_ns).min().unwrap_or(0);
            if !touches(first_ns, operation.done_ns()) {
                continue;
            }
            let mut operation = operation.clone();
            for passage in &mut operation.passages {
                for moment in [
                    &mut passage.first_submitted_ns,
                    &mut passage.submitted_ns,
                    &mut passage.begun_ns,
                    &mut passage.packed_ns,
                    &mut passage.moved_ns,
                    &mut passage.done_ns,
                ] {
                    *moment = moved(*moment);
                }
            }
            place[number] = Some(self.operations.len());
            self.operations.push(operation);
        }
        for stretch in self.ranks.iter_mut().flat_map(|rank| &mut rank.lane) {
            if let super::Activity::Blocked(Some(operation)) = stretch.activity {
                stretch.activity = super::Activity::Blocked(place[operation]);
            }
        }
    }
}

/// Times in order, with those joined that touch.
fn merged(mut times: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    times.retain(|(from_ns, to_ns)| from_ns < to_ns);
    times.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from_ns, to_ns) in times {
        match joined.last_mut() {
            Some(last) if from_ns <= last.1 => last.1 = last.1.max(to_ns),
            _ => joined.push((from_ns, to_ns)),
        }
    }
    joined
}
