//! Reports of ranks that ended, held until all that these ranks said has been read.
//!
//! A rank whose collective failed says through the rendezvous which peer it saw fail, and then ends. Its words are read
//! by the rendezvous' thread, its end is seen by the agent's: so the end may be known first, and the launcher would
//! tell all ranks of a rank that only followed another. What a process has sent can be received when it has ended, so
//! the rendezvous' thread is asked to do that.
//!
//! **Invariant:** the report of an end leaves after everything that its rank has said. No time is involved.

use crate::launch::message::AgentReport;

/// Reports that are held.
#[derive(Debug, Default)]
pub(super) struct HeldReports(Vec<AgentReport>);

impl HeldReports {
    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes reports of ends out of `reports`. `drain` is called with each of their ranks.
    pub(super) fn hold(&mut self, reports: &mut Vec<AgentReport>, drain: impl Fn(u32)) {
        for report in reports.extract_if(.., |report| ended(report).is_some()) {
            ended(&report).into_iter().for_each(&drain);
            self.0.push(report);
        }
    }

    /// Puts in the report of the end of a rank, of which everything else is in `reports` or has left.
    pub(super) fn release(&mut self, rank: u32, reports: &mut Vec<AgentReport>) {
        reports.extend(self.0.extract_if(.., |report| ended(report) == Some(rank)));
    }
}

fn ended(report: &AgentReport) -> Option<u32> {
    if let AgentReport::Ended { rank, .. } = report { Some(*rank) } else { None }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::launch::message::HowEnded;

    fn ended(rank: u32) -> AgentReport {
        AgentReport::Ended { rank, how: HowEnded::Exited(1), after_us: 0 }
    }

    #[test]
    fn an_end_is_reported_after_what_its_rank_said_last() {
        let (mut held, drained) = (HeldReports::default(), RefCell::new(Vec::new()));
        let mut reports = vec![ended(0), AgentReport::Alive, ended(1)];
        held.hold(&mut reports, |rank| drained.borrow_mut().push(rank));
        assert_eq!((reports, drained.into_inner()), (vec![AgentReport::Alive], vec![0, 1]));
        let blamed = AgentReport::Blamed { by: 1, peer: Some(9), cause: "rank 9 is gone".into() };
        let mut reports = vec![blamed.clone()];
        held.release(1, &mut reports);
        assert_eq!(reports, [blamed, ended(1)]);
        assert!(!held.is_empty());
        held.release(0, &mut reports);
        assert!(held.is_empty());
    }
}
