//! Members that may go on where the launcher does not hear them.
//!
//! A host that is not heard of may be cut off from the launcher alone, and its members may train on with the others; or
//! it may be cut off for a moment, after which its members go on and its agent, which the launcher has given up, stays
//! without one. As long as the latest generation that was told has such a member, it is *adrift*: it has the job's
//! state and keeps its slot. It is over when a generation is without it, or when nothing was heard of it for the
//! elastic timeout. An agent that has come to its host since looks for its process from time to time; if there is none,
//! it is over at once.
//!
//! That a process was not found frees its slot and is no evidence for the members: another agent may have been started
//! where it does not see the processes of the first, as in another container.

use std::time::{Duration, Instant};

use super::hosts::Presence;
use super::members::{Life, Member};
use super::{Directive, ElasticSupervision};

/// Between two looks for those who are adrift.
const SEEK_EVERY: Duration = Duration::from_secs(1);

impl ElasticSupervision {
    /// Numbers of those that may go on where the launcher does not hear them.
    pub(super) fn adrift(&self) -> impl Iterator<Item = usize> {
        let is_adrift = |member: &Member| matches!(member.life, Life::Adrift { .. });
        self.members.iter().enumerate().filter(move |(_, member)| is_adrift(member)).map(|(number, _)| number)
    }

    /// Somebody of whose end nothing was seen is adrift, as long as the latest generation has it.
    pub(super) fn set_adrift(&mut self, member: usize, now: Instant) {
        let is_in = self.generation.as_ref().is_some_and(|generation| generation.has(member as u64));
        let known = &mut self.members[member];
        if known.unseen && known.life != Life::Running {
            known.life = if is_in { Life::Adrift { until: now + self.settings.timeout } } else { Life::Over };
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
        if self.sought.is_some_and(|at| now < at + SEEK_EVERY) {
            return;
        }
        for host in 0..self.hosts.len() {
            let of_host = self.adrift().filter(|member| self.members[*member].host == host);
            let sought: Vec<(u32, u32)> =
                of_host.filter_map(|member| Some((member as u32, self.members[member].pid?))).collect();
            if !sought.is_empty() && self.hosts[host].presence == Presence::Here {
                self.sought = Some(now);
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
