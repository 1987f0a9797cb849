//! What an agent does in an elastic job besides: it passes on who enters and which generation there is, and tells the
//! members of its host of each other's ends.
//!
//! **The end of a member** is told to the others of this host at once, without asking the launcher: members may wait
//! for the dead one, and the launcher may be lost. The launcher tells those of other hosts. The report has the record
//! of the member's votes, which proves the end to those whom it has not left out (`crate::membership`). A member that
//! has left in order and exited 0 is not reported. What a dead member has left in its process group is killed: the job
//! may run for days, and others need the memory.
//!
//! **Members of an earlier agent** of this host, to which the launcher has lost its connection, are looked for when the
//! launcher asks: by pid and start time. This agent does not supervise them.
//!
//! **Without a launcher** nobody starts members and nobody reads what they write; both are all that is missing in a job
//! that has begun. One that has not never will, so whoever waits for that is refused; programs that do not come to the
//! rendezvous go on.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Agent, JobKind};
use crate::environment as variable;
use crate::launch::failure::member_name;
use crate::launch::message::{AgentReport, Directive, HowEnded, ProcessStart, RankSlot, StartRanks};
use crate::membership::{make_vote_file, votes_of};
use crate::rendezvous::{FailureKind, FailureNotice, RendezvousEvent};

/// What a process is told that waits for a job to begin when the launcher is gone.
pub(super) const ABANDONED: &str = "the launcher (farandole run) has ended or is not heard of, and nobody else can begin this elastic job: start it again";

impl Agent {
    pub(super) fn obey_elastic(&mut self, directive: Directive, now: Instant) {
        match (directive, &self.server) {
            (Directive::Found(generation), Some(server)) => server.found(generation),
            (Directive::Learn(generation), Some(server)) => server.learn(generation),
            (Directive::MemberLost { member, notice, votes }, Some(server)) => {
                server.lost(member.into(), &notice, votes);
            }
            (Directive::WitnessAnswer { member, answer }, Some(server)) => {
                server.answer_as_witness(member.into(), answer);
            }
            (Directive::EndMember { member, grace_ms }, _) => {
                self.children.end_one(member, Duration::from_millis(grace_ms), now);
            }
            (Directive::Seek(sought), _) => {
                let gone = sought.into_iter().filter(|(_, process)| !is_there(*process));
                let gone: Vec<u32> = gone.map(|(member, _)| member).collect();
                if !gone.is_empty() {
                    self.tell(&AgentReport::NotThere(gone));
                }
            }
            _ => {}
        }
    }

    /// Tells the members of this host who of them has ended, and clears up after those.
    pub(super) fn tell_members_of_ends(&mut self, reports: &[AgentReport]) {
        if self.kind == JobKind::Fixed {
            return;
        }
        for report in reports {
            let AgentReport::Ended { rank, how, .. } = report else { continue };
            let Some(process) = self.children.ranks.iter_mut().find(|process| process.slot.rank == *rank) else {
                continue;
            };
            if !(process.left && how.is_success()) {
                let pid = process.pid.as_raw_nonzero().get() as u32;
                let votes = process.votes.take().as_ref().and_then(votes_of);
                let notice = notice_of(*rank, pid, *how);
                self.server.iter().for_each(|server| server.lost((*rank).into(), &notice, votes.clone()));
                self.tell(&AgentReport::Reaped { member: *rank, votes });
            }
            self.children.bury(*rank);
        }
    }
}

/// A process that has just been started, so that it can be told from a later one with the same number.
pub(super) fn process_start(pid: u32) -> ProcessStart {
    ProcessStart { pid, ticks: state_of(pid).map_or(0, |(_, ticks)| ticks) }
}

/// Whether a process that another agent has started runs. One that has ended and is not reaped does not.
fn is_there(process: ProcessStart) -> bool {
    state_of(process.pid).is_some_and(|(state, ticks)| ticks == process.ticks && !matches!(state, b'Z' | b'X'))
}

/// The state of a process and when it started, as the kernel says (proc_pid_stat(5)). The name of the program, which
/// may have anything in it, ends with the last parenthesis.
fn state_of(pid: u32) -> Option<(u8, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // Field 22; the state is field 3.
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// The file in which a member records its votes; without one its end proves less.
pub(super) fn vote_file(slot: RankSlot, command: &mut Command) -> Option<File> {
    let made = make_vote_file(slot.rank);
    let votes = made.inspect_err(|error| log::warn!("member {}: no memory for its votes: {error}", slot.rank)).ok()?;
    command.env(variable::VOTES_FD, votes.as_raw_fd().to_string());
    Some(votes)
}

fn notice_of(member: u32, pid: u32, how: HowEnded) -> FailureNotice {
    let kind = match how {
        HowEnded::Exited(code) => FailureKind::Exited { code },
        HowEnded::Signalled(signal) => FailureKind::Signalled { signal },
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let text = format!("{} {how}", member_name(member, &host, Some(pid)));
    FailureNotice { text, ..FailureNotice::new(kind).on_host(host).on_process(pid) }
}

/// What the launcher is told of events that only elastic jobs have.
pub(super) fn report_of(event: RendezvousEvent) -> Option<AgentReport> {
    // Numbers that the launcher has not given are nobody's.
    let number = |member: u64| u32::try_from(member).ok();
    Some(match event {
        RendezvousEvent::Entered { member, blob } => AgentReport::Entered { member: number(member)?, blob },
        RendezvousEvent::EntryWithdrawn { member } => AgentReport::EntryWithdrawn { member: number(member)? },
        RendezvousEvent::Entering(generation) => AgentReport::Entering(generation),
        RendezvousEvent::WitnessAsked { member, question } => {
            AgentReport::WitnessAsked { member: number(member)?, question }
        }
        _ => return None,
    })
}

/// What a member finds in its environment besides what every rank finds.
pub(super) fn variables_of(slot: &RankSlot, start: &StartRanks) -> Vec<(&'static str, OsString)> {
    let mut variables: Vec<(&'static str, OsString)> = Vec::new();
    if start.restart > 0 {
        variables.push((variable::RESTART, start.restart.to_string().into()));
    }
    let Some(elastic) = start.elastic else { return variables };
    variables.extend(farandole_settings::ELASTIC.names().map(|name| (name, OsString::from("1"))));
    variables.push((variable::ELASTIC_MEMBER, slot.rank.to_string().into()));
    variables.push((variable::ELASTIC_MIN_NP, elastic.min_np.to_string().into()));
    variables.extend(elastic.max_np.map(|most| (variable::ELASTIC_MAX_NP, most.to_string().into())));
    let seconds = elastic.timeout_ms as f64 / 1000.0;
    variables.push((farandole_settings::ELASTIC_TIMEOUT.name, seconds.to_string().into()));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_there_until_it_ends_and_no_other_one_is_taken_for_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = process_start(child.id());
        assert!(process.ticks > 0 && is_there(process));
        assert!(!is_there(ProcessStart { ticks: process.ticks + 1, ..process }), "a later one with the same number");
        child.kill().unwrap();
        // It is dead and not reaped.
        let until = Instant::now() + Duration::from_secs(20);
        while is_there(process) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!is_there(process));
        child.wait().unwrap();
        assert!(!is_there(process));
    }
}
