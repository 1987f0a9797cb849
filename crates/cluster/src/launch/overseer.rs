//! What the launcher's loop asks of the state machine that decides: `supervision` for jobs of a fixed size, `elastic`
//! for others.

use std::time::Instant;

use super::job_spec::HostSlots;
use super::message::AgentReport;
use super::supervision::{Action, Supervision};

/// Decides. Times are awake time, which the driver gives.
pub(crate) trait Overseer {
    /// The next thing to do, if there is one.
    fn next_action(&mut self) -> Option<Action>;
    /// Takes in what an agent says.
    fn report(&mut self, host: usize, report: AgentReport, now: Instant);
    /// The channel to an agent is closed, or it has never come; `how` is what is known about it.
    fn agent_gone(&mut self, host: usize, how: String, now: Instant);
    /// What a rank has made of its task cannot be kept.
    fn result_lost(&mut self, host: usize, rank: u32, why: String, now: Instant);
    /// The ranks' task cannot be read.
    fn task_lost(&mut self, host: usize, why: String, now: Instant);
    /// The hosts of an elastic job are these by now, or why that is not known.
    fn hosts_changed(&mut self, found: Result<Vec<HostSlots>, String>, now: Instant);
    /// The user sends a signal. A second one ends everything at once.
    fn signal(&mut self, signal: i32, now: Instant);
    /// Agents are not listened to just now, because nobody reads what they say: their silence is no death.
    fn excuse_silence(&mut self, now: Instant);
    /// Nobody reads standard output any more.
    fn output_closed(&mut self, now: Instant);
    /// Whatever is due now. Returns when to come back at the latest.
    fn tick(&mut self, now: Instant) -> Instant;
    /// Agents that have been silent for half of what is allowed: their hosts and processes.
    fn quiet_agents(&self, now: Instant) -> Vec<(usize, u32)>;
    /// The process of an agent is seen to be stopped: its silence is no death.
    fn agent_stopped(&mut self, host: usize, now: Instant);
    /// The launcher's exit code.
    fn exit_code(&self) -> u8;
    /// The rank that failed first, if the job failed and it was a rank.
    fn failed_rank(&self) -> Option<u32>;
    /// Whether the job failed by itself, and starting it again may help.
    fn may_restart(&self) -> bool;
    /// What the user reads last.
    fn last_words(&self) -> Vec<String>;
}

impl Overseer for Supervision {
    fn next_action(&mut self) -> Option<Action> {
        Supervision::next_action(self)
    }

    fn report(&mut self, host: usize, report: AgentReport, now: Instant) {
        Supervision::report(self, host, report, now);
    }

    fn agent_gone(&mut self, host: usize, how: String, now: Instant) {
        Supervision::agent_gone(self, host, how, now);
    }

    fn result_lost(&mut self, host: usize, rank: u32, why: String, now: Instant) {
        Supervision::result_lost(self, host, rank, why, now);
    }

    fn task_lost(&mut self, host: usize, why: String, now: Instant) {
        Supervision::task_lost(self, host, why, now);
    }

    fn hosts_changed(&mut self, _: Result<Vec<HostSlots>, String>, _: Instant) {}

    fn signal(&mut self, signal: i32, now: Instant) {
        Supervision::signal(self, signal, now);
    }

    fn excuse_silence(&mut self, now: Instant) {
        Supervision::excuse_silence(self, now);
    }

    fn output_closed(&mut self, now: Instant) {
        Supervision::output_closed(self, now);
    }

    fn tick(&mut self, now: Instant) -> Instant {
        Supervision::tick(self, now)
    }

    fn quiet_agents(&self, now: Instant) -> Vec<(usize, u32)> {
        Supervision::quiet_agents(self, now)
    }

    fn agent_stopped(&mut self, host: usize, now: Instant) {
        Supervision::agent_stopped(self, host, now);
    }

    fn exit_code(&self) -> u8 {
        Supervision::exit_code(self)
    }

    fn failed_rank(&self) -> Option<u32> {
        Supervision::failed_rank(self)
    }

    fn may_restart(&self) -> bool {
        self.has_failed()
    }

    fn last_words(&self) -> Vec<String> {
        Supervision::last_words(self)
    }
}
