//! From the first sign of a stall to one report: who is asked, how long the answers may take, and when the report is
//! due.
//!
//! The coordinator of the group opens a [`StallProbe`] when something has waited too long, asks the ranks that are
//! waited for, and closes it when all have answered or [`PATIENCE`] is over. A rank that has not answered by then is
//! itself a finding. The engine's own thread asks and answers, so a rank whose program is stuck answers; one that is
//! stopped does not.

use std::time::Duration;

use super::Report;
use super::direct::{DirectWait, Meeting};
use super::rank_status::{RankStatus, StallFinding};
use super::words::{self, Wanted};
use crate::request::Rank;

/// How long the answers may take. A rank looks at its recorder (some milliseconds) and gives its interpreter a second;
/// the rest is for machines that are busy.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// So many ranks are asked. Where more are missing, they are missing for one reason.
const ASKED_AT_MOST: usize = 8;

/// How long a direct call is looked into at least. Ranks that wait in it look at their clocks four times in a second at
/// the latest, so those that wait for the same reason have said so by then, and one report has them all.
const GATHERING: Duration = Duration::from_millis(500);

/// What is known of a rank that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Testimony {
    /// It has answered.
    Given(Box<RankStatus>),
    /// It has not answered; what was seen of its process.
    Silent(Sight),
}

/// What somebody on the same host sees of a process that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nothing: it is on another host, or its process is not known.
    Nothing,
    /// A signal or a debugger has stopped this process.
    Stopped(u32),
    /// This process is there.
    Alive(u32),
    /// There is no such process any more.
    Gone(u32),
}

/// Where ranks of the group are, for texts.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// World rank of each rank of the group; empty if they are the same.
    pub world_ranks: &'a [Rank],
    /// Names of hosts by world rank, as users know them.
    pub hosts: &'a [String],
}

impl Places<'_> {
    /// The rank in the world.
    pub fn world(&self, rank: Rank) -> Rank {
        self.world_ranks.get(rank.index()).copied().unwrap_or(rank)
    }

    /// The host of a rank of the group.
    pub fn host(&self, rank: Rank) -> &str {
        self.hosts.get(self.world(rank).index()).map_or("?", String::as_str)
    }
}

/// One stall that is looked into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallProbe {
    number: u64,
    subject: Subject,
    asked: Vec<(Rank, Option<Box<RankStatus>>)>,
    /// How many of these have been told to whoever asks them.
    told: usize,
    until: Duration,
    opened: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    /// Requests that some ranks have not made.
    Requests(Report),
    /// A direct call that some ranks have not come to.
    Direct(Meeting),
}

impl StallProbe {
    /// Looks into what is reported. `number` must differ from those of earlier probes of the group.
    pub fn open(number: u64, report: Report, now: Duration) -> StallProbe {
        let mut missing: Vec<(usize, Rank)> = Vec::new();
        for rank in report.stalled.iter().flat_map(|waiting| &waiting.missing) {
            match missing.iter_mut().find(|(_, known)| known == rank) {
                Some((names, _)) => *names += 1,
                None => missing.push((1, *rank)),
            }
        }
        missing.sort_by_key(|(names, rank)| (std::cmp::Reverse(*names), *rank));
        missing.truncate(ASKED_AT_MOST);
        let asked = missing.into_iter().map(|(_, rank)| (rank, None)).collect();
        StallProbe { number, subject: Subject::Requests(report), asked, told: 0, until: now + PATIENCE, opened: now }
    }

    /// Looks into a direct call in which rank `from` of the world waits.
    pub fn open_direct(number: u64, from: Rank, wait: DirectWait, now: Duration) -> StallProbe {
        let subject = Subject::Direct(Meeting::new(from, wait, now));
        let mut probe = StallProbe { number, subject, asked: Vec::new(), told: 0, until: now + PATIENCE, opened: now };
        probe.ask_the_missing();
        probe
    }

    /// For a rank that waits in a direct call and has told the coordinator, which itself may be unable to look into
    /// anything: if it has not heard that in twice the time that ranks have for an answer, that is what comes of it.
    pub fn without_coordinator(me: Rank, coordinator: Rank, wait: DirectWait, now: Duration) -> StallProbe {
        let subject = Subject::Direct(Meeting::new(me, wait, now));
        StallProbe {
            number: 0,
            subject,
            asked: vec![(coordinator, None)],
            told: 1,
            until: now + 2 * PATIENCE,
            opened: now,
        }
    }

    /// The number that answers must have.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The ranks of the group to ask, each once.
    pub fn to_ask(&mut self) -> Vec<Rank> {
        let ranks = self.asked[self.told..].iter().map(|(rank, _)| *rank).collect();
        self.told = self.asked.len();
        ranks
    }

    /// A rank has answered. Answers to other questions, and from ranks that were not asked, are ignored.
    pub fn hear(&mut self, from: Rank, number: u64, rank_status: Box<RankStatus>) {
        if number != self.number {
            return;
        }
        let Some((_, answer)) = self.asked.iter_mut().find(|(rank, _)| *rank == from) else { return };
        let call = rank_status.direct.as_ref().map(|direct| (direct.operation, direct.peer));
        *answer = Some(rank_status);
        let (Subject::Direct(meeting), Some((operation, peer))) = (&mut self.subject, call) else { return };
        if operation == meeting.operation() {
            meeting.comes(from, peer);
            self.ask_the_missing();
        } else if let Some(peer) = peer {
            // It is held up in another call, by somebody.
            self.ask_also(peer);
        }
    }

    /// A rank waits in a direct call. Says whether it is the one that is looked into.
    pub fn also_waits(&mut self, from: Rank, wait: &DirectWait) -> bool {
        match &mut self.subject {
            Subject::Direct(meeting) if meeting.operation() == wait.operation => {
                meeting.comes(from, wait.missing.iter().copied());
                self.ask_the_missing();
                true
            }
            _ => false,
        }
    }

    /// The direct call that this is about or that somebody was found in.
    pub fn direct_call(&self) -> Option<u64> {
        match &self.subject {
            Subject::Direct(meeting) => Some(meeting.operation()),
            Subject::Requests(_) => {
                let statuses = self.asked.iter().filter_map(|(_, answer)| answer.as_ref());
                statuses.filter_map(|rank_status| rank_status.direct.as_ref()).map(|direct| direct.operation).max()
            }
        }
    }

    fn ask_the_missing(&mut self) {
        if let Subject::Direct(meeting) = &self.subject {
            meeting.missing().collect::<Vec<Rank>>().into_iter().for_each(|rank| self.ask_also(rank));
        }
    }

    fn ask_also(&mut self, rank: Rank) {
        if self.asked.len() < ASKED_AT_MOST && self.asked.iter().all(|(asked, _)| *asked != rank) {
            self.asked.push((rank, None));
        }
    }

    /// Whether all that were asked have answered, or are known to wait themselves.
    fn all_known(&self) -> bool {
        let waits = |rank: Rank| matches!(&self.subject, Subject::Direct(meeting) if meeting.is_here(rank));
        self.asked.iter().all(|(rank, answer)| answer.is_some() || waits(*rank))
    }

    /// When it must be closed at the latest.
    pub fn due(&self) -> Duration {
        match &self.subject {
            Subject::Direct(_) if self.all_known() => self.opened + GATHERING,
            _ => self.until,
        }
    }

    /// Whether there is nothing more to wait for.
    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.due() || (matches!(self.subject, Subject::Requests(_)) && self.all_known())
    }

    /// What came of it. `look` sees to the process of a rank that has not answered.
    pub fn close(self, places: &Places<'_>, now: Duration, mut look: impl FnMut(Rank) -> Sight) -> StallFinding {
        let waited = now.saturating_sub(self.opened);
        let mut testimonies: Vec<(Rank, Testimony)> = self
            .asked
            .into_iter()
            .map(|(rank, answer)| (rank, answer.map_or_else(|| Testimony::Silent(look(rank)), Testimony::Given)))
            .collect();
        let (report, wanted) = match self.subject {
            Subject::Requests(mut report) => {
                report.waited += waited;
                let name = report.stalled.first().map_or("", |waiting| &*waiting.name);
                let wanted = Wanted::request(name);
                (report, wanted)
            }
            Subject::Direct(meeting) => {
                // Who waits like the others need not explain itself.
                if meeting.missing().next().is_some() {
                    testimonies.retain(|(rank, _)| !meeting.is_here(*rank));
                }
                (meeting.report(places.world_ranks, now), Wanted::direct(meeting.call()))
            }
        };
        let verdict = words::verdict(&report, &wanted, &testimonies, places);
        let text = words::whole(&verdict, &report, &wanted, &testimonies, places, waited);
        let oldest = report.stalled.first();
        StallFinding {
            tensor: oldest.map_or_else(|| "".into(), |waiting| waiting.name.clone()),
            missing: oldest.map_or(0, |waiting| waiting.missing.len() as u32),
            first: oldest.and_then(|waiting| waiting.missing.first()).map_or(Rank(0), |rank| places.world(*rank)),
            verdict: verdict.into(),
            text: text.into(),
        }
    }
}
