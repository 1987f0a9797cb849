//! Ranks whose recording is missing or ends too early: a killed rank, a full disk, a file that was left on its host.
//!
//! A history is made of what there is. A rank without a trace has no lane, and counts neither for what was done nor for
//! what was lost; operations are those that all *recorded* members went through. A trace that ends before the others
//! ends the history, because nothing is known of that rank from then on; but if it covers less than half of the run,
//! more is known without that rank than with it, and it is left out. Either way the history says so
//! ([`History::gaps`](super::History::gaps)).

use farandole_trace::{Trace, TraceEnding};

/// Share of the run that a trace must cover at least to be worth ending the history with it.
const WORTH_ENDING_WITH: f64 = 0.5;

/// What is missing of the recording of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The rank.
    pub rank: usize,
    /// Whether the rest of it is part of the history.
    pub lack: Lack,
    /// Why, in words that go on after a colon.
    pub why: String,
}

/// How much is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// All of it: the history is without this rank.
    Everything,
    /// What came after this moment, counted from the beginning of the recording: the history ends there or earlier.
    After(u64),
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Gap { rank, lack, why } = self;
        match lack {
            Lack::Everything => write!(f, "Rank {rank} is left out: {why}."),
            Lack::After(at_ns) => {
                let seconds = *at_ns as f64 / 1e9;
                write!(f, "The trace of rank {rank} ends {seconds:.3} s after the beginning of the recording: {why}.")
            }
        }
    }
}

/// Which traces are used, and until when.
pub(super) struct Usable {
    /// For each rank the position of its trace, if it is used.
    pub(super) positions: Vec<Option<usize>>,
    /// The end of what is known of all ranks that are used.
    pub(super) until_ns: u64,
    pub(super) gaps: Vec<Gap>,
}

/// Looks through the traces of a job of this size. `spans` are their first and last moments, from the beginning of the
/// recording.
pub(super) fn usable(traces: &[Trace], size: usize, spans: &[Option<(u64, u64)>]) -> Usable {
    let end_ns = spans.iter().flatten().map(|span| span.1).max().unwrap_or(0);
    let mut usable = Usable { positions: vec![None; size], until_ns: end_ns, gaps: Vec::new() };
    for rank in 0..size {
        let gap = |lack, why: &str| Gap { rank, lack, why: why.to_owned() };
        let Some(place) = traces.iter().position(|trace| trace.header.rank as usize == rank) else {
            usable.gaps.push(gap(Lack::Everything, "there is no trace of it here"));
            continue;
        };
        let why = match &traces[place].ending {
            TraceEnding::Complete(_) => None,
            TraceEnding::CutOff => {
                Some("it still runs, or was killed, or could not write any more (a full disk?)".to_owned())
            }
            TraceEnding::Damaged { at_byte } => Some(format!("the file is damaged from byte {at_byte} on")),
        };
        let Some((_, to_ns)) = spans[place] else {
            let why = why.unwrap_or_else(|| "nothing was recorded".to_owned());
            usable.gaps.push(gap(Lack::Everything, &format!("its trace is empty; {why}")));
            continue;
        };
        match why {
            Some(why) if (to_ns as f64) < WORTH_ENDING_WITH * end_ns as f64 => {
                let (at, of) = (to_ns as f64 / 1e9, end_ns as f64 / 1e9);
                let why = format!("its trace ends after {at:.3} s of {of:.3} s; {why}");
                usable.gaps.push(gap(Lack::Everything, &why));
            }
            Some(why) => {
                usable.gaps.push(gap(Lack::After(to_ns), &why));
                usable.until_ns = usable.until_ns.min(to_ns);
                usable.positions[rank] = Some(place);
            }
            None => usable.positions[rank] = Some(place),
        }
    }
    usable
}
