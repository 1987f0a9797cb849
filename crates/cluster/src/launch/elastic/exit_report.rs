//! What is left to say when an elastic job is over: the exit code, every loss and what became of it, and the cause if
//! it failed.

use super::hosts::Presence;
use super::members::Loss;
use super::{Cause, ElasticSupervision, Ending, members_in_words};
use crate::launch::message::HowEnded;
use crate::launch::signal;

impl ElasticSupervision {
    /// The loss that the job failed of, if it was one: the one that the others of the end followed from.
    pub(super) fn root(&self) -> Option<&Loss> {
        let last = match &self.ending {
            Ending::Badly(Cause::LossAtTheEnd(at) | Cause::NobodyLeft(at)) => self.losses.get(*at),
            Ending::Badly(Cause::ResetLimit(_) | Cause::TooFew(_)) => self.losses.last(),
            _ => None,
        }?;
        let of = |member: u32| self.losses.iter().rev().find(|loss| loss.member == member);
        let blames = self.blames(last.member);
        Some(blames.into_iter().map_while(|(member, _)| of(member)).last().unwrap_or(last))
    }

    /// Whom a member held responsible when it ended, and in which words; then whom that one did, and so on.
    fn blames(&self, from: u32) -> Vec<(u32, &str)> {
        let blamed = |member: u32| self.blamed.get(&member).and_then(|(peer, words)| Some(((*peer)?, words.as_str())));
        let mut visited: Vec<(u32, &str)> = Vec::new();
        let mut next = blamed(from);
        while let Some((member, words)) = next.filter(|(member, _)| {
            *member != from && visited.iter().all(|(known, _)| known != member) && self.members.len() > *member as usize
        }) {
            visited.push((member, words));
            next = blamed(member);
        }
        visited
    }

    /// A member that the root followed from and that is not a loss: it has left with exit code 0, or has not ended.
    fn departure(&self) -> Option<String> {
        let (member, words) = *self.blames(self.root()?.member).last()?;
        Some(format!("{}: {words}", self.name_of(member)))
    }

    pub(super) fn code(&self) -> u8 {
        match &self.ending {
            Ending::Well => 0,
            Ending::Interrupted(signal) => HowEnded::Signalled(*signal).exit_code(),
            // What a shell gives a command that wrote into a closed pipe.
            Ending::Unheard => HowEnded::Signalled(13).exit_code(),
            Ending::Badly(_) => self.root().map_or(1, |loss| loss.failure.exit_code()),
        }
    }

    pub(super) fn words(&self) -> Vec<String> {
        let here = self.hosts.iter().filter(|host| host.presence == Presence::Here && !host.is_empty);
        let left: Vec<&str> = here.map(|host| host.name.as_str()).collect();
        let mut lines = Vec::new();
        if !left.is_empty() {
            lines.push(format!("processes may be left on {}: their agents did not answer in time", left.join(", ")));
        }
        lines.extend(self.words_about_losses());
        if let Some(loss) = self.root() {
            let tail = &self.members[loss.member as usize].tail;
            lines.extend(tail.quoted(&format!("member {}", loss.member)));
        }
        if self.ending != Ending::Well {
            lines.push(self.last_line());
        }
        lines
    }

    fn words_about_losses(&self) -> Vec<String> {
        if self.losses.is_empty() {
            return Vec::new();
        }
        let count = self.losses.len();
        let mut lines = vec![format!("the job has lost {} on its way:", members_in_words(count))];
        lines.extend(self.losses.iter().map(|loss| {
            let became = match loss.replaced_by {
                Some(other) => format!("member {other} was started in its place"),
                None => "nobody was started in its place".to_owned(),
            };
            format!("  {}; {became}", loss.failure.as_member())
        }));
        lines
    }

    /// The line that says it all.
    pub(super) fn last_line(&self) -> String {
        let Ending::Badly(cause) = &self.ending else {
            return match self.ending {
                Ending::Interrupted(signal) => format!("ended by {}, and all members with it", signal::name(signal)),
                Ending::Unheard => "nobody reads the output any more; all members were ended".to_owned(),
                _ => String::new(),
            };
        };
        let loss = self.root().map(|loss| {
            let words = self.members[loss.member as usize].tail.last().map(|words| format!(": {words}"));
            format!("{}{}", loss.failure.as_member(), words.unwrap_or_default())
        });
        let loss = self.departure().or(loss);
        let loss = loss.unwrap_or_else(|| "no member was lost".to_owned());
        match cause {
            Cause::LossAtTheEnd(_) => format!("the job had begun to end, and nobody takes a place any more: {loss}"),
            Cause::NobodyLeft(_) => format!("no member is left that has the job's state; the last one: {loss}"),
            Cause::ResetLimit(resets) => {
                let limit = self.settings.reset_limit.unwrap_or_default();
                format!("the job was reset {resets} times, more often than --reset-limit {limit}; at last: {loss}")
            }
            Cause::TooFew(live) => {
                let (least, waited) = (self.settings.min_np, self.settings.timeout.as_secs_f64());
                format!(
                    "the job had {} for {waited} s (--elastic-timeout), fewer than --min-np {least}; the last loss: {loss}",
                    members_in_words(*live)
                )
            }
            Cause::Host(why) => why.clone(),
            Cause::TwoHistories(lists) => format!(
                "the job has split: {lists}; keep no results that were written since, and start it again from its \
                 last checkpoint"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ElasticSettings;
    use super::super::story::{Story, settings};
    use crate::launch::message::{AgentReport, HowEnded};
    use crate::launch::overseer::Overseer as _;

    /// Members 0 and 1 end because member 2 raised something; it ends in the middle.
    #[test]
    fn the_member_that_raised_is_the_cause_whoever_ends_last() {
        let cause = "rank 2 raised ValueError: a bad batch (after 39 steps)";
        for last in [0, 2] {
            let mut story = Story::new(ElasticSettings { reset_limit: Some(0), ..settings(&[3]) });
            story.enter(&[]);
            story.generation(0, 1, &[0, 1, 2]);
            for member in 0..3 {
                story.hear(0, AgentReport::Blamed { by: member, peer: Some(2), cause: cause.into() });
            }
            for member in [1, 2 - last, last] {
                story.ended(member, HowEnded::Exited(1 + member as i32));
            }
            story.generation(0, 2, &[3, 4, 5]);
            assert!(story.finished, "{:?}", story.said);
            assert!(story.last_line().contains("member 2 on h0"), "{}", story.last_line());
            assert_eq!(story.supervision.failed_rank(), Some(2));
        }
    }
}
