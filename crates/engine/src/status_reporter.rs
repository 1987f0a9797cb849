//! What this rank says about itself when others wait for it.
//!
//! The driver is asked, because it hears peers whatever the program does; but it must not stop driving for the answer.
//! So it notes what only it knows, its groups' state, and leaves the rest to a thread that is started for the question
//! and ends with it: reading the recorder takes milliseconds, and an interpreter may take a second or not answer at
//! all. The thread rings the driver's bell when it is done.
//!
//! Also here: what can be seen of a process from outside. What is deliberately not here: what is made of it
//! (`plan::stall`).

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use farandole_plan::Rank;
use farandole_plan::stall::{DirectCall, GroupState, Interpreter, Lately, MainThread, RankStatus, Sight};
use farandole_trace::Recorder;
use farandole_trace::clock::now_ns;
use farandole_transport::{Bell, ProcessId, ProcessStat, ProcessState};

/// Asks the interpreter of the program what its threads are doing. Called on a thread of its own; must return within
/// about a second.
#[derive(Clone)]
pub struct Stacks(Arc<dyn Fn() -> Interpreter + Send + Sync>);

impl Stacks {
    /// Stacks that are found out by calling this.
    pub fn new(ask: impl Fn() -> Interpreter + Send + Sync + 'static) -> Stacks {
        Stacks(Arc::new(ask))
    }
}

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stacks")
    }
}

/// See the module's text.
pub(crate) struct StatusReporter {
    recorder: Arc<Recorder>,
    stacks: Option<Stacks>,
    bell: Bell,
}

impl StatusReporter {
    pub(crate) fn new(recorder: Arc<Recorder>, stacks: Option<Stacks>, bell: Bell) -> StatusReporter {
        StatusReporter { recorder, stacks, bell }
    }

    /// Begins to report the status; `groups` is what the driver knows.
    pub(crate) fn begin(&self, groups: Vec<GroupState>) -> Receiver<Box<RankStatus>> {
        let (sender, receiver) = sync_channel(1);
        let (recorder, stacks, bell) = (Arc::clone(&self.recorder), self.stacks.clone(), self.bell.clone());
        let known = groups.clone();
        let work = {
            let sender = sender.clone();
            move || {
                let _ = sender.send(Box::new(rank_status(&recorder, stacks.as_ref(), groups)));
                bell.ring();
            }
        };
        let started = std::thread::Builder::new().name("farandole-status".to_owned()).spawn(work);
        if started.is_err() {
            // A process that gets no thread any more says what it can.
            let rank_status = RankStatus { pid: std::process::id(), groups: known, ..RankStatus::default() };
            let _ = sender.send(Box::new(rank_status));
            self.bell.ring();
        }
        receiver
    }
}

fn rank_status(recorder: &Recorder, stacks: Option<&Stacks>, groups: Vec<GroupState>) -> RankStatus {
    let pid = std::process::id();
    let main_thread = ProcessStat::of_main_thread().map(|stat| stat.state);
    let interpreter = stacks.map_or(Interpreter::None, |Stacks(ask)| ask());
    let base =
        RankStatus { pid, groups, interpreter, main_thread: main_thread_of(main_thread), ..RankStatus::default() };
    if !recorder.is_on() {
        return base;
    }
    let lately = farandole_trace::RecentActivity::of(&recorder.snapshot("stall probe"), now_ns());
    let named = |(what, ago): (Arc<str>, Duration)| Lately { what: cut(&what), ago };
    RankStatus {
        records: true,
        phase: lately.phase.map(named),
        epoch: lately.epoch,
        iteration: lately.iteration,
        finished: lately.finished.map(named),
        submitted: lately.submitted.map(named),
        direct: lately.direct.map(|direct| DirectCall {
            call: Lately { what: direct.word.into(), ago: direct.ago },
            operation: direct.operation,
            peer: direct.peer.map(Rank),
        }),
        direct_done: lately.direct_done.map(|(word, ago)| Lately { what: word.into(), ago }),
        ..base
    }
}

/// Names longer than this are cut where they are told: they are for people.
const LONGEST_NAME_CHARS: usize = 200;

/// A name, short enough to be told.
pub(crate) fn cut(name: &Arc<str>) -> Arc<str> {
    match name.char_indices().nth(LONGEST_NAME_CHARS) {
        None => Arc::clone(name),
        Some((end, _)) => format!("{}...", &name[..end]).into(),
    }
}

/// What can be seen of a process of this host. Nothing of one in another PID namespace.
pub(crate) fn look_at(process: ProcessId) -> Sight {
    match process.state() {
        None => Sight::Nothing,
        Some(ProcessState::Stopped) => Sight::Stopped(process.pid),
        Some(ProcessState::Gone) => Sight::Gone(process.pid),
        Some(ProcessState::Alive) => Sight::Alive(process.pid),
    }
}

fn main_thread_of(state: Option<char>) -> MainThread {
    match state {
        Some('R') => MainThread::Runs,
        Some('S') => MainThread::Sleeps,
        Some('D') => MainThread::Disk,
        _ => MainThread::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_there_and_another_is_not() {
        let own = ProcessId::own();
        assert_eq!(look_at(own), Sight::Alive(own.pid));
        assert_eq!(look_at(ProcessId { pid: u32::MAX, ..own }), Sight::Gone(u32::MAX));
        assert_eq!(look_at(ProcessId { start_time: own.start_time + 1, ..own }), Sight::Gone(own.pid));
        assert_eq!(look_at(ProcessId { namespace: own.namespace + 1, ..own }), Sight::Nothing);
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        assert_eq!(&*cut(&"w".into()), "w");
        let long: Arc<str> = "ü".repeat(300).into();
        assert_eq!(cut(&long).chars().count(), LONGEST_NAME_CHARS + 3);
    }

    #[test]
    fn an_account_tells_of_the_recorder_and_of_the_interpreter() {
        let recorder = Recorder::new(farandole_trace::Identity::default(), 100);
        recorder.begin_phase("evaluation");
        let asked = Stacks::new(|| Interpreter::Silent(Duration::from_secs(1), Vec::new()));
        let waiter = farandole_transport::Waiter::new().unwrap();
        let status_reporter = StatusReporter::new(recorder, Some(asked), waiter.bell());
        let rank_status = status_reporter.begin(Vec::new()).recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(&*rank_status.phase.unwrap().what, "evaluation");
        assert!(matches!(rank_status.interpreter, Interpreter::Silent(..)));
        assert_ne!(rank_status.main_thread, MainThread::Unknown);
        assert!(waiter.wait(Duration::from_secs(20)).unwrap(), "the driver is rung for");
    }
}
