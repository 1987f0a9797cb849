//! Reports of ranks that ended, held until all that these ranks said has been read.
//!
//! A rank whose collective failed says through the rendezvous which peer it saw fail, and then ends. Its words are read
//! by the rendezvous' thread, its end is seen by the agent's: so the end may be known first, and the launcher would
//! tell all ranks of a rank that only followed another. Invariant: the report of an end leaves after the rank's
//! connection has been read to its end, or [`PATIENCE`] later, because a child of the rank may hold that connection
//! open.

use std::time::{Duration, Instant};

use crate::launch::message::AgentReport;

/// How long the report of an end waits for the connection of its rank to end.
const PATIENCE: Duration = Duration::from_millis(100);

/// Reports that are held, and until when at the latest.
#[derive(Debug, Default)]
pub(super) struct HeldReports(Vec<(AgentReport, Instant)>);

impl HeldReports {
    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out of `reports` what is to be held, because its rank `is_connected`, and puts in what need not be held
    /// any longer. Returns when to come back.
    pub(super) fn hold(
        &mut self,
        reports: &mut Vec<AgentReport>,
        is_connected: impl Fn(u32) -> bool,
        now: Instant,
    ) -> Option<Instant> {
        let is_open = |report: &AgentReport| match report {
            AgentReport::Ended { rank, .. } => is_connected(*rank),
            _ => false,
        };
        self.0.extend(reports.extract_if(.., |report| is_open(report)).map(|report| (report, now + PATIENCE)));
        let due = self.0.extract_if(.., |(report, until)| now >= *until || !is_open(report));
        reports.extend(due.map(|(report, _)| report));
        self.0.iter().map(|(_, until)| *until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::message::HowEnded;

    fn ended(rank: u32) -> AgentReport {
        AgentReport::Ended { rank, how: HowEnded::Exited(1), after_us: 0 }
    }

    fn blamed(by: u32) -> AgentReport {
        AgentReport::Blamed { by, peer: Some(9), cause: "rank 9 is gone".into() }
    }

    #[test]
    fn an_end_is_reported_after_what_its_rank_said_last() {
        let (mut held, now) = (HeldReports::default(), Instant::now());
        let mut reports = vec![ended(0), ended(1)];
        assert_eq!(held.hold(&mut reports, |rank| rank == 0, now), Some(now + PATIENCE));
        assert_eq!(reports, [ended(1)]);
        // The connection of rank 0 has been read to its end.
        let mut reports = vec![blamed(0)];
        assert_eq!(held.hold(&mut reports, |_| false, now), None);
        assert_eq!(reports, [blamed(0), ended(0)]);
        assert!(held.is_empty());
    }

    #[test]
    fn a_connection_that_a_child_holds_open_delays_a_report_only_for_a_moment() {
        let (mut held, now, mut reports) = (HeldReports::default(), Instant::now(), vec![ended(0)]);
        held.hold(&mut reports, |_| true, now);
        assert_eq!(reports, []);
        assert_eq!(held.hold(&mut reports, |_| true, now + PATIENCE), None);
        assert_eq!(reports, [ended(0)]);
    }
}
