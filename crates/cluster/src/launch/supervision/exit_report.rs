//! What is left to say when a job is over: the exit code, and words that name the cause.

use super::{Ending, Presence, Supervision};
use crate::launch::failure::{Failure, What};
use crate::launch::message::HowEnded;
use crate::launch::signal;
use crate::rendezvous::{FailureKind, FailureNotice};

impl Supervision {
    /// Whom a rank blames, and what it saw; then whom that one blames, and so on. Blames may go round in a circle:
    /// every rank is visited once at most.
    fn blames(&self, from: Option<u32>) -> impl Iterator<Item = (u32, &str)> {
        let blamed = |rank| self.blamed.get(&rank).and_then(|(peer, cause)| Some(((*peer)?, cause.as_str())));
        let steps = std::iter::successors(from.and_then(blamed), move |(rank, _)| blamed(*rank));
        steps.take(self.ranks.len()).take_while(move |(rank, _)| Some(*rank) != from)
    }

    /// The failure that the others followed from.
    fn root(&self) -> Option<&Failure> {
        let of = |rank: u32| self.failures.iter().find(|failure| failure.rank == Some(rank));
        let first = self.failures.first()?;
        Some(self.blames(first.rank).map_while(|(rank, _)| of(rank)).last().unwrap_or(first))
    }

    /// What all ranks are told when the first failure is known. The rank that ended first may have followed another,
    /// whose own end has not been reported yet: then they are told what was seen of that one.
    pub(super) fn first_notice(&self, first: &Failure) -> FailureNotice {
        let Some((rank, cause)) = self.blames(first.rank).last() else { return first.notice() };
        let Some(state) = self.ranks.get(rank as usize) else { return first.notice() };
        FailureNotice {
            rank: Some(farandole_plan::Rank(rank)),
            host: Some(self.settings.hosts[state.host].clone()),
            pid: state.pid,
            kind: FailureKind::Gone,
            text: format!("{}: {cause}", self.name_of(rank)),
        }
    }

    /// The launcher's exit code: that of the rank that failed first.
    pub(crate) fn exit_code(&self) -> u8 {
        match (&self.ending, self.root()) {
            (Ending::Well, _) => 0,
            (Ending::Interrupted(signal), _) => HowEnded::Signalled(*signal).exit_code(),
            // What a shell gives a command that wrote into a closed pipe.
            (Ending::Unheard, _) => HowEnded::Signalled(13).exit_code(),
            (Ending::Badly, root) => root.map_or(1, Failure::exit_code),
        }
    }

    /// The rank that failed first, if the job failed and it was a rank.
    pub(crate) fn failed_rank(&self) -> Option<u32> {
        self.root().filter(|_| self.ending == Ending::Badly)?.rank
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
            (Ending::Badly, Some(root)) => lines.extend(self.words_about(root)),
        }
        lines
    }

    fn words_about(&self, root: &Failure) -> Vec<String> {
        let mut lines = Vec::new();
        let rank = root.rank.and_then(|rank| Some((rank, self.ranks.get(rank as usize)?)));
        let mut last = root.to_string();
        if let What::Unreachable(gap) = &root.what {
            lines.push("what reached what:".to_owned());
            lines.extend(gap.table.iter().cloned());
        }
        if let Some((rank, state)) = rank {
            let tail: Vec<String> = state.tail.lines().map(|line| format!("  | {line}")).collect();
            if !tail.is_empty() {
                lines.push(format!("the last lines that rank {rank} wrote to standard error:"));
                lines.extend(tail);
            }
            if let Some(words) = state.tail.last() {
                last = format!("{last}: {words}");
            }
        }
        lines.push(last);
        lines
    }

    fn still_there(&self) -> impl Iterator<Item = usize> {
        let here = self.hosts.iter().enumerate().filter(|(_, host)| host.presence == Presence::Here);
        here.map(|(index, _)| index)
    }
}
