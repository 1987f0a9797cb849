//! Starts the ranks of a host: their rendezvous, the key's descriptor, the MPS daemon, and each rank's variables.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use farandole_plan::Rank;
use farandole_transport::{Key, ProcessId, descriptors};

use super::gpu_plan::GpuPlan;
use super::mps::MpsDaemon;
use super::task::{RESULT_FD, TASK_FD, inherited_file, keep_from_others};
use super::{Agent, News, Presence, alias, elastic, gpu_plan, mps, torch_variables};
use crate::environment as variable;
use crate::error::{Error, Result};
use crate::launch::ask::LOOK_EVERY;
use crate::launch::exec_shim;
use crate::launch::gpus::VisibleGpus;
use crate::launch::message::{AgentReport, RankSlot, StartRanks};
use crate::launch::mps_control::MpsControl;
use crate::rendezvous::{Address, Server};

/// Descriptors of an agent for each of its ranks: two outputs, a result, and the connection to the rendezvous.
const AGENT_DESCRIPTORS: u64 = 4;

/// What the ranks of a host share.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    rendezvous: Address,
    /// Where they find Farandole under the name `horovod`, if they are to.
    python_path: Option<OsString>,
    gpu_plan: GpuPlan,
}

/// What a rank must not inherit from whoever started the launcher: a member of an elastic job may start another job.
const UNSET: &[&str] = &[
    farandole_settings::ELASTIC.name,
    variable::ELASTIC_MEMBER,
    variable::ELASTIC_MIN_NP,
    variable::ELASTIC_MAX_NP,
    variable::VOTES_FD,
    variable::RESTART,
];

impl Agent {
    /// Starts the ranks of this host. What cannot be done is reported; the launcher decides what follows.
    pub(super) fn start(&mut self, start: &StartRanks, task: Option<&File>) {
        // Before the first child: an agent without ranks is empty only when it has been told to end.
        self.presence = Presence::Inhabited;
        if let Err(error) = self.start_all(start, task) {
            self.tell(&AgentReport::NotStarted { rank: None, why: error.to_string() });
        }
    }

    fn start_all(&mut self, start: &StartRanks, task: Option<&File>) -> Result<()> {
        let working_dir = Path::new(OsStr::from_bytes(&start.working_dir));
        if !working_dir.is_dir() {
            let why = format!("there is no directory {} here", working_dir.display());
            return Err(Error::Refused { why });
        }
        // Ranks get the limit that the user has given; they raise it themselves where they need to.
        let open_files = descriptors::soft_limit();
        let ranks = start.ranks.len();
        descriptors::make_room(AGENT_DESCRIPTORS * ranks as u64, || format!("looking after {ranks} ranks"))
            .map_err(|error| Error::Refused { why: error.to_string() })?;
        let shim = std::env::current_exe().map_err(|error| Error::local("finding this program's file", error))?;
        let key = key_file(&self.key)?;
        let Prepared { rendezvous, python_path, gpu_plan } = self.prepare(start, working_dir, &shim)?;
        for slot in &start.ranks {
            let mut command = Command::new(&shim);
            command.arg("rank").arg("--").args(start.command.iter().map(|word| OsStr::from_bytes(word)));
            command.current_dir(working_dir);
            for name in UNSET.iter().chain(torch_variables::OF_TORCHRUN) {
                command.env_remove(name);
            }
            command.envs(start.environment()).envs(variables_of(slot, start, &rendezvous));
            command.envs(torch_variables::variables_of(slot, start, self.host));
            command.envs(elastic::variables_of(slot, start));
            command.env_remove(gpu_plan::RANKS_PER_GPU).envs(gpu_plan.variables_of(slot, start));
            command.envs(self.children.mps.iter().flat_map(MpsDaemon::variables));
            command.env(variable::KEY_FD, key.as_raw_fd().to_string()).env_remove(variable::KEY);
            command.env(exec_shim::AGENT, std::process::id().to_string());
            command.envs(open_files.map(|limit| (exec_shim::OPEN_FILES, limit.to_string())));
            command.envs(python_path.as_ref().map(|path| ("PYTHONPATH", path)));
            let votes = start.elastic.and_then(|_| elastic::vote_file(*slot, &mut command));
            let report = match self.start_one(*slot, command, task) {
                Ok(pid) => AgentReport::Started { rank: slot.rank, process: ProcessId::of(pid) },
                Err(error) => AgentReport::NotStarted { rank: Some(slot.rank), why: error.to_string() },
            };
            if let Some(votes) = votes {
                self.children.keep_votes(slot.rank, votes);
            }
            self.tell(&report);
        }
        Ok(())
    }

    /// What all ranks of this host need, made once: those that are started later find it done.
    fn prepare(&mut self, start: &StartRanks, working_dir: &Path, shim: &Path) -> Result<Prepared> {
        if let Some(prepared) = self.prepared.clone().filter(|_| start.elastic.is_some()) {
            return Ok(prepared);
        }
        let rendezvous = self.open_rendezvous(start)?;
        let python_path = match start.horovod {
            true => Some(alias::python_path(start, working_dir, &mut || self.look_alive())?),
            false => None,
        };
        let gpu_plan = self.plan_gpus(start)?;
        self.start_mps(start, shim)?;
        let prepared = Prepared { rendezvous, python_path, gpu_plan };
        self.prepared = Some(prepared.clone());
        Ok(prepared)
    }

    /// A program that is waited for must not make this agent look dead.
    fn look_alive(&mut self) {
        let now = self.clock.look(Instant::now(), LOOK_EVERY);
        self.beat(now);
        self.flush();
    }

    fn plan_gpus(&mut self, start: &StartRanks) -> Result<GpuPlan> {
        let gpus = VisibleGpus::of_this_host(|name| start.variable(name), &mut || self.look_alive());
        GpuPlan::new(start, &gpus)
    }

    /// Starts the job's MPS daemon on this host, if it is to have one.
    fn start_mps(&mut self, start: &StartRanks, shim: &Path) -> Result<()> {
        if !start.mps {
            return Ok(());
        }
        let control = start.variable("PATH").and_then(|path| MpsControl::find(&path));
        let running = |control: MpsControl| control.running(|name| start.variable(name), &mut || self.look_alive());
        if let Some(pipes) = control.and_then(running) {
            self.tell(&AgentReport::Note(mps::note_about(&pipes)));
        }
        let daemon = MpsDaemon::start(start, shim, &mut || self.look_alive())?;
        self.children.mps = Some(daemon);
        Ok(())
    }

    /// Starts one rank, with descriptors for its task and its result if it has one.
    fn start_one(&mut self, slot: RankSlot, mut command: Command, task: Option<&File>) -> std::io::Result<u32> {
        let Some(task) = task else {
            command.env_remove(TASK_FD).env_remove(RESULT_FD);
            return self.children.start(slot, command, None);
        };
        let result = inherited_file("farandole-result")?;
        command.env(TASK_FD, task.as_raw_fd().to_string()).env(RESULT_FD, result.as_raw_fd().to_string());
        let kept = result.try_clone()?;
        let started = self.children.start(slot, command, Some(kept));
        keep_from_others(&result)?;
        started
    }

    /// Opens the rendezvous of this host's ranks: an abstract socket, which leaves no file behind, or the given one.
    fn open_rendezvous(&mut self, start: &StartRanks) -> Result<Address> {
        let local: Vec<Rank> = start.ranks.iter().map(|slot| Rank(slot.rank)).collect();
        let digest = blake3::hash(self.key.to_hex().as_bytes()).to_hex();
        let name = format!("farandole-{}-{}", std::process::id(), &digest[..12]);
        let at = match &start.rendezvous_socket {
            Some(path) => Address::UnixPath(String::from_utf8_lossy(path).into_owned()),
            None => Address::UnixAbstract(name),
        };
        let mailbox = self.mailbox.clone();
        let post = Box::new(move |event| mailbox.post(News::Rendezvous(event)));
        let server = match start.elastic {
            None => Server::serve_part(&at, start.size, &local, &self.key, post)?,
            Some(_) => Server::serve_elastic(&at, &self.key, post)?,
        };
        let address = server.address().clone();
        self.server = Some(server);
        Ok(address)
    }
}

/// A file in memory that holds the key, which children inherit: it has no name, and only this user's processes can read
/// it.
fn key_file(key: &Key) -> Result<File> {
    let make = || -> std::io::Result<File> {
        let mut file = inherited_file("farandole-key")?;
        writeln!(file, "{}", key.to_hex())?;
        Ok(file)
    };
    make().map_err(|error| Error::local("making a file for the job's key", error))
}

/// What a rank finds in its environment, under our names and under Horovod's, which scripts read.
fn variables_of(slot: &RankSlot, start: &StartRanks, rendezvous: &Address) -> Vec<(OsString, OsString)> {
    let mut variables: Vec<(OsString, OsString)> = Vec::new();
    let mut set = |name: &str, value: String| variables.push((name.into(), OsString::from_vec(value.into_bytes())));
    for (name, value) in [
        ("RANK", slot.rank as usize),
        // A process that joins an elastic job has a number beyond the first ones.
        ("SIZE", start.size.max(slot.rank as usize + 1)),
        ("LOCAL_RANK", slot.local_rank as usize),
        ("LOCAL_SIZE", slot.local_size as usize),
        ("CROSS_RANK", slot.cross_rank as usize),
        ("CROSS_SIZE", slot.cross_size as usize),
    ] {
        set(&format!("FARANDOLE_{name}"), value.to_string());
        set(&format!("HOROVOD_{name}"), value.to_string());
    }
    set(variable::RENDEZVOUS, rendezvous.to_string());
    set(farandole_settings::HEARTBEAT_TIMEOUT.name, format!("{}", start.silence_ms as f64 / 1000.0));
    if !start.addresses.is_empty() {
        let addresses: Vec<String> = start.addresses.iter().map(ToString::to_string).collect();
        set(farandole_settings::ADDRESS.name, addresses.join(","));
    }
    // Lines of a Python program come out when they are written, not when a buffer is full.
    set("PYTHONUNBUFFERED", "1".to_owned());
    variables
}
