//! What an agent does in an elastic job besides: it passes on who enters and which generation there is, and tells the
//! members of its host of each other's ends.
//!
//! **The end of a member** is told to the others of this host at once, without asking the launcher, because somebody
//! may wait for the dead one, and there may be no launcher any more. The launcher tells those of other hosts. A member
//! that has left in order and ended well is no news. What a dead member has left in its process group is killed: the
//! job goes on, perhaps for days, and others need the memory.
//!
//! **Members of an earlier agent** of this host, which the launcher has lost, are looked for when it
//! asks. Nobody here looks after them.
//!
//! **Without a launcher** nobody starts members and nobody reads what they write; both are all that is missing in a job
//! that has begun. One that has not never will, so whoever waits for that is refused; programs that do not come to the
//! rendezvous go on.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use super::{Agent, JobKind};
use crate::environment as variable;
use crate::launch::failure::member_name;
use crate::launch::message::{AgentReport, Directive, HowEnded, RankSlot, StartRanks};
use crate::rendezvous::{FailureKind, FailureNotice, RendezvousEvent};

/// What a process is told that waits for a job to begin when the launcher is gone.
pub(super) const ABANDONED: &str = "the launcher (farandole run) has ended or is not heard of, and nobody else can begin this elastic job: start it again";

impl Agent {
    pub(super) fn obey_elastic(&mut self, directive: Directive, now: Instant) {
        match (directive, &self.server) {
            (Directive::Found(generation), Some(server)) => server.found(generation),
            (Directive::Learn(generation), Some(server)) => server.learn(generation),
            (Directive::MemberLost { member, notice }, Some(server)) => server.lost(member.into(), &notice),
            (Directive::EndMember { member, grace_ms }, _) => {
                self.children.end_one(member, Duration::from_millis(grace_ms), now);
            }
            (Directive::Seek(sought), _) => {
                let gone = sought.into_iter().filter(|(member, pid)| !is_there(*member, *pid));
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
            let Some(process) = self.children.ranks.iter().find(|process| process.slot.rank == *rank) else { continue };
            if !(process.left && how.is_success()) {
                let pid = process.pid.as_raw_nonzero().get() as u32;
                let notice = notice_of(*rank, pid, *how);
                self.server.iter().for_each(|server| server.lost((*rank).into(), &notice));
            }
            self.children.bury(*rank);
        }
    }
}

/// Whether a process that another agent has started runs. Numbers of processes are used again, so its environment has
/// to say that it is this member; that of one that has ended and is not reaped says nothing.
fn is_there(member: u32, pid: u32) -> bool {
    let entry = format!("{}={member}", variable::ELASTIC_MEMBER);
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
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
    fn a_process_is_there_as_long_as_it_runs_and_is_that_member() {
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").env(variable::ELASTIC_MEMBER, "7").spawn().unwrap();
        let pid = child.id();
        // Between fork and exec it has the environment of this process.
        let until = Instant::now() + Duration::from_secs(20);
        while !is_there(7, pid) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(is_there(7, pid) && !is_there(8, pid));
        child.kill().unwrap();
        // It is dead and not reaped.
        let until = Instant::now() + Duration::from_secs(20);
        while is_there(7, pid) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!is_there(7, pid));
        child.wait().unwrap();
        assert!(!is_there(7, pid));
    }
}
