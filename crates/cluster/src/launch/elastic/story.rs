//! What tests of the supervision tell it: an elastic job with agents that do as they are told.

use farandole_transport::ProcessId;

use super::*;
use crate::launch::connectivity::Attempt;
use crate::launch::message::HowEnded;
use crate::launch::supervision::MembersToStart;
use crate::rendezvous::FailureKind;

/// An elastic job under supervision, with a clock that the story moves and agents that do as they are told.
pub(super) struct Story {
    pub(super) supervision: ElasticSupervision,
    pub(super) now: Instant,
    /// What was said since it was last asked.
    pub(super) said: Vec<String>,
    /// Members whose processes run: their numbers, hosts and slots.
    pub(super) running: Vec<(u32, usize, u32)>,
    /// Directives since they were last asked, but for heartbeats.
    pub(super) told: Vec<(usize, Directive)>,
    pub(super) agents_started: Vec<usize>,
    pub(super) finished: bool,
    /// Agents do not answer when they are asked for processes of others.
    pub(super) agents_are_blind: bool,
    /// Hosts whose agents do not come when they are started.
    pub(super) dead: Vec<usize>,
}

pub(super) fn settings(hosts: &[usize]) -> ElasticSettings {
    let slots: usize = hosts.iter().sum();
    ElasticSettings {
        hosts: offered(hosts),
        on_one_host: hosts.len() == 1,
        np: slots,
        min_np: 1,
        max_np: slots,
        spares: 0,
        reset_limit: None,
        replace_slow: None,
        timeout: Duration::from_secs(60),
        cool_down: CoolDown { low: Duration::from_secs(1), high: Duration::from_secs(60), first: FirstStrike::Free },
        start_timeout: Duration::from_secs(30),
        silence: Duration::from_secs(5),
        grace: Duration::from_secs(5),
    }
}

pub(super) fn process(member: u32) -> ProcessId {
    ProcessId { pid: 1000 + member, namespace: 5, start_time: 7 }
}

pub(super) fn offered(hosts: &[usize]) -> Vec<HostSlots> {
    let host = |(at, slots): (usize, &usize)| HostSlots { name: format!("h{at}"), slots: *slots };
    hosts.iter().enumerate().map(host).filter(|host| host.slots > 0).collect()
}

impl Story {
    pub(super) fn new(settings: ElasticSettings) -> Story {
        let now = Instant::now();
        let mut story = Story {
            supervision: ElasticSupervision::new(settings, now),
            now,
            said: Vec::new(),
            running: Vec::new(),
            told: Vec::new(),
            agents_started: Vec::new(),
            finished: false,
            agents_are_blind: false,
            dead: Vec::new(),
        };
        story.obey();
        story
    }

    /// Does what the supervision wants, until it wants nothing more.
    pub(super) fn obey(&mut self) {
        while let Some(action) = self.supervision.next_action() {
            match action {
                Action::Say(text) => self.said.push(text),
                Action::Finish => self.finished = true,
                Action::DropAgent(host) => self.running.retain(|(_, of, _)| *of != host),
                Action::StartAgent(host, _) => self.agent_starts(host),
                Action::StartMembers(host, wanted) => self.members_start(host, &wanted),
                Action::Send(_, Directive::Alive) => {}
                Action::Send(host, directive) => self.directive(host, directive),
            }
        }
    }

    pub(super) fn agent_starts(&mut self, host: usize) {
        self.agents_started.push(host);
        if self.dead.contains(&host) {
            return self.supervision.agent_gone(host, "ssh says no".into(), self.now);
        }
        let probe_addresses = vec![format!("10.0.0.{}:99", host + 1).parse().unwrap()];
        let ready = AgentReport::Ready { pid: 100 + host as u32, host_name: format!("h{host}"), probe_addresses };
        self.supervision.report(host, ready, self.now);
    }

    fn members_start(&mut self, host: usize, wanted: &MembersToStart) {
        for slot in &wanted.members {
            self.running.push((slot.rank, host, slot.local_rank));
            let started = AgentReport::Started { rank: slot.rank, process: process(slot.rank) };
            self.supervision.report(host, started, self.now);
        }
    }

    fn directive(&mut self, host: usize, directive: Directive) {
        match &directive {
            Directive::Probe(probes) => {
                let reached = |probe| Attempt { probe, outcome: Ok(1) };
                let attempts = probes.iter().cloned().map(reached).collect();
                self.supervision.report(host, AgentReport::Probed(attempts), self.now);
            }
            Directive::EndMember { member, .. } => {
                let how = HowEnded::Signalled(15);
                self.ends(*member, how);
            }
            Directive::End { .. } => {
                for (member, ..) in self.running.clone().into_iter().filter(|(_, of, _)| *of == host) {
                    self.ends(member, HowEnded::Signalled(15));
                }
                self.supervision.report(host, AgentReport::Empty, self.now);
            }
            Directive::Seek(sought) if !self.agents_are_blind => {
                let numbers = self.numbers();
                let gone: Vec<u32> =
                    sought.iter().map(|(member, _)| *member).filter(|m| !numbers.contains(m)).collect();
                if !gone.is_empty() {
                    self.supervision.report(host, AgentReport::NotThere(gone), self.now);
                }
            }
            _ => {}
        }
        self.told.push((host, directive));
    }

    fn ends(&mut self, member: u32, how: HowEnded) {
        let Some(at) = self.running.iter().position(|(number, ..)| *number == member) else { return };
        let (_, host, _) = self.running.remove(at);
        self.supervision.report(host, AgentReport::Ended { rank: member, how, after_us: 1 }, self.now);
        if !self.running.iter().any(|(_, of, _)| *of == host) {
            self.supervision.report(host, AgentReport::Empty, self.now);
        }
    }

    pub(super) fn ended(&mut self, member: u32, how: HowEnded) {
        self.ends(member, how);
        self.obey();
    }

    pub(super) fn hear(&mut self, host: usize, report: AgentReport) {
        self.supervision.report(host, report, self.now);
        self.obey();
    }

    /// The agent of a host is gone, and its processes with it.
    pub(super) fn lose_host(&mut self, host: usize) {
        self.running.retain(|(_, of, _)| *of != host);
        self.supervision.agent_gone(host, "its connection was closed".into(), self.now);
        self.obey();
    }

    /// The connection to the agent of a host breaks; its processes run.
    pub(super) fn break_agent(&mut self, host: usize) {
        self.supervision.agent_gone(host, "its connection broke: reset by peer".into(), self.now);
        self.obey();
    }

    pub(super) fn find(&mut self, hosts: &[usize]) {
        self.supervision.hosts_changed(Ok(offered(hosts)), self.now);
        self.obey();
    }

    /// Everybody who runs enters the rendezvous, except the late ones.
    pub(super) fn enter(&mut self, late: &[u32]) {
        for (member, host, _) in self.running.clone().into_iter().filter(|(member, ..)| !late.contains(member)) {
            self.hear(host, AgentReport::Entered { member, blob: vec![member as u8] });
        }
    }

    pub(super) fn generation(&mut self, host: usize, number: u64, members: &[u64]) {
        let members = members.iter().map(|&member| (member, vec![member as u8])).collect();
        self.hear(host, AgentReport::Entering(Generation { number, members }));
    }

    /// Lets time pass; hosts other than the silent ones give signs of life.
    pub(super) fn pass(&mut self, time: Duration, silent: &[usize]) {
        let step = Duration::from_millis(100);
        for _ in 0..time.as_millis() / step.as_millis() {
            self.now += step;
            for host in (0..self.supervision.hosts.len()).filter(|host| !silent.contains(host)) {
                self.supervision.report(host, AgentReport::Alive, self.now);
            }
            self.supervision.tick(self.now);
            self.obey();
        }
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.running.iter().map(|(member, ..)| *member).collect();
        numbers.sort_unstable();
        numbers
    }

    pub(super) fn last_line(&self) -> String {
        self.supervision.last_words().pop().unwrap_or_default()
    }

    pub(super) fn has_said(&self, text: &str) -> bool {
        self.said.iter().any(|said| said.contains(text))
    }

    pub(super) fn losses_told(&self) -> Vec<(usize, u32, FailureKind)> {
        let lost = |(host, directive): &(usize, Directive)| match directive {
            Directive::MemberLost { member, notice, .. } => Some((*host, *member, notice.kind)),
            _ => None,
        };
        self.told.iter().filter_map(lost).collect()
    }

    pub(super) fn founding(&self) -> Option<Generation> {
        self.told.iter().find_map(|(_, directive)| match directive {
            Directive::Found(generation) => Some(generation.clone()),
            _ => None,
        })
    }
}
