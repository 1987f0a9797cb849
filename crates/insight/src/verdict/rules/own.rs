//! The script's own code: logging, metrics and whatever else lies between steps.

use super::super::{Case, Finding, percent_text, time_text};
use super::Saying;
use crate::history::Activity;
use crate::loss::ranks_text;
use crate::replay::Change;

/// Own code below this share of the time is usual, in percent.
const WORTH_CHANGING_PERCENT: f64 = 5.0;

/// What helps wherever it is that a script writes something down.
const HOW: [&str; 3] = [
    "torch: if step % 100 == 0: log(…)   # with loss.item(), metrics and print() inside",
    "keras: callbacks that work in on_epoch_end instead of on_train_batch_end; model.fit(…, verbose=2 if hvd.rank() == 0 else 0)",
    "any:   queue = queue.Queue(); threading.Thread(target=write_what_comes, args=(queue,), daemon=True).start()",
];

/// Ranks that do something which the others do not, and all wait for them.
pub(super) fn of_some(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    if finding.whose.is_empty() || finding.lost_percent < WORTH_CHANGING_PERCENT {
        return None;
    }
    let (there_ns, elsewhere_ns) = case.mean_ns(&finding.whose, Activity::Own);
    let change = format!(
        "Only {} {} so much code of the script between steps ({} against {} on the others{}), and all wait for it. Logging, an evaluation or a \
         checkpoint on one rank looks like this: do it less often, leave it to a thread, or let each rank do a share of it.",
        ranks_text(&finding.whose),
        if finding.whose.len() == 1 { "runs" } else { "run" },
        time_text(there_ns),
        time_text(elsewhere_ns),
        most_of_it(finding)
    );
    Some(Saying::new(change, &HOW).gaining(case.gain(&[Change::NoOwnCode])))
}

/// All ranks alike.
pub(super) fn of_all(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    if !finding.whose.is_empty() || finding.lost_percent < WORTH_CHANGING_PERCENT {
        return None;
    }
    let change = format!(
        "Between steps the script runs code of its own for {} of the time{}: outside of batches, forward, backward, optimizer, evaluation and \
         checkpoints. Do it less often, leave it to a thread, or let one rank do it for all.",
        percent_text(finding.lost_percent),
        most_of_it(finding)
    );
    Some(Saying::new(change, &HOW).gaining(case.gain(&[Change::NoOwnCode])))
}

/// Where it is, if samples say so.
fn most_of_it(finding: &Finding) -> String {
    finding.places.foremost().map_or_else(String::new, |(place, share)| {
        format!(", most of it at {place} ({} of samples)", percent_text(share))
    })
}
