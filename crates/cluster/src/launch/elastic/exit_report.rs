//! What is left to say when an elastic job is over: the exit code, every loss and what became of it, and the cause if
//! it failed.

use super::hosts::Presence;
use super::members::Loss;
use super::{Cause, ElasticSupervision, Ending, members_in_words};
use crate::launch::message::HowEnded;
use crate::launch::signal;

impl ElasticSupervision {
    /// The loss that the job failed of, if it was one.
    pub(super) fn root(&self) -> Option<&Loss> {
        match &self.ending {
            Ending::Badly(Cause::LossAtTheEnd(at) | Cause::NobodyLeft(at)) => self.losses.get(*at),
            Ending::Badly(Cause::ResetLimit(_) | Cause::TooFew(_)) => self.losses.last(),
            _ => None,
        }
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
            let last: Vec<String> = tail.lines().map(|line| format!("  | {line}")).collect();
            if !last.is_empty() {
                lines.push(format!("the last lines that member {} wrote to standard error:", loss.member));
                lines.extend(last);
            }
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
