//! The members of an elastic job: who runs where, who is started, who is lost, and who is in which generation.
//!
//! A member has a slot of its host, the lowest free one; its local rank is that. So a process that takes a dead one's
//! place on the same host uses the same GPU.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use farandole_transport::ProcessId;

use super::hosts::{Presence, again_in};
use super::{Action, Cause, Directive, ElasticSupervision, Generation, NEWS_ARE_ON_THE_WAY, Phase};
use crate::launch::failure::{Failure, What, member_name};
use crate::launch::message::{HowEnded, OutputStream, RankSlot};
use crate::launch::output::Tail;
use crate::launch::signal;
use crate::launch::supervision::MembersToStart;
use crate::rendezvous::{FailureKind, FailureNotice};

/// Member lists of the last generations are compared with what members tell: more than they can be behind each other.
const MOST_LISTS: usize = 1024;

/// A process of the job.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) host: usize,
    /// Which slot of the host.
    slot: u32,
    pub(super) pid: Option<u32>,
    /// Its process, as an agent that comes later finds it.
    pub(super) process: Option<ProcessId>,
    started: Instant,
    pub(super) stopped: Option<(i32, Instant)>,
    /// What it has brought to the rendezvous, while it waits for the job to begin, and since when.
    pub(super) entered: Option<(Instant, Vec<u8>)>,
    /// Whether it was in any generation.
    pub(super) in_generation: bool,
    /// That it was told to end, and why.
    told_to_end: Option<Why>,
    /// Whether it was lost with its agent or its host, which proves nothing.
    pub(super) unseen: bool,
    /// What its agent has said of its end: the record of its votes, if it has read one.
    reaped: Option<Option<Vec<u8>>>,
    pub(super) life: Life,
    pub(super) tail: Tail,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Life {
    Running,
    /// The launcher is not connected to its agent any more, and the process may run. It keeps its slot until a
    /// generation is without it, until an agent does not find it, or until this time.
    Adrift {
        until: Instant,
    },
    Over,
}

/// Why a member was told to end.
#[derive(Clone, Debug, PartialEq)]
enum Why {
    /// Its host is not offered any more, or has fewer slots.
    Released,
    /// It has failed, in this way, and somebody else takes its place.
    Failed(What),
}

/// A member that was lost.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    pub(super) member: u32,
    /// What happened; the member's number is its rank.
    pub(super) failure: Failure,
    /// Who took its place.
    pub(super) replaced_by: Option<u32>,
}

impl Member {
    fn is_running(&self) -> bool {
        self.life == Life::Running
    }

    pub(super) fn end(&mut self) {
        (self.life, self.stopped, self.entered) = (Life::Over, None, None);
    }
}

impl ElasticSupervision {
    /// Numbers of those that run.
    pub(super) fn live(&self) -> impl Iterator<Item = usize> {
        self.members.iter().enumerate().filter(|(_, member)| member.is_running()).map(|(number, _)| number)
    }

    pub(super) fn live_on(&self, host: usize) -> impl Iterator<Item = usize> {
        self.live().filter(move |member| self.members[*member].host == host)
    }

    pub(super) fn member_mut(&mut self, member: u32, change: impl FnOnce(&mut Member)) {
        if let Some(member) = self.members.get_mut(member as usize).filter(|member| member.is_running()) {
            change(member);
        }
    }

    pub(super) fn keep_tail(&mut self, member: u32, stream: OutputStream, bytes: &[u8]) {
        if let (OutputStream::Stderr, Some(member)) = (stream, self.members.get_mut(member as usize)) {
            member.tail.push(bytes);
        }
    }

    /// How many processes there should be, if hosts have room.
    pub(super) fn wanted(&self) -> usize {
        self.settings.max_np.saturating_add(self.settings.spares)
    }

    /// How many run and are to go on. A member that was told to end still has its slot, but does not count.
    pub(super) fn staying(&self) -> usize {
        self.members.iter().filter(|member| member.is_running() && member.told_to_end.is_none()).count()
    }

    /// Starts processes wherever there is room, until there are enough.
    pub(super) fn fill_slots(&mut self, now: Instant) {
        if self.finishing {
            return;
        }
        let mut started: BTreeMap<usize, Vec<RankSlot>> = BTreeMap::new();
        let mut count = self.staying();
        while count < self.wanted() {
            let Some((host, slot)) = self.free_slot(now) else { break };
            let number = self.members.len() as u32;
            if let Some(loss) = self.losses.iter_mut().find(|loss| loss.replaced_by.is_none()) {
                loss.replaced_by = Some(number);
            }
            started.entry(host).or_default().push(RankSlot {
                rank: number,
                local_rank: slot,
                local_size: self.hosts[host].slots as u32,
                cross_rank: host as u32,
                cross_size: self.hosts.len() as u32,
            });
            self.members.push(Member {
                host,
                slot,
                pid: None,
                process: None,
                started: now,
                stopped: None,
                entered: None,
                in_generation: false,
                told_to_end: None,
                unseen: false,
                reaped: None,
                life: Life::Running,
                tail: Tail::default(),
            });
            count += 1;
        }
        for (host, members) in started {
            let is_first = std::mem::replace(&mut self.hosts[host].is_empty, false);
            let (slots, addresses) = (self.hosts[host].slots, self.hosts[host].addresses.clone());
            self.hosts[host].last_told = now;
            self.actions.push_back(Action::StartMembers(host, MembersToStart { members, slots, addresses }));
            if let Some(generation) = self.generation.clone().filter(|_| is_first) {
                self.tell(host, Directive::Learn(generation), now);
            }
        }
    }

    /// The first free slot of the first host that has one.
    fn free_slot(&self, now: Instant) -> Option<(usize, u32)> {
        let usable = |host: &usize| self.hosts[*host].presence == Presence::Here && !self.hosts[*host].is_barred(now);
        (0..self.hosts.len()).filter(usable).find_map(|host| {
            let adrift = self.adrift().filter(|member| self.members[*member].host == host);
            let taken: Vec<u32> = self.live_on(host).chain(adrift).map(|member| self.members[member].slot).collect();
            let free = (0..self.hosts[host].slots as u32).find(|slot| !taken.contains(slot));
            free.map(|slot| (host, slot))
        })
    }

    /// Ends members for whom a host has no slot any more.
    pub(super) fn release_beyond(&mut self, host: usize, now: Instant) {
        let slots = self.hosts[host].slots as u32;
        let beyond: Vec<usize> = self.live_on(host).filter(|member| self.members[*member].slot >= slots).collect();
        for member in
            beyond.into_iter().filter(|member| self.members[*member].told_to_end.is_none()).collect::<Vec<_>>()
        {
            let name = self.name_of(member as u32);
            self.say(format!("{name} is asked to end: its host is not offered any more, or has fewer slots"));
            self.end_member(member as u32, Why::Released, self.settings.grace, now);
        }
    }

    fn end_member(&mut self, member: u32, why: Why, grace: Duration, now: Instant) {
        let host = self.members[member as usize].host;
        self.members[member as usize].told_to_end = Some(why);
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.tell(host, Directive::EndMember { member, grace_ms }, now);
    }

    // Ends.

    pub(super) fn member_ended(&mut self, number: u32, how: HowEnded, now: Instant) {
        let Some(member) = self.members.get_mut(number as usize).filter(|member| member.is_running()) else { return };
        member.end();
        match (member.told_to_end.clone(), how.is_success()) {
            (Some(Why::Released), _) => {
                let text = format!("{} {how}, as it was asked to", self.name_of(number));
                self.tell_others(number, FailureNotice { text: text.clone(), ..FailureNotice::new(kind_of(how)) }, now);
                self.say(text);
            }
            (Some(Why::Failed(what)), _) => self.lose(number, what, Some(how), now),
            (None, true) => {
                self.finishing |= self.phase == Phase::Running;
                // Members of other hosts cannot know its end, unless it has left in order.
                if self.members[number as usize].reaped.is_some() {
                    let text = format!("{} {how}", self.name_of(number));
                    self.tell_others(number, FailureNotice { text, ..FailureNotice::new(kind_of(how)) }, now);
                }
            }
            (None, false) => self.lose(number, What::Ended(how), Some(how), now),
        }
    }

    /// The process of a member has ended without leaving in order; how, is said next.
    pub(super) fn member_reaped(&mut self, number: u32, votes: Option<Vec<u8>>) {
        self.member_mut(number, |member| member.reaped = Some(votes));
    }

    pub(super) fn not_started(&mut self, host: usize, member: Option<u32>, why: &str, now: Instant) {
        let concerned: Vec<u32> = match member {
            Some(member) => vec![member],
            None => self.live_on(host).filter(|at| self.members[*at].pid.is_none()).map(|at| at as u32).collect(),
        };
        for member in concerned {
            if self.members.get(member as usize).is_some_and(Member::is_running) {
                self.members[member as usize].end();
                self.lose(member, What::NotStarted(why.to_owned()), None, now);
            }
        }
    }

    pub(super) fn lose_members_of(&mut self, host: usize, what: &What, now: Instant) {
        let lost: Vec<usize> = self.live_on(host).collect();
        if lost.is_empty() {
            // It has failed all the same.
            self.hosts[host].strike(self.settings.cool_down, now, now);
        }
        for member in lost {
            self.members[member].end();
            self.members[member].unseen = true;
            self.members[member].life = Life::Adrift { until: now + self.settings.timeout };
            self.lose(member as u32, what.clone(), None, now);
        }
    }

    /// A member has been lost: everybody hears of it, with how its process ended if that was seen, and its host gets a
    /// strike.
    fn lose(&mut self, number: u32, what: What, how: Option<HowEnded>, now: Instant) {
        if self.phase != Phase::Running {
            return;
        }
        let Member { host, pid, started, .. } = self.members[number as usize];
        let after = now.saturating_duration_since(started);
        let host_name = self.hosts[host].name.clone();
        let failure = Failure { rank: Some(number), host, host_name, pid, what, after };
        let notice = failure.member_notice();
        // One that was ended because it was stopped has ended for certain.
        self.tell_others(number, FailureNotice { kind: how.map_or(notice.kind, kind_of), ..notice }, now);
        let bar = self.hosts[host].strike(self.settings.cool_down, started, now);
        let left_alone = match bar {
            Duration::ZERO => String::new(),
            bar => format!("; {} failed again, and {}", failure.host_name, again_in(bar)),
        };
        self.say(format!("{}{left_alone}", failure.as_member()));
        self.losses.push(Loss { member: number, failure, replaced_by: None });
        if self.finishing {
            self.late_losses.push((self.losses.len() - 1, now));
        }
    }

    /// Whether somebody was lost while the job was finishing, and the others have not gone on without it.
    pub(super) fn judge_late_losses(&mut self, now: Instant) {
        let (generation, losses) = (self.generation.as_ref(), &self.losses);
        self.late_losses.retain(|(at, _)| generation.is_none_or(|latest| latest.has(u64::from(losses[*at].member))));
        // Without a generation there is none on its way, either.
        let patience = if generation.is_some() { NEWS_ARE_ON_THE_WAY } else { Duration::ZERO };
        if let Some((at, _)) = self.late_losses.iter().find(|(_, since)| now >= *since + patience) {
            self.fail(Cause::LossAtTheEnd(*at), now);
        }
    }

    /// Tells the members of other hosts what has become of one; those of its own host hear it from their agent.
    fn tell_others(&mut self, number: u32, notice: FailureNotice, now: Instant) {
        let Member { host, ref reaped, .. } = self.members[number as usize];
        let votes = reaped.clone().flatten();
        let lost = |notice: &FailureNotice| Directive::MemberLost {
            member: number,
            notice: notice.clone(),
            votes: votes.clone(),
        };
        for other in 0..self.hosts.len() {
            if other != host && self.hosts[other].presence == Presence::Here {
                self.tell(other, lost(&notice), now);
            }
        }
    }

    // Stopped or silent.

    pub(super) fn member_stopped(&mut self, number: u32, by: i32, now: Instant) {
        self.member_mut(number, |member| member.stopped = Some((by, now)));
        if self.phase == Phase::Running {
            let until = match self.settings.silence {
                Duration::ZERO => String::new(),
                silence => format!("; it is replaced if it stays so for {} s", silence.as_secs_f64()),
            };
            let (name, by) = (self.name_of(number), signal::name(by));
            self.say(format!("{name} has been stopped by {by}{until}"));
        }
    }

    /// A member that stays stopped is ended and replaced, unless all are: then somebody has suspended the job.
    pub(super) fn watch_stopped(&mut self, now: Instant) {
        let silence = self.settings.silence;
        if silence.is_zero() || self.phase != Phase::Running {
            return;
        }
        if self.live().all(|member| self.members[member].stopped.is_some()) {
            return;
        }
        for member in self.live().collect::<Vec<_>>() {
            if let Some((by, since)) = self.members[member].stopped
                && now.saturating_duration_since(since) > silence
            {
                self.replace(member as u32, What::Stopped(by, silence), now);
            }
        }
    }

    /// Ends a member that is of no use any more; its end will be a loss of this kind.
    pub(super) fn replace(&mut self, number: u32, what: What, now: Instant) {
        let is_alive = |member: &&Member| member.is_running() && member.told_to_end.is_none();
        if self.phase == Phase::Running && self.members.get(number as usize).filter(is_alive).is_some() {
            self.end_member(number, Why::Failed(what), Duration::ZERO, now);
        }
    }

    // Generations.

    /// Founds the job when everybody who can be has come: as many as were asked for, or all that run.
    pub(super) fn found(&mut self, now: Instant) {
        if self.generation.is_some() {
            return;
        }
        let waiting = |member: &usize| self.members[*member].entered.is_some();
        let come: Vec<usize> = self.live().filter(waiting).collect();
        let live = self.live().count();
        let latest = come.iter().filter_map(|member| self.members[*member].entered.as_ref().map(|(at, _)| *at)).max();
        // Somebody who does not come must not keep the others for ever: half of the time that they wait at most.
        let overdue = latest.is_some_and(|at| now >= at + self.settings.start_timeout / 2);
        let complete = come.len() >= self.settings.np.min(live);
        if come.is_empty() || come.len() < self.settings.min_np || !(complete || overdue) {
            return;
        }
        let founders = come.into_iter().take(self.settings.np);
        let members = founders.map(|at| (at as u64, self.members[at].entered.take().map(|(_, blob)| blob)));
        let members = members.map(|(number, blob)| (number, blob.unwrap_or_default())).collect();
        let generation = Generation { number: 1, members };
        for host in 0..self.hosts.len() {
            if self.hosts[host].presence == Presence::Here && !self.hosts[host].is_empty {
                self.tell(host, Directive::Found(generation.clone()), now);
            }
        }
        self.remember(generation, now);
    }

    /// Members on a host have entered a generation; candidates elsewhere have to know. If a number has two lists, the
    /// job has split, and it is ended before both parts write results.
    pub(super) fn learn(&mut self, host: usize, generation: Generation, now: Instant) {
        let list: Vec<u64> = generation.members.iter().map(|(number, _)| *number).collect();
        if let Some(known) = self.lists.get(&generation.number).filter(|known| **known != list) {
            let (one, other) = (in_words(known), in_words(&list));
            let text = format!("generation {} has two member lists: {one}, and {other}", generation.number);
            return self.fail(Cause::TwoHistories(text), now);
        }
        self.note_list(generation.number, list);
        if self.generation.as_ref().is_some_and(|known| known.number >= generation.number) {
            return;
        }
        for other in 0..self.hosts.len() {
            if other != host && self.hosts[other].presence == Presence::Here && !self.hosts[other].is_empty {
                self.tell(other, Directive::Learn(generation.clone()), now);
            }
        }
        let numbers: Vec<u64> = generation.members.iter().map(|(number, _)| *number).collect();
        self.say(format!("generation {} has the members {}", generation.number, in_words(&numbers)));
        self.remember(generation, now);
    }

    fn note_list(&mut self, number: u64, list: Vec<u64>) {
        self.lists.insert(number, list);
        if self.lists.len() > MOST_LISTS {
            self.lists.pop_first();
        }
    }

    fn remember(&mut self, generation: Generation, now: Instant) {
        self.note_list(generation.number, generation.members.iter().map(|(number, _)| *number).collect());
        for (number, _) in &generation.members {
            let at = usize::try_from(*number).unwrap_or(usize::MAX);
            self.members.get_mut(at).into_iter().for_each(|member| member.in_generation = true);
        }
        self.generations += 1;
        if let Some(stragglers) = &mut self.stragglers {
            stragglers.begin(generation.members.iter().map(|(number, _)| *number));
        }
        self.generation = Some(generation);
        (0..self.members.len()).for_each(|member| self.drift(member, now));
    }

    /// Whether somebody runs who has the job's state; before there is any, nobody need have it.
    pub(super) fn has_state(&self) -> bool {
        self.generation.is_none() || self.live().any(|member| self.members[member].in_generation)
    }

    /// Whether nobody of the latest generation runs any more.
    pub(super) fn latest_has_ended(&self) -> bool {
        let Some(generation) = &self.generation else { return false };
        self.live().all(|member| !generation.has(member as u64))
    }

    pub(super) fn name_of(&self, number: u32) -> String {
        let member = &self.members[number as usize];
        member_name(number, &self.hosts[member.host].name, member.pid)
    }

    /// Tells all members why the job ends.
    pub(super) fn tell_members_the_end(&mut self, why: &str, now: Instant) {
        let notice = FailureNotice::new(FailureKind::Other).saying(why);
        self.tell_all(&Directive::Pronounce { notice, epoch: None }, now);
    }
}

fn in_words(members: &[u64]) -> String {
    members.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

/// What others are told of a process whose end was seen.
fn kind_of(how: HowEnded) -> FailureKind {
    match how {
        HowEnded::Exited(code) => FailureKind::Exited { code },
        HowEnded::Signalled(signal) => FailureKind::Signalled { signal },
    }
}
