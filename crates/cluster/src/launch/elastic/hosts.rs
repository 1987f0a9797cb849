//! The hosts of an elastic job: which are offered, which have an agent, and which are left alone for a while.
//!
//! A host is offered with a number of slots, by a fixed list or by discovery. Agents are started on as many hosts as
//! the job can use, in the order in which hosts were named. A host whose members or whose agent fail gets a *strike*
//! and is barred from new members for a while, which grows with every strike; failures that have one cause (members
//! that ran when the host got its last strike) are one strike. A host that has gone without failures for twice the
//! longest such time begins anew.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::{Action, BEATS, CoolDown, Directive, ElasticSupervision, FirstStrike, HostSlots, Phase};
use crate::launch::failure::What;

/// A host that cannot be used is not tried again before this time, whatever the cool-down is: nothing heals sooner.
const AGENT_PAUSE: Duration = Duration::from_secs(1);

/// How far the agent of a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// There is none.
    Absent,
    /// It has been started and has not said anything yet.
    Coming {
        /// When it is given up.
        until: Instant,
    },
    /// It has come; whether other hosts reach it is not known.
    Ready,
    /// Members can be started.
    Here,
}

/// One host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    /// How many members it may have; zero: it is not offered any more.
    pub(super) slots: usize,
    pub(super) presence: Presence,
    pub(super) pid: Option<u32>,
    pub(super) probe_addresses: Vec<SocketAddr>,
    /// Where its members are reached.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) last_heard: Instant,
    pub(super) last_told: Instant,
    pub(super) said_stopped: bool,
    /// Whether its agent has said that no process is left.
    pub(super) is_empty: bool,
    /// When its agent was last asked for processes that are adrift.
    pub(super) sought: Option<Instant>,
    /// Failures so far, and when the last one was.
    strikes: u32,
    last_strike: Option<Instant>,
    /// Until when nobody is started there.
    pub(super) barred_until: Option<Instant>,
}

impl Presence {
    pub(super) fn has_agent(self) -> bool {
        self != Presence::Absent
    }

    pub(super) fn is_on_its_way(self) -> bool {
        matches!(self, Presence::Coming { .. } | Presence::Ready)
    }
}

impl Host {
    fn new(name: String, slots: usize, now: Instant) -> Host {
        Host {
            name,
            slots,
            presence: Presence::Absent,
            pid: None,
            probe_addresses: Vec::new(),
            addresses: Vec::new(),
            last_heard: now,
            last_told: now,
            said_stopped: false,
            is_empty: true,
            sought: None,
            strikes: 0,
            last_strike: None,
            barred_until: None,
        }
    }

    pub(super) fn heard(&mut self, now: Instant) {
        (self.last_heard, self.said_stopped) = (now, false);
    }

    pub(super) fn is_barred(&self, now: Instant) -> bool {
        self.barred_until.is_some_and(|until| now < until)
    }

    /// A failure of something that was started then. Says for how long nobody is started here.
    pub(super) fn strike(&mut self, cool_down: CoolDown, started: Instant, now: Instant) -> Duration {
        match self.last_strike {
            Some(last) if started < last => {
                return self.barred_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
            }
            Some(last) if now.saturating_duration_since(last) > cool_down.high * 2 => self.strikes = 0,
            _ => {}
        }
        (self.strikes, self.last_strike) = (self.strikes + 1, Some(now));
        let counted = match cool_down.first {
            FirstStrike::Counts => self.strikes,
            FirstStrike::Free => self.strikes - 1,
        };
        let bar = match counted {
            0 => Duration::ZERO,
            more => cool_down.low.saturating_mul(1 << (more - 1).min(20)).min(cool_down.high),
        };
        self.barred_until = Some(now + bar);
        bar
    }
}

impl ElasticSupervision {
    /// These hosts are offered, and no others.
    pub(super) fn hosts_found(&mut self, found: Vec<HostSlots>, now: Instant) {
        for host in &mut self.hosts {
            host.slots = found.iter().find(|offered| offered.name == host.name).map_or(0, |offered| offered.slots);
        }
        for HostSlots { name, slots } in found {
            if self.hosts.iter().all(|host| host.name != name) {
                self.hosts.push(Host::new(name, slots, now));
            }
        }
        for host in 0..self.hosts.len() {
            self.release_beyond(host, now);
        }
        self.settle(now);
    }

    /// Starts agents until there is room for everybody who is wanted.
    pub(super) fn call_agents(&mut self, now: Instant) {
        if self.finishing {
            return;
        }
        let wanted = self.wanted();
        let counts = |host: &&Host| host.presence.has_agent() && !host.is_barred(now);
        let mut room: usize = self.hosts.iter().filter(counts).map(|host| host.slots).sum();
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            if room >= wanted {
                return;
            }
            if host.presence == Presence::Absent && host.slots > 0 && !host.is_barred(now) {
                host.presence = Presence::Coming { until: now + self.settings.start_timeout };
                (host.pid, host.last_heard, host.last_told, host.is_empty) = (None, now, now, true);
                room += host.slots;
                self.actions.push_back(Action::StartAgent(at, host.name.clone()));
            }
        }
    }

    pub(super) fn agent_came(&mut self, host: usize, pid: u32, probe_addresses: Vec<SocketAddr>) {
        let host = &mut self.hosts[host];
        if matches!(host.presence, Presence::Coming { .. }) {
            (host.presence, host.pid, host.probe_addresses) = (Presence::Ready, Some(pid), probe_addresses);
            host.sought = None;
        }
    }

    pub(super) fn host_is_empty(&mut self, host: usize) {
        // An agent that has just been told to start somebody may have said before that it has nobody.
        let is_empty = self.live_on(host).next().is_none();
        self.hosts[host].is_empty = is_empty;
    }

    /// The agent of a host is gone, or never came.
    pub(super) fn lose_agent(&mut self, host: usize, how: String, now: Instant) {
        let (presence, pid) = (self.hosts[host].presence, self.hosts[host].pid);
        if presence == Presence::Absent {
            return;
        }
        self.hosts[host].presence = Presence::Absent;
        self.admission.forget(host);
        if matches!(self.phase, Phase::Asked { .. } | Phase::Ending { .. } | Phase::Finished) {
            // Its processes have ended with it.
            self.live_on(host).collect::<Vec<_>>().into_iter().for_each(|member| self.members[member].end());
            return;
        }
        let name = self.hosts[host].name.clone();
        if presence != Presence::Here {
            return self.give_up_agent(host, &how, now);
        }
        let agent = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
        self.say(format!(
            "the agent on {name}{agent} is lost: {how}; its members may run, and keep their slots until another agent \
             does not find them"
        ));
        self.lose_members_of(host, &What::AgentGone(how), now);
    }

    /// A host cannot be used now.
    pub(super) fn give_up_agent(&mut self, host: usize, how: &str, now: Instant) {
        let bar = self.hosts[host].strike(self.settings.cool_down, now, now).max(AGENT_PAUSE);
        self.hosts[host].barred_until = Some(now + bar);
        let name = self.hosts[host].name.clone();
        self.say(format!("{name} cannot be used: {how}; {}", again_in(bar)));
    }

    pub(super) fn watch_agents(&mut self, now: Instant) {
        let silence = self.settings.silence;
        for at in 0..self.hosts.len() {
            let Host { presence, last_heard, last_told, .. } = self.hosts[at];
            match presence {
                Presence::Coming { until } if now >= until => {
                    let waited = self.settings.start_timeout.as_secs_f64();
                    self.actions.push_back(Action::DropAgent(at));
                    self.lose_agent(at, format!("it has not answered within {waited} s (--start-timeout)"), now);
                }
                Presence::Here | Presence::Ready if !silence.is_zero() => {
                    let quiet = now.saturating_duration_since(last_heard);
                    if quiet > silence {
                        self.lose_silent_host(at, quiet, now);
                    } else if now.saturating_duration_since(last_told) >= silence / BEATS {
                        self.tell(at, Directive::Alive, now);
                    }
                }
                _ => {}
            }
        }
    }

    fn lose_silent_host(&mut self, host: usize, quiet: Duration, now: Instant) {
        self.actions.push_back(Action::DropAgent(host));
        self.hosts[host].presence = Presence::Absent;
        self.admission.forget(host);
        let (name, quiet_s) = (self.hosts[host].name.clone(), quiet.as_secs_f64());
        self.say(format!(
            "{name} has not been heard of for {quiet_s:.1} s: it is down, or the network to it is cut (--heartbeat-timeout)"
        ));
        self.lose_members_of(host, &What::HostSilent(quiet), now);
    }

    /// The process of an agent is seen to be stopped: its silence is no death.
    pub(super) fn excuse_stopped_agent(&mut self, host: usize, now: Instant) {
        let state = &mut self.hosts[host];
        state.last_heard = now;
        if !std::mem::replace(&mut state.said_stopped, true) {
            let (name, pid) = (state.name.clone(), state.pid.unwrap_or_default());
            self.say(format!(
                "the agent on {name} (pid {pid}) is stopped; its members go on, and nobody looks after them until it is \
                 continued"
            ));
        }
    }

    /// Why the job cannot have more members just now.
    pub(super) fn why_no_more(&self, now: Instant) -> String {
        let barred = self.hosts.iter().filter(|host| host.slots > 0 && host.is_barred(now));
        let mut reasons: Vec<String> = barred
            .map(|host| {
                let left = host.barred_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
                format!("{} has failed and is left alone for {:.0} s", host.name, left.as_secs_f64().ceil())
            })
            .collect();
        let coming = self.hosts.iter().filter(|host| host.slots > 0 && host.presence.is_on_its_way());
        reasons.extend(coming.map(|host| format!("{} is awaited", host.name)));
        let slots: usize = self.hosts.iter().map(|host| host.slots).sum();
        reasons.push(format!("the hosts have {slots} slots in all"));
        reasons.join(", ")
    }
}

pub(super) fn again_in(bar: Duration) -> String {
    format!("it is left alone for {} s", bar.as_secs_f64())
}
