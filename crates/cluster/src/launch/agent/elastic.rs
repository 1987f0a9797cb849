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
//! launcher asks, by their identities. This agent does not supervise them.
//!
//! **Without a launcher** nobody starts members and nobody reads what they write; both are all that is missing in a job
//! that has begun. One that has not never will, so whoever waits for that is refused; programs that do not come to the
//! rendezvous go on.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use farandole_transport::{ProcessId, ProcessState};

use super::{Agent, JobKind};
use crate::environment as variable;
use crate::launch::failure::member_name;
use crate::launch::message::{AgentReport, Directive, HowEnded, RankSlot, StartRanks};
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
                let gone = sought.into_iter().filter(|(_, process)| !may_run(process.0));
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

/// Whether a process that another agent has started may run: so may one of another PID namespace, which this process
/// does not see. One that has ended and is not reaped does not run.
fn may_run(process: ProcessId) -> bool {
    process.state() != Some(ProcessState::Gone)
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
    fn a_process_may_run_until_it_ends_and_no_other_one_is_taken_for_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = ProcessId::of(child.id());
        assert!(process.start_time > 0 && may_run(process));
        assert!(!may_run(ProcessId { start_time: process.start_time + 1, ..process }), "a later one with its pid");
        child.kill().unwrap();
        // It is dead and not reaped.
        farandole_testing::wait_until("its death", farandole_testing::NEVER, || !may_run(process));
        child.wait().unwrap();
        assert!(!may_run(process));
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_not_taken_for_ended() {
        let own = ProcessId::own();
        assert!(may_run(ProcessId { pid: 1 << 30, namespace: own.namespace + 1, ..own }));
    }
}
