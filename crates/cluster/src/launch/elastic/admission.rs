//! Letting hosts into an elastic job: those whose agents have come, once it is known that every host reaches every
//! other.
//!
//! Hosts come at any time. Those that have come since the last time are a *batch*: each host of it tries to reach all
//! other hosts of the job, and these try to reach it (`connectivity`). A host that does not reach another, or is not
//! reached, is left out with a line that says so; the others are let in, and their members listen where all reach them.
//! Who was in before keeps its addresses: its members listen there already. At the beginning all hosts make one batch,
//! so that each listens where it is reached best.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use super::hosts::Presence;
use super::{Action, Directive, ElasticSupervision, Phase};
use crate::launch::connectivity::{Attempt, HostProbe, ReachMap};

/// The batch that is being let in, and all attempts so far between hosts that have an agent.
#[derive(Debug, Default)]
pub(super) struct Admission {
    batch: Option<Batch>,
    attempts: Vec<(usize, Attempt)>,
}

#[derive(Debug)]
struct Batch {
    hosts: Vec<usize>,
    /// Who has not said how its attempts went.
    awaited: BTreeSet<usize>,
    until: Instant,
}

impl Admission {
    pub(super) fn until(&self) -> Option<Instant> {
        self.batch.as_ref().map(|batch| batch.until)
    }

    /// A host has no agent any more: what was known of it counts no longer.
    pub(super) fn forget(&mut self, host: usize) {
        self.attempts.retain(|(from, attempt)| *from != host && attempt.probe.host as usize != host);
        if let Some(batch) = &mut self.batch {
            batch.hosts.retain(|member| *member != host);
            batch.awaited.remove(&host);
        }
    }
}

impl ElasticSupervision {
    /// How the attempts of a host went.
    pub(super) fn probed(&mut self, host: usize, attempts: Vec<Attempt>) {
        self.admission.attempts.extend(attempts.into_iter().map(|attempt| (host, attempt)));
        if let Some(batch) = &mut self.admission.batch {
            batch.awaited.remove(&host);
        }
    }

    /// Ends the batch that is under way, if everything is known, and begins the next.
    pub(super) fn admit_hosts(&mut self, now: Instant) {
        match &self.admission.batch {
            Some(batch) if batch.awaited.is_empty() || now >= batch.until => {
                let batch = std::mem::take(&mut self.admission.batch).map_or(Vec::new(), |batch| batch.hosts);
                self.let_in(batch, now);
            }
            Some(_) => {}
            None => self.begin_batch(now),
        }
    }

    fn begin_batch(&mut self, now: Instant) {
        let gathering = matches!(self.phase, Phase::Gathering { until } if now < until);
        let coming = self.hosts.iter().any(|host| matches!(host.presence, Presence::Coming { .. }));
        let all = || self.hosts.iter().enumerate();
        let batch: Vec<usize> = all().filter(|(_, host)| host.presence == Presence::Ready).map(|(at, _)| at).collect();
        let here: Vec<usize> = all().filter(|(_, host)| host.presence == Presence::Here).map(|(at, _)| at).collect();
        if batch.is_empty() || gathering && coming {
            return;
        }
        let everybody: Vec<usize> = here.iter().chain(&batch).copied().collect();
        let mut awaited = BTreeSet::new();
        for &from in &everybody {
            // Hosts that were in before have tried each other.
            let to = everybody.iter().filter(|to| **to != from && (batch.contains(&from) || batch.contains(to)));
            let probes: Vec<HostProbe> = to
                .flat_map(|&to| {
                    let addresses = self.hosts[to].probe_addresses.iter();
                    addresses.map(move |&address| HostProbe { host: to as u32, address })
                })
                .collect();
            if everybody.len() > 1 {
                awaited.insert(from);
                self.tell(from, Directive::Probe(probes), now);
            }
        }
        self.admission.batch = Some(Batch { hosts: batch, awaited, until: now + self.settings.start_timeout });
        self.admit_hosts(now);
    }

    /// Decides by what is known of who reaches whom.
    fn let_in(&mut self, batch: Vec<usize>, now: Instant) {
        let names: Vec<String> = self.hosts.iter().map(|host| host.name.clone()).collect();
        let map = ReachMap::new(names, self.admission.attempts.clone());
        let mut inside: Vec<usize> =
            (0..self.hosts.len()).filter(|at| self.hosts[*at].presence == Presence::Here).collect();
        let mut let_in = Vec::new();
        for host in batch {
            let gap = inside.iter().find_map(|&other| match (map.reaches(host, other), map.reaches(other, host)) {
                (true, true) => None,
                (false, _) => Some((host, other)),
                (true, false) => Some((other, host)),
            });
            let Some((from, to)) = gap else {
                inside.push(host);
                let_in.push(host);
                continue;
            };
            let why = format!(
                "{} cannot reach {}; open the ports between them, or name the networks to use (--network-interface)",
                self.hosts[from].name, self.hosts[to].name
            );
            self.actions.push_back(Action::DropAgent(host));
            self.hosts[host].presence = Presence::Absent;
            self.admission.forget(host);
            self.give_up_agent(host, &why, now);
        }
        for host in let_in {
            self.hosts[host].addresses = self.addresses_of(host, &inside);
            self.hosts[host].presence = Presence::Here;
        }
    }

    /// Where the members of a host listen: where all others reach it. One that is alone listens at all its addresses,
    /// because others may come, unless it is alone for ever.
    fn addresses_of(&self, host: usize, inside: &[usize]) -> Vec<IpAddr> {
        if self.settings.on_one_host {
            return Vec::new();
        }
        if inside.len() == 1 {
            return self.hosts[host].probe_addresses.iter().map(|address| address.ip()).collect();
        }
        let place = |host: usize| inside.iter().position(|other| *other == host);
        let attempts = self.admission.attempts.iter().filter_map(|(from, attempt)| {
            let to = place(attempt.probe.host as usize)? as u32;
            let probe = HostProbe { host: to, ..attempt.probe.clone() };
            Some((place(*from)?, Attempt { probe, outcome: attempt.outcome.clone() }))
        });
        let names = inside.iter().map(|host| self.hosts[*host].name.clone()).collect();
        let addresses = ReachMap::new(names, attempts.collect()).addresses().unwrap_or_default();
        place(host).and_then(|at| addresses.get(at).cloned()).unwrap_or_default()
    }
}
