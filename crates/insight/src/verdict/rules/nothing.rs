//! Losses that no rule has advice for: an honest sentence why.
//!
//! Some of what communication costs is its price. Saying so, with the number that shows it, is worth more than silence:
//! the reader knows that there is nothing to look for.

use super::super::{Case, Finding, Topic, time_text};
use super::{Saying, WORTH_SAYING_PERCENT};
use crate::history::Activity;
use crate::loss::Cause;
use crate::profile::size_text;

/// What is said where there is no advice.
pub(super) fn to_gain(case: &Case<'_>, finding: &Finding) -> Saying {
    if finding.without.is_some_and(|gain| gain.time_saved_percent < WORTH_SAYING_PERCENT) {
        return Saying::new(
            "There is nothing to gain here: without this, ranks would wait for something else at the same place.",
            &[],
        );
    }
    let sentence = match &finding.topic {
        Topic::Cause(Cause::Agreement) => agreement(case),
        Topic::Cause(Cause::Packing) => packing(case),
        Topic::Cause(Cause::Transfer) => transfer(case),
        Topic::Cause(Cause::Other) => other(case),
        Topic::Cause(Cause::Input) => "Nothing in the recording says what would feed the ranks faster.".to_owned(),
        Topic::Cause(Cause::Own) => {
            "There is little to gain: every script does something between its steps, and so much is usual.".to_owned()
        }
        Topic::Cause(Cause::Checkpoint) => "Nothing in the recording says how checkpoints could take less.".to_owned(),
        Topic::Cause(Cause::Sequential(phase)) => {
            format!("Nothing in the recording says how “{phase}” could be shared.")
        }
        Topic::Cause(Cause::Late(_)) | Topic::LateByTurns => {
            "Nothing in the recording says why ranks take differently long.".to_owned()
        }
    };
    let how: &[&str] = match &finding.topic {
        Topic::Cause(Cause::Other) => &["farandole report DIR --window iterations=10..1000000"],
        Topic::Cause(Cause::Transfer) => &["farandole profile DIR"],
        _ => &[],
    };
    Saying::new(sentence, how)
}

/// What is said of communication where ranks are missing.
pub(super) fn without_all_ranks() -> Saying {
    Saying::new(
        "Waiting for the ranks that are missing cannot be told from communication, so there is no advice: bring the traces of all ranks \
         together, and this is divided.",
        &["farandole run --trace DIR …   # a folder that all hosts share, or copy the files of all hosts into one"],
    )
}

/// The mean of a loss over the operations, as text.
fn each(case: &Case<'_>, key: &str) -> String {
    let passages: u64 = case.history.operations.iter().map(|operation| operation.passages.len() as u64).sum();
    time_text(case.split.lost_ns(key) / passages.max(1))
}

fn agreement(case: &Case<'_>) -> String {
    format!(
        "There is little to gain: {} for each operation is about what ranks need to tell each other that they are there. It becomes less \
         only with fewer operations, or with more work between them.",
        each(case, "agreement")
    )
}

fn packing(case: &Case<'_>) -> String {
    let traffic = case.traffic();
    let bytes = traffic.bytes.checked_div(traffic.calls).unwrap_or(0);
    format!(
        "There is little to gain: {} for each operation of {} on average is what copying between tensors and the buffer takes. Without it, tensors would \
         travel one by one, which costs more. It becomes less only with fewer bytes.",
        each(case, "packing"),
        size_text(bytes)
    )
}

fn transfer(case: &Case<'_>) -> String {
    let traffic = case.traffic();
    let speed = traffic.busbw_gb_per_s().filter(|_| traffic.bytes > 0);
    let speed = speed.map_or_else(String::new, |speed| format!(" at {speed:.2} GB/s"));
    format!(
        "There is little to gain: {} for each operation, on average {}{speed}, is what bytes take on this way. It becomes less only with fewer bytes, or \
         with more work between two exchanges.",
        each(case, "transfer"),
        size_text(traffic.bytes.checked_div(traffic.calls).unwrap_or(0))
    )
}

fn other(case: &Case<'_>) -> String {
    let idle = |activity: Activity| matches!(activity, Activity::NotBegun | Activity::Ended);
    let lanes = case.history.ranks.iter().flat_map(|rank| &rank.lane);
    let ends_ns: u64 = lanes.filter(|stretch| idle(stretch.activity)).map(|stretch| stretch.ns()).sum();
    if 2 * ends_ns > case.split.lost_ns("other") {
        return "Ranks begin and end at different times. That is paid once: a longer run makes it smaller, and a window leaves it out."
            .to_owned();
    }
    "This is time in which ranks were blocked and nothing recorded says by what: operations that were not recorded on all ranks, and threads that were \
     not given a core when they could go on. A window without the beginning and the end leaves the former out."
        .to_owned()
}
