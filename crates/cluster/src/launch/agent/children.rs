//! All processes of a host's ranks, with whatever these have started themselves.
//!
//! The agent is the *subreaper* of everything below it: a process whose parent dies becomes its child, whatever group
//! or session it is in. So everything has ended exactly when this process has no children left, and ending everything
//! means killing children until there are none. A rank leaves no process behind.
//!
//! The job's MPS daemon (`mps`), where there is one, is a child that outlives all others: it is told to quit when
//! nobody else is left, and until then no signal that clears up goes to it.
//!
//! **Invariant:** only descendants of this process are signalled. The process id and group id of a rank are its own
//! until it has been waited for; afterwards the kernel may give them to another process, and the group's members are
//! found by descent (`process_tree`).

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use farandole_plan::Rank;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::mps::MpsDaemon;
use super::rank::RankProcess;
use crate::launch::message::{AgentReport, HowEnded, RankSlot};
use crate::launch::process_tree::ProcessTree;

/// While children are being cleared, orphans appear as their parents die; they are looked for this often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What an MPS daemon leaves behind gets this long to end by itself: its server has no clients any more.
const SERVER_PATIENCE: Duration = Duration::from_millis(500);

/// The ranks of a host, and their descendants.
#[derive(Debug, Default)]
pub(super) struct Children {
    pub(super) ranks: Vec<RankProcess>,
    /// Through what they use their GPUs.
    pub(super) mps: Option<MpsDaemon>,
    leaving: Option<Leaving>,
    buffer: Vec<u8>,
}

/// The children has been told to leave.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// From here on it is not asked any more.
    kill_from: Instant,
    look_at: Instant,
}

/// Whether processes are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaped {
    /// Some are.
    SomeLeft,
    /// None.
    NoneLeft,
}

impl Children {
    /// Adds a rank, with the file that its result goes into.
    pub(super) fn start(&mut self, slot: RankSlot, command: Command, result: Option<File>) -> std::io::Result<u32> {
        let mut rank = RankProcess::start(slot, command)?;
        rank.result = result;
        let pid = rank.pid.as_raw_nonzero().get() as u32;
        self.ranks.push(rank);
        Ok(pid)
    }

    /// Keeps the file in which a member records its votes. Children that are started later do not inherit it.
    pub(super) fn keep_votes(&mut self, member: u32, votes: File) {
        let kept = super::task::keep_from_others(&votes).ok();
        let process = self.ranks.iter_mut().find(|process| process.slot.rank == member);
        if let (Some(process), Some(())) = (process, kept) {
            process.votes = Some(votes);
        }
    }

    /// Takes the file with a rank's result.
    pub(super) fn take_result(&mut self, rank: u32) -> Option<File> {
        self.ranks.iter_mut().find(|process| process.slot.rank == rank)?.result.take()
    }

    /// A rank has left the job in order.
    pub(super) fn set_left(&mut self, rank: Rank) {
        if let Some(process) = self.ranks.iter_mut().find(|process| process.slot.rank == rank.0) {
            process.left = true;
        }
    }

    /// Reads what ranks have written.
    pub(super) fn read(&mut self, reports: &mut Vec<AgentReport>) {
        for rank in &mut self.ranks {
            rank.read(&mut self.buffer, reports);
        }
    }

    /// Takes note of every process that has ended, stopped or gone on.
    pub(super) fn reap(&mut self, reports: &mut Vec<AgentReport>) -> Reaped {
        loop {
            let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
            let (pid, status) = match rustix::process::wait(options) {
                Ok(Some(news)) => news,
                Ok(None) => return Reaped::SomeLeft,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return Reaped::NoneLeft,
            };
            let Some(rank) = self.ranks.iter_mut().find(|rank| rank.pid == pid && rank.ended.is_none()) else {
                if self.mps.as_ref().is_some_and(|mps| mps.pid == pid) {
                    self.reap_mps(status, reports);
                }
                continue; // Somebody's orphan.
            };
            let number = rank.slot.rank;
            if let Some(code) = status.exit_status() {
                rank.end(HowEnded::Exited(code), &mut self.buffer, reports);
            } else if let Some(signal) = status.terminating_signal() {
                rank.end(HowEnded::Signalled(signal), &mut self.buffer, reports);
            } else if let Some(signal) = status.stopping_signal() {
                rank.stopped = true;
                reports.push(AgentReport::Stopped { rank: number, signal });
            } else if status.continued() {
                rank.stopped = false;
                reports.push(AgentReport::Continued { rank: number });
            }
        }
    }

    /// The MPS daemon has ended, or has been stopped.
    fn reap_mps(&mut self, status: WaitStatus, reports: &mut Vec<AgentReport>) {
        let code = status.exit_status().map(HowEnded::Exited);
        let Some(how) = code.or_else(|| status.terminating_signal().map(HowEnded::Signalled)) else { return };
        let Some(mps) = self.mps.take() else { return };
        if mps.is_quitting() {
            // Everybody else was gone before it was told to quit, so whoever is left is its own.
            let now = Instant::now();
            let kill_from = self.leaving.map_or(now + SERVER_PATIENCE, |leaving| leaving.kill_from);
            let kill_from = kill_from.min(now + SERVER_PATIENCE);
            self.leaving = Some(Leaving { kill_from, look_at: kill_from });
            return;
        }
        let pid = mps.pid.as_raw_nonzero().get() as u32;
        reports.push(AgentReport::MpsEnded { pid, how, words: mps.words() });
    }

    /// Tells the MPS daemon to quit when it is the last child. Returns when to come back.
    pub(super) fn let_mps_quit(&mut self, now: Instant) -> Option<Instant> {
        let mps = self.mps.as_mut()?;
        if self.ranks.iter().any(|rank| rank.ended.is_none()) {
            return None;
        }
        // A look at all processes, but only when all ranks have ended.
        if !mps.is_quitting() && ProcessTree::scan().children().iter().any(|child| !mps.has(*child)) {
            return None;
        }
        Some(mps.quit(now))
    }

    /// Passes a signal on to all ranks.
    pub(super) fn signal(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.ended.is_none()) {
            rank.signal(signal);
        }
    }

    /// Asks one rank to end, and kills it if it has not after the grace period.
    pub(super) fn end_one(&mut self, rank: u32, grace: Duration, now: Instant) {
        let alive = self.ranks.iter_mut().find(|process| process.slot.rank == rank && process.ended.is_none());
        if let Some(process) = alive {
            [Signal::TERM, Signal::CONT].into_iter().for_each(|signal| process.signal(signal));
            process.kill_at = Some(process.kill_at.map_or(now + grace, |at| at.min(now + grace)));
        }
    }

    /// Kills what a rank that ended has left in its process group: nobody else needs it. Its pipes are closed, so that
    /// ranks which come and go leave nothing here.
    pub(super) fn bury(&mut self, rank: u32) {
        if let Some(at) = self.ranks.iter().position(|process| process.slot.rank == rank && process.ended.is_some()) {
            let process = self.ranks.swap_remove(at);
            ProcessTree::scan().signal_group(process.pid, &[Signal::KILL]);
        }
    }

    /// Asks everybody to end, and kills whoever has not after the grace period.
    pub(super) fn clear(&mut self, grace: Duration, now: Instant) {
        // A stopped process gets SIGTERM only after SIGCONT.
        self.signal_all(&[Signal::TERM, Signal::CONT], Signal::TERM);
        let kill_from = now + grace;
        let kill_from = self.leaving.map_or(kill_from, |leaving| leaving.kill_from.min(kill_from));
        self.leaving = Some(Leaving { kill_from, look_at: kill_from });
    }

    /// Kills what is left, if its time has come. Returns when to come back.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Instant> {
        let alone = self.kill_single_ranks(now);
        self.kill_all(now).into_iter().chain(alone).min()
    }

    fn kill_single_ranks(&mut self, now: Instant) -> Option<Instant> {
        let asked = self.ranks.iter_mut().filter(|rank| rank.ended.is_none() && rank.kill_at.is_some());
        asked
            .filter_map(|rank| {
                if rank.kill_at.is_some_and(|at| now >= at) {
                    rank.signal(Signal::KILL);
                    rank.kill_at = None;
                }
                rank.kill_at
            })
            .min()
    }

    fn kill_all(&mut self, now: Instant) -> Option<Instant> {
        if now >= self.leaving?.look_at {
            self.signal_all(&[Signal::KILL], Signal::KILL);
            self.leaving.as_mut()?.look_at = now + LOOK_AGAIN;
        }
        self.leaving.map(|leaving| leaving.look_at)
    }

    /// Signals the groups of all ranks, also of those that have ended, and every child.
    fn signal_all(&self, to_groups: &[Signal], to_children: Signal) {
        let tree = ProcessTree::scan();
        for rank in &self.ranks {
            match rank.ended {
                None => to_groups.iter().for_each(|signal| rank.signal(*signal)),
                Some(_) => tree.signal_group(rank.pid, to_groups),
            }
        }
        let is_mps = |child: &Pid| self.mps.as_ref().is_some_and(|mps| mps.has(*child));
        for child in tree.children().into_iter().filter(|child| !is_mps(child)) {
            let _ = rustix::process::kill_process(child, to_children);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    use rustix::process::test_kill_process;

    use farandole_testing::wait_until;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn slot() -> RankSlot {
        RankSlot { rank: 0, local_rank: 0, local_size: 1, cross_rank: 0, cross_size: 1 }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// A children whose only rank runs this and has ended and been waited for.
    fn with_ended_rank(script: &str) -> Children {
        let mut children = Children::default();
        children.start(slot(), shell(script), None).unwrap();
        let mut reports = Vec::new();
        wait_until("the end of the rank", PATIENCE, || {
            children.reap(&mut reports);
            children.ranks[0].ended.is_some()
        });
        children
    }

    /// The number that a shell prints first.
    fn first_number(mut command: Command) -> Pid {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        child.wait().unwrap();
        Pid::from_raw(line.trim().parse().unwrap()).unwrap()
    }

    #[test]
    fn whoever_got_the_number_of_a_rank_that_ended_is_left_alone() {
        // Leads a group of its own and is nobody's child here: the shell between has ended.
        let bystander = first_number(shell("setsid sleep 300 >/dev/null 2>&1 & echo $!"));
        let leads = || rustix::process::getpgid(Some(bystander)) == Ok(bystander);
        wait_until("a group of its own", PATIENCE, leads);
        let mut children = with_ended_rank("exit 0");
        // What the kernel may do once a rank has been waited for: its number is somebody else's.
        children.ranks[0].pid = bystander;
        let now = Instant::now();
        children.clear(Duration::ZERO, now);
        children.tick(now + LOOK_AGAIN);
        // A signal that was sent is pending, or has been delivered, by now: SIGKILL cannot be held back.
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", bystander.as_raw_nonzero())).unwrap_or_default();
        let is_dying = |line: &str| {
            let (what, value) = line.split_once(':').unwrap_or_default();
            let is_pending = ["SigPnd", "ShdPnd"].contains(&what) && value.trim().chars().any(|digit| digit != '0');
            is_pending || what == "State" && !value.trim().starts_with(['S', 'R', 'D'])
        };
        let alive = test_kill_process(bystander).is_ok() && !status.is_empty() && !status.lines().any(is_dying);
        let _ = rustix::process::kill_process(bystander, Signal::KILL);
        assert!(alive, "a process that is not ours was killed");
    }

    #[test]
    fn what_a_rank_that_ended_has_left_in_its_group_is_asked_to_end() {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let folder = farandole_testing::Folder::new();
        let (up, asked) = (folder.join("up"), folder.join("asked"));
        // The inner one is not our child while the outer one lives, which SIGTERM does not end.
        let inner = "trap 'echo > $ASKED; exit' TERM; echo > $UP; while :; do sleep 0.05; done";
        let outer = r#"trap : TERM; sh -c "$INNER" & wait; sleep 300"#;
        let mut children = Children::default();
        let mut command = shell(r#"sh -c "$OUTER" & while ! test -e $UP; do sleep 0.05; done; exit 0"#);
        command.env("INNER", inner).env("OUTER", outer).env("UP", &up).env("ASKED", &asked);
        children.start(slot(), command, None).unwrap();
        let mut reports = Vec::new();
        wait_until("the end of the rank", PATIENCE, || {
            children.reap(&mut reports);
            children.ranks[0].ended.is_some()
        });
        children.clear(PATIENCE, Instant::now());
        wait_until("the request to what is left of the group", PATIENCE, || asked.exists());
        children.clear(Duration::ZERO, Instant::now());
        wait_until("the end of all", PATIENCE, || {
            let reaped = children.reap(&mut reports);
            children.tick(Instant::now() + LOOK_AGAIN);
            reaped != Reaped::SomeLeft
        });
    }
}
