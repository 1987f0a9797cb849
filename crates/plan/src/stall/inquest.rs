//! From the first sign of a stall to one report: who is asked, how long the answers may take, and when the report is due.
//!
//! The coordinator of the group opens an [`Inquest`] when something has waited too long, asks the ranks that are waited for, and
//! closes it when all have answered or [`PATIENCE`] is over. A rank that has not answered by then is itself a finding. Whoever asks and
//! answers is the engine's own thread, so a rank whose program is stuck answers; one that is stopped does not.

use std::time::Duration;

use super::account::{Account, Finding};
use super::{Report, words};
use crate::request::Rank;

/// How long the answers may take. A rank looks at its recorder (some milliseconds) and gives its interpreter a second; the rest is for machines
/// that are busy.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// So many ranks are asked. Where more are missing, they are missing for one reason.
const ASKED_AT_MOST: usize = 8;

/// What is known of a rank that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Testimony {
    /// It has answered.
    Given(Box<Account>),
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
    /// Identities of hosts by world rank; the part before a slash is what users know.
    pub hosts: &'a [String],
}

impl Places<'_> {
    /// The rank in the world.
    pub fn world(&self, rank: Rank) -> Rank {
        self.world_ranks.get(rank.index()).copied().unwrap_or(rank)
    }

    /// The host of a rank of the group.
    pub fn host(&self, rank: Rank) -> &str {
        let identity = self.hosts.get(self.world(rank).index()).map_or("?", String::as_str);
        identity.split('/').next().unwrap_or(identity)
    }
}

/// One stall that is looked into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquest {
    number: u64,
    report: Report,
    asked: Vec<(Rank, Option<Box<Account>>)>,
    until: Duration,
    opened: Duration,
}

impl Inquest {
    /// Looks into what is reported. `number` must differ from those of earlier inquests of the group.
    pub fn open(number: u64, report: Report, now: Duration) -> Inquest {
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
        Inquest { number, report, asked, until: now + PATIENCE, opened: now }
    }

    /// The number that answers must have.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The ranks of the group to ask.
    pub fn asked(&self) -> impl Iterator<Item = Rank> {
        self.asked.iter().map(|(rank, _)| *rank)
    }

    /// A rank has answered. Answers to other questions, and from ranks that were not asked, are ignored.
    pub fn hear(&mut self, from: Rank, number: u64, account: Box<Account>) {
        if number == self.number
            && let Some((_, answer)) = self.asked.iter_mut().find(|(rank, _)| *rank == from)
        {
            *answer = Some(account);
        }
    }

    /// When it must be closed at the latest.
    pub fn due(&self) -> Duration {
        self.until
    }

    /// Whether there is nothing more to wait for.
    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.until || self.asked.iter().all(|(_, answer)| answer.is_some())
    }

    /// What came of it. `look` sees to the process of a rank that has not answered.
    pub fn close(self, places: &Places<'_>, now: Duration, mut look: impl FnMut(Rank) -> Sight) -> Finding {
        let waited = now.saturating_sub(self.opened);
        let testimonies: Vec<(Rank, Testimony)> = self
            .asked
            .into_iter()
            .map(|(rank, answer)| (rank, answer.map_or_else(|| Testimony::Silent(look(rank)), Testimony::Given)))
            .collect();
        let verdict = words::verdict(&self.report, &testimonies, places);
        let text = words::whole(&verdict, &self.report, &testimonies, places, waited);
        let oldest = self.report.stalled.first();
        Finding {
            tensor: oldest.map_or_else(|| "".into(), |waiting| waiting.name.clone()),
            missing: oldest.map_or(0, |waiting| waiting.missing.len() as u32),
            first: oldest.and_then(|waiting| waiting.missing.first()).map_or(Rank(0), |rank| places.world(*rank)),
            verdict: verdict.into(),
            text: text.into(),
        }
    }
}
