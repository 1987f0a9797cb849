//! The rules, in the order in which their advice is given. Each looks at one finding and has advice or not.
//!
//! A rule reads the case and nothing else, so that it can be tried with a sketch. What it promises comes from a replay.

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

use super::{Advice, Case, Finding, Topic};
use crate::loss::Cause;

/// A rule: what it is called, what it is about, and what it has to say.
struct Rule {
    name: &'static str,
    about: fn(&Topic) -> bool,
    say: fn(&Case<'_>, &Finding) -> Option<Saying>,
}

/// Advice without the rule's name.
struct Saying {
    change: String,
    how: Vec<String>,
    gain: Option<super::Gain>,
    caution: Option<&'static str>,
}

impl Saying {
    fn new(change: impl Into<String>, how: &[&str]) -> Saying {
        let how = how.iter().map(|line| (*line).to_owned()).collect();
        Saying { change: change.into(), how, gain: None, caution: None }
    }

    fn gaining(self, gain: super::Gain) -> Saying {
        Saying { gain: Some(gain), ..self }
    }

    fn careful(self, caution: &'static str) -> Saying {
        Saying { caution: Some(caution), ..self }
    }
}

/// Every rule. A new one is a line here and a function beside its like.
const RULES: [Rule; 22] = [
    Rule { name: "starving-rank", about: input, say: input::starving_rank },
    Rule { name: "loader-workers", about: input, say: input::loader_workers },
    Rule { name: "preprocess-offline", about: input, say: input::preprocess_offline },
    Rule { name: "record-format", about: input, say: input::record_format },
    Rule { name: "own-code-of-some", about: own_code, say: own::of_some },
    Rule { name: "own-code", about: own_code, say: own::of_all },
    Rule { name: "share-phase", about: sequential, say: sequential::share },
    Rule { name: "move-phase", about: sequential, say: sequential::move_away },
    Rule { name: "thread-layout", about: between_ranks, say: layout::crowded },
    Rule { name: "slow-rank", about: late, say: late::slow_rank },
    Rule { name: "unmarked-phase", about: late, say: late::rare_and_long },
    Rule { name: "uneven-work", about: late_by_turns, say: late::uneven_work },
    Rule { name: "checkpoint", about: checkpoint, say: checkpoint::in_background },
    Rule { name: "replay-order", about: communication, say: fusion::replay_off },
    Rule { name: "larger-fusion", about: communication, say: fusion::larger },
    Rule { name: "smaller-fusion", about: communication, say: fusion::smaller },
    Rule { name: "narrow-copies", about: packing, say: wire::narrow_copies },
    Rule { name: "narrow-wire", about: transfer, say: wire::narrow },
    Rule { name: "calibrate", about: transfer, say: wire::calibrate },
    Rule { name: "one-switch", about: transfer, say: wire::one_switch },
    Rule { name: "batch-size", about: communication, say: size::batch_knee },
    Rule { name: "too-small", about: communication, say: size::too_small },
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
pub(super) fn advice(case: &Case<'_>, finding: &Finding) -> Vec<Advice> {
    if case.history.recorded_size() < case.history.size() && may_hide_waits(&finding.topic) {
        let Saying { change, how, gain, caution } = nothing::without_all_ranks();
        return vec![Advice { rule: MISSING_RANKS, change, how, gain, caution }];
    }
    let mut advice: Vec<Advice> = RULES
        .iter()
        .filter(|rule| (rule.about)(&finding.topic))
        .filter_map(|rule| {
            let Saying { change, how, gain, caution } = (rule.say)(case, finding)?;
            if gain.is_some_and(|gain| gain.time_saved_percent < WORTH_SAYING_PERCENT) {
                return None;
            }
            Some(Advice { rule: rule.name, change, how, gain, caution })
        })
        .collect();
    if advice.is_empty() {
        let Saying { change, how, gain, caution } = nothing::to_gain(case, finding);
        advice.push(Advice { rule: NO_ADVICE, change, how, gain, caution });
    }
    advice
}

fn input(topic: &Topic) -> bool {
    *topic == Topic::Cause(Cause::Input)
}

fn own_code(topic: &Topic) -> bool {
    *topic == Topic::Cause(Cause::Own)
}

fn sequential(topic: &Topic) -> bool {
    matches!(topic, Topic::Cause(Cause::Sequential(_)))
}

fn late(topic: &Topic) -> bool {
    matches!(topic, Topic::Cause(Cause::Late(_)))
}

fn late_by_turns(topic: &Topic) -> bool {
    *topic == Topic::LateByTurns
}

/// What waiting for a rank looks like that is not recorded.
fn may_hide_waits(topic: &Topic) -> bool {
    communication(topic) || *topic == Topic::Cause(Cause::Other)
}

/// What goes on between ranks, and suffers where they compete for cores.
fn between_ranks(topic: &Topic) -> bool {
    late(topic) || late_by_turns(topic) || may_hide_waits(topic)
}

fn checkpoint(topic: &Topic) -> bool {
    *topic == Topic::Cause(Cause::Checkpoint)
}

fn transfer(topic: &Topic) -> bool {
    *topic == Topic::Cause(Cause::Transfer)
}

fn packing(topic: &Topic) -> bool {
    *topic == Topic::Cause(Cause::Packing)
}

fn communication(topic: &Topic) -> bool {
    matches!(topic, Topic::Cause(Cause::Transfer | Cause::Agreement | Cause::Packing))
}
