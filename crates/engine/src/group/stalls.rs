//! A group's part in looking into stalls: the coordinator notices and asks, members answer, all are told.
//!
//! The questions travel on control lines, which are heard whoever drives; so a rank answers while its program computes,
//! sleeps or waits, and only a process that is stopped or gone does not. Nothing here waits: an answer that this rank
//! owes is made by another thread (`status_reporter`) and leaves in the turn after it is there. What is asked and what
//! is said is decided in `plan::stall`.
//!
//! The lifeline to the rendezvous is not used for it: names of tensors would get into processes that know nothing of
//! tensors, and it ends at a launcher that need not be ours.
//!
//! What goes on waiting is told again whenever the wait has doubled. A bucket that all ranks have asked for and in
//! which nothing moves is told by each rank that waits in it, without asking anybody: it knows whom it waits for.
//!
//! A rank that waits in a direct call says so to the world's coordinator, which looks into it in the same way. Of a
//! stall that holds up both requests and direct calls, because ranks do not make the same ones, there is one report:
//! what was found in the other while the first was looked into counts as told.

mod answer;

use std::sync::Arc;
use std::time::Duration;

use farandole_plan::stall::{DirectWait, Places, Sight, StallFinding, StallLimits, StallProbe, Word};
use farandole_plan::{GroupId, Rank};
use farandole_transport::Error as TransportError;

use super::control::SAYS_STALL;
use super::{Group, GroupError, State, TurnInput};
use crate::status_reporter::look_at;
use crate::wait_limits::tell_again;
use answer::Answer;

/// Rank 0 of a group coordinates it.
const COORDINATOR: Rank = Rank(0);

/// In groups of up to so many ranks each rank prints the whole report; in larger ones the coordinator does, and the
/// others the cause alone: a thousand copies would hide everything else in a common log.
const ALL_PRINT_UP_TO: usize = 8;

/// A request is looked at this long after the warning time has passed: whatever has waited longer is reported.
const JUST_AFTER: Duration = Duration::from_millis(1);

/// What a group knows about its stalls.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// What is being looked into, on the coordinator.
    probe: Option<StallProbe>,
    /// Probes so far.
    opened: u64,
    /// Who wants to know what this rank does, and the question's number.
    question: Option<(Rank, u64)>,
    /// The answer that is being made.
    answer: Option<Answer>,
    /// What the last stall probe came to.
    verdict: Option<Arc<str>>,
    /// Direct calls that ranks wait in and that are looked into after the present stall probe, on the coordinator.
    direct_waits: Vec<(Rank, DirectWait)>,
    /// The last direct call of which all were told, and how long it had waited, on the coordinator. Earlier ones are
    /// over, or were told as well.
    direct_told: (u64, Duration),
    /// The same of the direct call that is being looked into.
    direct_looked_into: (u64, Duration),
    /// The direct call of which this rank has told itself, because the coordinator did not.
    told_alone: Option<Arc<str>>,
}

/// What a rank is told of a stall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallNotice {
    /// The group.
    pub group: GroupId,
    /// What was found out; the same on all ranks of the group.
    pub finding: StallFinding,
    /// Whether this rank should show the whole report. The others show the cause.
    pub whole: bool,
}

impl StallNotice {
    /// What to show.
    pub fn shown(&self) -> String {
        match self.whole {
            true => self.finding.text.to_string(),
            false => format!("Stall: {} (The whole report is rank 0's of the group.)", self.finding.verdict),
        }
    }
}

impl Group {
    /// Looks whether requests have waited too long, and goes on with what is being looked into.
    pub(super) fn watch_for_stalls(&mut self, turn: &TurnInput<'_>) -> Result<(), GroupError> {
        self.answer(turn)?;
        self.watch_running(turn);
        if self.stalls.probe.as_ref().is_some_and(|probe| probe.is_over(turn.now)) {
            self.close_probe(turn)?;
        }
        if turn.now < self.next_stall_check {
            return Ok(());
        }
        let Some(limits) = self.settings.stall else { return Ok(()) };
        self.next_stall_check = turn.now + check_interval(&limits);
        let Some(report) = self.member.stalled(&limits, turn.now) else {
            self.forget_what_goes_on(turn.now);
            if let Some(since) = self.member.waits_since() {
                let due = since.saturating_add(limits.warn_after).saturating_add(JUST_AFTER);
                self.next_stall_check = self.next_stall_check.min(due);
            }
            return Ok(());
        };
        let (shut_down, text) = (report.shut_down, report.text.clone());
        if self.stalls.probe.is_none() {
            let is_due = |name| self.stalls_reported.get(name).is_none_or(|again| *again <= turn.now);
            if report.stalled.iter().any(|waiting| is_due(&waiting.name)) {
                let oldest = report.stalled.iter().map(|waiting| waiting.since).min().unwrap_or(turn.now);
                let again = oldest.saturating_add(tell_again(turn.now.saturating_sub(oldest)));
                let names = report.stalled.iter().map(|waiting| &waiting.name).chain(&report.also_waiting);
                self.stalls_reported.extend(names.map(|name| (Arc::clone(name), again)));
                for waiting in &report.stalled {
                    let first = waiting.missing.first().map_or(Rank(0), |rank| self.settings.ranks[rank.index()]);
                    self.record.stalled(&waiting.name, waiting.missing.len(), first, turn.now);
                }
                self.stalls.opened += 1;
                let probe = StallProbe::open(self.stalls.opened, report, turn.now);
                self.ask(probe)?;
            }
        }
        if shut_down {
            // Whoever has not answered by now is too late.
            if self.stalls.probe.is_some() {
                self.close_probe(turn)?;
            }
            let verdict = self.stalls.verdict.as_deref().unwrap_or_default();
            return Err(GroupError::Stalled(format!("{text}\n{verdict}")));
        }
        Ok(())
    }

    /// Tells of the running bucket, if it has not moved for too long. A replayed bucket that a rank has not asked for
    /// was broken off long before (`start::settings`), so a rank is stopped, or cut off, or has no processor; unless
    /// the user has set a limit, the bucket waits on.
    fn watch_running(&mut self, turn: &TurnInput<'_>) {
        let (Some(limits), Some(active)) = (self.settings.stall, &mut self.active) else { return };
        let still = turn.now.saturating_sub(active.moved);
        if still <= limits.warn_after || still < active.tell_again {
            return;
        }
        active.tell_again = tell_again(still);
        let (tensor, word) = (Arc::clone(&active.bucket.plan.parts[0].item.name), active.bucket.plan.collective.word());
        let peer = active.waiting_for(&self.mesh);
        let sight = peer.and_then(|peer| self.mesh.peer_mut(peer).process).map_or(Sight::Nothing, look_at);
        let first = peer.map_or(Rank(0), |peer| self.settings.ranks[peer.index()]);
        let me = self.settings.ranks[self.here.me.index()];
        let whom = peer.map_or_else(|| "others".to_owned(), |_| self.name_of(first));
        let verdict = format!(
            "{word} \"{tensor}\" has not moved for {:.0} s: rank {me} waits for {whom}{}",
            still.as_secs_f64(),
            seen(sight)
        );
        let known = match self.member.all_have_asked() {
            true => "All ranks have asked for it. It continues when that rank does.",
            // The ranks were told to negotiate, long enough ago, and one of them has not answered.
            false => "Whether all ranks have asked for it is not known: one does not answer.",
        };
        let text = format!("Stall: {verdict}\n{known}");
        let finding = StallFinding { tensor, missing: 1, first, verdict: verdict.into(), text: text.into() };
        self.record.stalled(&finding.tensor, 1, first, turn.now);
        self.tell(finding, turn);
    }

    /// A rank of the world and its host, as users know it.
    fn name_of(&self, rank: Rank) -> String {
        let identity = self.settings.hosts.get(rank.index()).map_or("?", String::as_str);
        format!("rank {rank} on {}", identity.split('/').next().unwrap_or(identity))
    }

    /// When a stall probe must be closed at the latest.
    pub(super) fn probe_due(&self) -> Duration {
        self.stalls.probe.as_ref().map_or(Duration::MAX, StallProbe::due)
    }

    /// Nothing has waited for too long: what goes on and waits again later is another stall. What still waits was told
    /// with something else that has waited for longer.
    fn forget_what_goes_on(&mut self, now: Duration) {
        if !self.stalls_reported.is_empty() {
            let waiting = self.waiting_names(now);
            self.stalls_reported.retain(|name, _| waiting.contains(name));
        }
    }

    /// The names that wait for some rank, as far as the coordinator knows.
    fn waiting_names(&self, now: Duration) -> Vec<Arc<str>> {
        let any = StallLimits { warn_after: Duration::ZERO, shut_down_after: Duration::ZERO };
        let waiting = self.member.stalled(&any, now).map_or_else(Vec::new, |report| report.stalled);
        waiting.into_iter().map(|waiting| waiting.name).collect()
    }

    fn ask(&mut self, probe: StallProbe) -> Result<(), TransportError> {
        self.stalls.probe = Some(probe);
        self.ask_on()
    }

    /// Asks those that are to be asked and have not been.
    fn ask_on(&mut self) -> Result<(), TransportError> {
        let Some(probe) = &mut self.stalls.probe else { return Ok(()) };
        let (number, ranks) = (probe.number(), probe.to_ask());
        for rank in ranks {
            if rank == self.here.me {
                self.stalls.question = Some((rank, number));
            } else {
                self.say(rank, &Word::Ask { number })?;
            }
        }
        Ok(())
    }

    /// A direct call of this rank waits.
    pub(crate) fn tell_of_direct_call(&mut self, wait: DirectWait, turn: &TurnInput<'_>) -> Result<(), GroupError> {
        if self.here.me == COORDINATOR {
            return Ok(self.look_into_direct_call(COORDINATOR, wait, turn)?);
        }
        if self.state != State::Open {
            return Ok(());
        }
        self.say(COORDINATOR, &Word::Direct(wait.clone()))?;
        if self.stalls.probe.is_none() {
            self.stalls.probe = Some(StallProbe::without_coordinator(self.here.me, COORDINATOR, wait, turn.now));
        }
        Ok(())
    }

    /// A rank waits in a direct call; on the coordinator.
    fn look_into_direct_call(
        &mut self,
        from: Rank,
        wait: DirectWait,
        turn: &TurnInput<'_>,
    ) -> Result<(), TransportError> {
        let (told, told_after) = self.stalls.direct_told;
        // Ranks tell at nearly the same time, and again when they have waited for twice as long.
        let is_told = wait.operation == told && wait.waited < told_after.saturating_mul(3) / 2;
        if wait.operation < told || is_told || self.state != State::Open {
            return Ok(());
        }
        match &mut self.stalls.probe {
            Some(probe) => {
                if !probe.also_waits(from, &wait) {
                    self.stalls.direct_waits.push((from, wait));
                }
                self.ask_on()
            }
            None => {
                let first = wait.missing.first().copied().unwrap_or(from);
                self.record.stalled(&wait.name(), wait.missing.len(), first, turn.now);
                self.stalls.direct_looked_into = (wait.operation, wait.waited);
                self.stalls.opened += 1;
                self.ask(StallProbe::open_direct(self.stalls.opened, from, wait, turn.now))
            }
        }
    }

    fn say(&mut self, to: Rank, word: &Word) -> Result<(), TransportError> {
        if self.left[to.index()] {
            return Ok(());
        }
        self.message.clear();
        self.message.push(SAYS_STALL);
        word.encode(&mut self.message);
        self.unflushed = true;
        self.mesh.peer_mut(to).control.send(&self.message)?;
        self.flush()
    }

    /// A peer has said something about a stall.
    pub(super) fn hear_of_stall(&mut self, from: Rank, word: Word, turn: &TurnInput<'_>) -> Result<(), GroupError> {
        match word {
            Word::Answer { number, rank_status } => {
                let peer = rank_status.direct.as_ref().and_then(|direct| direct.peer);
                self.check_ranks(from, peer)?;
                if let Some(probe) = &mut self.stalls.probe {
                    probe.hear(from, number, rank_status);
                    self.ask_on()?;
                }
            }
            Word::Heard if from == COORDINATOR => self.stalls.probe = None,
            Word::Direct(wait) if self.here.me == COORDINATOR && self.id() == GroupId::WORLD => {
                self.check_ranks(from, wait.missing.iter().copied())?;
                self.say(from, &Word::Heard)?;
                self.look_into_direct_call(from, wait, turn)?;
            }
            Word::Ask { number } if from == COORDINATOR => self.stalls.question = Some((from, number)),
            Word::Report(finding) if from == COORDINATOR => {
                // A coordinator that was stopped for a while tells what this rank has told itself.
                if self.stalls.told_alone.take().is_none_or(|told| told != finding.tensor) {
                    self.tell(finding, turn);
                }
            }
            Word::Ask { .. } | Word::Report(_) | Word::Direct(_) | Word::Heard => {
                let what = "it speaks of a stall and is not the coordinator, or not to it".to_owned();
                return Err(TransportError::Garbled { peer: from, what }.into());
            }
        }
        Ok(())
    }

    /// Ranks that a peer speaks of are ranks of the world. Accounts tell of the world's also in other groups, where
    /// nobody is asked because of them.
    fn check_ranks(&self, from: Rank, ranks: impl IntoIterator<Item = Rank>) -> Result<(), TransportError> {
        let size = self.settings.hosts.len();
        match ranks.into_iter().find(|rank| rank.index() >= size) {
            None => Ok(()),
            Some(rank) => {
                let what = format!("it speaks of rank {rank} in a world of {size}");
                Err(TransportError::Garbled { peer: from, what })
            }
        }
    }

    fn close_probe(&mut self, turn: &TurnInput<'_>) -> Result<(), TransportError> {
        let Some(probe) = self.stalls.probe.take() else { return Ok(()) };
        let direct_call = probe.direct_call();
        let places = Places { world_ranks: &self.settings.ranks, hosts: &self.settings.hosts };
        let (me, mesh) = (self.here.me, &mut self.mesh);
        let finding = probe.close(&places, turn.now, |rank| match rank == me {
            true => Sight::Alive(std::process::id()),
            false => mesh.peer_mut(rank).process.map_or(Sight::Nothing, look_at),
        });
        if me != COORDINATOR {
            self.stalls.told_alone = Some(Arc::clone(&finding.tensor));
            self.tell(finding, turn);
            return Ok(());
        }
        for rank in (0..self.here.size).map(Rank::from).filter(|rank| *rank != me) {
            self.say(rank, &Word::Report(finding.clone()))?;
        }
        self.tell(finding, turn);
        if let Some(operation) = direct_call {
            let warned_after = self.settings.stall.map_or(Duration::ZERO, |limits| limits.warn_after);
            let (looked_into, waited) = self.stalls.direct_looked_into;
            let waited = if looked_into == operation { waited } else { warned_after };
            self.stalls.direct_told = self.stalls.direct_told.max((operation, waited));
            let waiting = self.waiting_names(turn.now);
            self.stalls_reported.extend(waiting.into_iter().map(|name| (name, turn.now + tell_again(warned_after))));
        }
        for (from, wait) in std::mem::take(&mut self.stalls.direct_waits) {
            self.look_into_direct_call(from, wait, turn)?;
        }
        Ok(())
    }

    /// This rank is told what came of a stall probe.
    fn tell(&mut self, finding: StallFinding, turn: &TurnInput<'_>) {
        self.stalls.verdict = Some(Arc::clone(&finding.verdict));
        let coordinates = self.here.me == COORDINATOR;
        if !coordinates {
            self.record.stalled(&finding.tensor, finding.missing as usize, finding.first, turn.now);
        }
        self.record.stall_told(&finding.text);
        let whole = coordinates || self.here.size <= ALL_PRINT_UP_TO;
        (turn.on_stall)(&StallNotice { group: self.id(), finding, whole });
    }
}

/// What is seen of a process, as the end of a sentence.
fn seen(sight: Sight) -> String {
    match sight {
        Sight::Nothing => String::new(),
        Sight::Stopped(pid) => format!(" (pid {pid}), which is stopped (SIGSTOP, Ctrl-Z or a debugger)"),
        Sight::Alive(pid) => format!(" (pid {pid})"),
        Sight::Gone(pid) => format!(" (pid {pid}), whose process is gone"),
    }
}

/// How often requests are looked at: four times within the shortest limit.
pub(super) fn check_interval(limits: &StallLimits) -> Duration {
    let shortest = match limits.shut_down_after {
        Duration::ZERO => limits.warn_after,
        shut_down_after => limits.warn_after.min(shut_down_after),
    };
    (shortest / 4).max(Duration::from_millis(10))
}
