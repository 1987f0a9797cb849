//! Starts the ranks of a job as children of this process, and keeps them together.
//!
//! All ranks live and die as one: when one ends badly the others are killed at once, and the error names the first.
//! A parent that dies without a word takes its children with it, because every rank asks the kernel for that when it
//! initialises ([`die_with_parent`]). Other hosts, restarts and output handling belong to the launcher proper.

use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use farandole_plan::Rank;
use farandole_transport::Key;

use crate::environment;
use crate::error::{Error, Result};
use crate::rendezvous::{Address, Server};

/// How often a waiting parent looks after its children. A failure is noticed, and the others are ended, within this
/// time.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The variable that tells a rank whom it must not outlive.
const PARENT: &str = "FARANDOLE_PARENT";

/// Ranks that this process has started, with the rendezvous at which they meet. Dropping it ends them.
#[derive(Debug)]
pub struct Job {
    children: Vec<Option<Child>>,
    server: Server,
}

impl Job {
    /// Starts `ranks` copies of a command on this host. `command(rank)` makes each; the variables of
    /// [`crate::environment`] are added. The key goes into the children's environment, which only this user can read.
    pub fn spawn(ranks: usize, command: impl FnMut(Rank) -> Command) -> Result<Job> {
        let key = new_key()?;
        let name =
            format!("farandole-{}-{}", std::process::id(), &blake3::hash(key.to_hex().as_bytes()).to_hex()[..12]);
        Job::spawn_with(&Address::UnixAbstract(name), &key, ranks, command)
    }

    /// The same with ranks that meet at `meeting`, for commands that go where this host's abstract sockets are not
    /// seen: into other network namespaces. A socket with a name in the file system is left there for the caller to
    /// remove.
    pub fn spawn_at(meeting: &Address, ranks: usize, command: impl FnMut(Rank) -> Command) -> Result<Job> {
        Job::spawn_with(meeting, &new_key()?, ranks, command)
    }

    fn spawn_with(meeting: &Address, key: &Key, ranks: usize, mut command: impl FnMut(Rank) -> Command) -> Result<Job> {
        let server = Server::serve(meeting, ranks, key)?;
        let mut job = Job { children: Vec::with_capacity(ranks), server };
        for rank in (0..ranks).map(Rank::from) {
            let mut command = command(rank);
            command
                .env(environment::RANK, rank.to_string())
                .env(environment::SIZE, ranks.to_string())
                .env(environment::RENDEZVOUS, job.server.address().to_string())
                .env(environment::KEY, key.to_hex())
                .env(PARENT, std::process::id().to_string());
            let child = command
                .spawn()
                .map_err(|error| Error::local(format!("starting {}", command.get_program().display()), error))?;
            job.children.push(Some(child));
        }
        Ok(job)
    }

    /// Waits until all ranks have ended well, or ends them all when one has not.
    pub fn wait(mut self) -> Result<()> {
        while self.look()? > 0 {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Looks after the children without waiting; says how many are still at work. Fails, and ends all, if one has
    /// failed.
    pub fn look(&mut self) -> Result<usize> {
        let mut failed: Option<(Rank, ExitStatus)> = None;
        for (index, slot) in self.children.iter_mut().enumerate() {
            let Some(child) = slot else { continue };
            let ended = child.try_wait().map_err(|error| Error::local(format!("looking after rank {index}"), error))?;
            if let Some(status) = ended {
                *slot = None;
                if !status.success() && failed.is_none() {
                    failed = Some((Rank::from(index), status));
                }
            }
        }
        if let Some((rank, status)) = failed {
            self.kill_all();
            return Err(Error::RankFailed { rank, status });
        }
        Ok(self.children.iter().flatten().count())
    }

    fn kill_all(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
        }
        for child in self.children.iter_mut().filter_map(Option::take) {
            let mut child = child;
            let _ = child.wait();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn new_key() -> Result<Key> {
    Key::random().map_err(|error| Error::local("making a job key", std::io::Error::other(error)))
}

/// Makes this process, if it was started by [`Job::spawn`], end when its parent does. A rank calls it once, when it
/// initialises. The kernel counts the parent's *thread* that started the rank as the parent, so [`Job::spawn`] belongs
/// on a thread that lives as long as the job.
pub fn die_with_parent() -> Result<()> {
    let Ok(text) = std::env::var(PARENT) else { return Ok(()) };
    let ended = |parent: &str| Error::Environment { variable: PARENT, problem: format!("process {parent} has ended") };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| Error::local("asking to end with the parent", error))?;
    // A parent that died before we asked has left us to the first process of the system.
    let orphaned = rustix::process::getppid().is_none_or(|parent| parent.is_init());
    if orphaned && text != "1" { Err(ended(&text)) } else { Ok(()) }
}
