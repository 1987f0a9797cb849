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
//! - Nothing is sent if all ranks have completed the same blocks: their states have the same bits already.
//! - A rank that joins with a state that was streamed to it is not the source while another rank has a state, and is
//!   not sent the source's before both are compared ([`Decision::is_to_compare`]): it may have the same bits, or get
//!   them with the updates that are still on their way to it.
//! - If all remaining states were streamed, none was compared with a member's. The source's is sent to all ranks.
//! - Samples go on from the furthest place that any rank names whose state is the newest. A rank names the place up to
//!   which samples are in its state or, if the step under way is to be dropped, the end of that step.
//!
//! Front ends with a training of their own decide by the same function: Python calls it through its native module.
//!
//! Pure: values go in and come out.

use std::time::Duration;

use super::samples::SamplePlace;

/// What one rank brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Blocks that its state has seen; `None`: it has only what its program began with.
    pub completed: Option<u64>,
    /// Steps among them.
    pub steps: u64,
    /// Where it would continue in the samples.
    pub place: SamplePlace,
    /// How often a block has failed in a row.
    pub attempts: u64,
    /// Ranks of its last generation.
    pub ranks: usize,
    /// Ranks with which the training began.
    pub founders: usize,
    /// Whether its state was streamed to it and was not yet compared with that of a member.
    pub is_streamed: bool,
}

impl Standing {
    /// Numbers of a standing on its way.
    pub(super) const LENGTH: usize = 8;

    /// Of a process that has only what its program began with, and would begin at this place.
    pub(super) fn of_nobody(place: SamplePlace) -> Standing {
        Standing { place, ..Standing::default() }
    }

    pub(super) fn encode(&self) -> [u64; Standing::LENGTH] {
        let completed = self.completed.map_or(0, |completed| completed + 1);
        let Standing { steps, place, attempts, ranks, founders, is_streamed, .. } = *self;
        let (ranks, founders) = (ranks as u64, founders as u64);
        [completed, steps, place.epoch, place.position as u64, attempts, ranks, founders, u64::from(is_streamed)]
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
            is_streamed: at(7) != 0,
        }
    }

    /// What is said of a state that is streamed.
    pub(super) fn note(&self) -> Vec<u8> {
        self.encode().iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// What a process stands for that has got the state with this note.
    pub(super) fn from_note(note: &[u8]) -> Option<Standing> {
        let (numbers, rest) = note.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
        let standing = Standing { attempts: 0, ranks: 0, is_streamed: true, ..Standing::decode(&numbers) };
        (rest.is_empty() && numbers.len() == Standing::LENGTH && standing.completed.is_some()).then_some(standing)
    }

    /// Whether this rank has just come.
    pub(super) fn is_new(&self) -> bool {
        self.completed.is_none() || self.is_streamed
    }
}

/// What all ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The rank whose state all ranks continue with.
    pub source: usize,
    /// Whether it is sent to the others.
    pub is_sent: bool,
    /// Whether states that were streamed to ranks are to be compared with the source's. Not if the source's is sent
    /// anyway.
    pub is_to_compare: bool,
    /// Blocks that all ranks have completed then.
    pub completed: u64,
    /// Steps among them.
    pub steps: u64,
    /// Where all ranks continue in the samples.
    pub place: SamplePlace,
    /// How often a block has failed in a row.
    pub attempts: u64,
    /// Ranks with which the training began.
    pub founders: usize,
}

/// The decision that follows from `standings`, in the order of ranks; there is at least one.
pub fn decide(standings: &[Standing]) -> Decision {
    // What was streamed counts only where nobody else has a state: better than to begin anew.
    let newest = |standings: &mut dyn Iterator<Item = &Standing>| standings.filter_map(|one| one.completed).max();
    let compared = newest(&mut standings.iter().filter(|standing| !standing.is_streamed));
    let most = compared.or_else(|| newest(&mut standings.iter()));
    let counts = |standing: &&Standing| !standing.is_streamed || compared.is_none();
    let source = standings.iter().position(|standing| counts(&standing) && standing.completed == most).unwrap_or(0);
    let differ = standings.iter().filter(counts).any(|standing| standing.completed != most);
    let were_never_compared = compared.is_none() && standings.len() > 1;
    let is_sent = most.is_none() || differ || were_never_compared;
    // When the job begins, rank 0 alone may have read a checkpoint. Later a rank behind the source has no say about
    // samples: the step that it would repeat or drop is done.
    let informed = match most {
        None => &standings[..1],
        Some(_) => standings,
    };
    let places =
        informed.iter().filter(counts).filter(|standing| standing.completed == most).map(|standing| standing.place);
    let changed = |standing: &Standing| standing.is_new() || standing.ranks != standings.len();
    let attempts = standings.iter().map(|standing| standing.attempts).max().unwrap_or(0);
    Decision {
        source,
        is_sent,
        is_to_compare: !is_sent && standings.iter().any(|standing| !counts(&standing)),
        completed: most.unwrap_or(0),
        steps: standings[source].steps,
        place: places.max().unwrap_or_default(),
        // With other ranks than before, what failed may go well.
        attempts: if standings.iter().any(changed) { attempts.min(1) } else { attempts },
        founders: if most.is_none() { standings.len() } else { standings[source].founders },
    }
}

/// How often a block may fail in a row with the same ranks. Ranks that contradict each other, because the program has a
/// mistake, would fail without end; a network that resets connections recovers.
const MOST_ATTEMPTS: u64 = 10;

/// The pause before the second repetition: connecting a new world takes about as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The pause before a block is computed again, by how often it has failed in a row before: none after the first
/// failure, then exponential backoff, 25 s in total. `None`: it is not computed again.
pub fn pause_before_retry(failed_before: u64) -> Option<Duration> {
    match failed_before {
        0 => Some(Duration::ZERO),
        1..MOST_ATTEMPTS => Some(FIRST_PAUSE * (1 << (failed_before - 1))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(completed: Option<u64>, epoch: u64, position: usize) -> Standing {
        let steps = completed.unwrap_or(0);
        let (place, is_streamed) = (SamplePlace { epoch, position }, false);
        Standing { completed, steps, place, attempts: 0, ranks: 3, founders: 4, is_streamed }
    }

    fn streamed(completed: u64, position: usize) -> Standing {
        Standing::from_note(&standing(Some(completed), 0, position).note()).unwrap()
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
    fn a_note_tells_which_state_is_streamed() {
        let told = streamed(7, 70);
        assert_eq!((told.completed, told.place.position, told.founders), (Some(7), 70, 4));
        assert!(told.is_streamed && told.is_new() && told.ranks == 0);
        let note = told.note();
        assert!((0..note.len()).all(|end| Standing::from_note(&note[..end]).is_none()));
        assert_eq!(Standing::from_note(&standing(None, 0, 0).note()), None);
    }

    #[test]
    fn what_was_streamed_is_compared_and_has_no_say() {
        let ahead = decide(&[streamed(8, 80), standing(Some(7), 0, 70), standing(Some(7), 0, 70)]);
        assert_eq!((ahead.source, ahead.is_sent, ahead.is_to_compare, ahead.completed), (1, false, true, 7));
        assert_eq!(ahead.place.position, 70);
        let missed = decide(&[standing(Some(6), 0, 60), standing(Some(7), 0, 70), streamed(5, 50)]);
        assert_eq!((missed.source, missed.is_sent, missed.is_to_compare), (1, true, false));
        assert!(!decide(&[standing(Some(7), 0, 70), standing(None, 0, 0)]).is_to_compare);
    }

    #[test]
    fn what_was_streamed_is_the_state_if_nobody_else_is_left() {
        let decision = decide(&[standing(None, 0, 0), streamed(5, 50), streamed(7, 70)]);
        assert_eq!((decision.source, decision.is_sent, decision.is_to_compare), (2, true, false));
        assert_eq!((decision.completed, decision.steps, decision.place.position), (7, 7, 70));
        assert_eq!(decision.founders, 4);
    }

    /// Ranks went on with states that were streamed to them and were never compared: Python resent them, Rust did not.
    #[test]
    fn streamed_states_that_were_never_compared_are_sent_again() {
        let decision = decide(&[streamed(7, 70), streamed(7, 70)]);
        assert_eq!((decision.source, decision.is_sent, decision.is_to_compare), (0, true, false));
        assert!(!decide(&[streamed(7, 70)]).is_sent, "one state is the same on all ranks");
    }

    #[test]
    fn a_burst_of_resets_of_twenty_seconds_does_not_end_a_training_and_a_mistake_does() {
        let pauses: Vec<Duration> = (0..).map_while(pause_before_retry).collect();
        assert_eq!(pauses[..3], [Duration::ZERO, FIRST_PAUSE, 2 * FIRST_PAUSE]);
        assert!(pauses.iter().sum::<Duration>() > Duration::from_secs(20), "{pauses:?}");
        assert_eq!(pause_before_retry(u64::MAX), None);
    }

    #[test]
    fn attempts_count_as_long_as_ranks_are_the_same() {
        let failed = |ranks| Standing { attempts: 4, ranks, ..standing(Some(7), 0, 0) };
        assert_eq!(decide(&[failed(2), failed(2)]).attempts, 4);
        assert_eq!(decide(&[failed(3), failed(3)]).attempts, 1);
        assert_eq!(decide(&[failed(2), standing(None, 0, 0)]).attempts, 1);
    }
}
