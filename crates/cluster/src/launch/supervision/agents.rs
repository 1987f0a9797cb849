//! Silent agents: which are lost, and which are only stopped.
//!
//! An agent of another host that is silent for too long is lost, and its ranks with it. One of this host can be looked
//! at: while its process is stopped (Ctrl-Z, a debugger, a suspended job) its ranks go on without it, and so does the
//! job. The driver looks well before the limit, so that an agent which is continued has time to be heard.

use std::time::{Duration, Instant};

use super::super::failure::What;
use super::{Action, BEATS, Directive, Host, Presence, Supervision};

impl Supervision {
    /// Something came from an agent.
    pub(super) fn heard_of(&mut self, host: usize, now: Instant) {
        (self.hosts[host].last_heard, self.hosts[host].said_stopped) = (now, false);
    }

    /// Agents that have been silent for half of what is allowed: their hosts and processes.
    pub(crate) fn quiet_agents(&self, now: Instant) -> Vec<(usize, u32)> {
        let silence = self.settings.silence;
        let quiet = |host: &Host| now.saturating_duration_since(host.last_heard) > silence / 2;
        let watched = self.hosts.iter().enumerate().filter(|(_, host)| host.presence == Presence::Here && quiet(host));
        if silence.is_zero() { Vec::new() } else { watched.filter_map(|(at, host)| Some((at, host.pid?))).collect() }
    }

    /// The process of an agent is seen to be stopped: its silence is no death.
    pub(crate) fn agent_stopped(&mut self, host: usize, now: Instant) {
        let name = self.settings.hosts[host].clone();
        let Host { last_heard, said_stopped, pid, .. } = &mut self.hosts[host];
        *last_heard = now;
        if !std::mem::replace(said_stopped, true) {
            let pid = pid.unwrap_or_default();
            self.actions.push_back(Action::Say(format!(
                "the agent on {name} (pid {pid}) is stopped; its ranks go on, and nobody looks after them until it is continued"
            )));
        }
    }

    pub(super) fn watch_hosts(&mut self, now: Instant) {
        let silence = self.settings.silence;
        if silence.is_zero() {
            return;
        }
        for host in 0..self.hosts.len() {
            let Host { presence, last_heard, last_told, .. } = self.hosts[host];
            if presence != Presence::Here {
                continue;
            }
            let quiet: Duration = now.saturating_duration_since(last_heard);
            if quiet > silence {
                self.lose(host, What::HostSilent(quiet), now);
            } else if now.saturating_duration_since(last_told) >= silence / BEATS {
                self.tell(host, Directive::Alive, now);
            }
        }
    }
}
