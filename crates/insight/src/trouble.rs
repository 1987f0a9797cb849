//! What dumps are about that ranks leave on a stall or a failure: who waits for what, since when, and what each rank
//! did last.
//!
//! A dump ends in the middle of a run, mostly after a long wait, so shares of its time say nothing. What the stall came
//! to stands in every dump as the ranks were told it; the cause of a failure is its last record. Beside it stands what
//! each rank's own records say.
//!
//! What is deliberately not here: a judgement. Those who could be asked were asked by the ranks when it happened.

use std::collections::BTreeMap;
use std::fmt;

use farandole_trace::{Event, RecentActivity, STALL_REPORT, Trace, TraceEnding};

use crate::verdict::time_text;

/// Why ranks have dumped what they had recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occasion {
    /// Ranks waited for others for too long.
    Stall,
    /// The ranks' collectives were aborted.
    Failure,
}

impl Occasion {
    fn of(trace: &Trace) -> Option<Occasion> {
        match &trace.ending {
            TraceEnding::Complete(occasion) if occasion == "stall" => Some(Occasion::Stall),
            TraceEnding::Complete(occasion) if occasion == "trouble" => Some(Occasion::Failure),
            _ => None,
        }
    }

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Occasion::Stall => "stall",
            Occasion::Failure => "failure",
        }
    }
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// The gravest on which a rank has dumped.
    pub occasion: Occasion,
    /// The report of the stall, or the cause of the failure.
    pub text: String,
    /// Ranks of the job.
    pub size: usize,
    /// Ranks that have left a dump, in order.
    pub ranks: Vec<RankTrouble>,
}

/// What a rank did when it dumped its records.
#[derive(Clone, Debug, PartialEq)]
pub struct RankTrouble {
    /// The rank.
    pub rank: u32,
    /// Its host, as users know it.
    pub host: String,
    /// What it waited for.
    pub waits: Option<Waits>,
    /// What it was at and did last.
    activity: RecentActivity,
}

/// A rank waits for a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The name of the oldest request that was not done.
    pub name: String,
    /// Number of other requests that were not done.
    pub more: usize,
    /// For how long.
    pub ns: u64,
    /// The first rank that it waits for, if one was named.
    pub rank: Option<u32>,
}

impl Trouble {
    /// What the dumps among these traces are about; `None` if none of them is one. Of an elastic job the last
    /// generation counts that has left some.
    pub fn of(traces: &[Trace]) -> Option<Trouble> {
        let dumps = || traces.iter().filter_map(|trace| Some((Occasion::of(trace)?, trace)));
        let generation = dumps().map(|(_, trace)| trace.header.generation()).max()?;
        let dumps = || dumps().filter(|(_, trace)| trace.header.generation() == generation);
        let occasion = dumps().map(|(occasion, _)| occasion).max()?;
        let size = dumps().map(|(_, trace)| trace.header.size as usize).max()?;
        let text = match occasion {
            Occasion::Failure => causes(dumps().map(|(_, trace)| trace)),
            Occasion::Stall => None,
        };
        let stall = dumps().find_map(|(_, trace)| trace.header.setting(STALL_REPORT)).map(str::to_owned);
        let unknown =
            || format!("The ranks have dumped their records on a {} and left no report of it.", occasion.word());
        let text = text.or(stall).unwrap_or_else(unknown);
        let ranks = dumps().map(|(_, trace)| RankTrouble::of(trace)).collect();
        Some(Trouble { occasion, text, size, ranks })
    }

    /// Its first line.
    pub fn headline(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }
}

/// The causes that the ranks have recorded, one line for each.
fn causes<'a>(traces: impl Iterator<Item = &'a Trace>) -> Option<String> {
    let mut ranks: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for trace in traces {
        let aborted = trace.records.iter().rev().find_map(|record| match record.event {
            Event::Aborted { name } => Some(trace.text(name)),
            _ => None,
        });
        if let Some(cause) = aborted {
            ranks.entry(cause).or_default().push(trace.header.rank.to_string());
        }
    }
    let lines: Vec<String> = match ranks.len() {
        0 => return None,
        1 => ranks.keys().map(|cause| format!("Failure: {cause}")).collect(),
        _ => ranks.iter().map(|(cause, ranks)| format!("Failure on rank {}: {cause}", ranks.join(", "))).collect(),
    };
    Some(lines.join("\n"))
}

impl RankTrouble {
    fn of(trace: &Trace) -> RankTrouble {
        let now_ns = trace.records.last().map_or(0, |record| record.time_ns);
        let activity = RecentActivity::of(trace, now_ns);
        let waits = activity.pending.as_ref().map(|(name, ago)| {
            let rank = trace.records.iter().rev().find_map(|record| match record.event {
                Event::Stalled { name: stalled, rank, .. } if trace.text(stalled) == &**name => Some(rank),
                _ => None,
            });
            let ns = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
            Waits { name: name.to_string(), more: activity.pending_count - 1, ns, rank }
        });
        let host = trace.header.host.split('/').next().unwrap_or_default().to_owned();
        RankTrouble { rank: trace.header.rank, host, waits, activity }
    }
}

impl fmt::Display for RankTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |ago: &std::time::Duration| time_text(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX));
        write!(f, "rank {} on {}: ", self.rank, self.host)?;
        match &self.waits {
            None => write!(f, "no request pending")?,
            Some(Waits { name, more, ns, rank }) => {
                let more = if *more > 0 { format!(" (and {more} more)") } else { String::new() };
                let rank = rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
                write!(f, "has waited for \"{name}\"{rank}{more} for {}", time_text(*ns))?;
            }
        }
        if let Some(direct) = &self.activity.direct {
            let peer = direct.peer.map_or_else(String::new, |peer| format!(", waiting for rank {peer}"));
            write!(f, "; in a direct {} for {}{peer}", direct.word, time(&direct.ago))?;
        }
        match &self.activity.finished {
            Some((name, ago)) => write!(f, "; last finished \"{name}\", {} ago", time(ago))?,
            None => write!(f, "; no finished collective on record")?,
        }
        if let Some((phase, ago)) = &self.activity.phase {
            write!(f, "; in phase \"{phase}\" for {}", time(ago))?;
        }
        if let Some(epoch) = self.activity.epoch {
            write!(f, "; epoch {epoch}")?;
        }
        if let Some((number, ago)) = &self.activity.iteration {
            write!(f, "; iteration {number}, begun {} ago", time(ago))?;
        }
        Ok(())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.text)?;
        writeln!(f, "When it was dumped ({} of {} ranks):", self.ranks.len(), self.size)?;
        for rank in &self.ranks {
            writeln!(f, "  {rank}")?;
        }
        let has_left = |rank: &u32| self.ranks.iter().any(|of| of.rank == *rank);
        let silent: Vec<String> =
            (0..self.size as u32).filter(|rank| !has_left(rank)).map(|rank| rank.to_string()).collect();
        if let Some(first) = silent.first() {
            let more = if silent.len() > 1 { format!(" and {} more", silent.len() - 1) } else { String::new() };
            writeln!(f, "  rank {first}{more}: no dump in this folder (killed, stopped, or on another host)")?;
        }
        writeln!(
            f,
            "\nThis is a dump of a {}. For efficiencies of what came before, give --window.",
            self.occasion.word()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_trace::TraceHeader;
    use farandole_trace::event::{Collective, Dtype, GroupNumber, OperationNumber, ThreadId};

    const SECOND: u64 = 1_000_000_000;

    /// A rank that has finished "w" and asked for "b" two seconds later; ten seconds later this happens.
    fn dump(rank: u32, occasion: &str, last: impl FnOnce(&mut Trace) -> Event) -> Trace {
        let mut trace = Trace::new(TraceHeader { rank, size: 3, host: "vm/1".to_owned(), ..TraceHeader::default() });
        let (group, operation, thread) = (GroupNumber::WORLD, OperationNumber(1), ThreadId(0));
        let (w, b) = (trace.names.intern("w"), trace.names.intern("b"));
        let (collective, dtype, bytes) = (Collective::Allreduce, Dtype::F32, 4);
        trace.push(SECOND, thread, Event::Submitted { name: w, group, collective, dtype, bytes });
        trace.push(SECOND, thread, Event::Done { name: w, group, operation });
        if rank == 0 {
            trace.push(3 * SECOND, thread, Event::Submitted { name: b, group, collective, dtype, bytes });
        }
        let last = last(&mut trace);
        trace.push(13 * SECOND, thread, last);
        if matches!(last, Event::Aborted { .. }) {
            trace.push(13 * SECOND, thread, Event::Failed { name: b, group });
        }
        trace.ending = TraceEnding::Complete(occasion.to_owned());
        trace
    }

    fn stalled(trace: &mut Trace) -> Event {
        trace.header.set(STALL_REPORT.to_owned(), "Stall: rank 1 sleeps.\nand more".to_owned());
        Event::Stalled { name: trace.names.intern("b"), group: GroupNumber::WORLD, missing: 1, rank: 1 }
    }

    /// A dump of a stall was once reported as "77 % to other things".
    #[test]
    fn a_dump_of_a_stall_says_who_waits_for_what_since_when_and_what_ranks_did_last() {
        let trouble = Trouble::of(&[dump(0, "stall", stalled), dump(1, "stall", stalled)]).unwrap();
        assert_eq!((trouble.occasion, trouble.headline()), (Occasion::Stall, "Stall: rank 1 sleeps."));
        let text = trouble.to_string();
        assert!(text.starts_with("Stall: rank 1 sleeps.\nand more\n"), "{text}");
        let rank_0 = "rank 0 on vm: has waited for \"b\" of rank 1 for 10.00 s; last finished \"w\", 12.00 s ago";
        assert!(text.contains(rank_0), "{text}");
        assert!(text.contains("rank 1 on vm: no request pending; last finished \"w\", 12.00 s ago"), "{text}");
        assert!(text.contains("rank 2: no dump in this folder"), "{text}");
    }

    #[test]
    fn a_dump_of_a_failure_has_its_cause_and_what_was_waited_for_when_it_came() {
        let lost = |trace: &mut Trace| Event::Aborted { name: trace.names.intern("rank 1 was lost") };
        let trouble = Trouble::of(&[dump(0, "trouble", lost), dump(2, "stall", stalled)]).unwrap();
        assert_eq!((trouble.occasion, &*trouble.text), (Occasion::Failure, "Failure: rank 1 was lost"));
        assert!(trouble.ranks[0].waits.is_some(), "what failed because of it was waited for");
    }

    #[test]
    fn traces_of_whole_runs_and_dumps_on_a_signal_are_about_no_trouble() {
        let traces = [dump(0, "signal", stalled), dump(1, "end of run", stalled)];
        assert_eq!(Trouble::of(&traces), None);
    }
}
