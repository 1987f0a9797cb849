//! The rules, in the order in which their advice is given. Each looks at one finding and proposes a recommendation or
//! not.
//!
//! A rule reads the case and nothing else, so that a sketch can test it. The gain comes from a replay. No rule has
//! words of its own: [`report::wording`](crate::report::wording) has them.

mod checkpoint;
mod fusion;
mod input;
mod late;
mod layout;
mod nothing;
mod own;
mod sequential;
mod size;
mod wire;

use super::{Advice, Analysis, Finding, Gain, Recommendation, Topic};
use crate::loss::LossCause;

/// A rule: its name, the topics it is about, and its proposal.
struct Rule {
    name: &'static str,
    about: fn(&Topic) -> bool,
    propose: fn(&Analysis<'_>, &Finding) -> Option<Proposal>,
}

/// Advice without the rule's name.
struct Proposal {
    recommendation: Recommendation,
    gain: Option<Gain>,
}

impl Proposal {
    /// A recommendation with an unknown gain.
    fn of(recommendation: Recommendation) -> Proposal {
        Proposal { recommendation, gain: None }
    }

    fn gaining(recommendation: Recommendation, gain: Gain) -> Proposal {
        Proposal { recommendation, gain: Some(gain) }
    }
}

/// Every rule. A new one is a line here and a function beside its like.
const RULES: [Rule; 22] = [
    Rule { name: "starving-rank", about: input, propose: input::starving_rank },
    Rule { name: "loader-workers", about: input, propose: input::loader_workers },
    Rule { name: "preprocess-offline", about: input, propose: input::preprocess_offline },
    Rule { name: "record-format", about: input, propose: input::record_format },
    Rule { name: "own-code-of-some", about: own_code, propose: own::of_some },
    Rule { name: "own-code", about: own_code, propose: own::of_all },
    Rule { name: "share-phase", about: sequential, propose: sequential::share },
    Rule { name: "move-phase", about: sequential, propose: sequential::move_away },
    Rule { name: "thread-layout", about: between_ranks, propose: layout::crowded },
    Rule { name: "slow-rank", about: late, propose: late::slow_rank },
    Rule { name: "unmarked-phase", about: late, propose: late::rare_and_long },
    Rule { name: "uneven-work", about: late_by_turns, propose: late::uneven_work },
    Rule { name: "checkpoint", about: checkpoint, propose: checkpoint::in_background },
    Rule { name: "replay-order", about: communication, propose: fusion::replay_off },
    Rule { name: "larger-fusion", about: communication, propose: fusion::larger },
    Rule { name: "smaller-fusion", about: communication, propose: fusion::smaller },
    Rule { name: "narrow-copies", about: packing, propose: wire::narrow_copies },
    Rule { name: "narrow-wire", about: transfer, propose: wire::narrow },
    Rule { name: "calibrate", about: transfer, propose: wire::calibrate },
    Rule { name: "one-switch", about: transfer, propose: wire::one_switch },
    Rule { name: "batch-size", about: communication, propose: size::batch_knee },
    Rule { name: "too-small", about: communication, propose: size::too_small },
];

/// The names of all rules, and of what is said where none has advice.
pub fn rule_names() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.name).chain([NO_ADVICE, MISSING_RANKS])
}

/// Advice that would bring less than this, in percent of the time, is not given.
const WORTH_SAYING_PERCENT: f64 = 0.5;

/// What the sentence is called that is said where no rule has advice.
const NO_ADVICE: &str = "nothing-to-change";

/// What is said of losses that missing ranks may be behind.
const MISSING_RANKS: &str = "missing-ranks";

/// The advice of all rules for a finding, or why there is none.
pub(super) fn advice(analysis: &Analysis<'_>, finding: &Finding) -> Vec<Advice> {
    if analysis.history.recorded_size() < analysis.history.size() && may_hide_waits(&finding.topic) {
        return vec![Advice { rule: MISSING_RANKS, recommendation: Recommendation::CollectAllTraces, gain: None }];
    }
    let mut advice: Vec<Advice> = RULES
        .iter()
        .filter(|rule| (rule.about)(&finding.topic))
        .filter_map(|rule| {
            let Proposal { recommendation, gain } = (rule.propose)(analysis, finding)?;
            if gain.is_some_and(|gain| gain.time_saved_percent < WORTH_SAYING_PERCENT) {
                return None;
            }
            Some(Advice { rule: rule.name, recommendation, gain })
        })
        .collect();
    if advice.is_empty() {
        advice.push(Advice { rule: NO_ADVICE, recommendation: nothing::to_gain(analysis, finding), gain: None });
    }
    advice
}

fn input(topic: &Topic) -> bool {
    *topic == Topic::Cause(LossCause::Input)
}

fn own_code(topic: &Topic) -> bool {
    *topic == Topic::Cause(LossCause::Own)
}

fn sequential(topic: &Topic) -> bool {
    matches!(topic, Topic::Cause(LossCause::Sequential(_)))
}

fn late(topic: &Topic) -> bool {
    matches!(topic, Topic::Cause(LossCause::Late(_)))
}

fn late_by_turns(topic: &Topic) -> bool {
    *topic == Topic::LateByTurns
}

/// What waiting for a rank looks like that is not recorded.
fn may_hide_waits(topic: &Topic) -> bool {
    communication(topic) || *topic == Topic::Cause(LossCause::Other)
}

/// What goes on between ranks, and suffers where they compete for cores.
fn between_ranks(topic: &Topic) -> bool {
    late(topic) || late_by_turns(topic) || may_hide_waits(topic)
}

fn checkpoint(topic: &Topic) -> bool {
    *topic == Topic::Cause(LossCause::Checkpoint)
}

fn transfer(topic: &Topic) -> bool {
    *topic == Topic::Cause(LossCause::Transfer)
}

fn packing(topic: &Topic) -> bool {
    *topic == Topic::Cause(LossCause::Packing)
}

fn communication(topic: &Topic) -> bool {
    matches!(topic, Topic::Cause(LossCause::Transfer | LossCause::Agreement | LossCause::Packing))
}
