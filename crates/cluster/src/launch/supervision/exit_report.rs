//! What is left to say when a job is over: the exit code, and words that name the cause.

use std::time::Instant;

use super::{Ending, Phase, Presence, Supervision};
use crate::launch::failure::{Failure, What};
use crate::launch::message::{Directive, HowEnded};
use crate::launch::signal;
use crate::rendezvous::{FailureKind, FailureNotice};

/// How the words begin by which a rank leaves the job (`farandole_plan::RankDeparture`), after its name.
const DEPARTS: [&str; 4] = ["ended ", "left ", "raised ", "panicked"];

/// What ranks at the rendezvous are told of one that is missing.
pub(super) fn never_came(rank: u32) -> String {
    format!("rank {rank} did not come to the rendezvous")
}

/// What a failed job failed of.
enum Root<'a> {
    /// A failure that was reported.
    Failure(&'a Failure),
    /// A rank whose end is no failure, or was not reported in time, in words of those that waited for it.
    Seen { rank: u32, words: String },
}

impl Supervision {
    /// Ranks that have waited long enough at the rendezvous fail because of those that are missing.
    pub(super) fn answer_ranks_that_wait(&mut self, directives: Vec<(usize, Directive)>, now: Instant) {
        for (host, directive) in directives {
            if let Directive::Refuse(missing) = &directive
                && let Some(first) = missing.first()
            {
                let waiting = (0..self.ranks.len() as u32).filter(|rank| !missing.contains(rank));
                for rank in waiting {
                    self.blamed.entry(rank).or_insert((Some(*first), never_came(*first)));
                }
            }
            self.tell(host, directive, now);
        }
    }

    /// A rank that others have blamed ends by itself only now that all were told to: that is the failure which they
    /// have seen coming, and not our doing.
    pub(super) fn note_late_end(&mut self, host: usize, rank: u32, how: HowEnded, now: Instant) {
        let is_blamed = self.blamed.values().any(|(peer, _)| *peer == Some(rank));
        let is_known = self.failures.iter().any(|failure| failure.rank == Some(rank));
        let is_own = matches!(how, HowEnded::Exited(code) if code != 0);
        if is_own && is_blamed && !is_known && matches!(self.phase, Phase::Ending { .. }) {
            let failure = self.failure(host, Some(rank), What::Ended(how), now);
            self.failures.push(failure);
        }
    }

    /// Whom a rank blames, and what it saw; then whom that one blames, and so on. Blames may go round in a circle:
    /// every rank is visited once at most.
    fn blames(&self, from: Option<u32>) -> impl Iterator<Item = (u32, &str)> {
        let blamed = |rank| self.blamed.get(&rank).and_then(|(peer, cause)| Some(((*peer)?, cause.as_str())));
        let steps = std::iter::successors(from.and_then(blamed), move |(rank, _)| blamed(*rank));
        steps.take(self.ranks.len()).take_while(move |(rank, _)| Some(*rank) != from)
    }

    /// What the failures followed from.
    fn root(&self) -> Option<Root<'_>> {
        let of = |rank: u32| self.failures.iter().find(|failure| failure.rank == Some(rank));
        let first = self.failures.first()?;
        if let Some((rank, cause)) = self.blames(first.rank).last()
            && of(rank).is_none()
            && let Some(words) = self.departure_in(rank, cause).or_else(|| self.unspoken(rank, cause))
        {
            return Some(Root::Seen { rank, words });
        }
        let known = self.blames(first.rank).map_while(|(rank, _)| of(rank)).last();
        Some(Root::Failure(known.unwrap_or(first)))
    }

    /// The words by which this rank has left the job, with its name, if these are such words. The rank may not have
    /// known its exit code when it left.
    fn departure_in(&self, rank: u32, cause: &str) -> Option<String> {
        let (of, rest) = cause.strip_prefix("rank ")?.split_once(' ')?;
        let is_departure = DEPARTS.iter().any(|verb| rest.starts_with(verb));
        if of.parse() != Ok(rank) || !is_departure {
            return None;
        }
        let ended = self.ranks.get(rank as usize)?.ended;
        let name = self.name_of(rank);
        match (rest.strip_prefix("left the job"), ended) {
            (Some(rest), Some(HowEnded::Exited(code))) => Some(format!("{name} ended (exit code {code}){rest}")),
            _ => Some(format!("{name} {rest}")),
        }
    }

    /// What is known of a rank that others blame and that has not reported a failure. It may have ended with exit code
    /// 0 without a word to its peers, which saw closed connections; or it never came to the rendezvous, and the last
    /// line that it wrote says why.
    fn unspoken(&self, rank: u32, cause: &str) -> Option<String> {
        let state = self.ranks.get(rank as usize)?;
        let name = self.name_of(rank);
        if state.ended == Some(HowEnded::Exited(0)) {
            return Some(format!("{name} ended (exit code 0) while other ranks needed it: {cause}"));
        }
        let words = state.tail.last().filter(|_| cause == never_came(rank))?;
        Some(format!("{name} did not come to the rendezvous: {words}"))
    }

    /// What all ranks are told when the first failure is known. The rank that ended first may have followed another,
    /// whose own end has not been reported yet: then they are told what was seen of that one.
    pub(super) fn first_notice(&self, first: &Failure) -> FailureNotice {
        let Some((rank, cause)) = self.blames(first.rank).last() else { return first.notice() };
        let Some(state) = self.ranks.get(rank as usize) else { return first.notice() };
        let text = self.departure_in(rank, cause).unwrap_or_else(|| format!("{}: {cause}", self.name_of(rank)));
        FailureNotice {
            rank: Some(farandole_plan::Rank(rank)),
            host: Some(self.settings.hosts[state.host].clone()),
            pid: state.pid,
            kind: FailureKind::Gone,
            text,
        }
    }

    /// The launcher's exit code: that of the rank that failed first.
    pub(crate) fn exit_code(&self) -> u8 {
        match (&self.ending, self.root()) {
            (Ending::Well, _) => 0,
            (Ending::Interrupted(signal), _) => HowEnded::Signalled(*signal).exit_code(),
            // What a shell gives a command that wrote into a closed pipe.
            (Ending::Unheard, _) => HowEnded::Signalled(13).exit_code(),
            (Ending::Badly, Some(Root::Failure(failure))) => failure.exit_code(),
            // The rank may have left with exit code 0, which is right for it alone.
            (Ending::Badly, _) => self.failures.first().map_or(1, Failure::exit_code),
        }
    }

    /// The rank that failed first, if the job failed and it was a rank.
    pub(crate) fn failed_rank(&self) -> Option<u32> {
        match self.root().filter(|_| self.ending == Ending::Badly)? {
            Root::Failure(failure) => failure.rank,
            Root::Seen { rank, .. } => Some(rank),
        }
    }

    /// Whether the job failed, and was not ended by the user.
    pub(crate) fn has_failed(&self) -> bool {
        self.ending == Ending::Badly
    }

    /// What the user reads last: some lines about the failed rank, then one that says it all.
    pub(crate) fn last_words(&self) -> Vec<String> {
        let left: Vec<&str> = self.still_there().map(|host| self.settings.hosts[host].as_str()).collect();
        let mut lines = Vec::new();
        if !left.is_empty() {
            lines.push(format!("processes may be left on {}: their agents did not answer in time", left.join(", ")));
        }
        match (&self.ending, self.root()) {
            (Ending::Well, _) => {}
            (Ending::Interrupted(signal), _) => {
                lines.push(format!("ended by {}, and all ranks with it", signal::name(*signal)));
            }
            (Ending::Unheard, _) => lines.push("nobody reads the output any more; all ranks were ended".to_owned()),
            (Ending::Badly, None) => lines.push("the job failed".to_owned()),
            (Ending::Badly, Some(root)) => lines.extend(self.words_about(&root)),
        }
        lines
    }

    fn words_about(&self, root: &Root<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        let (rank, mut last, failure) = match root {
            Root::Failure(failure) => (failure.rank, failure.to_string(), Some(failure)),
            Root::Seen { rank, words } => (Some(*rank), words.clone(), None),
        };
        let rank = rank.and_then(|rank| Some((rank, self.ranks.get(rank as usize)?)));
        if let Some(What::Unreachable(gap)) = failure.map(|failure| &failure.what) {
            lines.push("what reached what:".to_owned());
            lines.extend(gap.table.iter().cloned());
        }
        if let Some((rank, state)) = rank {
            lines.extend(state.tail.quoted(&format!("rank {rank}")));
            let words = self.own_cause(rank).or_else(|| state.tail.last());
            if let Some(words) = words.filter(|_| failure.is_some()) {
                last = format!("{last}: {words}");
            }
        }
        lines.push(last);
        lines
    }

    /// What a rank has said ended it, if it was more than an exit code.
    fn own_cause(&self, rank: u32) -> Option<&str> {
        let (_, cause) = self.blamed.get(&rank).filter(|(peer, _)| *peer == Some(rank))?;
        let cause = cause.strip_prefix(&format!("rank {rank} "))?;
        cause.strip_prefix("raised ").or_else(|| cause.starts_with("panicked").then_some(cause))
    }

    fn still_there(&self) -> impl Iterator<Item = usize> {
        let here = self.hosts.iter().enumerate().filter(|(_, host)| host.presence == Presence::Here);
        here.map(|(index, _)| index)
    }
}
