//! Conclusions from a history: how much of the ranks is used, what the rest is lost to, what to change, and what each
//! change would gain.
//!
//! Every loss above a threshold becomes a *finding*: how much, the evidence, and *advice*. Advice comes from the rules,
//! a table of small functions, each of which looks at one finding and has a recommendation or not. Gains are never
//! guessed: the history is replayed with the change ([`replay`](crate::replay)), or the gain is unknown.
//!
//! **Invariant:** the findings come largest first, and their losses are part of the split, which sums to the whole.

mod analysis;
mod devices;
mod needs;
mod recommendation;
mod rules;
mod words;

pub use analysis::Analysis;
pub use devices::{CacheRate, DeviceUse, Devices};
pub use needs::{ConvertedInput, InputNeeds};
pub use recommendation::{HotSpot, Location, Reason, Recommendation};
pub use rules::rule_names;
pub use words::{percent_text, time_text};

use crate::efficiency::{AgainstReference, Efficiencies, Scaling};
use crate::generations::Generations;
use crate::history::{Gap, History, HotSpots, TimeWindow};
use crate::loss::{Evidence, LossCause, TimeSplit};
use crate::replay::{Change, predicted_ns};
use crate::trouble::Trouble;

/// Losses below this share of the time are listed, but get no advice.
pub const WORTH_A_FINDING_PERCENT: f64 = 1.0;

/// How much of all lateness must be one rank's for it to be called slow. Where ranks are late by turns no rank is to
/// blame.
const ONE_RANK_TO_BLAME: f64 = 0.6;

/// Losses that the headline names.
const HEADLINE_LOSSES: usize = 3;

/// What a history comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// All in one sentence.
    pub headline: String,
    /// Which part of the history was looked at.
    pub window: TimeWindow,
    /// Number of ranks.
    pub size: usize,
    /// Number of hosts.
    pub hosts: usize,
    /// Iterations that every rank has made.
    pub iterations: usize,
    /// How long it took.
    pub end_ns: u64,
    /// How far the clocks of two ranks may be apart.
    pub clock_error_ns: u64,
    /// Records that were lost.
    pub dropped: u64,
    /// How many of the ranks are recorded.
    pub recorded: usize,
    /// What is missing of the recordings of whole ranks.
    pub gaps: Vec<Gap>,
    /// The efficiencies of the POP model.
    pub efficiencies: Efficiencies,
    /// Beside another run, if one was given.
    pub against: Option<(Scaling, AgainstReference)>,
    /// Where the time went.
    pub split: TimeSplit,
    /// What the devices did, where ranks have some.
    pub devices: Devices,
    /// What became of an elastic job, of which the history is one generation. Set by whoever has the others.
    pub generations: Option<Generations>,
    /// What is worth a sentence, largest first.
    pub findings: Vec<Finding>,
    /// The stall or failure on which the traces were dumped, if they were. Set by whoever has the traces.
    pub trouble: Option<Trouble>,
}

/// A loss with its evidence and what can be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// To what time is lost.
    pub topic: Topic,
    /// The ranks that are responsible, if it is some and not all.
    pub responsible: Vec<usize>,
    /// For a late rank, the phase in which it takes most of what it takes longer, if there is such a phase.
    pub phase: Option<String>,
    /// For the script's own code, where it was seen.
    pub hot_spots: HotSpots,
    /// The topic, the responsible ranks and the place: the title.
    pub title: String,
    /// How much, over all ranks.
    pub lost_ns: u64,
    /// Of the time of all ranks, in percent.
    pub lost_percent: f64,
    /// When and where, in numbers.
    pub evidence: Evidence,
    /// When and where, in sentences.
    pub sentences: Vec<String>,
    /// The gain if this loss, and nothing else, were gone; `None` where no change removes it.
    pub without: Option<Gain>,
    /// What can be done, best first.
    pub advice: Vec<Advice>,
}

/// What a finding is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topic {
    /// One cause of the split.
    Cause(LossCause),
    /// Ranks that are late by turns.
    LateByTurns,
}

impl Topic {
    /// The word for it in JSON.
    pub fn key(&self) -> &'static str {
        match self {
            Topic::Cause(cause) => cause.key(),
            Topic::LateByTurns => "late-by-turns",
        }
    }
}

impl Topic {
    /// The change that takes the loss away. A sequential phase is not left out but shared by all ranks.
    fn removal(&self) -> Option<Change> {
        Some(match self {
            Topic::LateByTurns => Change::Balanced,
            Topic::Cause(LossCause::Input) => Change::NoInputWait,
            Topic::Cause(LossCause::Own) => Change::NoOwnCode,
            Topic::Cause(LossCause::Late(rank)) => Change::NotLate(*rank),
            Topic::Cause(LossCause::Sequential(phase)) => Change::Shared(phase.clone()),
            Topic::Cause(LossCause::Checkpoint) => Change::NoCheckpoint,
            Topic::Cause(LossCause::Agreement) => Change::NoAgreement,
            Topic::Cause(LossCause::Packing) => Change::NoPacking,
            Topic::Cause(LossCause::Transfer) => Change::Transfer(0.0),
            Topic::Cause(LossCause::Other) => return None,
        })
    }
}

impl std::fmt::Display for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Topic::Cause(cause) => cause.fmt(f),
            Topic::LateByTurns => write!(f, "ranks arriving late by turns"),
        }
    }
}

/// Something to change.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The rule it comes from.
    pub rule: &'static str,
    /// What to do.
    pub recommendation: Recommendation,
    /// What it would bring; `None` where a trace cannot tell.
    pub gain: Option<Gain>,
}

/// What a change would bring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Time that the same work takes less, in percent of what it took.
    pub time_saved_percent: f64,
    /// How many times as fast the same work is done.
    pub speedup: f64,
}

impl Gain {
    /// The gain when work that took `before_ns` takes `after_ns`.
    pub fn of(before_ns: f64, after_ns: f64) -> Gain {
        let share = if before_ns > 0.0 { after_ns / before_ns } else { 1.0 };
        Gain { time_saved_percent: 100.0 * (1.0 - share), speedup: if share > 0.0 { 1.0 / share } else { 1.0 } }
    }
}

impl Verdict {
    /// Judges the part of a history that lies in a window, beside a reference if there is one. The history is the part
    /// already.
    pub fn of(history: &History, window: &TimeWindow, reference: Option<(&History, Scaling)>) -> Verdict {
        let split = TimeSplit::of(history);
        let efficiencies = Efficiencies::of(history);
        let analysis = Analysis::of(history, &split, &efficiencies);
        let findings = findings(&analysis);
        let against = reference.and_then(|(reference, scaling)| {
            AgainstReference::of(history, reference, scaling).map(|against| (scaling, against))
        });
        Verdict {
            headline: words::headline(history, &efficiencies, &findings),
            window: window.clone(),
            size: history.size(),
            hosts: history.hosts(),
            iterations: history.iterations(),
            end_ns: history.end_ns,
            clock_error_ns: history.clock_error_ns,
            dropped: history.dropped,
            recorded: history.recorded_size(),
            gaps: history.gaps.clone(),
            efficiencies,
            against,
            devices: Devices::of(history),
            generations: None,
            findings,
            split,
            trouble: None,
        }
    }
}

fn findings(analysis: &Analysis<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = topics(analysis.split)
        .into_iter()
        .filter(|part| analysis.split.percent(part.lost_ns) >= WORTH_A_FINDING_PERCENT)
        .map(|part| finding(analysis, part))
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.lost_ns));
    for finding in &mut findings {
        finding.without = finding.topic.removal().map(|change| analysis.gain(&[change]));
        finding.advice = rules::advice(analysis, finding);
    }
    findings
}

/// A loss that may become a finding.
struct Part {
    topic: Topic,
    name: String,
    responsible: Vec<usize>,
    lost_ns: u64,
    evidence: Evidence,
}

/// A finding without what it would bring to do something about it.
fn finding(analysis: &Analysis<'_>, part: Part) -> Finding {
    let Part { topic, name, responsible, lost_ns, evidence } = part;
    let longer_in = if let Topic::Cause(LossCause::Late(rank)) = topic { analysis.longer_in(rank) } else { Vec::new() };
    let hot_spots =
        if topic == Topic::Cause(LossCause::Own) { analysis.hot_spots(&responsible) } else { HotSpots::default() };
    let phase = words::top(&longer_in);
    Finding {
        title: words::title(&name, phase.as_deref(), &hot_spots),
        sentences: words::sentences(analysis, &topic, &responsible, &evidence, &longer_in, &hot_spots),
        lost_percent: analysis.split.percent(lost_ns),
        topic,
        responsible,
        phase,
        hot_spots,
        lost_ns,
        evidence,
        without: None,
        advice: Vec::new(),
    }
}

/// The losses of a split as topics: lateness is one rank's, if most of it is, and otherwise everybody's.
fn topics(split: &TimeSplit) -> Vec<Part> {
    let late_ns = split.lost_ns("late");
    let mut by_turns: Option<(u64, Evidence)> = None;
    let mut topics = Vec::new();
    for loss in &split.losses {
        if matches!(loss.cause, LossCause::Late(_)) && (loss.ns as f64) < ONE_RANK_TO_BLAME * late_ns as f64 {
            let (ns, evidence) = by_turns.get_or_insert_with(Default::default);
            *ns += loss.ns;
            evidence.add(&loss.evidence);
        } else {
            let (topic, responsible) = (Topic::Cause(loss.cause.clone()), loss.responsible.clone());
            let (lost_ns, evidence) = (loss.ns, loss.evidence.clone());
            topics.push(Part { topic, name: loss.name(), responsible, lost_ns, evidence });
        }
    }
    let topic = Topic::LateByTurns;
    topics.extend(by_turns.map(|(lost_ns, evidence)| Part {
        name: topic.to_string(),
        topic,
        responsible: Vec::new(),
        lost_ns,
        evidence,
    }));
    topics
}

impl Analysis<'_> {
    /// What these changes would bring.
    pub fn gain(&self, changes: &[Change]) -> Gain {
        Gain::of(self.history.end_ns as f64, predicted_ns(self.history, changes) as f64)
    }
}
