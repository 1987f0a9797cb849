//! The ranks that are responsible for a loss: those that spend far more time on it themselves than the others.
//!
//! A rank that waits for another's input loses its time to input as well, so losses do not show who is responsible. The
//! time that each rank spends itself does. Ranks are sorted by it, and the widest gap between two neighbours separates
//! the responsible ranks from the others, if it is wide enough and at most half of the ranks lie above it.
//!
//! Input has an exception. Where the loaders of all ranks are too slow, the one that is slowest by little is the last
//! in every iteration, and all wait for it; meanwhile the other loaders catch up, so their ranks wait less for input
//! themselves. What tells is whether the other loaders were ever idle: if they were not, all ranks starve.

use super::LossCause;
use crate::history::{Activity, History};

/// How many times as long the last responsible rank must take as the first of the others.
const FAR_MORE: f64 = 1.5;

/// Ranks that spend less than this share of what the first one does are all alike.
const NEGLIGIBLE: f64 = 0.05;

/// The share of all time from which on the workers of a loader count as never idle: the rest is the first batches, and
/// moments between two samples.
const NEVER_IDLE: f64 = 0.85;

/// Ranks that are named; of more, the first.
const RANKS_NAMED: usize = 4;

/// The activity of ranks that are responsible for a cause.
fn activity(cause: &LossCause) -> Option<Activity> {
    match cause {
        LossCause::Input => Some(Activity::Input),
        LossCause::Own => Some(Activity::Own),
        LossCause::Checkpoint => Some(Activity::Checkpoint),
        _ => None,
    }
}

/// The ranks that are responsible for a loss, in order; none where all are alike or no rank is responsible.
pub(super) fn responsible_ranks(history: &History, cause: &LossCause) -> Vec<usize> {
    let Some(activity) = activity(cause) else { return Vec::new() };
    let mut spent: Vec<(u64, usize)> =
        history.recorded().map(|rank| (history.ranks[rank].spent_ns(activity), rank)).collect();
    spent.sort_by_key(|&(ns, rank)| (std::cmp::Reverse(ns), rank));
    let least_ns = spent.first().map_or(0.0, |&(most_ns, _)| NEGLIGIBLE * most_ns as f64).max(1.0);
    let gap = |above: usize| spent[above - 1].0 as f64 / (spent[above].0 as f64).max(least_ns);
    let mut widest: Option<usize> = None;
    for above in 1..=spent.len() / 2 {
        if gap(above) >= FAR_MORE && widest.is_none_or(|known| gap(above) > gap(known)) {
            widest = Some(above);
        }
    }
    let (above, others) = spent.split_at(widest.unwrap_or(0));
    if activity == Activity::Input && others.iter().all(|&(_, rank)| is_loader_never_idle(history, rank)) {
        return Vec::new();
    }
    let mut ranks: Vec<usize> = above.iter().map(|&(_, rank)| rank).collect();
    ranks.sort_unstable();
    ranks
}

/// Whether the workers of a rank's loader made samples nearly all the time, by what the loader has recorded.
fn is_loader_never_idle(history: &History, rank: usize) -> bool {
    let Some(work) = history.ranks[rank].input.work() else { return false };
    let busy_ns = work.sample_ns() * work.samples as f64 / work.workers.max(1) as f64;
    busy_ns >= NEVER_IDLE * history.end_ns as f64
}

/// Some ranks in words: "rank 3", "ranks 1 and 3".
pub(crate) fn ranks_text(ranks: &[usize]) -> String {
    let named: Vec<String> = ranks.iter().take(RANKS_NAMED).map(usize::to_string).collect();
    match named.split_last() {
        None => "no rank".to_owned(),
        Some((only, [])) => format!("rank {only}"),
        Some(_) if ranks.len() > RANKS_NAMED => format!("{} ranks ({}, …)", ranks.len(), named.join(", ")),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{InputHistory, InputTime, RankHistory, Stretch};
    use farandole_trace::event::InputStage;

    fn blamed(input_ns: &[u64]) -> Vec<usize> {
        let rank = |&ns: &u64| {
            let lane = vec![Stretch { from_ns: 0, to_ns: ns, activity: Activity::Input }];
            RankHistory { lane, ..RankHistory::default() }
        };
        let history = History { ranks: input_ns.iter().map(rank).collect(), ..History::default() };
        responsible_ranks(&history, &LossCause::Input)
    }

    #[test]
    fn those_who_spend_far_more_than_the_others_are_to_blame() {
        assert_eq!(blamed(&[10, 400, 10, 12]), [1]);
        assert_eq!(blamed(&[10, 400, 10, 380]), [1, 3]);
        assert_eq!(blamed(&[400, 10, 0, 0]), [0], "what is next to nothing is alike");
        assert_eq!(blamed(&[100, 110, 120, 100]), [0; 0]);
        assert_eq!(blamed(&[400, 400, 400, 10]), [0; 0], "one who is better off is not the rule");
        assert_eq!(blamed(&[500]), [0; 0], "there is nobody else");
        assert_eq!(blamed(&[0, 0]), [0; 0]);
    }

    /// Two ranks in a run of 1000 ns; the first waits far less for input. Their loaders have two workers each, which
    /// were busy for so long together.
    fn blamed_with_loaders(busy_ns: [u64; 2]) -> Vec<usize> {
        let ranks = [(100, busy_ns[0]), (700, busy_ns[1])].map(|(waits_ns, ns)| {
            let lane = vec![Stretch { from_ns: 0, to_ns: waits_ns, activity: Activity::Input }];
            let time = InputTime { at_ns: 0, stage: InputStage::Decode, workers: 2, samples: 10, ns, amount: 0 };
            RankHistory { lane, input: InputHistory { stages: vec![time] }, ..RankHistory::default() }
        });
        let history = History { ranks: ranks.into(), end_ns: 1000, ..History::default() };
        responsible_ranks(&history, &LossCause::Input)
    }

    #[test]
    fn where_the_other_loader_is_never_idle_all_ranks_starve() {
        assert_eq!(blamed_with_loaders([1900, 1960]), [0; 0]);
        assert_eq!(blamed_with_loaders([600, 1960]), [1], "the first has time to spare");
        assert_eq!(blamed_with_loaders([600, 600]), [1], "what else keeps the second one waiting is its own matter");
    }

    #[test]
    fn ranks_are_named_as_people_do() {
        assert_eq!(ranks_text(&[3]), "rank 3");
        assert_eq!(ranks_text(&[1, 3, 5]), "ranks 1, 3 and 5");
        assert_eq!(ranks_text(&[1, 3, 5, 7, 9]), "5 ranks (1, 3, 5, 7, …)");
    }
}
