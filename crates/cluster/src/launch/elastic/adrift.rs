//! Members that may run although the launcher is not connected to their agent.
//!
//! A host that is silent may be cut off from the launcher alone, and its members may train on with the others. The same
//! holds when the connection to an agent breaks: a middlebox can reset it, and agents of elastic jobs outlive their
//! launcher. Such members are *adrift*: they keep their slots, so no second process uses their GPUs. One of the latest
//! generation also has the job's state. A member is over when a generation is without it, or after the elastic timeout.
//! An agent that has come to its host since looks for its process, by its identity; if it has ended, the member
//! is over at once.
//!
//! That a process was not found frees its slot and is no evidence for the members: another agent may have been started
//! where it does not see the processes of the first, as in another container.

use std::time::{Duration, Instant};

use super::hosts::Presence;
use super::members::{Life, Member};
use super::{Directive, ElasticSupervision};
use crate::launch::message::Process;

/// Between two looks for those who are adrift.
const SEEK_EVERY: Duration = Duration::from_secs(1);

impl ElasticSupervision {
    /// Numbers of those that may go on where the launcher does not hear them.
    pub(super) fn adrift(&self) -> impl Iterator<Item = usize> {
        let is_adrift = |member: &Member| matches!(member.life, Life::Adrift { .. });
        self.members.iter().enumerate().filter(move |(_, member)| is_adrift(member)).map(|(number, _)| number)
    }

    /// Whether a member of the latest generation is adrift.
    pub(super) fn state_is_adrift(&self) -> bool {
        let latest = self.generation.as_ref();
        self.adrift().any(|member| latest.is_some_and(|generation| generation.has(member as u64)))
    }

    /// A generation has begun: a member whose end was not seen is adrift if it is in, and over if the others continue
    /// without it. One that was in no generation stays as it is.
    pub(super) fn drift(&mut self, member: usize, now: Instant) {
        let is_in = self.generation.as_ref().is_some_and(|generation| generation.has(member as u64));
        let known = &mut self.members[member];
        if known.unseen && known.life != Life::Running {
            known.life = match is_in {
                true => Life::Adrift { until: now + self.settings.timeout },
                false if known.in_generation => Life::Over,
                false => known.life,
            };
        }
    }

    /// Nothing was heard for too long of those who are adrift.
    pub(super) fn give_up_adrift(&mut self, now: Instant) {
        for member in &mut self.members {
            if matches!(member.life, Life::Adrift { until } if now >= until) {
                member.life = Life::Over;
            }
        }
    }

    /// Has the agents that are there look for processes of those who are adrift on their hosts.
    pub(super) fn seek_adrift(&mut self, now: Instant) {
        for host in 0..self.hosts.len() {
            let is_due = self.hosts[host].sought.is_none_or(|at| now >= at + SEEK_EVERY);
            if self.hosts[host].presence != Presence::Here || !is_due {
                continue;
            }
            let of_host = self.adrift().filter(|member| self.members[*member].host == host);
            let sought: Vec<(u32, Process)> =
                of_host.filter_map(|member| Some((member as u32, Process(self.members[member].process?)))).collect();
            if !sought.is_empty() {
                self.hosts[host].sought = Some(now);
                self.tell(host, Directive::Seek(sought), now);
            }
        }
    }

    /// An agent has not found the processes of these members.
    pub(super) fn not_there(&mut self, host: usize, members: &[u32]) {
        for &member in members {
            let known = self.members.get_mut(member as usize).filter(|known| known.host == host);
            if let Some(known) = known.filter(|known| matches!(known.life, Life::Adrift { .. })) {
                (known.life, known.unseen) = (Life::Over, false);
            }
        }
    }
}
