//! Why one rank came later than another: what it spent more time on since they last came out of the same operation.
//!
//! What a rank does while others wait for it need not be the cause: it may have waited for input before and work now.
//! So the two ranks are compared over the whole time since they last left the same operation. What the late rank spent
//! more time on than the waiting one made it late; where there are several such things, each gets its share of the
//! wait.

use super::{Attribution, CauseSpan, LossCause, made_by, own_doing};
use crate::history::Activity;

/// What a rank spent more time on than the one that waits for it.
pub(super) struct Excess {
    /// The causes with the time that was spent more, in the order in which they are shown.
    more: Vec<(LossCause, u64)>,
    last: usize,
}

impl Excess {
    /// Divides a time, in which the late rank does this, among the causes.
    pub(super) fn spread(&self, activity: Activity, (from_ns, to_ns): (u64, u64), pieces: &mut Vec<CauseSpan>) {
        let whole: u128 = self.more.iter().map(|(_, ns)| u128::from(*ns)).sum();
        if whole == 0 {
            // It spent nothing more, it only began later: what it does now is all that is known.
            let cause = made_by(self.last, activity);
            pieces.push(CauseSpan { from_ns, to_ns, cause: Some(cause) });
            return;
        }
        let (mut at_ns, mut so_far) = (from_ns, 0);
        for (cause, ns) in &self.more {
            so_far += u128::from(*ns);
            let share = u128::from(to_ns - from_ns) * so_far / whole;
            let end_ns = from_ns + u64::try_from(share).unwrap_or(to_ns - from_ns);
            pieces.push(CauseSpan { from_ns: at_ns, to_ns: end_ns, cause: Some(cause.clone()) });
            at_ns = end_ns;
        }
    }
}

impl Attribution<'_> {
    /// Compares the last rank to come to an operation with one that waits for it since the given moment or earlier.
    pub(super) fn excess(&self, waiting: usize, last: usize, number: usize, since_ns: u64) -> Excess {
        let operation = &self.history.operations[number];
        let (waiting_from, last_from) = self.together(waiting, last, since_ns);
        let arrival_ns = |rank| operation.passage(rank).map_or(0, |passage| passage.submitted_ns);
        let spent_waiting = self.spent(waiting, (waiting_from, arrival_ns(waiting)));
        let spent_last = self.spent(last, (last_from, arrival_ns(last)));
        let mut more = Vec::new();
        for (cause, ns) in spent_last {
            let same = |other: &LossCause| cause.key() == other.key() && (cause.key() == "late" || cause == *other);
            let other_ns = spent_waiting.iter().find(|(other, _)| same(other)).map_or(0, |(_, ns)| *ns);
            if ns > other_ns {
                more.push((cause, ns - other_ns));
            }
        }
        more.sort();
        Excess { more, last }
    }

    /// When the two ranks last came out of the same operation that the first had waited for: the moments of both.
    fn together(&self, waiting: usize, last: usize, since_ns: u64) -> (u64, u64) {
        let lane = &self.history.ranks[waiting].lane;
        let here = lane.partition_point(|stretch| stretch.to_ns <= since_ns);
        for stretch in lane[..here].iter().rev() {
            if let Activity::Blocked(Some(number)) = stretch.activity
                && let Some(theirs) = self.history.operations[number].passage(last)
                && let Some(ours) = self.history.operations[number].passage(waiting)
            {
                return (ours.done_ns, theirs.done_ns);
            }
        }
        (0, 0)
    }

    /// What a rank spent its time on, by what would be the cause if another waited for it.
    fn spent(&self, rank: usize, (from_ns, to_ns): (u64, u64)) -> Vec<(LossCause, u64)> {
        let mut pieces = Vec::new();
        for stretch in self.history.ranks[rank].lane_between(from_ns, to_ns) {
            if own_doing(stretch.activity) {
                self.doing(rank, stretch.activity, (stretch.from_ns, stretch.to_ns), &mut pieces);
            }
        }
        let mut spent: Vec<(LossCause, u64)> = Vec::new();
        for piece in pieces {
            let Some(cause) = piece.cause else { continue };
            let ns = piece.to_ns - piece.from_ns;
            match spent.iter_mut().find(|(other, _)| *other == cause) {
                Some((_, sum_ns)) => *sum_ns += ns,
                None => spent.push((cause, ns)),
            }
        }
        spent
    }

    /// What a rank does, by what would be the cause if another waited for it: in a phase that only some ranks have,
    /// that phase, and otherwise what it does.
    pub(super) fn doing(
        &self,
        rank: usize,
        activity: Activity,
        (from_ns, to_ns): (u64, u64),
        pieces: &mut Vec<CauseSpan>,
    ) {
        let cause = made_by(rank, activity);
        let sole = self.legs.sole(rank);
        let first = sole.partition_point(|&(_, sole_to, _)| sole_to <= from_ns);
        let mut at_ns = from_ns;
        if activity != Activity::Checkpoint {
            for &(sole_from, sole_to, phase) in sole[first..].iter().take_while(|&&(sole_from, ..)| sole_from < to_ns) {
                let (begins, ends) = (sole_from.clamp(at_ns, to_ns), sole_to.clamp(at_ns, to_ns));
                let name = self.history.ranks[rank].phases[phase].name.clone();
                pieces.push(CauseSpan { from_ns: at_ns, to_ns: begins, cause: Some(cause.clone()) });
                pieces.push(CauseSpan { from_ns: begins, to_ns: ends, cause: Some(LossCause::Sequential(name)) });
                at_ns = ends;
            }
        }
        pieces.push(CauseSpan { from_ns: at_ns, to_ns, cause: Some(cause) });
    }
}
