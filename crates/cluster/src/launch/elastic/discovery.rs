//! Where the hosts of an elastic job come from, and how it is noticed that they are others.
//!
//! | source | looked at |
//! |---|---|
//! | a list | once |
//! | a script that prints `host` or `host:slots` on each line | every second |
//! | a host file | every second |
//! | the nodes of a Slurm allocation that are up | every ten seconds: the answer comes from the cluster's controller |
//!
//! A thread looks and posts what has changed. Whatever goes wrong is said once, and the hosts stay as they are: a
//! script that fails does not end a job. A source that names no host at all has failed, too, because a job without any
//! host is never what somebody wanted.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::launch::ask::{ask_while, last_words};
use crate::launch::job_spec::HostSlots;
use crate::launch::placement::together;
use crate::launch::{hostfile, hosts};
use crate::mailbox::Mailbox;

/// How long a script or Slurm may take to answer: both may ask somebody else.
const PATIENCE: Duration = Duration::from_secs(20);

/// As often as Horovod looks.
const EVERY: Duration = Duration::from_secs(1);
const SLURM_EVERY: Duration = Duration::from_secs(10);

/// How long the end of a job waits for the thread to end a script. A host file on a file system that hangs must not
/// hold up the launcher.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// Where hosts come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSource {
    /// They are known and stay the same.
    Fixed,
    /// What this command of a shell prints.
    Script {
        /// The command.
        command: String,
        /// How many slots a host has that is printed without a number.
        slots_per_host: usize,
    },
    /// What this file says.
    File(PathBuf),
    /// The nodes of the allocation in which the launcher runs.
    Slurm {
        /// As Slurm writes it: `gpu[1-4]`.
        nodes: String,
        /// How many slots each has.
        slots_per_host: usize,
    },
}

/// What a look has found, or why it has found nothing.
pub(in crate::launch) type Found = Result<Vec<HostSlots>, String>;

impl HostSource {
    /// The hosts by now.
    ///
    /// # Errors
    /// Why they are not known, in words for the user.
    pub fn look(&self) -> Found {
        self.look_while(&mut || true)
    }

    fn look_while(&self, goes_on: &mut dyn FnMut() -> bool) -> Found {
        let found = match self {
            HostSource::Fixed => Vec::new(),
            HostSource::Script { command, slots_per_host } => {
                let what = format!("--host-discovery-script {command}");
                let text = answer(&what, Command::new("sh").args(["-c", command]), goes_on)?;
                read_script(&text, *slots_per_host).map_err(|problem| format!("{what}: {problem}"))?
            }
            HostSource::File(path) => hostfile::read(path).map_err(|error| error.to_string())?,
            HostSource::Slurm { nodes, slots_per_host } => look_at_slurm(nodes, *slots_per_host, goes_on)?,
        };
        Ok(together(found))
    }

    fn every(&self) -> Duration {
        match self {
            HostSource::Slurm { .. } => SLURM_EVERY,
            _ => EVERY,
        }
    }
}

/// Looks repeatedly. Dropping it ends that, and a script that is running.
#[derive(Debug)]
pub(in crate::launch) struct Discovery {
    /// What has changed.
    pub(in crate::launch) news: Mailbox<Found>,
    /// Set by the launcher's thread when it drops this; read by the one that looks.
    over: Arc<AtomicBool>,
    /// Dropped by the launcher's thread, which wakes the one that looks from its pause.
    pause: Option<mpsc::Sender<()>>,
    /// Disconnected when the thread has ended.
    ended: mpsc::Receiver<()>,
}

impl Discovery {
    /// Begins to look, at a source that has last said this. `None` if it always says the same.
    pub(in crate::launch) fn start(source: HostSource, last: Vec<HostSlots>) -> std::io::Result<Option<Discovery>> {
        if source == HostSource::Fixed {
            return Ok(None);
        }
        let (news, over) = (Mailbox::new()?, Arc::new(AtomicBool::new(false)));
        let (post, is_over) = (news.clone(), Arc::clone(&over));
        let ((pause, woken), (end, ended)) = (mpsc::channel(), mpsc::channel());
        let mut last: Found = Ok(last);
        let look = move || {
            let _end: mpsc::Sender<()> = end;
            while woken.recv_timeout(source.every()) == Err(RecvTimeoutError::Timeout) {
                let found = source.look_while(&mut || !is_over.load(Ordering::Relaxed));
                if found != last && !is_over.load(Ordering::Relaxed) {
                    post.post(found.clone());
                    last = found;
                }
            }
        };
        std::thread::Builder::new().name("discovery".into()).spawn(look)?;
        Ok(Some(Discovery { news, over, pause: Some(pause), ended }))
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.pause = None;
        let _ = self.ended.recv_timeout(LEAVE_WITHIN);
    }
}

/// What a program prints, if it exits with 0.
fn answer(what: &str, command: &mut Command, goes_on: &mut dyn FnMut() -> bool) -> Result<String, String> {
    let said = ask_while(command, "", PATIENCE, goes_on).map_err(|error| format!("{what}: {error}"))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    Err(format!("{what} failed ({}){}", said.status, last_words(&said.stderr)))
}

fn read_script(text: &str, slots_per_host: usize) -> Result<Vec<HostSlots>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let read = |line| {
        let (name, slots) = hosts::split_slots(line)?;
        Ok(HostSlots { name, slots: slots.unwrap_or(slots_per_host) })
    };
    let found = lines.map(read).collect::<Result<Vec<HostSlots>, String>>()?;
    if found.is_empty() {
        Err("it names no host; expected 'host' or 'host:2' on each line".to_owned())
    } else {
        Ok(found)
    }
}

fn look_at_slurm(nodes: &str, slots_per_host: usize, goes_on: &mut dyn FnMut() -> bool) -> Found {
    let names =
        answer("scontrol show hostnames", Command::new("scontrol").args(["show", "hostnames", nodes]), goes_on)?;
    let mut show_node = Command::new("scontrol");
    let states = answer("scontrol show node", show_node.args(["--oneliner", "show", "node", nodes]), goes_on)?;
    let down: Vec<&str> = states.lines().filter_map(name_if_down).collect();
    let up = names.lines().map(str::trim).filter(|name| !name.is_empty() && !down.contains(name));
    let found: Vec<HostSlots> = up.map(|name| HostSlots { name: name.to_owned(), slots: slots_per_host }).collect();
    if found.is_empty() { Err(format!("no node of {nodes} is up, says scontrol")) } else { Ok(found) }
}

/// The name of a node that cannot be used, from a line of `scontrol --oneliner show node`. A state has parts, such as
/// `DOWN*+DRAIN`; an asterisk means that the node does not answer.
fn name_if_down(line: &str) -> Option<&str> {
    let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
    let state = field("State=")?;
    let is_down = ["DOWN", "FAIL", "NOT_RESPONDING", "*"].iter().any(|word| state.contains(word));
    field("NodeName=").filter(|_| is_down)
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn slots(list: &[(&str, usize)]) -> Vec<HostSlots> {
        list.iter().map(|(name, slots)| HostSlots { name: (*name).to_owned(), slots: *slots }).collect()
    }

    fn script(command: &str) -> Found {
        HostSource::Script { command: command.to_owned(), slots_per_host: 3 }.look()
    }

    #[test]
    fn a_script_names_hosts_with_and_without_slots() {
        assert_eq!(script("echo a:2; echo; echo ' b '; echo a"), Ok(slots(&[("a", 5), ("b", 3)])));
    }

    #[test]
    fn a_script_that_fails_is_named_with_its_words() {
        for (command, words) in [
            ("echo oh no >&2; exit 3", "failed (exit status: 3): oh no"),
            ("exit 0", "it names no host"),
            ("echo a:none", "'none' is no number of slots"),
            ("/no/such/script", "failed (exit status: 127)"),
        ] {
            let error = script(command).unwrap_err();
            assert!(error.starts_with("--host-discovery-script ") && error.contains(words), "{command}: {error}");
        }
    }

    #[test]
    fn a_script_may_name_more_hosts_than_a_pipe_holds() {
        let hosts = script("seq -f 'host-%06g:1' 10000").unwrap();
        assert_eq!((hosts.len(), hosts[9_999].name.as_str()), (10_000, "host-010000"));
    }

    /// Looks with a script of this shell command, whose `$PIPE` is a named pipe. Returns when the script reads it, with
    /// the other end of the pipe.
    fn looking_with(command: &str) -> (farandole_testing::Folder, Discovery, std::fs::File) {
        let folder = farandole_testing::Folder::new();
        let pipe = folder.join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let command = command.replace("$PIPE", &pipe.display().to_string());
        let source = HostSource::Script { command, slots_per_host: 1 };
        let discovery = Discovery::start(source, Vec::new()).unwrap().unwrap();
        // Opening returns when the script has opened the other end.
        let writer = std::fs::File::options().write(true).open(&pipe).unwrap();
        (folder, discovery, writer)
    }

    /// Whether a pipe has lost its last reader within this time. A write would end a `cat` whose output is closed.
    fn is_abandoned(writer: &std::fs::File, patience: Duration) -> bool {
        let mut polled = [PollFd::new(writer, PollFlags::empty())];
        let patience = Timespec::try_from(patience).unwrap();
        poll(&mut polled, Some(&patience)).unwrap() == 1 && polled[0].revents().contains(PollFlags::ERR)
    }

    #[test]
    fn the_end_of_a_job_ends_a_script_that_runs_and_its_children() {
        let (_folder, discovery, writer) = looking_with("cat $PIPE; true");
        drop(discovery);
        // Less than `PATIENCE`, after which the script would be ended anyway.
        assert!(is_abandoned(&writer, PATIENCE / 2), "the script still reads");
    }

    /// The launcher exits after this, and would leave the script behind.
    #[test]
    fn the_end_of_a_job_waits_until_a_script_has_ended() {
        let (_folder, discovery, writer) = looking_with("exec cat $PIPE");
        drop(discovery);
        // A machine without a free core may not end it while the launcher waits.
        let is_left = || !is_abandoned(&writer, Duration::ZERO);
        if is_left() {
            farandole_testing::wait_until("the end of the script", farandole_testing::NEVER, || !is_left());
        }
    }

    #[test]
    fn nodes_that_slurm_calls_down_are_left_out() {
        for (state, is_down) in [
            ("ALLOCATED", false),
            ("MIXED+DRAIN", false),
            ("DOWN", true),
            ("DOWN*+DRAIN", true),
            ("ALLOCATED*", true),
            ("FAILING", true),
            ("IDLE+NOT_RESPONDING", true),
        ] {
            let line = format!("NodeName=gpu1 Arch=x86_64 State={state} Weight=1");
            assert_eq!(name_if_down(&line).is_some(), is_down, "{state}");
        }
        assert_eq!(name_if_down("Node gpu9 not found"), None);
    }

    #[test]
    fn what_changes_is_posted_once() {
        let folder = farandole_testing::Folder::new();
        let file = folder.join("hosts");
        std::fs::write(&file, "a slots=1\n").unwrap();
        let source = HostSource::File(file.clone());
        let discovery = Discovery::start(source.clone(), source.look().unwrap()).unwrap().unwrap();
        std::fs::write(&file, "a slots=1\nb slots=2\n").unwrap();
        let wait = || {
            farandole_testing::wait_for("the change to be seen", Duration::from_secs(20), || {
                let news = discovery.news.take();
                (!news.is_empty()).then_some(news)
            })
        };
        assert_eq!(wait(), [Ok(slots(&[("a", 1), ("b", 2)]))]);
        std::fs::remove_file(&file).unwrap();
        let news = wait();
        assert!(matches!(&news[..], [Err(why)] if why.contains("reading the host file")), "{news:?}");
    }
}
