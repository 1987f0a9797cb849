//! Whose state goes on after the ranks of a job have changed, and from which sample.
//!
//! Every rank brings a [`Standing`]: how many blocks its state has seen (`completed`) and where it would go on in the
//! samples. [`decide`] makes one [`Decision`] of all of them, the same on every rank, because all have the same
//! standings in the same order.
//!
//! - The *source* is the first of the ranks that have completed most. Its state is whole: a step counts when it has
//!   been applied, and it is applied only with the contributions of all ranks. A rank that is one step behind, because
//!   it heard of a loss before its last collective was over, gets the step that it missed, not a part of it.
//! - A rank that has just come has completed nothing (`None`). If all have, the job begins, and rank 0 is the source.
//! - Nobody is sent anything if all have completed the same blocks: their states have the same bits already.
//! - Samples go on from the furthest place that any rank names whose state is the newest. A rank names the place up to
//!   which samples are in its state or, if the step under way is to be dropped, the end of that step.
//!
//! Pure: values go in and come out.

use super::samples::SamplePlace;

/// What one rank brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Blocks that its state has seen; `None`: it has only what its program began with.
    pub(super) completed: Option<u64>,
    /// Steps among them.
    pub(super) steps: u64,
    pub(super) place: SamplePlace,
    /// How often a block has failed in a row.
    pub(super) attempts: u64,
    /// Ranks of its last generation.
    pub(super) ranks: usize,
    /// Ranks with which the training began.
    pub(super) founders: usize,
}

impl Standing {
    /// Numbers of a standing on its way.
    pub(super) const LENGTH: usize = 7;

    pub(super) fn encode(&self) -> [u64; Standing::LENGTH] {
        let completed = self.completed.map_or(0, |completed| completed + 1);
        let Standing { steps, place, attempts, ranks, founders, .. } = *self;
        [completed, steps, place.epoch, place.position as u64, attempts, ranks as u64, founders as u64]
    }

    pub(super) fn decode(numbers: &[u64]) -> Standing {
        let at = |place: usize| numbers.get(place).copied().unwrap_or(0);
        Standing {
            completed: at(0).checked_sub(1),
            steps: at(1),
            place: SamplePlace { epoch: at(2), position: at(3) as usize },
            attempts: at(4),
            ranks: at(5) as usize,
            founders: at(6) as usize,
        }
    }
}

/// What all ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// The rank whose state goes on.
    pub(super) source: usize,
    /// Whether it is sent to the others.
    pub(super) is_sent: bool,
    /// What all have completed then.
    pub(super) completed: u64,
    pub(super) steps: u64,
    pub(super) place: SamplePlace,
    pub(super) attempts: u64,
    pub(super) founders: usize,
}

/// `standings` in the order of ranks; there is at least one.
pub(super) fn decide(standings: &[Standing]) -> Decision {
    let most = standings.iter().map(|standing| standing.completed).max().flatten();
    let source = standings.iter().position(|standing| standing.completed == most).unwrap_or(0);
    let is_sent = most.is_none() || standings.iter().any(|standing| standing.completed != most);
    // When the job begins, rank 0 alone may have read a checkpoint. Later a rank behind the source has no say about
    // samples: the step that it would repeat or drop is done.
    let informed = match most {
        None => &standings[..1],
        Some(_) => standings,
    };
    let places = informed.iter().filter(|standing| standing.completed == most).map(|standing| standing.place);
    let changed = |standing: &Standing| standing.completed.is_none() || standing.ranks != standings.len();
    let attempts = standings.iter().map(|standing| standing.attempts).max().unwrap_or(0);
    Decision {
        source,
        is_sent,
        completed: most.unwrap_or(0),
        steps: standings[source].steps,
        place: places.max().unwrap_or_default(),
        // With other ranks than before, what failed may go well.
        attempts: if standings.iter().any(changed) { attempts.min(1) } else { attempts },
        founders: if most.is_none() { standings.len() } else { standings[source].founders },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(completed: Option<u64>, epoch: u64, position: usize) -> Standing {
        let steps = completed.unwrap_or(0);
        Standing { completed, steps, place: SamplePlace { epoch, position }, attempts: 0, ranks: 3, founders: 4 }
    }

    #[test]
    fn a_standing_survives_its_way() {
        for one in [standing(None, 0, 0), standing(Some(0), 0, 0), standing(Some(7), 3, 1 << 40)] {
            assert_eq!(Standing::decode(&one.encode()), one);
        }
    }

    #[test]
    fn a_job_begins_with_the_state_of_rank_0() {
        let own = Standing { place: SamplePlace { epoch: 2, position: 9 }, ..standing(None, 0, 0) };
        let decision = decide(&[own, standing(None, 5, 5)]);
        assert_eq!((decision.source, decision.is_sent, decision.completed), (0, true, 0));
        assert_eq!((decision.place, decision.founders), (SamplePlace { epoch: 2, position: 9 }, 2));
    }

    #[test]
    fn who_is_ahead_sends_and_who_is_behind_has_no_say() {
        let decision = decide(&[standing(Some(6), 0, 900), standing(Some(7), 0, 70), standing(None, 9, 9)]);
        assert_eq!((decision.source, decision.is_sent, decision.completed), (1, true, 7));
        assert_eq!((decision.place, decision.founders), (SamplePlace { epoch: 0, position: 70 }, 4));
    }

    #[test]
    fn equal_states_are_not_sent_and_a_dropped_step_is_passed_over_by_all() {
        let decision = decide(&[standing(Some(7), 0, 70), standing(Some(7), 1, 0), standing(Some(7), 0, 70)]);
        assert!(!decision.is_sent);
        assert_eq!(decision.place, SamplePlace { epoch: 1, position: 0 });
    }

    #[test]
    fn attempts_count_as_long_as_ranks_are_the_same() {
        let failed = |ranks| Standing { attempts: 4, ranks, ..standing(Some(7), 0, 0) };
        assert_eq!(decide(&[failed(2), failed(2)]).attempts, 4);
        assert_eq!(decide(&[failed(3), failed(3)]).attempts, 1);
        assert_eq!(decide(&[failed(2), standing(None, 0, 0)]).attempts, 1);
    }
}
